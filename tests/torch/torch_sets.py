"""`ringd.torch` in process sets, and its operations with a root: run by each rank of a job.

    ringctl run -n 4 -- python tests/torch/torch_sets.py

Each rank knows all ranks' inputs, so it works every result out alone.
"""

import warnings

import checks as support
import ringd.torch as ringd
import torch
from models import OPTIMIZERS, batch, loss_of, make_model, mine
from torch import nn


def sets_of(size):
    """Even and odd ranks, the ranks but the first, and the last one alone."""
    choices = [list(range(0, size, 2)), list(range(1, size, 2)), list(range(1, size)), [size - 1]]
    wanted = []
    for ranks in choices:
        if ranks and len(ranks) < size and ranks not in wanted:
            wanted.append(ranks)
    return [ringd.add_process_set(ranks) for ranks in wanted]


def each_set(checks, rank, size, test):
    made = sets_of(size)
    for process_set in made:
        ranks = process_set.ranks
        if process_set.included():
            test(ranks.index(rank), ranks, process_set)
        ringd.barrier()
    for process_set in made:
        checks.true(ringd.remove_process_set(process_set), "removed")


def check_operations(checks, rank, size):
    def test(place, ranks, process_set):
        n = len(ranks)
        inputs = [torch.arange(2.0 * n).reshape(2 * n, 1) + 10 * r for r in ranks]
        own = inputs[place]
        options = {"process_set": process_set}
        checks.equal(ringd.allreduce(own, op=ringd.Sum, **options), sum(inputs), "allreduce")
        checks.close(ringd.allreduce(own, **options), sum(inputs) / n, "average over the set")
        checks.equal(ringd.allreduce_(own.clone(), ringd.Max, **options), inputs[-1], "allreduce_")
        for result in ringd.grouped_allreduce([own, own], ringd.Min, **options):
            checks.equal(result, inputs[0], "grouped_allreduce")
        root = ranks[-1]
        checks.equal(ringd.broadcast(own, root, **options), inputs[-1], "broadcast")
        checks.equal(ringd.broadcast_(own.clone(), root, **options), inputs[-1], "broadcast_")
        uneven = own[: place + 1]
        right = torch.cat([tensor[: i + 1] for i, tensor in enumerate(inputs)])
        checks.equal(ringd.allgather(uneven, **options), right, "allgather")
        checks.equal(ringd.grouped_allgather([uneven], **options)[0], right, "grouped_allgather")
        part = sum(inputs)[2 * place : 2 * place + 2]
        checks.equal(ringd.reducescatter(own, ringd.Sum, **options), part, "reducescatter")
        right = torch.cat([tensor[2 * place : 2 * place + 2] for tensor in inputs])
        checks.equal(ringd.alltoall(own, **options), right, "alltoall")
        splits = [1] * n
        right = torch.cat([tensor[place : place + 1] for tensor in inputs])
        result, received = ringd.alltoall(own, splits, **options)
        checks.equal(result, right, "alltoall with splits")
        checks.true(received.tolist() == splits, "received splits")
        ringd.barrier(process_set=process_set)
        checks.true(ringd.allgather_object(rank, process_set=process_set) == ranks, "objects")
        checks.true(ringd.broadcast_object(rank, root, process_set=process_set) == root, "object")
        sparse = torch.zeros(size).index_fill(0, torch.tensor([rank]), 2.0).to_sparse()
        total = ringd.sparse_allreduce_async(sparse, "s", ringd.Average, process_set).wait()
        right = torch.zeros(size).index_fill(0, torch.tensor(ranks), 2.0 / n)
        checks.close(total.to_dense(), right, "sparse")

    each_set(checks, rank, size, test)


def check_gradients(checks, rank, size):
    def test(place, ranks, process_set):
        n = len(ranks)
        options = {"process_set": process_set}
        weights = [float(r + 1) for r in ranks]
        leaf = torch.ones(2 * n, requires_grad=True)
        for what, call, right in (
            ("Sum", lambda: ringd.allreduce(leaf, ringd.Sum, **options), sum(weights)),
            ("Average", lambda: ringd.allreduce(leaf, **options), sum(weights) / n),
            ("allgather", lambda: ringd.allgather(leaf, **options), sum(weights) / n),
            (
                "broadcast",
                lambda: ringd.broadcast(leaf, ranks[0], **options),
                sum(weights) / n if place == 0 else 0.0,
            ),
        ):
            leaf.grad = None
            (call() * weights[place]).sum().backward()
            checks.close(leaf.grad, torch.full((2 * n,), right), f"gradient of {what}")
        of_each = torch.tensor(weights).repeat_interleave(2)
        for what, call, right in (
            ("reducescatter", lambda: ringd.reducescatter(leaf, ringd.Sum, **options), n),
            ("alltoall", lambda: ringd.alltoall(leaf, **options), 1),
        ):
            leaf.grad = None
            (call() * weights[place]).sum().backward()
            checks.close(leaf.grad, of_each * right, f"gradient of {what}")

    each_set(checks, rank, size, test)


def check_optimizer(checks, rank, size):
    """Each set trains its own model; ranks outside step as one process does."""

    def train(optimizer, model, x, y):
        for step in range(3):
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            loss_of(model, x[step], y[step]).backward()
            optimizer.step()

    made = sets_of(size)
    for process_set in made:
        ranks = process_set.ranks
        for options in ({}, {"bucket_bytes": 900}, {"compression": ringd.Compression.fp16}):
            model, reference = make_model(), make_model()
            optimizer = ringd.DistributedOptimizer(
                OPTIMIZERS["sgd"](model.parameters()),
                model.named_parameters(),
                process_set=process_set,
                **options,
            )
            data = [batch(step, size) for step in range(3)]
            plain = OPTIMIZERS["sgd"](reference.parameters())
            own = [[mine(each[k], rank) for each in data] for k in (0, 1)]
            train(optimizer, model, *own)
            members = ranks if rank in ranks else [rank]
            joined = [
                [torch.cat([mine(each[k], r) for r in members]) for each in data] for k in (0, 1)
            ]
            train(plain, reference, *joined)
            loose = 2e-3 if "compression" in options else 1e-5
            for result, right in zip(model.parameters(), reference.parameters(), strict=True):
                checks.close(result.data, right.data, f"{ranks} {options}", loose, loose)
            optimizer.synchronize()
        ringd.barrier()
    for process_set in made:
        ringd.remove_process_set(process_set)


def check_sparse_and_unused(checks, rank, size):
    def test(place, ranks, process_set):
        table, other = nn.Parameter(torch.zeros(5, 2)), nn.Parameter(torch.zeros(3))
        optimizer = ringd.DistributedOptimizer(
            torch.optim.SGD([table, other], lr=1.0), op=ringd.Sum, process_set=process_set
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for step in range(2):
                optimizer.zero_grad()
                words = torch.tensor([place % 5])
                loss = nn.functional.embedding(words, table, sparse=True).sum()
                (loss + other.sum() if place == 0 else loss).backward()
                optimizer.step()
                right = torch.zeros(5, 2)
                for i in range(len(ranks)):
                    right[i % 5] -= step + 1
                checks.equal(table.data, right, "sparse gradients in a set")
                checks.equal(other.data, torch.full((3,), -1.0 - step), "used by one rank")

    each_set(checks, rank, size, test)


def check_batch_norm_and_parameters(checks, rank, size):
    def test(place, ranks, process_set):
        parts = [torch.randn(r + 2, 3, generator=torch.Generator().manual_seed(r)) for r in ranks]
        own = parts[place].clone().requires_grad_()
        whole = torch.cat(parts).requires_grad_()
        layer = ringd.SyncBatchNorm(3, process_set=process_set)
        reference = nn.BatchNorm1d(3)
        first = sum(len(part) for part in parts[:place])
        result, right = layer(own), reference(whole)
        result.square().sum().backward()
        right.square().sum().backward()
        rows = slice(first, first + len(own))
        checks.close(result.detach(), right.detach()[rows], "SyncBatchNorm", 1e-4, 1e-5)
        checks.close(own.grad, whole.grad[rows], "its gradient", 1e-3, 1e-5)
        checks.close(layer.running_var, reference.running_var, "its variance")
        root = ranks[-1]
        model = nn.Linear(2, 2)
        nn.init.constant_(model.weight, float(rank))
        ringd.broadcast_parameters(model.state_dict(), root, process_set=process_set)
        checks.equal(model.weight.data, torch.full((2, 2), float(root)), "broadcast_parameters")
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (rank + 1))
        if rank == root:
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        ringd.broadcast_optimizer_state(optimizer, root, process_set=process_set)
        checks.true(len(optimizer.state) == 2, "broadcast_optimizer_state")
        checks.true(abs(optimizer.param_groups[0]["lr"] - 0.1 * (root + 1)) < 1e-12, "options")
        if len(ranks) > 1:
            wrong = nn.Linear(2 + place, 2)
            error = checks.raises(
                ringd.MismatchError,
                lambda: ringd.broadcast_parameters(
                    wrong.state_dict(), root, process_set=process_set
                ),
                f"on rank {ranks[0]}",
            )
            checks.true(error.ranks == tuple(ranks[:2]), "ranks of the job")

    each_set(checks, rank, size, test)


def check_bad_sets(checks, rank, size):
    unregistered = ringd.ProcessSet([0])
    for call in (
        lambda: ringd.allreduce(torch.ones(1), process_set=unregistered),
        lambda: ringd.allgather(torch.ones(1), process_set=7),
        lambda: ringd.DistributedOptimizer(
            torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0), process_set=unregistered
        ),
        lambda: ringd.broadcast_parameters({}, process_set=unregistered),
    ):
        checks.raises(TypeError, call)
    for process_set in sets_of(size):
        if not process_set.included():
            for call in (
                lambda p=process_set: ringd.allreduce(torch.ones(1), process_set=p),
                lambda p=process_set: ringd.broadcast(torch.ones(1), rank, process_set=p),
                lambda p=process_set: ringd.SyncBatchNorm(2, process_set=p)(torch.ones(2, 2)),
                lambda p=process_set: ringd.broadcast_parameters({}, process_set=p),
            ):
                checks.raises(ValueError, call, "not a member")
        else:
            outside = next(r for r in range(size) if r not in process_set.ranks)
            checks.raises(
                ValueError,
                lambda p=process_set, o=outside: ringd.broadcast(torch.ones(1), o, process_set=p),
                "process set",
            )
        ringd.remove_process_set(process_set)
    checks.equal(ringd.allreduce(torch.ones(2)), torch.ones(2), "the job goes on")


def check_rooted(checks, rank, size):
    inputs = [torch.arange(3.0) + r for r in range(size)]
    for root in range(size):
        result = ringd.reduce(inputs[rank], root, op=ringd.Sum)
        parts = ringd.gather(inputs[rank][: rank + 1], root)
        if rank == root:
            checks.equal(result, sum(inputs), "reduce")
            checks.equal(parts, torch.cat([t[: i + 1] for i, t in enumerate(inputs)]), "gather")
        else:
            checks.true(result is None and parts is None, "the root alone gets it")
        given = [torch.full((r + 1, 2), r, dtype=torch.bfloat16) for r in range(size)]
        own = ringd.scatter(given if rank == root else None, root)
        checks.equal(own, given[rank], "scatter")
    checks.raises(ValueError, lambda: ringd.reduce(inputs[0], size), "rank")
    if size > 1:
        after, before = (rank + 1) % size, (rank - 1) % size
        handle = ringd.send_async(inputs[rank], after, tag=3)
        checks.equal(ringd.recv((3,), before, tag=3), inputs[before], "recv of a shape")
        ringd.synchronize(handle)
        place = torch.empty(3)
        receiving = ringd.recv_async(place, before)
        ringd.send(inputs[rank], after)
        checks.true(ringd.synchronize(receiving) is place, "the same object")
        checks.equal(place, inputs[before], "recv into a tensor")


def check_weights(checks, rank, size):
    weights = [float(r % 3) + 0.5 for r in range(size)]
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        inputs = [torch.tensor([1.0, -2.0]).to(dtype) * (r + 1) for r in range(size)]
        exact = sum(w * t.double() for w, t in zip(weights, inputs, strict=True)) / sum(weights)
        loose = 1e-2 if dtype == torch.bfloat16 else 1e-6
        result = ringd.allreduce(inputs[rank], weight=weights[rank])
        checks.true(result.dtype == dtype, "dtype")
        checks.close(result.double(), exact, f"weights {dtype}", loose, loose)
        place = inputs[rank].clone()
        checks.true(ringd.allreduce_(place, weight=weights[rank]) is place, "in place")
        checks.equal(place, result, "weights in place")
        same = ringd.allreduce(torch.full((2, 2), 3.0).to(dtype), op=ringd.Adasum)
        checks.close(same, torch.full((2, 2), 3.0).to(dtype), "Adasum of equal ones", 1e-2, 1e-2)
        axes = torch.zeros(size, dtype=dtype)
        axes[rank] = rank + 1
        right = torch.arange(1, size + 1).to(dtype)
        checks.close(ringd.allreduce(axes, op=ringd.Adasum), right, "of orthogonal ones")
    checks.raises(ValueError, lambda: ringd.allreduce(inputs[0], weight=-1.0), "weight")
    leaf = torch.ones(2, requires_grad=True)
    checks.raises(ValueError, lambda: ringd.allreduce(leaf, weight=1.0), "gradient")


if __name__ == "__main__":
    support.run(
        ringd,
        check_operations,
        check_gradients,
        check_optimizer,
        check_sparse_and_unused,
        check_batch_norm_and_parameters,
        check_bad_sets,
        check_rooted,
        check_weights,
    )
