"""What a job leaves, says and returns when something of it is killed."""

import json
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


# --- A cluster of two nodes.

REATTACH_SECONDS = 4
LOOP = """
import os, sys, time
import numpy as np, ringd
ringd.init()
print("going", os.getpid(), flush=True)
end = time.monotonic() + float(sys.argv[1])
step = done = 0
while not done:
    step += 1
    x = ringd.allreduce(np.full(1000, step), op=ringd.Sum)
    assert (x == step * ringd.size()).all()
    done = ringd.allreduce(np.array([time.monotonic() > end]), op=ringd.Max)[0]
    time.sleep(0.01)
print("done", flush=True)
"""


@pytest.fixture
def cluster(home):
    home.env["RINGD_REATTACH_TIMEOUT"] = f"{REATTACH_SECONDS}s"
    cluster = LocalCluster(home)
    yield cluster
    cluster.down()


def start_loop(home, seconds, *options, ranks=4):
    job = home.start("run", "-n", ranks, *options, *home.script(LOOP), seconds)
    job.await_text("going", times=ranks)
    return job


def kill_node(cluster, name):
    os.kill(cluster.nodes()[name]["daemon_pid"], signal.SIGKILL)


def kill_scheduler(cluster):
    pid = int((cluster.dir / "scheduler.pid").read_text().split()[0])
    os.kill(pid, signal.SIGKILL)


def workers_of(home):
    return [what for what in home.processes().values() if "ringd-worker" in what]


def test_peers_on_two_nodes_are_told(cluster, home):
    check_finished(home.ringctl("run", "-n", 4, *home.script(FINISHED)))
    check_raised(home.ringctl("run", "-n", 3, "--hosts", "a:1,b:2", *home.script(RAISED)), "b")


def test_a_job_of_several_nodes_ends_with_a_reason_when_a_daemon_is_restarted(cluster, home):
    job = start_loop(home, 60)
    kill_node(cluster, "b")
    cluster.local("start", "b")
    assert job.end(15) == 1
    assert re.search("lost connection to node b|its daemon was restarted", job.stderr)
    wait_until(lambda: not workers_of(home), 10, "no worker is left")
    assert home.ringctl("run", "-n", 4, *home.script(LOOP), 0).returncode == 0


def test_workers_wait_for_their_daemon_as_long_as_they_may(cluster, home):
    job = start_loop(home, 60)
    before = len(workers_of(home))
    kill_node(cluster, "b")
    time.sleep(1)
    assert before == 4 and len(workers_of(home)) >= 2
    assert job.end(REATTACH_SECONDS + 12) == 1
    assert "node b" in job.stderr
    wait_until(lambda: not workers_of(home), 5, "no worker is left")
    nodes = json.loads(home.ringctl("nodes", "--output", "json").stdout)
    assert {n["name"]: n["state"] for n in nodes}["b"] != "up"
    cluster.local("start", "b")
    assert home.ringctl("run", "-n", 4, *home.script(LOOP), 0).returncode == 0


def test_a_job_of_one_node_survives_its_daemon_or_says_why(cluster, home):
    job = start_loop(home, 6, "--hosts", "b:2", ranks=2)
    kill_node(cluster, "b")
    cluster.local("start", "b")
    code = job.end(20)
    assert code == 0 or re.search("daemon was restarted|restarted daemon", job.stderr), job.stderr
    assert code in (0, 1)
    wait_until(lambda: not workers_of(home), 5, "no worker is left")


def test_a_killed_scheduler_disturbs_no_job(cluster, home):
    job = start_loop(home, 4)
    submitted = cluster.submit("-n", 4, "--", "true")  # Queued behind it.
    kill_scheduler(cluster)
    refused = home.ringctl("list")
    assert refused.returncode == 2 and "no scheduler answers" in refused.stderr
    time.sleep(0.5)
    cluster.local("start", "scheduler")
    assert job.end(20) == 0, job.stderr
    assert job.stdout.count("done") == 4
    assert "the scheduler is back" in job.stderr
    assert home.ringctl("wait", submitted).returncode == 0
    kept = cluster.submit("--", "sh", "-c", "exit 3")
    kill_scheduler(cluster)
    cluster.local("start", "scheduler")
    assert home.ringctl("wait", kept).returncode == 3


def test_cancel_of_queued_and_running_jobs(cluster, home):
    running = cluster.submit("-n", 4, "--", "sleep", "60")
    cluster.await_state(running, ["running"])
    queued = cluster.submit("-n", 1, "--", "true")
    assert cluster.describe(queued)["state"] == "queued"
    assert "queued" in cluster.describe(queued)["reason"]
    for job in (queued, running):
        assert home.ringctl("cancel", job).returncode == 0
        assert home.ringctl("wait", job).returncode == 143
        assert cluster.describe(job)["state"] == "cancelled"
    wait_until(lambda: not workers_of(home), 5, "no worker is left")
    again = home.ringctl("cancel", "j-999")
    assert again.returncode == 2 and "j-999" in again.stderr
