"""Ranks of mpirun and srun on two nodes that run ringd: their job is the cluster's."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest

from tests.launchers.launchers import LaunchHome, failing_init
from tests.launchers.one_node_test import FAILING, assert_right
from tests.support.jobs import LocalCluster, wait_until

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(
        os.geteuid() != 0 or not shutil.which("ip"), reason="needs root and iproute2"
    ),
]
UNFINISHED = ("running", "finishing")
MPI = {
    "mpirun": "mpirun.openmpi --allow-run-as-root --mca plm_rsh_agent {agent} --host {hosts}",
    "mpich": "mpiexec.hydra -launcher rsh -launcher-exec {agent} -localhost {here} -hosts {hosts}",
}
# In place of ssh: a host's name and network are a node's, and so is its daemon.
AGENT = """#!/bin/sh
case "$1" in
{cases}
esac
shift
exec nsenter --net=/run/netns/$netns unshare --uts sh -c "hostname host-$node; $*"
"""
CASE = (
    "{address}) node={name} netns={netns}; export RINGD_DAEMON_SOCKET={run_directory}/ringd.sock;;"
)


class Hosts(LaunchHome):
    """Nodes a and b of a local cluster of ringd, as mpirun sees them."""

    def __init__(self, path):
        super().__init__(path)
        self.cluster = LocalCluster(self, options=["--netns"])
        network = json.loads((self.cluster.dir / "cluster.json").read_text())
        nodes, self.here = network["nodes"], network["bridge_address"]
        self.hosts = ",".join(f"{node['address']}:2" for node in nodes)
        self.agent = path / "agent"
        self.agent.write_text(AGENT.format(cases="\n".join(CASE.format(**n) for n in nodes)))
        self.agent.chmod(0o755)
        self.expected = set(self.processes())

    def mpi(self, launcher, ranks, *command):
        words = MPI[launcher].format(**vars(self)).split()
        if not shutil.which(words[0]):
            pytest.skip(f"no {words[0]} here")
        return [*words, "-n", str(ranks), *map(str, command)]

    def launch(self, launcher, text, ranks=4, outlive=False, **options):
        script = self.path / "program.py"
        script.write_text(text)
        command = [sys.executable, script]
        if outlive:
            command = ["sh", "-c", f"{sys.executable} {script}; true"]
        return self.run(*self.mpi(launcher, ranks, *command), **options)

    def jobs(self):
        return json.loads(self.ringctl("list", "--all", "--output", "json").stdout)


@pytest.fixture
def hosts(tmp_path):
    hosts = Hosts(tmp_path)
    yield hosts
    hosts.cluster.down()
    hosts.kill_all()


every_mpi = pytest.mark.parametrize("launcher", MPI)

SUM = """
import numpy as np, ringd
ringd.init(timeout=60)
size = ringd.size()
for count in (3, 300_000):
    total = ringd.allreduce(np.arange(float(count)) + ringd.rank(), op=ringd.Sum)
    wanted = size * np.arange(float(count)) + size * (size - 1) / 2
    assert np.array_equal(total, wanted), total
assert (ringd.cross_rank(), ringd.cross_size()) == (ringd.rank() // 2, 2)
print(f"rank {ringd.rank()} of {size} is right\\n", end="")
"""


@every_mpi
def test_job_is_the_clusters_and_a_second_one_follows(hosts, launcher):
    for count in (1, 2):
        assert_right(hosts.launch(launcher, SUM), 4)
        assert [job["ranks"] for job in hosts.jobs()] == [4] * count
        wait_until(lambda: hosts.jobs()[-1]["state"] not in UNFINISHED, 10, "an end")
        assert {job["reason"] for job in hosts.jobs()} == {"all 4 ranks exited with code 0"}
    hosts.assert_clean()


@every_mpi
def test_rank_that_dies_is_named_on_both_nodes_and_nothing_stays(hosts, launcher):
    script = FAILING.replace("WHAT_HAPPENS", "os.kill(os.getpid(), 9)")
    script = script.replace("{error.rank}", "{ringd.rank()}: {error.node} {error.rank}")
    output = hosts.launch(launcher, script, outlive=True)
    told = sorted(re.findall(r"told: (\d): a 1 -1 9 rank 1 .*SIGKILL", output))
    assert told == ["0", "2", "3"], output
    hosts.assert_clean()


@every_mpi
def test_launcher_that_is_ended_leaves_nothing(hosts, launcher):
    script = hosts.path / "program.py"
    script.write_text(
        "import time, ringd\nringd.init()\nringd.barrier()\n"
        "print('all here', flush=True)\ntime.sleep(60)"
    )
    command = hosts.mpi(launcher, 4, sys.executable, script)
    job = subprocess.Popen(command, env=hosts.env, cwd=hosts.path, stdout=subprocess.PIPE)
    assert b"all here" in job.stdout.readline()
    job.send_signal(signal.SIGTERM)
    job.communicate(timeout=30)
    hosts.assert_clean(seconds=20)
    assert hosts.jobs()[0]["state"] in ("failed", "cancelled")


@every_mpi
def test_node_whose_ranks_do_not_come_is_named(hosts, launcher):
    rank = 'int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK")))'
    script = failing_init(2, late=f"{rank} >= 2")
    output = hosts.launch(launcher, script)
    wanted = "only ranks 0 to 1 on node a have come, ranks 2 to 3 of 4 are missing"
    assert output.count(wanted) == 2, output
    hosts.assert_clean()
    assert hosts.jobs() == []


def test_rank_that_does_not_come_is_named_where_it_is_missing(hosts):
    script = failing_init(2, late='os.environ["OMPI_COMM_WORLD_RANK"] == "3"')
    output = hosts.launch("mpirun", script)
    assert output.count("told: no call of init() within 2s by local rank 1 of 2") == 1, output
    hosts.assert_clean(seconds=20)


def test_ranks_that_are_dealt_out_are_refused(hosts):
    program = hosts.path / "program.py"
    program.write_text(failing_init(20))
    command = hosts.mpi("mpirun", 4, sys.executable, program)
    output = hosts.run(*command[:1], "--map-by", "node", *command[1:])
    assert "ringd fills one node after the other" in output, output
    hosts.assert_clean(seconds=20)


def test_one_node_of_the_cluster_uses_its_daemon(hosts):
    script = SUM.replace("(ringd.rank() // 2, 2)", "(0, 1)")
    assert_right(hosts.launch("mpirun", script, ranks=2), 2)
    assert [job["ranks"] for job in hosts.jobs()] == [2]
    hosts.assert_clean()


def test_scheduler_on_tcp_knows_the_user_by_the_nodes_daemon(hosts):
    network = json.loads((hosts.cluster.dir / "cluster.json").read_text())
    hosts.env["RINGD_SCHEDULER"] = network["scheduler_tcp"]
    hosts.env["RINGD_TLS_AUTHORITY"] = str(hosts.cluster.dir / "tls" / "ca.pem")
    assert_right(hosts.launch("mpich", SUM), 4)
    hosts.assert_clean()


@every_mpi
def test_without_a_scheduler_ranks_meet_at_master_addr_and_port(hosts, launcher):
    del hosts.env["RINGD_SCHEDULER"]
    hosts.env["MASTER_ADDR"] = hosts.hosts.split(":", maxsplit=1)[0]
    hosts.env["MASTER_PORT"] = "29544"
    script = hosts.path / "program.py"
    script.write_text(SUM)
    command = hosts.mpi(launcher, 4, sys.executable, script)
    if launcher == "mpirun":
        command[1:1] = ["-x", "MASTER_ADDR", "-x", "MASTER_PORT"]
    for _ in range(2):
        assert_right(hosts.run(*command), 4)
        hosts.assert_clean()


def test_without_a_scheduler_all_ranks_are_told_what_to_set(hosts):
    del hosts.env["RINGD_SCHEDULER"]
    output = hosts.launch("mpirun", failing_init(20))
    assert output.count("told: only 2 of the job's 4 ranks are on this node") == 4, output
    assert "RINGD_SCHEDULER" in output
    hosts.assert_clean(seconds=20)


def test_ringctl_here_says_what_init_uses(hosts):
    no_daemon = hosts.ringctl("here")
    assert no_daemon.returncode == 2
    assert "none answers at /run/ringd/ringd.sock" in no_daemon.stderr
    socket = (
        hosts.cluster.dir
        / json.loads((hosts.cluster.dir / "cluster.json").read_text())["nodes"][1]["run_directory"]
    )
    hosts.env["RINGD_DAEMON_SOCKET"] = f"{socket}/ringd.sock"
    here = json.loads(hosts.ringctl("here", "--output", "json").stdout)
    assert (here["node"], here["scheduler"]) == ("b", hosts.env["RINGD_SCHEDULER"])
