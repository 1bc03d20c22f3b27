"""Process sets, rooted operations and messages of `ringd`, against NumPy: run by each rank.

    ringctl run -n 4 -- python tests/python/group_ops.py

Each rank knows all ranks' inputs, so it works every result out alone. The last line of a rank is
"rank R of N: K checks passed".
"""

import functools
import itertools
import os

import numpy as np
import ringd
from numpy_ops import LARGE, SHAPES, Checks, data, dtypes, reduced


def check_reduce(checks, rank, size):
    for dtype in dtypes():
        for root, shape in zip(itertools.cycle(range(size)), SHAPES, strict=False):
            inputs = [data(r, shape, dtype) for r in range(size)]
            result = ringd.reduce(inputs[rank], root, op=ringd.Sum)
            if rank == root:
                checks.equal(result, reduced(ringd.Sum, inputs), f"reduce {dtype} {shape}")
            else:
                assert result is None
    large = [data(r, (LARGE,), np.dtype(np.float32)) for r in range(size)]
    out = np.empty(LARGE, np.float32)
    result = ringd.reduce(large[rank], size - 1, op=ringd.Max, out=out)
    if rank == size - 1:
        assert result is out
        checks.equal(out, reduced(ringd.Max, large), "reduce large")


def check_gather_and_scatter(checks, rank, size):
    for dtype in dtypes():
        for root in range(size):
            parts = [data(r, ((r + 1) % 3, 2), dtype) for r in range(size)]
            whole = ringd.gather(parts[rank], root)
            if rank == root:
                checks.equal(whole, np.concatenate(parts), f"gather {dtype}")
            mine = ringd.scatter(parts if rank == root else None, root)
            checks.equal(mine, parts[rank], f"scatter {dtype}")
    parts = [data(r, (LARGE // (r + 1),), np.dtype(np.int64)) for r in range(size)]
    checks.equal(ringd.scatter(parts, 0), parts[rank], "scatter large")
    whole = ringd.gather(parts[rank], 0)
    if rank == 0:
        checks.equal(whole, np.concatenate(parts), "gather large")


def check_weights(checks, rank, size):
    weights = [0.5 * r + 0.25 for r in range(size)]
    for dtype in dtypes():
        if dtype.name == "bool":
            continue
        inputs = [data(r, (7, 3), dtype) for r in range(size)]
        exact = sum(w * x.astype(np.float64) for w, x in zip(weights, inputs, strict=True))
        exact = exact / sum(weights)
        result = ringd.allreduce(inputs[rank], weight=weights[rank])
        assert result.dtype == dtype and result.shape == (7, 3)
        integer = dtype.kind in "iu"
        expected = np.trunc(exact + np.sign(exact) * 1e-9) if integer else exact
        tolerance = 0 if integer else {"float64": 1e-15, "float32": 1e-6}.get(dtype.name, 1e-2)
        np.testing.assert_allclose(result.astype(np.float64), expected, tolerance, tolerance)
        checks.passed += 1
    into = np.full(4, rank, np.float32)
    only_last = 1.0 if rank == size - 1 else 0.0
    assert ringd.allreduce_(into, weight=only_last) is into
    checks.equal(into, np.full(4, size - 1, np.float32), "weight 0")
    scalar = ringd.allreduce(np.float64(rank), weight=1, prescale_factor=2, postscale_factor=0.5)
    checks.equal(scalar, np.float64((size - 1) / 2), "0-dimensional")
    checks.raises(ValueError, lambda: ringd.allreduce(into, weight=0), "are 0", "no weight")


def reference_adasum(vectors):
    """The recursion of the paper; the first part is the largest power of two below the whole."""
    if len(vectors) == 1:
        return vectors[0]
    half = 1 << (len(vectors) - 1).bit_length() - 1
    a, b = reference_adasum(vectors[:half]), reference_adasum(vectors[half:])
    dot = np.vdot(a, b)
    a_norm, b_norm = np.vdot(a, a), np.vdot(b, b)
    return (1 - dot / (2 * a_norm) if a_norm else 1) * a + (
        1 - dot / (2 * b_norm) if b_norm else 1
    ) * b


def check_adasum(checks, rank, size):
    for dtype in dtypes():
        if dtype.kind in "biu":
            continue
        for shape in [(), (0,), (5,), (3, 4), (1000,)]:
            inputs = [
                np.random.default_rng(r).standard_normal(shape).astype(dtype) for r in range(size)
            ]
            expected = reference_adasum([x.astype(np.float64) for x in inputs])
            result = ringd.allreduce(inputs[rank], op=ringd.Adasum)
            assert result.dtype == dtype and result.shape == shape
            tolerance = {"float64": 1e-12, "float32": 1e-6, "float16": 2e-3}.get(dtype.name, 2e-2)
            np.testing.assert_allclose(result.astype(np.float64), expected, tolerance, tolerance)
            checks.passed += 1
    for dtype, rtol in (("f", 1e-5), ("d", 1e-12), ("e", 5e-3)):  # Long ones, by halves.
        inputs = [
            np.random.default_rng(r).normal(size=(7, 9001)).astype(dtype) for r in range(size)
        ]
        expected = reference_adasum([x.astype(np.float64) for x in inputs])
        result = ringd.allreduce(inputs[rank], op=ringd.Adasum, postscale_factor=0.5)
        assert result.dtype == dtype
        np.testing.assert_allclose(result, expected / 2, rtol=rtol, atol=rtol)
        told = ringd.allgather_object(result.tobytes())
        assert all(bits == told[0] for bits in told), dtype
        checks.passed += 2
    if size > 2:
        rows = 9000 + (rank == 1)
        checks.raises(
            ringd.MismatchError,
            lambda: ringd.allreduce(np.ones((rows, 7)), op=ringd.Adasum),
            "rank",
            "Adasum of another length",
        )
    same = ringd.allreduce(np.array([3.0, 4.0]), op=ringd.Adasum)
    np.testing.assert_allclose(same, [3.0, 4.0])  # Equal vectors: their average.
    unit = np.eye(size)[rank]
    np.testing.assert_allclose(ringd.allreduce(unit, op=ringd.Adasum), np.ones(size))  # Their sum.
    zero = ringd.allreduce(np.zeros(3), op=ringd.Adasum)
    checks.equal(zero, np.zeros(3), "Adasum of zeros")
    bits = ringd.allgather(same.view(np.int64))
    assert (bits.reshape(size, 2) == bits[:2]).all()


def check_messages(checks, rank, size):
    if size == 1:
        checks.raises(ValueError, lambda: ringd.send(np.ones(1), 0), "another one", "to itself")
        return
    peers = [r for r in range(size) if r != rank]
    for dtype in dtypes():
        for shape in SHAPES:
            received = {r: ringd.recv_async(shape, r, dtype=dtype) for r in peers}
            sent = [ringd.send_async(data(rank * size + r, shape, dtype), r) for r in peers]
            for r, handle in received.items():
                expected = data(r * size + rank, shape, dtype)
                checks.equal(ringd.synchronize(handle), expected, f"message {dtype} {shape}")
            for handle in sent:
                assert ringd.synchronize(handle) is None
    # Tags meet in any order; messages of one tag keep theirs.
    count = 20
    sent = [
        ringd.send_async(np.array([rank, tag, i]), r, tag)
        for r in peers
        for tag in (1, 2)
        for i in range(count)
    ]
    for r in reversed(peers):
        for tag in (2, 1):
            for i in range(count):
                into = np.empty(3, np.int64)
                assert ringd.recv(into, r, tag) is into
                checks.equal(into, np.array([r, tag, i]), "order")
    for handle in sent:
        ringd.synchronize(handle)
    # A ring of large ones, behind a barrier that is pending.
    right, left = (rank + 1) % size, (rank - 1) % size
    large = ringd.recv_async(LARGE, left, tag=9)
    handle = ringd.send_async(np.full(LARGE, rank, np.float32), right, tag=9)
    ringd.barrier()
    checks.equal(ringd.synchronize(large), np.full(LARGE, left, np.float32), "large message")
    ringd.synchronize(handle)
    if rank < 2:
        other = 1 - rank
        wrong = np.ones(3 if rank == 0 else 4, np.float32)
        call = ringd.send if rank == 0 else ringd.recv
        error = checks.raises(
            ringd.MismatchError, lambda: call(wrong, other, 5), "float32[3]", "other shape"
        )
        assert "float32[4]" in str(error) and "tag 5" in str(error)
    ringd.barrier()


def check_sets(checks, rank, size):
    if size == 1:
        checks.raises(ValueError, lambda: ringd.add_process_set([0]), "global", "all ranks")
        return
    subsets = [
        list(ranks)
        for count in range(1, size)
        for ranks in itertools.combinations(range(size), count)
    ]
    sets = [ringd.add_process_set(ranks) for ranks in subsets]
    for number, process_set in enumerate(sets):
        assert process_set.process_set_id == number + 1, process_set
        assert process_set.size() == len(process_set.ranks)
        assert process_set.included() == (rank in process_set.ranks)
    # All of them in flight at once, in an order of each rank's own.
    mine = [s for s in sets if rank in s.ranks]
    order = mine if rank % 2 == 0 else list(reversed(mine))
    for dtype in (np.dtype(np.float32), np.dtype(np.float16), np.dtype(np.int32)):
        handles = [
            (s, ringd.allreduce_async(data(rank, (5,), dtype), op=ringd.Sum, process_set=s))
            for s in order
        ]
        for s, handle in handles:
            expected = reduced(ringd.Sum, [data(r, (5,), dtype) for r in s.ranks])
            checks.equal(ringd.synchronize(handle), expected, f"allreduce in {s}")
    for s in mine:
        check_in_set(checks, rank, s)
    for s in sets:
        if rank not in s.ranks:
            checks.raises(
                ValueError,
                lambda s=s: ringd.allreduce(np.ones(1), process_set=s),
                f"rank {rank} is not a member",
                "not a member",
            )
            checks.raises(ValueError, s.rank, "not a member", "rank of a set")
    checks.raises(ValueError, lambda: ringd.add_process_set([0]), "exists already", "twice")
    checks.raises(ValueError, lambda: ringd.add_process_set(range(size)), "global", "all")
    checks.raises(ValueError, lambda: ringd.add_process_set([size]), "not a rank", "out of range")
    checks.raises(ValueError, lambda: ringd.ProcessSet([0, 0]), "twice", "the same rank twice")
    fresh = ringd.ProcessSet([0])
    assert fresh.size() is None and fresh.rank() is None
    checks.raises(
        TypeError, lambda: ringd.barrier(process_set=fresh), "add_process_set", "not registered"
    )
    check_ids(checks, sets)


def check_in_set(checks, rank, s):
    ranks = s.ranks
    place = ranks.index(rank)
    assert s.rank() == place
    parts = [data(r, (r % 3, 2), np.dtype(np.int16)) for r in ranks]
    whole = np.concatenate(parts)
    checks.equal(ringd.allgather(parts[place], process_set=s), whole, "allgather")
    root = ranks[-1]
    checks.equal(ringd.broadcast(np.array([rank]), root, process_set=s), np.array([root]), "bcast")
    gathered = ringd.gather(parts[place], root, process_set=s)
    if rank == root:
        checks.equal(gathered, whole, "gather")
    mine = ringd.scatter(parts if rank == root else None, root, process_set=s)
    checks.equal(mine, parts[place], "scatter")
    average = ringd.reduce(np.array([float(rank)]), root, process_set=s)
    if rank == root:
        checks.equal(average, np.array([sum(ranks) / len(ranks)]), "reduce")
    rows = ringd.reducescatter(
        np.arange(2 * len(ranks) + 1, dtype=np.int32), op=ringd.Sum, process_set=s
    )
    shares = np.array_split(np.arange(2 * len(ranks) + 1, dtype=np.int32) * len(ranks), len(ranks))
    checks.equal(rows, shares[place], "reducescatter")
    told, received = ringd.alltoall(
        np.repeat(np.array(ranks), 2) * 100 + rank, splits=[2] * len(ranks), process_set=s
    )
    checks.equal(told, np.repeat(np.array(ranks), 2) + 100 * rank, "alltoall")
    checks.equal(received, np.full(len(ranks), 2, np.int32), "received splits")
    assert ringd.allgather_object((rank, "x" * rank), process_set=s) == [
        (r, "x" * r) for r in ranks
    ]
    assert ringd.broadcast_object({"root": rank}, root, process_set=s) == {"root": root}
    if len(ranks) > 1:
        right, left = ranks[(place + 1) % len(ranks)], ranks[place - 1]
        handle = ringd.send_async(np.array([rank]), right, process_set=s)
        checks.equal(ringd.recv((1,), left, process_set=s, dtype=int), np.array([left]), "message")
        ringd.synchronize(handle)
    ringd.barrier(process_set=s)


def check_batches(checks, rank, size):
    """One member that differs fails the whole list, on every rank."""
    pair = [ringd.add_process_set([0, size - 1])] if size > 2 else []
    for s in [ringd.global_process_set, *pair]:
        if not s.included() or s.size() == 1:
            continue
        odd = s.rank() == 1
        lists = [np.ones(3), np.ones(5 if odd else 4), np.ones(2)]
        error = checks.raises(
            ringd.MismatchError,
            lambda lists=lists, s=s: ringd.grouped_allreduce(lists, process_set=s),
            "float64[4]",
            "a list with one that differs",
        )
        assert "float64[5]" in str(error), error
        results = ringd.grouped_allreduce([np.ones(3)] * 2, op=ringd.Sum, process_set=s)
        for result in results:
            checks.equal(result, np.full(3, float(s.size())), "the next list")
    for s in pair:
        ringd.remove_process_set(s)


def check_random(checks, rank, size):
    """Overlapping sets and messages, all in flight at once, each rank in an order of its own."""
    if size < 3:
        return
    seed = ringd.broadcast_object(int.from_bytes(os.urandom(4), "little"))
    shared = np.random.default_rng(seed)
    chosen = {tuple(sorted(shared.permutation(size)[: shared.integers(2, size)])) for _ in range(4)}
    sets = [ringd.add_process_set(list(map(int, ranks))) for ranks in sorted(chosen)]
    every = list(dtypes())
    queues = [[] for _ in range(len(sets) + 3)]  # Of the job, of each set, sends, receives.
    for number, s in enumerate([ringd.global_process_set, *sets]):
        ranks = s.ranks or list(range(size))
        for i in range(10):
            dtype, shape = every[shared.integers(len(every))], SHAPES[shared.integers(len(SHAPES))]
            op = ringd.Max if dtype.name == "bool" else [ringd.Sum, ringd.Min][i % 2]
            if rank not in ranks:
                continue
            inputs = [data(r, shape, dtype, i) for r in ranks]
            mine = inputs[ranks.index(rank)]
            start = functools.partial(ringd.allreduce_async, mine, op, process_set=s)
            queues[number].append((start, reduced(op, inputs)))
    for i in range(40):
        source, target = shared.choice(size, 2, replace=False)
        tag, shape = int(shared.integers(3)), SHAPES[shared.integers(len(SHAPES))]
        message = data(int(source), shape, np.dtype(np.int32), i)
        if rank == source:
            send = functools.partial(ringd.send_async, message, int(target), tag)
            queues[-2].append((send, None))
        if rank == target:
            recv = functools.partial(ringd.recv_async, shape, int(source), tag, dtype=np.int32)
            queues[-1].append((recv, message))
    order = np.random.default_rng([seed, rank])
    started = []
    while any(queues):
        queue = queues[order.integers(len(queues))]
        if queue:
            start, expected = queue.pop(0)
            started.append((start(), expected))
    for handle, expected in started:
        result = ringd.synchronize(handle)
        if expected is not None:
            checks.equal(result, expected, f"seed {seed}")
    for s in sets:
        ringd.remove_process_set(s)


def check_ids(checks, sets):
    freed = [s.process_set_id for s in sets]
    for s in sets:
        assert ringd.remove_process_set(s) is True
        assert s.process_set_id is None
    assert ringd.remove_process_set(ringd.global_process_set) is False
    checks.raises(ValueError, lambda: ringd.remove_process_set(sets[0]), "not registered", "twice")
    # Freed ids come back, the oldest first; dozens of times.
    for _ in range(20):
        again = ringd.add_process_set([0])
        assert again.process_set_id == freed[0], (again, freed)
        freed.append(freed.pop(0))
        ringd.remove_process_set(again)
    static = [ringd.ProcessSet([0])]
    ringd.shutdown()
    ringd.init(process_sets=static)
    assert static[0].process_set_id == 1
    ringd.remove_process_set(static[0])


def main():
    ringd.init(process_sets="dynamic")
    rank, size = ringd.rank(), ringd.size()
    checks = Checks()
    check_reduce(checks, rank, size)
    check_gather_and_scatter(checks, rank, size)
    check_weights(checks, rank, size)
    check_adasum(checks, rank, size)
    check_messages(checks, rank, size)
    check_batches(checks, rank, size)
    check_sets(checks, rank, size)
    for _ in range(5):
        check_random(checks, rank, size)
    ringd.barrier()
    print(f"rank {rank} of {size}: {checks.passed} checks passed", flush=True)


if __name__ == "__main__":
    main()
