"""What ringd costs while nothing happens, while a rank waits, and while tensors are large: in CPU
time and memory, never in elapsed time.
"""

import re
import time
from pathlib import Path

import pytest

from tests.support.jobs import RINGCTL, LocalCluster

pytestmark = pytest.mark.skipif(RINGCTL is None, reason="no ringctl: run deploy/setup.sh")

MB = 1 << 20


def cpu_seconds(pid):
    """Of all threads of a process that still live."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def memory(pid, kind):
    """A line of its status, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(rf"{kind}:\s+(\d+) kB", status).group(1)) * 1024


def daemons(home):
    pids = [pid for pid, what in home.processes().items() if what.split()[1] == "ringd"]
    assert pids, home.processes()
    return pids


def test_a_daemon_without_a_job_is_idle_and_small(home):
    cluster = LocalCluster(home, nodes=1, slots=2)
    try:
        (pid,) = daemons(home)
        time.sleep(0.5)
        before, start = cpu_seconds(pid), time.monotonic()
        time.sleep(4)
        share = (cpu_seconds(pid) - before) / (time.monotonic() - start)
        assert share < 0.005
        assert memory(pid, "VmRSS") < 50 * MB
    finally:
        cluster.down()


# Rank 1 comes 100 ms late, again and again. What rank 0 uses meanwhile is its own thread's time.
LATE = """
import time
import numpy as np
import ringd

ringd.init()
rank = ringd.rank()
mine = ringd.empty({count}, np.float32)
mine[:] = 0
ringd.allreduce_(mine)
used = 0.0
for _ in range(10):
    ringd.barrier()
    if rank == 1:
        time.sleep(0.1)
    start = time.process_time()
    ringd.allreduce_(mine)
    used += time.process_time() - start
if rank == 0:
    print("used", used, flush=True)
"""


@pytest.mark.parametrize("count", [2, 100_000], ids=["in the shared segment", "by the daemon"])
def test_a_rank_that_waits_sleeps(home, count):
    result = home.ringctl("run", "-n", 2, *home.script(LATE.format(count=count)), timeout=60)
    assert result.returncode == 0, result.stdout + result.stderr
    used = float(re.search(r"used (\S+)", result.stdout).group(1))
    assert used < 0.05  # Of a second: 5 %.


# Rank 0 of each node says so and waits until the test has looked.
LARGE = """
import sys, time
from pathlib import Path
import numpy as np
import ringd

ringd.init()
for megabytes in map(int, sys.argv[2:]):
    mine = ringd.empty(megabytes << 18, np.float32)
    mine[:] = 1
    for _ in range(3):
        ringd.allreduce_(mine, op=ringd.Max)
    del mine
    ringd.barrier()
    print("done", megabytes, flush=True)
    while not (Path(sys.argv[1]) / f"seen-{megabytes}").exists():
        time.sleep(0.02)
"""


@pytest.mark.timeout(180)
def test_a_daemons_own_memory_does_not_grow_with_the_tensors(home, tmp_path):
    cluster = LocalCluster(home, nodes=2, slots=1)
    sizes = [4, 64]
    try:
        job = home.start("run", "-n", 2, *home.script(LARGE), tmp_path, *sizes)
        used = {}
        for size in sizes:
            job.await_text(f"done {size}", seconds=60, times=2)
            used[size] = max(memory(pid, "RssAnon") for pid in daemons(home))
            (tmp_path / f"seen-{size}").touch()
        assert job.end(30) == 0, job.stderr
        assert used[64] < 50 * MB
        assert used[64] - used[4] < 8 * MB
    finally:
        cluster.down()
