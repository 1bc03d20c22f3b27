"""Named order and join of `ringd`, against NumPy: run by each rank.

    ringctl run -n 4 -- python tests/python/join_ops.py

The last line of a rank is "rank R of N: K checks passed".
"""

import random

import numpy as np
import ringd
from numpy_ops import Checks, data, dtypes, reduced


def check_any_order(checks, rank, size):
    names = [f"layer.{i}" for i in range(60)]
    for step in range(3):
        order = list(names)
        random.Random(100 * step + rank).shuffle(order)
        handles = {}
        for name in order:
            number = names.index(name)
            if number % 3 == 0:
                mine = np.full((rank + 1, 2), number, np.int32)
                handles[name] = ringd.allgather_async(mine, name=name)
            elif number % 3 == 1:
                mine = np.full(number + 1, rank, np.float64)
                handles[name] = ringd.broadcast_async(mine, size - 1, name=name)
            else:
                mine = np.full(1000, number * (rank + 1), np.float32)
                handles[name] = ringd.allreduce_async(mine, op=ringd.Sum, name=name)
        random.Random(rank + 7).shuffle(order)
        for name in order:
            number = names.index(name)
            result = handles[name].wait()
            if number % 3 == 0:
                expected = np.full((size * (size + 1) // 2, 2), number, np.int32)
            elif number % 3 == 1:
                expected = np.full(number + 1, size - 1, np.float64)
            else:
                expected = np.full(1000, number * size * (size + 1) / 2, np.float32)
            checks.equal(result, expected, f"{name} in step {step}")


def check_same_name(checks, rank, size):
    handles = [
        ringd.allreduce_async(np.array([float(i)]), op=ringd.Sum, name="x") for i in range(9)
    ]
    for i, handle in enumerate(handles):
        checks.equal(handle.wait(), np.array([float(i * size)]), f"x, the {i}th time")


def check_same_name_uneven(checks, rank, size):
    """Operations of two parts keep their place among those of the same name."""
    names = ["a", "b"] if rank % 2 else ["b", "a"]
    handles = {name: [] for name in names}
    for name in names:
        for i in range(4):
            rows = np.full((rank + i, 2), i)
            handles[name].append(ringd.allgather_async(rows, name=name))
            handles[name].append(ringd.allreduce_async(np.full(3, i), op=ringd.Sum, name=name))
    for name in reversed(names):
        for i in range(4):
            gathered, summed = handles[name][2 * i].wait(), handles[name][2 * i + 1].wait()
            expected = np.full((sum(r + i for r in range(size)), 2), i)
            checks.equal(gathered, expected, f"{name}, {i}: rows")
            checks.equal(summed, np.full(3, i * size), f"{name}, {i}: sum")


def check_sets(checks, rank, size, sets):
    """The same names in overlapping process sets, in any order."""
    calls = [(s, i) for s in sets if rank in s.ranks for i in range(30)]
    random.Random(rank).shuffle(calls)
    handles = {}
    for s, i in calls:
        if i % 2:
            mine = np.full(3, float(i * (rank + 1)))
            handle = ringd.allreduce_async(mine, op=ringd.Sum, name=f"t{i}", process_set=s)
        else:
            mine = np.full(2 + rank, float(i * (rank + 1)))
            handle = ringd.allgather_async(mine, name=f"t{i}", process_set=s)
        handles[s.process_set_id, i] = handle
    random.Random(rank + 1).shuffle(calls)
    for s, i in calls:
        inputs = [float(i * (r + 1)) for r in s.ranks]
        rows = [np.full(2 + r, value) for r, value in zip(s.ranks, inputs, strict=True)]
        expected = np.full(3, sum(inputs)) if i % 2 else np.concatenate(rows)
        checks.equal(handles[s.process_set_id, i].wait(), expected, f"t{i} of {s}")


def present(first, size):
    """Ranks that have not joined while only those from `first` on go on."""
    return [r for r in range(size) if r >= first]


def check_operations_without(checks, first, rank, size):
    """What ranks that go on get from every operation."""
    ranks = present(first, size)
    root = size - 1
    for dtype in dtypes():
        inputs = {r: data(r, (5, 3), dtype) for r in ranks}
        mine = inputs[rank]
        for op in (ringd.Sum, ringd.Min, ringd.Max, ringd.Product):
            expected = reduced(op, list(inputs.values()))
            checks.equal(ringd.allreduce(mine, op=op), expected, f"allreduce {op} {dtype}")
            named = ringd.allreduce(mine, op=op, name=f"{op}.{dtype}")
            checks.equal(named, expected, f"named allreduce {op} {dtype}")
    ones = np.ones(100_000, np.float32) * size
    checks.equal(ringd.allreduce(ones), ones / size * len(ranks), "average: the divisor is size()")
    weighted = ringd.allreduce(np.full(3, rank, np.float64), weight=2.0)
    checks.equal(np.round(weighted, 9), np.full(3, round(sum(ranks) / len(ranks), 9)), "weighted")
    rows = [np.full((r + 1, 2), r) for r in ranks]
    for name in (None, "rows"):
        gathered = ringd.allgather(np.full((rank + 1, 2), rank), name=name)
        checks.equal(gathered, np.concatenate(rows), "allgather")
        sent = ringd.broadcast(np.full(4, rank), root, name=name)
        checks.equal(sent, np.full(4, root), "broadcast")
    share = ringd.reducescatter(np.arange(2.0 * size), op=ringd.Sum)
    expected = np.arange(2.0 * size)[2 * rank : 2 * rank + 2] * len(ranks)
    checks.equal(share, expected, "reducescatter")
    splits = [1] * size
    received, counts = ringd.alltoall(np.full(size, rank), splits)
    checks.equal(received, np.array(ranks), "alltoall")
    checks.equal(counts, np.array([int(r in ranks) for r in range(size)], np.int32), "its counts")
    total = ringd.reduce(np.ones(3), root, op=ringd.Sum)
    if rank == root:
        checks.equal(total, np.full(3, float(len(ranks))), "reduce")
    ringd.barrier()
    if first == 0:
        return
    try:
        ringd.broadcast(np.ones(3), 0)
    except ringd.RingdError as error:
        assert "rank 0 has joined" in str(error), error
    else:
        raise AssertionError("a root that has joined went unnoticed")


def check_join(checks, rank, size):
    """One more rank goes at a time; twice, for whoever comes back."""
    for _ in range(2):
        for first in range(size):
            if rank < first:
                break
            check_operations_without(checks, first, rank, size)
        last = ringd.join()
        checks.equal(ringd.allgather(np.array([last])), np.full(size, last), "the last rank")
        checks.equal(
            ringd.allreduce(np.ones(3), op=ringd.Sum), np.full(3, float(size)), "afterwards"
        )
    assert last == size - 1, last


def check_unequal_loops(checks, rank, size):
    """Small operations of a node's ranks in their shared segment, ended at different times."""
    for turn in range(3):
        batches = [10 * (1 + (r + turn) % size) for r in range(size)]
        for step in range(batches[rank]):
            result = ringd.allreduce(np.array([1.0]), op=ringd.Sum)
            present = sum(step < n for n in batches)
            checks.equal(result, np.array([float(present)]), f"step {step}")
        ringd.join()


def main():
    ringd.init()
    rank, size = ringd.rank(), ringd.size()
    checks = Checks()
    check_any_order(checks, rank, size)
    check_same_name(checks, rank, size)
    check_same_name_uneven(checks, rank, size)
    if size > 2:
        sets = [ringd.add_process_set(list(range(size - 1))), ringd.add_process_set([0, size - 1])]
        check_sets(checks, rank, size, sets)
    check_unequal_loops(checks, rank, size)
    check_join(checks, rank, size)
    ringd.shutdown()
    print(f"rank {rank} of {size}: {checks.passed} checks passed")


if __name__ == "__main__":
    main()
