"""What a job leaves, says and returns when something of it is killed."""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.jobs import RINGCTL, LocalCluster, wait_until

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


def test_an_interrupt_ends_the_job(home):
    job, _ = start_busy(home)
    os.kill(job.pid, signal.SIGINT)
    assert job.end(15) == 130
    assert "SIGINT" in job.stderr
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


SMALL = """
import os, signal, sys, time
import numpy as np, ringd
ringd.init()
x = np.ones(8, np.float32)
for i in range(2000):
    assert ringd.allreduce(x, op=ringd.Sum)[0] == ringd.size()
print("going", os.getpid(), flush=True)
if ringd.rank() == 1 and "exit" in sys.argv:
    sys.exit(0)
started = time.monotonic()
try:
    while True:
        if ringd.rank() == 1 and "idle" in sys.argv:
            time.sleep(100)
        started = time.monotonic()
        ringd.allreduce(x, op=ringd.Sum)
except ringd.PeerFailedError as error:
    print(f"waited {time.monotonic() - started:.1f}", flush=True)
    print("caught", error.rank, error.signal, error, flush=True)
    print("operations", ringd.stats()["operations"], flush=True)
"""


@pytest.mark.parametrize("what", ["busy", "idle"])
def test_small_operations_of_a_killed_rank_end(home, what):
    job = home.start("run", "-n", 3, *home.script(SMALL), what)
    job.await_text("going", times=3)
    pids = dict(re.findall(r"\[(\d)\] going (\d+)", job.stdout))
    time.sleep(0.3)
    os.kill(int(pids["1"]), signal.SIGKILL)
    assert job.end(15) == 137
    told = re.findall(r"caught 1 9 .*killed by SIGKILL", job.stdout)
    assert told, job.stdout
    assert all(float(waited) < 5 for waited in re.findall(r"waited ([\d.]+)", job.stdout))
    home.assert_clean()


def test_small_operations_of_a_rank_that_finished_end(home):
    result = home.ringctl("run", "-n", 3, *home.script(SMALL), "exit")
    told = "rank 1 has finished after 2000 operations, s.2001 is pending"
    assert result.stdout.count(told) == 2, result.stdout + result.stderr
    assert all(float(waited) < 5 for waited in re.findall(r"waited ([\d.]+)", result.stdout))
    assert result.stdout.count("operations 2000") == 2
    home.assert_clean()


# --- A cluster of two nodes.

REATTACH_SECONDS = 2
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


def has_ended(pid):
    """Also of a process that nobody has reaped yet."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


def kill_node(cluster, name):
    pid = cluster.nodes()[name]["daemon_pid"]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: has_ended(pid), 5, "the daemon is gone")


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
    assert job.end(15) in (1, 143)  # A rank of a raised, or one of b was ended: who was first.
    assert re.search("lost connection to node b|its daemon was restarted", job.stderr)
    wait_until(lambda: not workers_of(home), 10, "no worker is left")
    assert home.ringctl("run", "--queue", "-n", 4, *home.script(LOOP), 0).returncode == 0


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
    assert home.ringctl("run", "--queue", "-n", 4, *home.script(LOOP), 0).returncode == 0


def test_a_job_of_one_node_survives_its_daemon_or_says_why(cluster, home):
    job = start_loop(home, 6, "--hosts", "b:2", ranks=2)
    kill_node(cluster, "b")
    cluster.local("start", "b")
    code = job.end(20)
    assert code == 0 or re.search("daemon was restarted|restarted daemon", job.stderr), job.stderr
    assert code in (0, 1)
    wait_until(lambda: not workers_of(home), 5, "no worker is left")


def test_a_killed_scheduler_disturbs_no_job(cluster, home):
    job = start_loop(home, 2)
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


CANCELLED = """
import signal, time, ringd

signal.signal(signal.SIGTERM, signal.SIG_IGN)
ringd.init()
print("ready", flush=True)
if ringd.rank() == 0:
    try:
        ringd.barrier()
    except ringd.RingdError as error:
        print(f"told: {error}", flush=True)
time.sleep(1)
"""


def test_cancel_says_why_to_a_rank_that_waits(home):
    run = home.start("run", "-n", "2", *home.script(CANCELLED))
    run.await_text("ready", times=2)
    run.process.send_signal(signal.SIGTERM)
    run.end(30)
    assert "told: the job was cancelled: ringctl run received SIGTERM" in run.stdout, run.stdout


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


# --- Output, signals, forks.


def test_closed_descriptors_and_a_low_limit_of_them_do_no_harm(home):
    for shell in ("exec <&- >&- 2>&-", "ulimit -n 64", "ulimit -n 256"):
        command = f"{shell}; exec {RINGCTL} run -n 2 -- sh -c 'exit 4'"
        result = subprocess.run(["sh", "-c", command], env=home.env, timeout=30, check=False)
        assert result.returncode == 4, shell
    home.assert_clean()


OUTPUT = """
import os, sys, time
write = sys.stdout.buffer.write
if sys.argv[1] == "lines":
    for i in range(100_000):
        write(b"line %d\\n" % i)
elif sys.argv[1] == "long":
    write(b"x" * (1 << 20) + b"\\n" + b"y" * (1 << 20))
elif sys.argv[1] == "binary":
    write(bytes(range(256)) * 100)
elif sys.argv[1] == "progress":
    for i in range(4):
        write(b"%d%%\\r" % (25 * i))
        sys.stdout.flush()
        time.sleep(0.1)
"""
EXPECTED = {
    "lines": b"".join(b"line %d\n" % i for i in range(100_000)),
    "long": b"x" * (1 << 20) + b"\n" + b"y" * (1 << 20),
    "binary": bytes(range(256)) * 100,
    "progress": b"0%\r25%\r50%\r75%\r",
}


@pytest.mark.parametrize("kind", EXPECTED)
def test_output_comes_as_it_was_written(home, kind):
    result = home.ringctl("run", *home.script(OUTPUT), kind, text=False)
    assert result.stdout == EXPECTED[kind]


def test_lines_of_two_ranks_keep_their_order(home):
    result = home.ringctl("run", "-n", 2, *home.script(OUTPUT), "lines", text=False)
    lines = result.stdout.splitlines(keepends=True)
    for rank in (b"[0] ", b"[1] "):
        assert b"".join(x[4:] for x in lines if x.startswith(rank)) == EXPECTED["lines"]


def test_logs_and_signals_of_a_running_job(cluster, home):
    script = home.script(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGUSR1, lambda *_: (print('signalled', flush=True), sys.exit(0)))\n"
        "for i in range(20): print('line', i, flush=True)\n"
        "print('x' * 100_000, flush=True)\n"
        "time.sleep(60)\n"
    )
    job = cluster.submit("-n", 2, *script)
    follower = home.start("logs", "-f", "-r", 1, job)
    follower.await_text("line 19")
    wait_until(lambda: "xxx" in home.ringctl("logs", job, "-r", 0).stdout, 10, "the long line")
    tail = home.ringctl("logs", job, "-r", 0, "--tail", 3).stdout
    assert tail.splitlines() == ["line 18", "line 19", "x" * 100_000]
    bad = home.ringctl("signal", job, "NONSENSE")
    assert bad.returncode == 2 and "NONSENSE" in bad.stderr
    assert home.ringctl("signal", job, "USR1").returncode == 0
    assert home.ringctl("wait", job).returncode == 0
    assert follower.end(10) == 0
    assert follower.stdout.splitlines()[-1] == "signalled"


FORKS = """
import multiprocessing, os, subprocess, sys
import numpy as np, ringd

def work(i):
    return float(np.full(1000, i).sum())

ringd.init()
with multiprocessing.get_context("fork").Pool(3) as pool:
    handle = ringd.allreduce_async(np.ones(100_000), op=ringd.Sum)
    assert sum(pool.map(work, range(20))) == 190_000
    assert ringd.synchronize(handle)[0] == ringd.size()
assert subprocess.run(["echo", "hi"], capture_output=True, text=True).stdout == "hi\\n"
child = os.fork()
if child == 0:
    for call in (lambda: ringd.allreduce(np.ones(3)), ringd.barrier, ringd.init):
        try:
            call()
        except ringd.RingdError as error:
            assert "fork" in str(error), error
        else:
            os._exit(1)
    os._exit(0)
for i in range(200):
    assert ringd.allreduce(np.full(1000, i), op=ringd.Sum)[0] == i * ringd.size()
assert os.waitpid(child, 0)[1] == 0
assert ringd.allreduce(np.ones(3), op=ringd.Sum)[0] == ringd.size()
print("forked well")
"""
AGAIN = """
import os
import numpy as np, ringd

def held(pid):
    pages = int(open(f"/proc/{pid}/statm").read().split()[1])
    return len(os.listdir(f"/proc/{pid}/fd")), pages * 4096

def parent(pid):
    return int(open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[1])

everyone = [os.getpid(), os.getppid(), parent(os.getppid())]  # Rank, worker, daemon.
for i in range(100):
    ringd.init()
    assert ringd.allreduce(np.full(1000, i), op=ringd.Sum)[0] == i * ringd.size()
    ringd.shutdown()
    if i == 20:
        before = [held(pid) for pid in everyone]
for name, (fds, memory), pid in zip(["rank", "worker", "daemon"], before, everyone):
    now = held(pid)
    slack = 1 if name == "rank" else 8  # The others still clear up, or serve the other rank.
    assert now[0] <= fds + slack and now[1] < memory + (4 << 20), (name, fds, memory, now)
print("the same as before")
"""


def test_forks_do_no_harm(home):
    result = home.ringctl("run", "-n", 2, *home.script(FORKS))
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("forked well") == 2
    home.assert_clean()


def test_init_and_shutdown_a_hundred_times_costs_nothing(home):
    home.env["RINGD_ARENA_BYTES"] = "16MB"
    result = home.ringctl("run", "-n", 2, *home.script(AGAIN), timeout=60)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("the same as before") == 2
