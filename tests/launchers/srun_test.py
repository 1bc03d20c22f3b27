"""Ranks that srun starts: a real Slurm of two nodes on this machine."""

import os
import re
import shutil
import socket
import subprocess
import sys

import pytest

from tests.launchers.launchers import LaunchHome, failing_init
from tests.launchers.one_node_test import FAILING, SUM, assert_right
from tests.support.jobs import LocalCluster, wait_until

SLURM = [shutil.which(name, path="/usr/sbin:/usr/bin") for name in ("slurmctld", "slurmd", "srun")]
pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(os.geteuid() != 0 or not all(SLURM), reason="needs root and Slurm"),
]

CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/none
CredType=cred/none
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/linear
SlurmdParameters=config_overrides
NodeName={host} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4
NodeName={host}-b NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in sockets]
    for listener in sockets:
        listener.close()
    return ports


class Slurm:
    def __init__(self, folder):
        (folder / "state").mkdir(parents=True)
        self.conf = folder / "slurm.conf"
        host = socket.gethostname().split(".")[0]
        self.conf.write_text(CONF.format(host=host, folder=folder, ports=free_ports(3)))
        controller, node, _ = SLURM
        commands = [
            [controller, "-D", "-i"],
            [node, "-D", "-N", host],
            [node, "-D", "-N", f"{host}-b"],
        ]
        self.servers = [
            subprocess.Popen(
                [*command, "-f", self.conf],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for command in commands
        ]
        wait_until(self.is_up, 20, "both nodes of Slurm are idle")

    def is_up(self):
        env = {**os.environ, "SLURM_CONF": str(self.conf)}
        command = ["sinfo", "--noheader", "--format=%t %D"]
        result = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        return result.stdout.split() == ["idle", "2"]

    def stop(self):
        for server in reversed(self.servers):
            server.terminate()
        for server in self.servers:
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:  # A step of a test that has failed.
                server.kill()
                server.wait()


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    slurm = Slurm(tmp_path_factory.mktemp("slurm") / "s")
    yield slurm
    slurm.stop()


@pytest.fixture
def home(tmp_path, slurm):
    home = LaunchHome(tmp_path)
    home.env["SLURM_CONF"] = str(slurm.conf)
    yield home
    home.kill_all()


def srun(home, text, *options, **expected):
    script = home.path / "program.py"
    script.write_text(text)
    return home.run(SLURM[2], *options, sys.executable, script, **expected)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_init_finds_sruns_ranks_and_leaves_nothing(home, ranks):
    assert_right(srun(home, SUM, "--nodes", 1, "--ntasks", ranks), ranks)
    home.assert_clean()


def test_rank_that_dies_is_named_by_the_others_and_nothing_stays(home):
    script = FAILING.replace("WHAT_HAPPENS", "os.kill(os.getpid(), 9)")
    options = ["--nodes", 1, "--ntasks", 3, "--kill-on-bad-exit=0"]
    output = srun(home, script, *options, expect=1)
    assert len(re.findall("told: 1 -1 9 rank 1 .*SIGKILL", output)) == 2, output
    home.assert_clean()


def test_two_steps_of_one_job_are_kept_apart(home):
    script = home.path / "program.py"
    script.write_text(SUM)
    step = f"{SLURM[2]} --overlap --ntasks 2 {sys.executable} {script}"
    output = home.run("salloc", "--nodes", 1, "sh", "-c", f"{step} & {step}; wait")
    assert sorted(re.findall(r"rank \d of 2 is right", output)) == [
        f"rank {rank} of 2 is right" for rank in (0, 0, 1, 1)
    ], output


# A machine has one daemon; here it is one for each of Slurm's nodes.
ON_THE_CLUSTER = """
import os
node = "b" if os.environ["SLURMD_NODENAME"].endswith("-b") else "a"
os.environ["RINGD_DAEMON_SOCKET"] = f"{dir}/{{node}}/r/ringd.sock"
"""
TWO_NODES = ["--nodes", 2, "--ntasks", 4]


@pytest.fixture(params=["meeting at Slurm's first node", "scheduler"])
def prelude(home, request):
    """What the ranks of two nodes run first: without anything set up, and on a cluster."""
    if request.param != "scheduler":
        yield ""
        return
    cluster = LocalCluster(home)
    home.expected = set(home.processes())
    yield ON_THE_CLUSTER.format(dir=cluster.dir)
    cluster.down()


def test_two_nodes_are_one_job_and_a_second_one_follows(home, prelude):
    script = SUM.replace("(0, 1)", "(ringd.rank() // 2, 2)")
    script = script.replace("(ringd.rank(), size)", "(ringd.rank() % 2, 2)")
    for _ in range(2):
        assert_right(srun(home, prelude + script, *TWO_NODES), 4)
        home.assert_clean()


def test_rank_that_dies_is_named_on_both_nodes(home, prelude):
    script = prelude + FAILING.replace("WHAT_HAPPENS", "os.kill(os.getpid(), 9)")
    output = srun(home, script, *TWO_NODES, "--kill-on-bad-exit=0", expect=1)
    assert len(re.findall("told: 1 -1 9 rank 1 .*SIGKILL", output)) == 3, output
    home.assert_clean()


def test_srun_that_is_ended_leaves_nothing(home, prelude):
    script = home.path / "program.py"
    script.write_text(
        prelude + "import time, ringd\nringd.init()\nringd.barrier()\n"
        "print('all here', flush=True)\ntime.sleep(60)"
    )
    command = [SLURM[2], *map(str, TWO_NODES), sys.executable, script]
    job = subprocess.Popen(command, env=home.env, cwd=home.path, stdout=subprocess.PIPE)
    assert b"all here" in job.stdout.readline()
    job.terminate()
    job.communicate(timeout=30)
    home.assert_clean(seconds=20)


def test_node_whose_ranks_do_not_come_is_named(home, prelude):
    script = failing_init(2, late='os.environ["SLURM_NODEID"] == "1"')
    output = srun(home, prelude + script, *TWO_NODES)
    alone = "the node of rank 2 has not come"
    on_cluster = "only ranks 0 to 1 on node a have come, ranks 2 to 3 of 4 are missing"
    assert output.count(on_cluster if prelude else alone) == 2, output
    home.assert_clean(seconds=20)


def test_srun_inside_a_rank_of_torchrun_wins_and_so_does_torchrun_inside_srun(home):
    pytest.importorskip("torch")
    script = home.path / "program.py"
    script.write_text(SUM)
    inner = [SLURM[2], "--nodes", 1, "--ntasks", 3, sys.executable, script]
    assert_right(home.run(*home.command("torchrun", 1, *inner)), 3)
    outer = [SLURM[2], "--nodes", 1, "--ntasks", 1]
    assert_right(home.run(*outer, *home.command("torchrun", 2, sys.executable, script)), 2)
    home.assert_clean()
