"""What a job leaves, says and returns when something of it is killed."""

import os
import re
import signal
import time

import pytest

from tests.support.jobs import RINGCTL, Home, LocalCluster, descendants, wait_until

pytestmark = pytest.mark.skipif(RINGCTL is None, reason="no ringctl: run deploy/setup.sh")

# Two ranks that reduce for ever, each with a child in a session of its own and one that holds its
# stdout; both ignore SIGTERM.
BUSY = """
import os, signal, subprocess, sys, time
import numpy as np, ringd
if "ignore" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
sleeper = ["sh", "-c", "trap '' TERM; sleep 600; sleep 600"]
subprocess.Popen(sleeper, start_new_session=True, stdout=subprocess.DEVNULL)
subprocess.Popen(sleeper)
ringd.init()
x = np.ones(100_000, np.float32)
ringd.allreduce(x)
print("going", os.getpid(), flush=True)
if "end" in sys.argv:
    sys.exit(0)
while True:
    ringd.allreduce(x)
"""


@pytest.fixture
def home(tmp_path):
    home = Home(tmp_path)
    yield home
    home.kill_all()


def start_busy(home, *arguments):
    """A running job of two ranks and the pids of its ranks."""
    job = home.start("run", "-n", 2, *home.script(BUSY), *arguments)
    job.await_text("going", times=2)
    pids = dict(re.findall(r"\[(\d)\] going (\d+)", job.stdout))
    ours = list(home.processes().values())
    assert sum("ringd-worker" in what for what in ours) == 2
    assert sum("trap" in what for what in ours) == 4
    return job, [int(pids["0"]), int(pids["1"])]


def test_a_job_that_succeeds_leaves_nothing(home):
    result = home.ringctl("run", "-n", 2, *home.script(BUSY), "end")
    assert result.returncode == 0, result.stderr
    home.assert_clean()


def test_a_job_that_fails_leaves_nothing(home):
    script = home.script("import sys, ringd; ringd.init(); sys.exit(7 * ringd.rank())")
    result = home.ringctl("run", "-n", 2, *script)
    assert result.returncode == 7
    assert "rank 1" in result.stderr and "exited with code 7" in result.stderr
    home.assert_clean()


def test_a_killed_rank_ends_the_job(home):
    job, ranks = start_busy(home)
    os.kill(ranks[1], signal.SIGKILL)
    assert job.end(15) == 137
    report = job.stderr[job.stderr.index("ringctl: ") :]
    assert "rank 1" in report.splitlines()[0] and "SIGKILL" in report.splitlines()[0]
    assert "followed: rank 0" in report
    home.assert_clean()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_ends_the_job(home, number):
    job, _ = start_busy(home)
    os.kill(job.pid, number)
    assert job.end(15) == 128 + number
    assert number.name in job.stderr
    home.assert_clean()


def test_a_second_interrupt_kills_who_ignores_the_first(home):
    job, _ = start_busy(home, "ignore")
    os.kill(job.pid, signal.SIGINT)
    time.sleep(0.5)
    assert job.process.poll() is None
    os.kill(job.pid, signal.SIGINT)
    assert job.end(10) == 130
    home.assert_clean()


def test_a_killed_ringctl_takes_its_job_along(home):
    job, _ = start_busy(home, "ignore")
    os.kill(job.pid, signal.SIGKILL)
    job.end(5)
    home.assert_clean()


@pytest.mark.parametrize("program", ["ringd", "ringd-scheduler"])
def test_a_killed_embedded_program_is_named(home, program):
    job, _ = start_busy(home)
    os.kill(job.program(program), signal.SIGKILL)
    assert job.end(15) == 1
    assert re.search(f"{program} has ended|daemon is gone", job.stderr)
    home.assert_clean()


def test_a_killed_worker_fails_its_rank(home):
    job, _ = start_busy(home)
    os.kill(job.program("ringd-worker"), signal.SIGKILL)
    code = job.end(15)
    assert code == 137, (code, job.stderr)
    assert "worker" in job.stderr
    home.assert_clean()


PEER = """
import sys, time
import numpy as np, ringd
ringd.init()
for i in range(9):
    ringd.allreduce(np.ones(3), name=f"s.{i + 1}")
if ringd.rank() == 1:
    END
started = time.monotonic()
try:
    ringd.allreduce(np.ones(3), name="s.10")
except ringd.PeerFailedError as error:
    print(f"waited {time.monotonic() - started:.1f}", flush=True)
    print("caught", error.rank, error.node, error.exit_code, error.signal, error.stderr_tail, error)
    sys.exit(0)
"""
FINISHED = PEER.replace("END", "sys.exit(0)")
RAISED = PEER.replace("END", "raise ValueError('lost my marbles')")


def check_finished(result):
    assert "rank 1 has finished after 9 operations, s.10 is pending" in result.stdout, result
    assert float(re.search(r"waited ([\d.]+)", result.stdout).group(1)) < 5


def check_raised(result, node):
    assert result.returncode == 1, result
    caught = re.search(r"caught 1 (\S+) 1 0 (.*)", result.stdout, re.DOTALL)
    assert caught.group(1) == node or not node
    assert "lost my marbles" in caught.group(2)
    report = result.stderr[result.stderr.index("ringctl: rank 1 ") :].splitlines()[0]
    assert "lost my marbles" in report and "code 1" in report


def test_who_waits_for_a_rank_that_finished_is_told(home):
    check_finished(home.ringctl("run", "-n", 3, *home.script(FINISHED)))


def test_who_waits_for_a_rank_that_raised_is_told(home):
    check_raised(home.ringctl("run", "-n", 3, *home.script(RAISED)), "")
