"""Ranks that torchrun starts on two nodes: a network namespace each, and nothing set up before."""

import os
import shutil
import subprocess
import sys

import pytest

from tests.launchers.launchers import TORCHRUN, LaunchHome
from tests.launchers.one_node_test import assert_right

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(
        os.geteuid() != 0 or not shutil.which("ip"), reason="needs root and iproute2"
    ),
]
PORT = 29533
STATIC = ["--master-addr", "10.77.0.1", "--master-port", PORT]
# Both namespaces have one host name: torchrun can't tell by it who is to serve the store.
DYNAMIC = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"10.77.0.1:{PORT}", "--rdzv-id", "two"]
DYNAMIC += ["--rdzv-conf", "is_host={is_host}"]


class Nodes(LaunchHome):
    """Two of them, at 10.77.0.1 and .2."""

    def __init__(self, path):
        super().__init__(path)
        self.names = [f"ringd-launch-{os.getpid()}-{node}" for node in range(2)]
        for name in self.names:
            self.ip("netns", "add", name)
        peer = ["peer", "name", "v", "netns", self.names[1]]
        self.ip("link", "add", "v", "netns", self.names[0], "type", "veth", *peer)
        for node, name in enumerate(self.names):
            self.ip("-n", name, "address", "add", f"10.77.0.{node + 1}/24", "dev", "v")
            self.ip("-n", name, "link", "set", "v", "up")
            self.ip("-n", name, "link", "set", "lo", "up")

    @staticmethod
    def ip(*words):
        subprocess.run(["ip", *words], check=True, capture_output=True)

    def torchrun(self, text, rendezvous=STATIC, ranks=(2, 2), outlive=False):
        """The output of both nodes."""
        script = self.path / "program.py"
        script.write_text(text)
        program = ["--no-python", sys.executable, script]
        if outlive:
            program = ["--no-python", "sh", "-c", f"{sys.executable} {script} || true"]
        jobs = []
        for node, name in enumerate(self.names):
            command = ["nsenter", f"--net=/run/netns/{name}", TORCHRUN, "--nnodes", 2]
            command += ["--nproc-per-node", ranks[node], "--node-rank", node]
            where = [str(word).format(is_host=1 - node) for word in rendezvous]
            command += ["--local-addr", f"10.77.0.{node + 1}", *where, *program]
            jobs.append(
                subprocess.Popen(
                    list(map(str, command)),
                    env=self.env,
                    cwd=self.path,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
        return [job.communicate(timeout=120)[0] for job in jobs]

    def close(self):
        self.kill_all()
        for name in self.names:
            self.ip("netns", "delete", name)


@pytest.fixture
def nodes(tmp_path):
    nodes = Nodes(tmp_path)
    yield nodes
    nodes.close()


SUM = """
import os, numpy as np, ringd
ringd.init()
size = ringd.size()
for count in (3, 300_000):
    total = ringd.allreduce(np.arange(float(count)) + ringd.rank(), op=ringd.Sum)
    wanted = size * np.arange(float(count)) + size * (size - 1) / 2
    assert np.array_equal(total, wanted), total
assert (ringd.cross_rank(), ringd.cross_size()) == (int(os.environ["GROUP_RANK"]), 2)
print(f"rank {ringd.rank()} of {size} is right\\n", end="")
"""


@pytest.mark.parametrize("rendezvous", [STATIC, DYNAMIC], ids=["static", "c10d"])
def test_init_connects_the_nodes_and_leaves_nothing(nodes, rendezvous):
    assert_right("".join(nodes.torchrun(SUM, rendezvous)), 4)
    nodes.assert_clean()


def test_nodes_may_have_different_numbers_of_ranks(nodes):
    assert_right("".join(nodes.torchrun(SUM, ranks=(1, 2))), 3)


def test_init_process_group_over_two_nodes(nodes):
    script = """
import torch, torch.distributed as dist
dist.init_process_group("ringd")
tensor = torch.arange(4.0) * dist.get_rank()
dist.all_reduce(tensor)
size = dist.get_world_size()
assert tensor.tolist() == [i * size * (size - 1) / 2 for i in range(4)]
print(f"rank {dist.get_rank()} of {size} is right\\n", end="")
dist.destroy_process_group()
"""
    assert_right("".join(nodes.torchrun(script)), 4)


def test_rank_that_dies_is_named_on_both_nodes_and_nothing_stays(nodes):
    script = """
import os, numpy as np, ringd
ringd.init()
ringd.barrier()
if ringd.rank() == 3:
    os.kill(os.getpid(), 9)
try:
    while True:
        ringd.allreduce(np.ones(4))
except ringd.PeerFailedError as error:
    print(f"told: {error.rank} {error.signal} {error.node}\\n", end="")
"""
    outputs = nodes.torchrun(script, outlive=True)
    assert outputs[0].count("told: 3 9 node-1") == 2, outputs
    assert outputs[1].count("told: 3 9 node-1") == 1, outputs
    nodes.assert_clean()


def test_node_whose_ranks_do_not_call_init_is_waited_for_and_named(nodes):
    script = """
import os, time, ringd
if os.environ["GROUP_RANK"] == "1":
    time.sleep(6)
elif os.environ["RANK"] == "0":
    try:
        ringd.init(timeout=2)
    except ringd.RingdError as error:
        print(f"told: {error}\\n", end="")
"""
    outputs = nodes.torchrun(script)
    assert "told: the node of rank 2 has not come" in outputs[0], outputs
    nodes.assert_clean()
