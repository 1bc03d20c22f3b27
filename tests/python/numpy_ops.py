"""Every operation of `ringd` on NumPy arrays, against NumPy: run by each rank of a job.

    ringctl run -n 4 -- python tests/python/numpy_ops.py

Each rank knows all ranks' inputs, so it works every result out alone. The last line of a rank is
"rank R of N: K checks passed".
"""

import math

import numpy as np
import ringd

DTYPES = [
    "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64",
    "float16", "float32", "float64", "bool",
]  # fmt: skip
SHAPES = [(), (0,), (1,), (5,), (3, 4), (2, 0, 3), (1000,), (2, 1, 2, 1, 2, 1)]
LARGE = 300_000


class Checks:
    """Compares and counts."""

    def __init__(self) -> None:
        self.passed = 0

    def equal(self, result, expected, what):
        """Same dtype, shape and values."""
        expected = np.asarray(expected)
        assert result.dtype == expected.dtype, (what, result.dtype, expected.dtype)
        assert result.shape == expected.shape, (what, result.shape, expected.shape)
        assert (result == expected).all(), (what, result, expected)
        self.passed += 1

    def true(self, condition, what):
        assert condition, what
        self.passed += 1

    def raises(self, kind, call, text, what):
        """An exception of that class, with that text in its message."""
        try:
            call()
        except kind as error:
            assert text in str(error), (what, str(error))
            self.passed += 1
            return error
        raise AssertionError(f"{what}: nothing was raised")


def dtypes():
    yield from map(np.dtype, DTYPES)
    try:
        import ml_dtypes
    except ImportError:
        return
    yield np.dtype(ml_dtypes.bfloat16)


def data(rank, shape, dtype, seed=0):
    """A rank's input: small whole numbers, so that sums in any order and dtype are exact."""
    count = math.prod(shape)
    values = (np.arange(count) * 7 + rank * 3 + seed) % 4
    if dtype.kind not in "ub":
        values = values - 1
    return values.reshape(shape).astype(dtype)


def wide(dtype):
    """The dtype to work results out in."""
    return np.dtype(np.float32) if dtype.name in ("float16", "bfloat16") else dtype


def reduced(op, inputs):
    """What a reduction over the ranks' inputs must be."""
    dtype = inputs[0].dtype
    if dtype.name == "bool":
        union = op in (ringd.Sum, ringd.Max)
        return np.any(inputs, axis=0) if union else np.all(inputs, axis=0)
    stack = np.stack([x.astype(wide(dtype)) for x in inputs])
    if op == ringd.Min:
        result = stack.min(axis=0)
    elif op == ringd.Max:
        result = stack.max(axis=0)
    elif op == ringd.Product:
        result = np.prod(stack, axis=0, dtype=stack.dtype)
    else:
        result = stack.sum(axis=0, dtype=stack.dtype)
    if op == ringd.Average:
        if dtype.kind in "iu":
            result = np.trunc(result.astype(np.float64) / len(inputs))
        else:
            result = result / wide(dtype).type(len(inputs))
    return result.astype(dtype)


def ops(dtype):
    return [op for op in ringd.ReduceOp if op != ringd.Adasum and (dtype.name != "bool" or op != 1)]


def check_allreduce(checks, rank, size):
    for dtype in dtypes():
        for shape in SHAPES:
            inputs = [data(r, shape, dtype) for r in range(size)]
            for op in ops(dtype):
                what = f"allreduce {dtype}{shape} {op.name}"
                expected = reduced(op, inputs)
                checks.equal(ringd.allreduce(inputs[rank], op=op), expected, what)
                in_place = inputs[rank].copy()
                assert ringd.allreduce_(in_place, op=op, name="named") is in_place
                checks.equal(in_place, expected, what + " in place")
                arena = ringd.empty(shape, dtype)
                arena[...] = inputs[rank]
                checks.equal(ringd.allreduce(arena, op=op), expected, what + " from the arena")
                checks.equal(ringd.allreduce_(arena, op=op), expected, what + " in the arena")


def check_allreduce_forms(checks, rank, size):
    f32, f64 = np.dtype(np.float32), np.dtype(np.float64)
    inputs = [data(r, (LARGE,), f32) for r in range(size)]
    total = reduced(ringd.Sum, inputs)
    before = ringd.stats()["bytes_copied"]
    arena = ringd.empty(LARGE)
    arena[:] = inputs[rank]
    checks.equal(ringd.allreduce_(arena, op=ringd.Sum), total, "large, in the arena")
    assert ringd.stats()["bytes_copied"] == before
    checks.equal(ringd.allreduce(inputs[rank], op=ringd.Sum), total, "large, outside")

    view = np.zeros((LARGE, 2), f32)
    view[:, 1] = inputs[rank]
    checks.equal(ringd.allreduce(view[:, 1], op=ringd.Sum), total, "strided input")
    assert ringd.allreduce(inputs[rank], op=ringd.Sum, out=view[:, 0]).base is view
    checks.equal(view[:, 0], total, "strided output")

    scaled = ringd.allreduce(
        data(rank, (10,), f64), op=ringd.Sum, prescale_factor=0.5, postscale_factor=8.0
    )
    whole = reduced(ringd.Sum, [data(r, (10,), f64) for r in range(size)])
    checks.equal(scaled, whole * 4.0, "scale factors")

    # Every rank must have the same bits, however the sum was rounded.
    noise = np.random.default_rng(rank).standard_normal(LARGE).astype(f32)
    mine = ringd.allreduce(noise)
    everyones = ringd.allgather(mine.reshape(1, -1).view(np.uint32))
    for other in everyones:
        checks.equal(other, mine.view(np.uint32), "same bits on all ranks")

    handles = [
        ringd.allreduce_async(data(rank, (n,), f64), op=ringd.Max, name=f"async.{n}")
        for n in range(50)
    ]
    for n, handle in reversed(list(enumerate(handles))):
        expected = reduced(ringd.Max, [data(r, (n,), f64) for r in range(size)])
        checks.equal(ringd.synchronize(handle), expected, "async")

    group = [data(rank, (3, n), dtype, n) for n, dtype in enumerate(dtypes())]
    results = ringd.grouped_allreduce(group, op=ringd.Sum)
    for n, (dtype, result) in enumerate(zip(dtypes(), results, strict=True)):
        expected = reduced(ringd.Sum, [data(r, (3, n), dtype, n) for r in range(size)])
        checks.equal(result, expected, "grouped")


def check_broadcast(checks, rank, size):
    for dtype in dtypes():
        for shape in SHAPES:
            root = (len(shape) + dtype.itemsize) % size
            what = f"broadcast {dtype}{shape} from {root}"
            expected = data(root, shape, dtype)
            mine = data(rank, shape, dtype)
            checks.equal(ringd.broadcast(mine, root), expected, what)
            checks.equal(mine, data(rank, shape, dtype), what + ": its input")
            checks.equal(ringd.broadcast_(mine, root), expected, what + " in place")
            arena = ringd.empty(shape, dtype)
            arena[...] = data(rank, shape, dtype)
            checks.equal(ringd.broadcast_(arena, root), expected, what + " in the arena")
    f32 = np.dtype(np.float32)
    for root in range(size):
        expected = data(root, (LARGE,), f32)
        checks.equal(ringd.broadcast(data(rank, (LARGE,), f32), root), expected, "large broadcast")


def check_gathers(checks, rank, size):
    for dtype in dtypes():
        for tail in [(), (3,), (2, 2)]:
            for rows in [[2] * size, list(range(size)), [0] * size, [5, *[0] * (size - 1)]]:
                parts = [data(r, (n, *tail), dtype) for r, n in enumerate(rows)]
                what = f"allgather {dtype} {rows} {tail}"
                checks.equal(ringd.allgather(parts[rank]), np.concatenate(parts), what)
        for count in [0, 1, size, 2 * size + 1, 17]:
            inputs = [data(r, (count, 3), dtype) for r in range(size)]
            ends = np.cumsum([count // size + (r < count % size) for r in range(size)])
            starts = np.concatenate([[0], ends[:-1]])
            for op in ops(dtype):
                what = f"reducescatter {dtype} {count} {op.name}"
                expected = reduced(op, inputs)[starts[rank] : ends[rank]]
                checks.equal(ringd.reducescatter(inputs[rank], op=op), expected, what)


def check_alltoall(checks, rank, size):
    for dtype in dtypes():
        inputs = [data(r, (2 * size, 3), dtype) for r in range(size)]
        expected = np.concatenate([x[2 * rank : 2 * rank + 2] for x in inputs])
        checks.equal(ringd.alltoall(inputs[rank]), expected, f"alltoall {dtype}")
        # Rank i sends (i + 2 j) % 4 rows to rank j.
        splits = [[(i + 2 * j) % 4 for j in range(size)] for i in range(size)]
        inputs = [data(r, (sum(splits[r]) + 1, 2), dtype) for r in range(size)]
        starts = [sum(splits[i][:rank]) for i in range(size)]
        parts = [inputs[i][starts[i] : starts[i] + splits[i][rank]] for i in range(size)]
        rows, received = ringd.alltoall(inputs[rank], splits=splits[rank])
        checks.equal(rows, np.concatenate(parts), f"alltoall {dtype} with splits")
        expected_rows = np.array([splits[i][rank] for i in range(size)], np.int32)
        checks.equal(received, expected_rows, "received splits")


def check_objects(checks, rank, size):
    for root in range(size):
        assert ringd.broadcast_object({"rank": rank}, root) == {"rank": root}
    gathered = ringd.allgather_object("x" * rank)
    assert gathered == ["x" * r for r in range(size)]
    ringd.barrier()
    checks.passed += size + 1


def check_errors(checks, rank, size):
    one = np.ones(1)
    bad = [
        lambda: ringd.allreduce(one, op=9),
        lambda: ringd.broadcast(one, size),
        lambda: ringd.alltoall(one, splits=[1] * (size + 1)),
        lambda: ringd.allreduce(one.astype(complex)),
    ]
    for call in bad:
        checks.raises(ValueError, call, "", "wrong on this rank alone")
    if size == 1:
        return
    mine = np.ones(10 if rank != 1 else 11, np.float32)
    error = checks.raises(
        ringd.MismatchError, lambda: ringd.allreduce(mine), "float32[10]", "shapes differ"
    )
    assert "float32[11]" in str(error)
    kind = np.ones(3, np.int32 if rank == 1 else np.float32)
    checks.raises(ringd.MismatchError, lambda: ringd.allreduce(kind), "int32[3]", "dtypes differ")
    tail = np.ones((2, 3 + (rank == 1)))
    error = checks.raises(
        ringd.MismatchError,
        lambda: ringd.allgather(tail, name="g"),
        "float64[2, 4]",
        "tails differ",
    )
    assert error.names == ("g",)
    checks.equal(ringd.allreduce(one, op=ringd.Sum), np.full(1, float(size)), "after mismatches")


def main():
    ringd.init()
    rank, size = ringd.rank(), ringd.size()
    checks = Checks()
    for check in [
        check_allreduce,
        check_allreduce_forms,
        check_broadcast,
        check_gathers,
        check_alltoall,
        check_objects,
        check_errors,
    ]:
        check(checks, rank, size)
        ringd.barrier()
    stats = ringd.stats()
    assert stats["stalls"] == 0, stats
    ringd.shutdown()
    print(f"rank {rank} of {size}: {checks.passed} checks passed", flush=True)


if __name__ == "__main__":
    main()
