"""Every call of torch.distributed on the backend "ringd": run by each rank of a job.

    ringctl run -n 4 -- python tests/torch_distributed/dist_ops.py

Each rank knows all ranks' inputs, so it works every result out alone.
"""

import math
from datetime import timedelta

import support
import torch
import torch.distributed as dist

NUMBERS = [
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
]  # fmt: skip
UNSIGNED = [torch.uint16, torch.uint32, torch.uint64]
SHAPES = [(), (0,), (5,), (3, 4), (1000,)]
OPS = [dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT]


def data(rank, shape, dtype=torch.float32, seed=0):
    """A rank's input: small whole numbers, so that sums in any order and dtype are exact."""
    values = (torch.arange(math.prod(shape)) * 7 + rank * 3 + seed) % 4
    return values.reshape(shape).to(dtype)


def reduced(op, inputs):
    """What a reduction over the ranks' inputs must be."""
    stack = torch.stack(inputs).to(torch.float64)
    how = {"SUM": torch.sum, "MIN": torch.amin, "MAX": torch.amax, "PRODUCT": torch.prod}
    if op == dist.ReduceOp.AVG:
        return stack.mean(0).to(inputs[0].dtype)
    return how[op.name](stack, 0).to(inputs[0].dtype)


def check_group(checks, rank, size):
    checks.true(dist.get_backend() == "ringd", "get_backend")
    checks.true(dist.group.WORLD.name() == "ringd", "name")
    checks.true(dist.get_process_group_ranks(dist.group.WORLD) == list(range(size)), "ranks")
    checks.true(dist.group.WORLD.group_name != "", "group_name")


def check_all_reduce(checks, rank, size):
    for dtype in NUMBERS:
        for shape in SHAPES:
            inputs = [data(r, shape, dtype) for r in range(size)]
            for op in OPS:
                tensor = inputs[rank].clone()
                dist.all_reduce(tensor, op)
                checks.equal(tensor, reduced(op, inputs), f"all_reduce {dtype}{shape} {op}")
    inputs = [data(r, (64,)) for r in range(size)]
    tensor = inputs[rank].clone()
    dist.all_reduce(tensor, dist.ReduceOp.AVG)
    checks.close(tensor, reduced(dist.ReduceOp.AVG, inputs), "average")
    for op, combine in [(dist.ReduceOp.SUM, torch.any), (dist.ReduceOp.PRODUCT, torch.all)]:
        bools = [data(r, (8,), torch.bool) for r in range(size)]
        tensor = bools[rank].clone()
        dist.all_reduce(tensor, op)
        checks.equal(tensor, combine(torch.stack(bools), 0), "bool")
    tensor = torch.full((4,), 1j) * (rank + 1)
    dist.all_reduce(tensor)
    checks.equal(tensor, torch.full((4,), 1j) * (size * (size + 1) // 2), "complex")


def check_strides(checks, rank, size):
    inputs = [data(r, (4, 6)) for r in range(size)]
    total = reduced(dist.ReduceOp.SUM, inputs)
    for view in (torch.Tensor.t, lambda tensor: tensor[:, ::2], lambda tensor: tensor[1:3]):
        tensor = inputs[rank].clone()
        dist.all_reduce(view(tensor))
        checks.equal(view(tensor), view(total), "all_reduce of a view")
        tensor = inputs[rank].clone()
        dist.broadcast(view(tensor), size - 1)
        checks.equal(view(tensor), view(inputs[size - 1]), "broadcast of a view")
    columns = torch.zeros(4 * size, 6)
    dist.all_gather_into_tensor(columns.t().contiguous().t(), inputs[rank].t().contiguous().t())
    output = torch.zeros(6, 4 * size).t()
    dist.all_gather_into_tensor(output, inputs[rank])
    checks.equal(output, torch.cat(inputs), "all_gather_into_tensor of a view")


def check_async(checks, rank, size):
    tensors = [torch.full((n,), float(rank + n)) for n in range(1, 30)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for n, (work, tensor) in enumerate(zip(works, tensors, strict=True), 1):
        checks.true(work.wait(), "wait")
        checks.true(work.is_completed() and work.is_success(), "is_completed")
        checks.equal(tensor, torch.full((n,), float(sum(r + n for r in range(size)))), "async")
    tensor = torch.ones(100_000)
    work = dist.all_reduce(tensor, async_op=True)
    future = work.get_future().then(lambda done: done.value()[0] * 2)
    checks.equal(future.wait(), torch.full((100_000,), 2.0 * size), "future")
    checks.true(work.get_future().wait()[0] is tensor, "the same future again")
    dropped = torch.ones(50_000)
    dist.all_reduce(dropped, async_op=True)
    dist.barrier()
    checks.equal(dropped, torch.full((50_000,), float(size)), "nobody waited but the barrier")
    work = dist.barrier(async_op=True)
    while not work.is_completed():
        pass
    checks.true(work.wait(timedelta(seconds=10)), "barrier")


def check_coalesced(checks, rank, size):
    tensors = [torch.full((n + 1,), float(rank)) for n in range(3)]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    for n, tensor in enumerate(tensors):
        checks.equal(tensor, torch.full((n + 1,), float(sum(range(size)))), "all_reduce_coalesced")
    outputs = [torch.zeros(2 * size), torch.zeros(size, dtype=torch.int64)]
    inputs = [torch.full((2,), float(rank)), torch.tensor([rank])]
    with dist._coalescing_manager(async_ops=True) as coalesced:
        for output, tensor in zip(outputs, inputs, strict=True):
            dist.all_gather_into_tensor(output, tensor)
    coalesced.wait()
    checks.equal(outputs[0], torch.arange(size).repeat_interleave(2).float(), "coalesced gather")
    checks.equal(outputs[1], torch.arange(size), "coalesced gather")
    tensors = [torch.full((n + 1,), float(rank)) for n in range(3)]
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as coalesced:
        for tensor in tensors:
            dist.broadcast(tensor, size - 1)
    coalesced.wait()
    for n, tensor in enumerate(tensors):
        checks.equal(tensor, torch.full((n + 1,), size - 1.0), "coalesced by device")
    outputs = [torch.zeros(2), torch.zeros(1)]
    with dist._coalescing_manager():
        for output in outputs:
            dist.reduce_scatter_tensor(output, torch.ones(output.numel() * size))
    checks.equal(outputs[0], torch.full((2,), float(size)), "coalesced reduce_scatter")


def check_rooted(checks, rank, size):
    for root in range(size):
        for dtype in [*NUMBERS, *UNSIGNED, torch.bool, torch.complex64]:
            tensor = data(rank, (3, 5), dtype)
            dist.broadcast(tensor, root)
            checks.equal(tensor, data(root, (3, 5), dtype), f"broadcast {dtype}")
        inputs = [data(r, (7, 3)) for r in range(size)]
        tensor = inputs[rank].clone()
        dist.reduce(tensor, root)
        right = reduced(dist.ReduceOp.SUM, inputs) if rank == root else inputs[rank]
        checks.equal(tensor, right, "reduce")
        lists = [torch.zeros(7, 3) for _ in range(size)] if rank == root else None
        dist.gather(inputs[rank], lists, root)
        for r, gathered in enumerate(lists or []):
            checks.equal(gathered, inputs[r], "gather")
        output = torch.zeros(7, 3)
        parts = [data(r, (7, 3), seed=root) for r in range(size)]
        dist.scatter(output, parts if rank == root else None, root)
        checks.equal(output, parts[rank], "scatter")


def check_all_gather(checks, rank, size):
    for dtype in [*NUMBERS, torch.bool, torch.complex64]:
        inputs = [data(r, (3, 2), dtype) for r in range(size)]
        outputs = [torch.zeros(3, 2, dtype=dtype) for _ in range(size)]
        dist.all_gather(outputs, inputs[rank])
        checks.equal(torch.stack(outputs), torch.stack(inputs), f"all_gather {dtype}")
        output = torch.zeros(3 * size, 2, dtype=dtype)
        dist.all_gather_into_tensor(output, inputs[rank])
        checks.equal(output, torch.cat(inputs), f"all_gather_into_tensor {dtype}")
    output = torch.zeros(size, 40_000)
    output[rank] = rank
    dist.all_gather_into_tensor(output, output[rank])
    checks.equal(output, torch.arange(size)[:, None].expand(-1, 40_000).float(), "in place")
    uneven = [torch.zeros(r + 1) for r in range(size)]
    dist.all_gather(uneven, torch.full((rank + 1,), float(rank)))
    for r, output in enumerate(uneven):
        checks.equal(output, torch.full((r + 1,), float(r)), "all_gather of several sizes")


def check_reduce_scatter(checks, rank, size):
    lists = [[data(r, (4, 3), seed=part) for part in range(size)] for r in range(size)]
    right = reduced(dist.ReduceOp.SUM, [parts[rank] for parts in lists])
    output = torch.zeros(4, 3)
    dist.reduce_scatter(output, lists[rank])
    checks.equal(output, right, "reduce_scatter")
    output = torch.zeros(4, 3)
    dist.reduce_scatter_tensor(output, torch.cat(lists[rank]))
    checks.equal(output, right, "reduce_scatter_tensor")
    output = torch.zeros(4, 3)
    dist.reduce_scatter_tensor(output, torch.cat(lists[rank]), dist.ReduceOp.AVG)
    checks.close(output, right / size, "reduce_scatter_tensor average")


def check_all_to_all(checks, rank, size):
    output = torch.zeros(2 * size)
    dist.all_to_all_single(output, torch.arange(2.0 * size) + 100 * rank)
    right = torch.cat([torch.arange(2.0 * rank, 2 * rank + 2) + 100 * r for r in range(size)])
    checks.equal(output, right, "all_to_all_single")
    # Rank r sends r + s + 1 rows to rank s.
    splits = [rank + s + 1 for s in range(size)]
    rows = torch.full((sum(splits), 2), float(rank))
    output = torch.zeros(sum(splits), 2)
    work = dist.all_to_all_single(output, rows, splits, splits, async_op=True)
    after = torch.ones(1)
    dist.all_reduce(after)
    work.wait()
    right = torch.arange(float(size)).repeat_interleave(torch.tensor(splits))
    checks.equal(output, right[:, None].expand(-1, 2), "all_to_all_single with splits")
    checks.equal(after, torch.tensor([float(size)]), "an operation between the stages")
    work = dist.all_to_all_single(output.zero_(), rows, splits, splits, async_op=True)
    while not work.is_completed():
        pass
    checks.equal(output, right[:, None].expand(-1, 2), "all_to_all_single, polled")
    outputs = [torch.zeros(r + rank + 1) for r in range(size)]
    dist.all_to_all(outputs, [torch.full((rank + s + 1,), float(rank)) for s in range(size)])
    for r, received in enumerate(outputs):
        checks.equal(received, torch.full((r + rank + 1,), float(r)), "all_to_all")


def check_objects(checks, rank, size):
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * rank})
    checks.true(objects == [{"rank": r, "text": "x" * r} for r in range(size)], "objects")
    told = [rank, "a"] if rank == size - 1 else [None, None]
    dist.broadcast_object_list(told, size - 1)
    checks.true(told == [size - 1, "a"], "broadcast_object_list")
    gathered = [None] * size if rank == 0 else None
    dist.gather_object(("r", rank), gathered, 0)
    checks.true(rank != 0 or gathered == [("r", r) for r in range(size)], "gather_object")
    mine = [None]
    dist.scatter_object_list(mine, [{"n": r} for r in range(size)] if rank == 0 else None, 0)
    checks.true(mine == [{"n": rank}], "scatter_object_list")


def check_sparse(checks, rank, size):
    indices = torch.tensor([[0, rank + 1, rank + 1]])
    tensor = torch.sparse_coo_tensor(indices, torch.ones(3, 2), (size + 2, 2))
    dist.all_reduce(tensor)
    right = torch.full((size + 2, 2), 2.0)
    right[0] = size
    right[-1] = 0
    checks.equal(tensor.to_dense(), right, "sparse all_reduce")


def check_functional(checks, rank, size):
    import torch.distributed._functional_collectives as functional

    group = dist.group.WORLD
    total = functional.all_reduce(torch.full((4,), float(rank)), "sum", group)
    checks.equal(total + 0, torch.full((4,), float(sum(range(size)))), "functional all_reduce")
    gathered = functional.all_gather_tensor(torch.full((2,), float(rank)), 0, group)
    checks.equal(gathered + 0, torch.arange(size).repeat_interleave(2).float(), "all_gather")
    scattered = functional.reduce_scatter_tensor(torch.ones(2 * size), "sum", 0, group)
    checks.equal(scattered + 0, torch.full((2,), float(size)), "functional reduce_scatter")
    moved = functional.all_to_all_single(torch.full((size,), float(rank)), None, None, group)
    checks.equal(moved + 0, torch.arange(float(size)), "functional all_to_all")
    sent = functional.broadcast(torch.full((2,), float(rank)), size - 1, group)
    checks.equal(sent + 0, torch.full((2,), float(size - 1)), "functional broadcast")


def check_groups(checks, rank, size):
    everyone = dist.new_group(list(range(size)))
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=everyone)
    checks.equal(tensor, torch.full((3,), float(size)), "a second group of all ranks")
    for r in range(size):
        alone = dist.new_group([r])
        if r == rank:
            tensor = torch.full((2,), 5.0)
            dist.all_reduce(tensor, group=alone)
            outputs = [torch.zeros(2)]
            dist.all_gather(outputs, tensor, group=alone)
            checks.equal(outputs[0], torch.full((2,), 5.0), "a group of one")
            dist.destroy_process_group(alone)
    dist.destroy_process_group(everyone)


def has_subgroups():
    return hasattr(dist.group.WORLD, "new_group")


def check_subgroups(checks, rank, size):
    if not has_subgroups():
        return
    for members in ([0, size - 1], list(range(1, size)), list(range(size))):
        members = sorted(set(members))
        if not members:
            continue
        group = dist.new_group(members)
        if rank not in members:
            continue
        mine = members.index(rank)
        checks.true(dist.get_rank(group) == mine, "rank in a group")
        inputs = [data(r, (9,)) for r in members]
        tensor = inputs[mine].clone()
        dist.all_reduce(tensor, group=group)
        checks.equal(tensor, reduced(dist.ReduceOp.SUM, inputs), "all_reduce in a group")
        dist.broadcast(tensor, members[-1], group=group)
        outputs = [torch.zeros(9) for _ in members]
        dist.all_gather(outputs, inputs[mine], group=group)
        checks.equal(torch.stack(outputs), torch.stack(inputs), "all_gather in a group")
        objects = [None] * len(members)
        dist.all_gather_object(objects, rank, group=group)
        checks.true(objects == members, "objects in a group")
        output = torch.zeros(9)
        dist.scatter(output, inputs if mine == 0 else None, members[0], group=group)
        checks.equal(output, inputs[mine], "scatter in a group")
        received = [torch.zeros(r + mine + 1) for r in range(len(members))]
        sent = [torch.full((mine + s + 1,), float(mine)) for s in range(len(members))]
        dist.all_to_all(received, sent, group=group)
        for r, tensor in enumerate(received):
            checks.equal(tensor, torch.full((r + mine + 1,), float(r)), "all_to_all in a group")
        dist.barrier(group)
        dist.destroy_process_group(group)


def check_messages(checks, rank, size):
    if not has_subgroups() or size == 1:
        return
    right, left = (rank + 1) % size, (rank - 1) % size
    for count in (3, 40_000):
        incoming = torch.zeros(count)
        works = [
            dist.isend(torch.full((count,), float(rank)), right, tag=5),
            dist.irecv(incoming, left, tag=5),
        ]
        for work in works:
            work.wait()
        checks.equal(incoming, torch.full((count,), float(left)), "isend, irecv")
    incoming = torch.zeros(2, 4, dtype=torch.complex64)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, torch.full((2, 4), rank * 1j), right),
            dist.P2POp(dist.irecv, incoming, left),
        ]
    )
    for work in works:
        work.wait()
    checks.equal(incoming, torch.full((2, 4), left * 1j), "batch_isend_irecv")
    if rank == 0:
        dist.send(torch.arange(4), 1)
        dist.send_object_list([{"a": 1}], 1)
    elif rank == 1:
        tensor, objects = torch.zeros(2, 2, dtype=torch.int64).t(), [None]
        checks.true(dist.recv(tensor, 0) == 0, "recv")
        checks.equal(tensor, torch.arange(4).reshape(2, 2), "recv into a view")
        dist.recv_object_list(objects, 0)
        checks.true(objects == [{"a": 1}], "objects")


def check_errors(checks, rank, size):
    checks.raises(ValueError, lambda: dist.all_reduce(torch.ones(2), dist.ReduceOp.BXOR), "BXOR")
    checks.raises(ValueError, lambda: dist.all_reduce(torch.ones(1, device="meta")), "CPU")
    checks.raises(
        ValueError, lambda: dist.all_reduce(torch.ones(2).to(torch.float8_e5m2)), "float8_e5m2"
    )
    if size > 1:
        wrong = torch.ones(3 + (rank == 1))
        checks.raises(RuntimeError, lambda: dist.all_reduce(wrong), "float32[3]", "dist_ops.py")
        work = dist.all_reduce(wrong, async_op=True)
        checks.raises(RuntimeError, work.get_future().wait, "float32[4]")
        checks.raises(RuntimeError, work.wait, "float32[4]")
        tensor = torch.ones(2)
        dist.all_reduce(tensor)
        checks.equal(tensor, torch.full((2,), float(size)), "the group goes on")


CHECKS = [
    check_group,
    check_all_reduce,
    check_strides,
    check_async,
    check_coalesced,
    check_rooted,
    check_all_gather,
    check_reduce_scatter,
    check_all_to_all,
    check_objects,
    check_sparse,
    check_functional,
    check_groups,
    check_subgroups,
    check_messages,
    check_errors,
]

if __name__ == "__main__":
    support.run(*CHECKS)
