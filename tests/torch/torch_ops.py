"""Every operation of `ringd.torch`, against PyTorch: run by each rank of a job.

    ringctl run -n 4 -- python tests/torch/torch_ops.py

Each rank knows all ranks' inputs, so it works every result out alone.
"""

import math

import checks as support
import ringd.torch as ringd
import torch

DTYPES = [
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool,
]  # fmt: skip
SHAPES = [(), (0,), (1,), (5,), (3, 4), (2, 0, 3), (1000,)]
OPS = [ringd.Average, ringd.Sum, ringd.Min, ringd.Max, ringd.Product]


def data(rank, shape, dtype, seed=0):
    """A rank's input: small whole numbers, so that sums in any order and dtype are exact."""
    values = (torch.arange(math.prod(shape)) * 7 + rank * 3 + seed) % 4
    if dtype not in (torch.uint8, torch.bool):
        values = values - 1
    return values.reshape(shape).to(dtype)


def reduced(op, inputs):
    """What a reduction over the ranks' inputs must be."""
    dtype = inputs[0].dtype
    stack = torch.stack(inputs).to(torch.float64)
    if op == ringd.Min:
        result = stack.amin(0)
    elif op == ringd.Max:
        result = stack.amax(0)
    elif op == ringd.Product:
        result = stack.prod(0)
    else:
        result = stack.sum(0)
    if op == ringd.Average:
        result = result / len(inputs)
        result = result if dtype.is_floating_point else result.trunc()
    if dtype == torch.float16 or dtype == torch.bfloat16:
        result = result.to(torch.float32)
    return result.to(dtype)


def check_allreduce(checks, rank, size):
    for dtype in DTYPES:
        for shape in SHAPES:
            inputs = [data(r, shape, dtype) for r in range(size)]
            for op in OPS:
                if dtype == torch.bool and op == ringd.Average:
                    continue
                what = f"allreduce {dtype}{shape} {op.name}"
                expected = reduced(op, inputs)
                checks.equal(ringd.allreduce(inputs[rank], op=op), expected, what)
                in_place = inputs[rank].clone()
                assert ringd.allreduce_(in_place, op=op, name="named") is in_place
                checks.equal(in_place, expected, what + " in place")
                arena = ringd.empty(shape, dtype)
                arena.copy_(inputs[rank])
                checks.equal(ringd.allreduce_(arena, op=op), expected, what + " in the arena")


def check_allreduce_forms(checks, rank, size):
    inputs = [data(r, (6, 4), torch.float32) for r in range(size)]
    total = reduced(ringd.Sum, inputs)
    mine = inputs[rank]
    checks.equal(ringd.allreduce(mine), total / size, "average is the default")
    checks.equal(
        ringd.allreduce(mine, op=ringd.Sum, prescale_factor=0.5, postscale_factor=4.0),
        total * 2,
        "scale factors",
    )
    transposed = mine.t().contiguous().t()
    checks.equal(ringd.allreduce(transposed, op=ringd.Sum), total, "not contiguous")
    checks.equal(ringd.allreduce(mine[:, ::2], op=ringd.Sum), total[:, ::2], "strided")
    checks.raises(ValueError, lambda: ringd.allreduce_(transposed), "contiguous")
    out = torch.empty(6, 4)
    assert ringd.allreduce(mine, op=ringd.Sum, out=out) is out
    checks.equal(out, total, "out")
    handles = [ringd.allreduce_async(mine + i, op=ringd.Sum) for i in range(20)]
    for i, handle in enumerate(handles):
        checks.equal(ringd.synchronize(handle), total + i * size, "async")
    copy = mine.clone()
    handle = ringd.allreduce_async_(copy, op=ringd.Sum)
    while not ringd.poll(handle):
        pass
    assert ringd.synchronize(handle) is copy
    checks.equal(copy, total, "async in place")
    leaf = mine.clone().requires_grad_()
    version = leaf._version
    ringd.allreduce_(leaf, op=ringd.Sum)
    checks.true(leaf._version > version, "autograd knows of the write")
    large = torch.full((300_000,), float(rank + 1))
    checks.equal(
        ringd.allreduce(large, op=ringd.Sum),
        torch.full((300_000,), size * (size + 1) / 2),
        "large",
    )


def check_groups(checks, rank, size):
    shapes = [(3,), (), (4, 2)]
    dtypes = [torch.float32, torch.int64, torch.float64]
    inputs = [[data(r, s, d) for s, d in zip(shapes, dtypes, strict=True)] for r in range(size)]
    expected = [reduced(ringd.Sum, list(each)) for each in zip(*inputs, strict=True)]
    results = ringd.grouped_allreduce(inputs[rank], op=ringd.Sum, name="group")
    for result, right in zip(results, expected, strict=True):
        checks.equal(result, right, "grouped_allreduce")
    copies = [tensor.clone() for tensor in inputs[rank]]
    ringd.grouped_allreduce_(copies, op=ringd.Sum)
    for result, right in zip(copies, expected, strict=True):
        checks.equal(result, right, "grouped_allreduce_")
    gathered = ringd.grouped_allgather([torch.full((2,), rank), torch.full((rank,), 1.5)])
    checks.equal(gathered[0], torch.arange(size).repeat_interleave(2), "grouped_allgather")
    checks.equal(gathered[1], torch.full((size * (size - 1) // 2,), 1.5), "grouped_allgather")
    scattered = ringd.grouped_reducescatter([torch.ones(size, 2)] * 2, op=ringd.Sum)
    checks.equal(scattered[1], torch.full((1, 2), float(size)), "grouped_reducescatter")


def check_broadcast(checks, rank, size):
    for dtype in DTYPES:
        for root in range(size):
            for shape in SHAPES:
                expected = data(root, shape, dtype)
                mine = data(rank, shape, dtype)
                checks.equal(ringd.broadcast(mine, root), expected, f"broadcast {dtype}{shape}")
                assert ringd.broadcast_(mine, root, name="b") is mine
                checks.equal(mine, expected, f"broadcast_ {dtype}{shape}")
    handle = ringd.broadcast_async(torch.tensor([rank]), size - 1)
    checks.equal(ringd.synchronize(handle), torch.tensor([size - 1]), "broadcast_async")
    checks.raises(ValueError, lambda: ringd.broadcast(torch.ones(1), size), "root_rank")


def check_allgather(checks, rank, size):
    for dtype in DTYPES:
        for tail in [(), (3,), (2, 2)]:
            inputs = [data(r, ((r * 2 + 1) % 4, *tail), dtype) for r in range(size)]
            expected = torch.cat(inputs)
            checks.equal(ringd.allgather(inputs[rank]), expected, f"allgather {dtype}")
    checks.raises(ValueError, lambda: ringd.allgather(torch.tensor(1.0)), "dimension")


def check_reducescatter(checks, rank, size):
    for rows in (0, 1, size, 2 * size + 1):
        inputs = [data(r, (rows, 3), torch.float32) for r in range(size)]
        expected = reduced(ringd.Sum, inputs).tensor_split(size)[rank]
        checks.equal(ringd.reducescatter(inputs[rank], op=ringd.Sum), expected, "reducescatter")


def check_alltoall(checks, rank, size):
    even = torch.arange(2 * size) + 100 * rank
    expected = torch.cat([torch.arange(2 * rank, 2 * rank + 2) + 100 * r for r in range(size)])
    checks.equal(ringd.alltoall(even), expected, "alltoall")
    # Rank r sends r + s + 1 rows to rank s.
    splits = [rank + s + 1 for s in range(size)]
    rows = torch.full((sum(splits), 2), float(rank))
    result, received = ringd.alltoall(rows, splits=torch.tensor(splits))
    counts = torch.tensor([r + rank + 1 for r in range(size)])
    checks.equal(received, counts.to(torch.int32), "received splits")
    right = torch.arange(size, dtype=torch.float32).repeat_interleave(counts)
    checks.equal(result, right[:, None].expand(-1, 2), "alltoall with splits")


def check_objects(checks, rank, size):
    told = ringd.broadcast_object({"rank": rank, "t": torch.ones(2)}, root_rank=size - 1)
    checks.true(told["rank"] == size - 1 and torch.equal(told["t"], torch.ones(2)), "object")
    checks.true(ringd.allgather_object("x" * rank) == ["x" * r for r in range(size)], "objects")
    ringd.barrier()


def check_arguments(checks, rank, size):
    checks.raises(TypeError, lambda: ringd.allreduce([1.0]), "torch.Tensor", "list")
    checks.raises(ValueError, lambda: ringd.allreduce(torch.ones(1, device="meta")), "CPU")
    checks.raises(ValueError, lambda: ringd.allreduce(torch.ones(1).to_sparse()), "dense")
    checks.raises(ValueError, lambda: ringd.allreduce(torch.ones(1) * 1j), "complex64")
    checks.raises(ValueError, lambda: ringd.allreduce(torch.ones(1), op=77), "77")
    checks.raises(ValueError, lambda: ringd.empty((-1,)), "negative")
    checks.raises(ValueError, lambda: ringd.empty(1, device="cuda"), "CPU")
    if size > 1:
        wrong = torch.ones(3 + (rank == 1))
        checks.raises(ringd.MismatchError, lambda: ringd.allreduce(wrong), "float32[3]")
        checks.equal(ringd.allreduce(torch.ones(2)), torch.ones(2), "the job goes on")


if __name__ == "__main__":
    support.run(
        ringd,
        check_allreduce,
        check_allreduce_forms,
        check_groups,
        check_broadcast,
        check_allgather,
        check_reducescatter,
        check_alltoall,
        check_objects,
        check_arguments,
    )
