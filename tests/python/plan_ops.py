"""Bucket plans through `ringd._core`, against NumPy: run by each rank of a job.

ringctl run -n 4 -- python tests/python/plan_ops.py
"""

import ctypes
import math

import numpy as np
import ringd
from ringd import _core

FLOAT32, FLOAT64, AVERAGE, SUM = 11, 12, 1, 2
BUCKETS = [
    (FLOAT32, SUM, 1.0, 1.0, 0),
    (FLOAT64, AVERAGE, 1.0, 1.0, 0),
    (FLOAT32, SUM, 0.5, 1.0, 0),
]
TENSORS = [
    ("layer2.bias", (3,), 0),
    ("layer2.weight", (5, 3), 0),
    ("layer1.bias", (), 1),
    ("layer1.weight", (300, 7), 1),
    ("empty", (0, 4), 1),
    ("scaled", (2, 2), 2),
]
STEPS = 20


def view(plan, index):
    """The tensor's memory as an array."""
    _, shape, bucket = TENSORS[index]
    dtype = np.float32 if BUCKETS[bucket][0] == FLOAT32 else np.float64
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    memory = (ctypes.c_char * nbytes).from_address(_core.plan_tensor_data(plan, index))
    return np.frombuffer(memory, dtype).reshape(shape)


def gradient(rank, step, index):
    """Small whole numbers: sums of them are exact."""
    shape = TENSORS[index][1]
    return (np.arange(math.prod(shape)) % 5 + rank * 2 + step).reshape(shape)


def expected(size, step, index):
    """What the step must leave in the tensor."""
    total = sum(gradient(rank, step, index).astype(np.float64) for rank in range(size))
    return [total, total / size, total * 0.5][TENSORS[index][2]]


def run_steps(plan, rank, size):
    views = [view(plan, i) for i in range(len(TENSORS))]
    for step in range(STEPS):
        # Each rank marks them in an order of its own.
        order = np.random.default_rng(1000 * rank + step).permutation(len(TENSORS))
        for index in order:
            views[index][...] = gradient(rank, step, index)
            _core.plan_ready(plan, int(index))
        _core.plan_wait(plan, -1)
        for index, result in enumerate(views):
            assert (result == expected(size, step, index)).all(), (step, TENSORS[index][0], result)
        if step % 5 == 0:
            ringd.barrier()  # Other operations may come in between.


def run_unused(plan, rank, size):
    views = [view(plan, i) for i in range(len(TENSORS))]
    views[3][...] = 9
    views[0][...] = 1
    _core.plan_ready(plan, 0)
    if rank == 0:
        views[5][...] = 2
        _core.plan_ready(plan, 5)
    assert _core.plan_flush(plan) == len(TENSORS) - (2 if rank == 0 else 1)
    _core.plan_wait(plan, -1)
    assert (views[0] == size).all()
    assert (views[3] == 0).all()
    assert (views[5] == 1).all()


def check_mismatch(rank, size):
    if size == 1:
        return
    tensors = list(TENSORS)
    if rank == 1:
        tensors[3] = ("layer1.weight", (300, 8), 1)
    try:
        _core.plan_register(BUCKETS, tensors, -1)
    except ringd.MismatchError as error:
        assert "layer1.weight" in str(error), error
        assert "300, 7" in str(error), error
        assert "300, 8" in str(error), error
        assert set(error.ranks) >= {1}, error.ranks
    else:
        raise AssertionError("nothing was raised")


def main():
    ringd.init()
    rank, size = ringd.rank(), ringd.size()
    plan = _core.plan_register(BUCKETS, TENSORS, -1)
    run_steps(plan, rank, size)
    before = ringd.stats()
    run_steps(plan, rank, size)
    after = ringd.stats()
    assert after["negotiation_messages"] == before["negotiation_messages"]
    assert after["bytes_copied"] == before["bytes_copied"]
    run_unused(plan, rank, size)
    check_mismatch(rank, size)
    second = _core.plan_register(BUCKETS, TENSORS, -1)
    run_steps(second, rank, size)
    _core.plan_unregister(plan)
    _core.plan_unregister(second)
    assert ringd.allreduce(np.ones(1), op=ringd.Sum)[0] == size
    ringd.shutdown()
    print(f"rank {rank} of {size}: {4 * STEPS} steps passed", flush=True)


if __name__ == "__main__":
    main()
