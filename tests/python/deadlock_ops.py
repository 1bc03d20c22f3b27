"""Deadlocks of `ringd` that the daemons prove, and what goes on afterwards: run by each rank.

    ringctl run -n 4 -- python tests/python/deadlock_ops.py

The last line of a rank is "rank R of N: K checks passed".
"""

import threading
import time

import numpy as np
import ringd
from numpy_ops import Checks

LIMIT_SECONDS = 2.0


def one():
    return np.ones(1, np.float32)


def expect_told(checks, call, what, *texts):
    """`call` ends with a deadlock's words, and these."""
    try:
        call()
    except ringd.MismatchError as error:
        for text in ("deadlock: ", *texts):
            checks.true(text in str(error), f"{what}: {text!r} in {error}")
    else:
        checks.true(False, f"{what}: nothing was raised")


def expect_deadlock(checks, call, what, *texts):
    """The same, in time; afterwards all ranks agree on a sum."""
    ringd.barrier()
    start = time.monotonic()
    expect_told(checks, call, what, *texts)
    checks.true(time.monotonic() - start < LIMIT_SECONDS, f"{what}: told in time")
    checks.equal(ringd.allreduce(one(), op=ringd.Sum), one() * ringd.size(), f"{what}: afterwards")


def check_names(checks, rank):
    """One of the ranks calls another operation than the rest."""
    name = "loss" if rank == 1 else "gradient"
    expect_deadlock(
        checks,
        lambda: ringd.allreduce(one(), name=name),
        "names",
        "named 'gradient'",
        "named 'loss'",
        "rank 1 waits",
        "deadlock_ops.py:",
    )
    total = ringd.allreduce(one(), op=ringd.Sum, name="loss")
    checks.equal(total, one() * ringd.size(), "the same name, afterwards")


def check_groups(checks, rank):
    """Two groups, in another order on two ranks."""
    even = ringd.add_process_set([0, 1])
    expect_deadlock(
        checks,
        lambda: ringd.barrier(process_set=even) if rank == 0 else ringd.barrier(),
        "groups",
        f"of group {even.process_set_id}",
        "rank 0 waits",
    )
    if rank < 2:
        checks.equal(ringd.allreduce(one(), op=ringd.Sum, process_set=even), one() * 2, "the group")


def check_runs_ahead(checks, rank):
    """Rank 0 has several operations under way that the others never call."""
    ringd.barrier()
    handles = []
    if rank == 0:
        for _ in range(3):
            handles.append(ringd.allreduce_async(np.ones(5000, np.float32)))
    last = handles[-1].wait if rank == 0 else lambda: ringd.allreduce(one(), name="x")
    expect_told(checks, last, "the last one", "rank 0 waits")
    for handle in handles[:-1]:
        expect_told(checks, handle.wait, "those before", "rank 0 waits")
    for i in range(5):
        expected = one() * (i + 1) * ringd.size()
        checks.equal(ringd.allreduce(one() * (i + 1), op=ringd.Sum), expected, f"then {i}")


def check_messages(checks, rank, size):
    """A ring in which all receive before they send."""
    left, right = (rank - 1) % size, (rank + 1) % size
    buffer = np.zeros(3, np.int32)
    expect_deadlock(checks, lambda: ringd.recv(buffer, left), "messages", "recv int32[3] from rank")
    handle = ringd.send_async(np.full(3, rank, np.int32), right)
    ringd.recv(buffer, left)
    handle.wait()
    checks.equal(buffer, np.full(3, left, np.int32), "messages: afterwards")


def check_join(checks, rank):
    """Rank 0 has joined; the others wait for one another."""
    name = "a" if rank == 1 else "b"
    expect_deadlock(
        checks,
        ringd.join if rank == 0 else lambda: ringd.allreduce(one(), name=name),
        "join",
        "named 'a'",
        "join",
    )
    checks.true(0 <= ringd.join() < ringd.size(), "join, afterwards")


def check_busy_thread(checks, rank):
    """All wait, but one rank has a thread that will call: nothing is proven, all ends well."""
    ringd.barrier()
    expected = one() * ringd.size()

    def call(name):
        checks.equal(ringd.allreduce(one(), op=ringd.Sum, name=name), expected, name)

    if rank != 0:
        for name in ("hello", "late", "early"):
            call(name)
        return
    known = threading.Event()

    def other():
        call("hello")
        known.set()
        time.sleep(1.5)
        call("late")

    thread = threading.Thread(target=other)
    thread.start()
    known.wait()
    call("early")
    thread.join()


def check_late_rank(checks, rank):
    """A rank that computes is waited for."""
    ringd.barrier()
    if rank == 0:
        time.sleep(1.5)
    checks.equal(ringd.allreduce(one(), op=ringd.Sum), one() * ringd.size(), "late rank")


def main():
    ringd.init()
    rank, size = ringd.rank(), ringd.size()
    checks = Checks()
    check_names(checks, rank)
    check_groups(checks, rank)
    check_runs_ahead(checks, rank)
    check_messages(checks, rank, size)
    check_join(checks, rank)
    check_busy_thread(checks, rank)
    check_late_rank(checks, rank)
    print(f"rank {rank} of {size}: {checks.passed} checks passed")
    ringd.shutdown()


if __name__ == "__main__":
    main()
