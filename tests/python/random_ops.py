"""Random operations of `ringd` on NumPy arrays, against NumPy: run by each rank of a job.

    RINGD_TEST_SEED=7 ringctl run -n 4 -- python tests/python/random_ops.py

All ranks draw the same rounds: kinds, dtypes, shapes, process sets, roots. Each rank draws for
itself how its arrays lie in memory, in which order it starts operations of different sets, and in
which order it waits. RINGD_TEST_SEED is the first round's seed, RINGD_TEST_ROUNDS their number. The
last line of a rank is "rank R of N: K checks passed".
"""

import os
from dataclasses import dataclass, field

import numpy as np
import ringd
from numpy_ops import Checks, data, dtypes, ops, reduced

LARGE = 40_000  # Elements: more than a shared segment's slot and than one piece of the ring.
MOST = 8  # Operations in flight.


@dataclass
class Operation:
    """One drawn operation, the same on all ranks."""

    kind: str
    dtype: np.dtype
    shape: tuple
    members: list
    group: ringd.ProcessSet
    op: int
    root: int  # In the set.
    seed: int
    factors: tuple
    name: str | None  # Named operations take no short way.
    rows: list = field(default_factory=list)  # By rank of the set.
    splits: list = field(default_factory=list)  # From, to.

    def __str__(self):
        return (
            f"{self.kind} {self.name} {self.dtype}{list(self.shape)} op {self.op} root {self.root} "
            f"rows {self.rows} splits {self.splits} factors {self.factors} ranks {self.members}"
        )

    def inputs(self):
        """By rank of the set."""
        count = len(self.members)
        shapes = [self.shape] * count
        if self.rows:
            shapes = [(rows, *self.shape[1:]) for rows in self.rows]
        elif self.splits:
            shapes = [(sum(splits), *self.shape[1:]) for splits in self.splits]
        return [
            data(rank, shape, self.dtype, self.seed)
            for rank, shape in zip(self.members, shapes, strict=True)
        ]


def draw_shape(rng):
    if rng.random() < 0.1:
        return (int(rng.integers(LARGE // 2, LARGE)),)
    return tuple(int(n) for n in rng.integers(0, 6, size=rng.integers(0, 5)))


def draw(rng, kinds, sets):
    members, group = sets[rng.integers(len(sets))]
    dtype = list(dtypes())[rng.integers(len(list(dtypes())))]
    kind = kinds[rng.integers(len(kinds))]
    shape = draw_shape(rng)
    size = len(members)
    operation = Operation(
        kind,
        dtype,
        shape,
        members,
        group,
        op=rng.choice(ops(dtype)),
        root=int(rng.integers(size)),
        seed=int(rng.integers(4)),
        factors=(1.0, 1.0),
        name=f"tensor.{rng.integers(1 << 60)}" if rng.random() < 0.4 else None,
    )
    if dtype.kind == "f" and rng.random() < 0.3:  # Powers of two: exact.
        operation.factors = (float(rng.choice([0.5, 1.0, 2.0])), float(rng.choice([0.25, 4.0])))
    if kind in ("allgather", "alltoall", "reducescatter", "gather", "scatter"):
        operation.shape = shape or (3,)
    if kind in ("allgather", "gather", "scatter"):
        operation.rows = [int(n) for n in rng.integers(0, 5, size)]
    if kind == "alltoall":
        operation.splits = rng.integers(0, 4, (size, size)).tolist()
    return operation


def lay_out(rng, array):
    """The same values somewhere else: in the arena, transposed, with gaps, backwards, odd."""
    choice = rng.integers(6)
    if choice == 0:
        result = ringd.empty(array.shape, array.dtype)
    elif choice == 1:
        result = np.empty(array.shape, array.dtype, order="F")
    elif choice == 2 and array.ndim > 0:
        result = np.empty((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)[..., 1::2]
    elif choice == 3 and array.ndim > 0:
        result = np.empty(array.shape, array.dtype)[::-1]
    elif choice == 4:
        raw = np.empty(array.nbytes + 1, np.uint8)[1:]
        result = raw.view(array.dtype)[: array.size].reshape(array.shape)
    else:
        result = np.empty(array.shape, array.dtype)
    result[...] = array
    return result


def scaled(operation, inputs):
    prescale, postscale = operation.factors
    if operation.factors == (1.0, 1.0):
        return reduced(operation.op, inputs)
    wide = [(x.astype(np.float64) * prescale).astype(np.float64) for x in inputs]
    return (reduced(operation.op, wide) * postscale).astype(operation.dtype)


def expected(operation, rank):
    """What rank `rank` of the set gets; None: nothing."""
    inputs = operation.inputs()
    size = len(inputs)
    kind = operation.kind
    if kind in ("allreduce", "reduce"):
        return scaled(operation, inputs) if kind == "allreduce" or rank == operation.root else None
    if kind == "broadcast":
        return inputs[operation.root]
    if kind == "allgather" or (kind == "gather" and rank == operation.root):
        return np.concatenate(inputs)
    if kind == "gather":
        return None
    if kind == "scatter":
        return inputs[rank]
    if kind == "reducescatter":
        return np.array_split(scaled(operation, inputs), size)[rank]
    splits = operation.splits
    starts = [sum(splits[i][:rank]) for i in range(size)]
    return np.concatenate(
        [x[s : s + splits[i][rank]] for i, (x, s) in enumerate(zip(inputs, starts, strict=True))]
    )


def start(rng, operation, rank):
    """Its handle."""
    inputs = operation.inputs()
    mine = lay_out(rng, inputs[rank])
    kind = operation.kind
    where = {"name": operation.name, "process_set": operation.group}
    scale = dict(zip(("prescale_factor", "postscale_factor"), operation.factors, strict=True))
    in_place = rng.random() < 0.4
    if kind == "allreduce":
        if in_place:
            return ringd.allreduce_async_(mine, operation.op, **where, **scale)
        out = lay_out(rng, inputs[rank]) if rng.random() < 0.5 else None
        return ringd.allreduce_async(mine, operation.op, **where, out=out, **scale)
    root = operation.members[operation.root]
    if kind == "broadcast":
        call = ringd.broadcast_async_ if in_place else ringd.broadcast_async
        return call(mine, root, **where)
    if kind == "reduce":
        return ringd.reduce_async(mine, root, operation.op, **where, **scale)
    if kind == "allgather":
        return ringd.allgather_async(mine, **where)
    if kind == "gather":
        return ringd.gather_async(mine, root, **where)
    if kind == "scatter":
        parts = [lay_out(rng, x) for x in inputs] if rank == operation.root else None
        return ringd.scatter_async(parts, root, **where)
    if kind == "reducescatter":
        return ringd.reducescatter_async(mine, operation.op, **where, **scale)
    return ringd.alltoall_async(mine, splits=operation.splits[rank], **where)


def interleave(rng, drawn):
    """Another order, in which each set's operations keep theirs."""
    order = [id(operation.group) for operation in drawn]
    rng.shuffle(order)
    queues = {key: [each for each in drawn if id(each.group) == key] for key in set(order)}
    return [queues[key].pop(0) for key in order]


# Those that exchange sizes first block until all ranks have started them: nothing is reordered.
BLOCKING = ["allgather", "alltoall", "gather", "scatter"]
FREE = ["allreduce", "broadcast", "reduce", "reducescatter"]


def play(checks, seed, job_rank, sets):
    shared = np.random.default_rng(seed)
    own = np.random.default_rng([seed, job_rank])
    blocking = shared.random() < 0.3
    kinds = BLOCKING + FREE if blocking else FREE
    drawn = [draw(shared, kinds, sets) for _ in range(shared.integers(1, MOST))]
    mine = [each for each in drawn if job_rank in each.members]
    if not blocking:
        mine = interleave(own, mine)
    handles = [(each, start(own, each, each.members.index(job_rank))) for each in mine]
    own.shuffle(handles)
    for operation, handle in handles:
        what = f"RINGD_TEST_SEED={seed}: {operation}"
        result = ringd.synchronize(handle)
        wanted = expected(operation, operation.members.index(job_rank))
        if wanted is None:
            assert result is None, what
            continue
        if operation.kind == "alltoall":
            result, rows = result
            rank = operation.members.index(job_rank)
            assert rows.tolist() == [splits[rank] for splits in operation.splits], what
        checks.equal(result, wanted, what)


def main():
    seed = int(os.environ.get("RINGD_TEST_SEED", "1"))
    rounds = int(os.environ.get("RINGD_TEST_ROUNDS", "100"))
    ringd.init()
    rank, size = ringd.rank(), ringd.size()
    if rank == 0:
        print(f"RINGD_TEST_SEED={seed} RINGD_TEST_ROUNDS={rounds}", flush=True)
    sets = [(list(range(size)), ringd.global_process_set)]
    for first, step in [(0, 2), (1, 2), (1, 1), (size - 1, 1)]:
        members = list(range(first, size, step))
        if members not in [each for each, _ in sets]:
            sets.append((members, ringd.add_process_set(members)))
    checks = Checks()
    for number in range(rounds):
        play(checks, seed + number, rank, sets)
    ringd.barrier()
    ringd.shutdown()
    print(f"rank {rank} of {size}: {checks.passed} checks passed", flush=True)


if __name__ == "__main__":
    main()
