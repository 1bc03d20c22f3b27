"""Gradients of `ringd.torch`'s operations: run by each rank of a job.

    ringctl run -n 4 -- python tests/torch/torch_autograd.py

Each rank also runs, alone, what all ranks together compute; its gradients come from autograd there,
and from finite differences. `scale` is the house's meaning of each gradient: that of the sum of all
ranks' losses (1), of their mean (1 / size), or, for reducescatter, size times the sum's.
"""

import checks as support
import ringd.torch as ringd
import torch

STEP = 1e-6


def inputs_of(size, shape_of, seed=0):
    generator = torch.Generator().manual_seed(seed)
    make = lambda r: torch.randn(shape_of(r), generator=generator, dtype=torch.float64)  # noqa: E731
    return [make(r) for r in range(size)]


def loss_of(rank, outputs):
    """A loss that differs between ranks, is not linear, and needs no gradient to be contiguous."""
    total = torch.zeros((), dtype=torch.float64)
    for i, output in enumerate(outputs):
        total = total + (output.cos() * (rank + 1)).sum() + (output**2 * (i + 0.5)).sum()
    return total


def joint_loss(world, inputs):
    return sum(loss_of(rank, outputs) for rank, outputs in enumerate(world(inputs)))


def differences(world, inputs, rank):
    """The joint loss's derivative by each element of a rank's input, from two values each."""
    result = torch.empty_like(inputs[rank]).flatten()
    for i in range(result.numel()):
        values = []
        for sign in (1, -1):
            moved = [tensor.clone() for tensor in inputs]
            moved[rank].view(-1)[i] += sign * STEP
            values.append(joint_loss(world, moved))
        result[i] = (values[0] - values[1]) / (2 * STEP)
    return result.view_as(inputs[rank])


def compare(checks, rank, world, call, inputs, scale, what):
    """`world(inputs)`: every rank's list of results; `call(mine)`: this rank's, by ringd."""
    mine = inputs[rank].clone().requires_grad_()
    outputs = call(mine)
    for output, right in zip(outputs, world(inputs)[rank], strict=True):
        checks.true(output.requires_grad, what + ": requires_grad")
        checks.close(output.detach(), right, what + ": values")
    loss_of(rank, outputs).backward()
    alone = [tensor.clone().requires_grad_() for tensor in inputs]
    joint_loss(world, alone).backward()
    checks.close(mine.grad, alone[rank].grad * scale, what + ": gradient of one process")
    numbers = differences(world, inputs, rank)
    checks.close(mine.grad, numbers * scale, what + ": finite differences", rtol=1e-5, atol=1e-6)


def check_allreduce(checks, rank, size):
    inputs = inputs_of(size, lambda r: (3, 2))
    reductions = {
        ringd.Sum: lambda stack: stack.sum(0),
        ringd.Average: lambda stack: stack.mean(0),
        ringd.Min: lambda stack: stack.amin(0),
        ringd.Max: lambda stack: stack.amax(0),
        ringd.Product: lambda stack: stack.prod(0),
    }
    for op, reduction in reductions.items():
        for pre, post in ((1.0, 1.0), (0.5, 3.0)):

            def world(tensors, reduction=reduction, pre=pre, post=post):
                result = reduction(torch.stack([tensor * pre for tensor in tensors])) * post
                return [[result]] * size

            def call(mine, op=op, pre=pre, post=post):
                return [ringd.allreduce(mine, op, prescale_factor=pre, postscale_factor=post)]

            compare(checks, rank, world, call, inputs, 1, f"allreduce {op.name} {pre} {post}")


def check_ties(checks, rank, size):
    mine = torch.tensor([1.0, float(rank)], requires_grad=True)
    ringd.allreduce(mine, ringd.Max).sum().backward()
    right = torch.tensor([1.0, size if rank == size - 1 else 0.0])
    checks.equal(mine.grad, right, "shares of a maximum that all ranks have")
    mine = torch.tensor([float(rank)], requires_grad=True)
    ringd.allreduce(mine, ringd.Product).sum().backward()
    others = torch.tensor([r for r in range(size) if r != rank], dtype=torch.float32).prod()
    checks.equal(mine.grad, others.view(1) * size, "a product with a zero")


def check_allgather(checks, rank, size):
    for rows in (lambda r: (r + 1, 2), lambda r: (2 * (r % 2), 3), lambda r: (2,)):
        inputs = inputs_of(size, rows)

        def world(tensors):
            return [[torch.cat(tensors)]] * size

        compare(
            checks, rank, world, lambda mine: [ringd.allgather(mine)], inputs, 1 / size, "allgather"
        )


def check_broadcast(checks, rank, size):
    inputs = inputs_of(size, lambda r: (2, 2))
    for root in range(size):

        def world(tensors, root=root):
            return [[tensors[root] + 0 * sum(tensors)]] * size

        compare(
            checks,
            rank,
            world,
            lambda mine, root=root: [ringd.broadcast(mine, root, name="b")],
            inputs,
            1 / size,
            f"broadcast from {root}",
        )


def check_reducescatter(checks, rank, size):
    for rows in (size, 2 * size + 1, 1):
        inputs = inputs_of(size, lambda r, rows=rows: (rows, 2))
        for op in (ringd.Sum, ringd.Average):
            for pre, post in ((1.0, 1.0), (0.5, 3.0)):
                factor = pre * post / (size if op == ringd.Average else 1)

                def world(tensors, factor=factor):
                    return [[part] for part in (sum(tensors) * factor).tensor_split(size)]

                def call(mine, op=op, pre=pre, post=post):
                    return [
                        ringd.reducescatter(mine, op, prescale_factor=pre, postscale_factor=post)
                    ]

                compare(checks, rank, world, call, inputs, size, f"reducescatter {op.name}")
    leaf = torch.ones(size, requires_grad=True)
    checks.raises(ValueError, lambda: ringd.reducescatter(leaf, ringd.Max), "Average and Sum")


def check_alltoall(checks, rank, size):
    inputs = inputs_of(size, lambda r: (2 * size, 3))

    def even(tensors):
        return [[torch.cat([tensor[2 * r : 2 * r + 2] for tensor in tensors])] for r in range(size)]

    compare(checks, rank, even, lambda mine: [ringd.alltoall(mine)], inputs, 1, "alltoall")
    # Rank r sends (r + s) % 3 rows to rank s; two more rows are not sent.
    splits = [[(r + s) % 3 for s in range(size)] for r in range(size)]
    inputs = inputs_of(size, lambda r: (sum(splits[r]) + 2, 3))

    def uneven(tensors):
        pieces = [tensor.split([*splits[r], 2]) for r, tensor in enumerate(tensors)]
        return [[torch.cat([piece[s] for piece in pieces])] for s in range(size)]

    def call(mine):
        result, received = ringd.alltoall(mine, torch.tensor(splits[rank]))
        checks.true(received.tolist() == [splits[s][rank] for s in range(size)], "received")
        return [result]

    compare(checks, rank, uneven, call, inputs, 1, "alltoall with splits")


def check_groups(checks, rank, size):
    inputs = inputs_of(size, lambda r: (2 * size, 2))

    for op in (ringd.Sum, ringd.Max):

        def world(tensors, op=op):
            stack = torch.stack(tensors)
            total = stack.sum(0) if op == ringd.Sum else stack.amax(0)
            return [[total * 2, total**2 if op == ringd.Max else total * 3]] * size

        def call(mine, op=op):
            second = mine * 3 if op == ringd.Sum else mine
            first, second = ringd.grouped_allreduce([mine * 2, second], op, name="g")
            return [first, second if op == ringd.Sum else second**2]

        compare(checks, rank, world, call, inputs, 1, f"grouped_allreduce {op.name}")

    def gathered(tensors):
        return [[torch.cat(tensors), torch.cat([tensor[1:] for tensor in tensors])]] * size

    def gather(mine):
        return ringd.grouped_allgather([mine, mine[1:]])

    compare(checks, rank, gathered, gather, inputs, 1 / size, "grouped_allgather")

    def scattered(tensors):
        total = sum(tensors)
        return [[a, b] for a, b in zip(total.chunk(size), (total * 2).chunk(size), strict=True)]

    def scatter(mine):
        return ringd.grouped_reducescatter([mine, mine * 2], ringd.Sum)

    compare(checks, rank, scattered, scatter, inputs, size, "grouped_reducescatter")
    for call in (
        ringd.grouped_allreduce, ringd.grouped_allgather, ringd.grouped_reducescatter,
        ringd.grouped_allreduce_,
    ):  # fmt: skip
        checks.raises(ValueError, lambda call=call: call([]), "no tensors")


def check_second_derivatives(checks, rank, size):
    mine = torch.full((2,), float(rank + 1), dtype=torch.float64, requires_grad=True)
    total = size * (size + 1) / 2
    (grad,) = torch.autograd.grad(
        (ringd.allreduce(mine, ringd.Sum) ** 3).sum(), mine, create_graph=True
    )
    checks.close(grad.detach(), torch.full_like(mine, size * 3 * total**2), "first derivative")
    (second,) = torch.autograd.grad(grad.sum(), mine)
    checks.close(second, torch.full_like(mine, size**2 * 6 * total), "second derivative")


def check_in_a_model(checks, rank, size):
    """One layer's columns are shared out among the ranks: the whole model's gradients."""
    torch.manual_seed(0)
    first = torch.randn(3, 4 * size, dtype=torch.float64)
    second = torch.randn(4 * size, 2, dtype=torch.float64)
    x = torch.randn(5, 3, dtype=torch.float64)
    whole = [first.clone().requires_grad_(), second.clone().requires_grad_()]
    (torch.tanh(x @ whole[0]) @ whole[1]).square().sum().backward()
    own = slice(4 * rank, 4 * rank + 4)
    parts = [first[:, own].clone().requires_grad_(), second[own].clone().requires_grad_()]
    partial = torch.tanh(x @ parts[0]) @ parts[1]
    # Each rank has the same loss: the sum of their gradients is size times that of one.
    (ringd.allreduce(partial, ringd.Sum).square().sum() / size).backward()
    checks.close(parts[0].grad, whole[0].grad[:, own], "columns")
    checks.close(parts[1].grad, whole[1].grad[own], "rows")


def check_what_has_none(checks, rank, size):
    leaf = torch.ones(3, requires_grad=True)
    checks.raises(ValueError, lambda: ringd.allreduce(leaf, out=torch.empty(3)), "out")
    checks.true(not ringd.allreduce_async(leaf).wait().requires_grad, "async")
    with torch.no_grad():
        checks.true(not ringd.allreduce(leaf).requires_grad, "no_grad")
        ringd.allreduce(leaf, out=torch.empty(3))
    checks.true(not ringd.allreduce(torch.ones(3)).requires_grad, "an input without gradient")


def check_compression(checks, rank, size):
    inputs = [torch.linspace(-1, 1, 7) * (r + 1) for r in range(size)]
    for compression, wire in (
        (ringd.Compression.fp16, torch.float16),
        (ringd.Compression.bf16, torch.bfloat16),
    ):
        right = sum(tensor.to(wire).double() for tensor in inputs)
        mine = inputs[rank].clone().requires_grad_()
        result = ringd.allreduce(mine, ringd.Sum, compression=compression)
        checks.true(result.dtype == torch.float32, "the dtype is restored")
        tolerance = {"rtol": 4 * torch.finfo(wire).eps, "atol": 4 * torch.finfo(wire).eps}
        checks.close(result.detach().double(), right, f"{wire}", **tolerance)
        result.sum().backward()
        checks.equal(mine.grad, torch.full((7,), float(size)), "gradient of a compressed sum")
        grouped = ringd.grouped_allreduce(
            [inputs[rank], torch.tensor([rank])], ringd.Sum, compression=compression
        )
        checks.close(grouped[0].double(), right, "grouped", **tolerance)
        checks.equal(grouped[1], torch.tensor([size * (size - 1) // 2]), "integers travel as is")
        rows = ringd.reducescatter(inputs[rank], ringd.Sum, compression=compression)
        checks.close(rows.double(), right.tensor_split(size)[rank], "reducescatter", **tolerance)
        out = torch.empty(7)
        ringd.allreduce(inputs[rank], ringd.Sum, out=out, compression=compression)
        checks.close(out.double(), right, "out", **tolerance)
    large = torch.tensor([70000.0])
    checks.true(ringd.allreduce(large, compression=ringd.Compression.fp16).isinf(), "overflow")
    checks.close(
        ringd.allreduce(large, compression=ringd.Compression.bf16), large, "range", rtol=0.01
    )

    class Half(ringd.Compressor):
        @staticmethod
        def compress(tensor):
            return tensor / 2, 2

        @staticmethod
        def decompress(tensor, ctx):
            return tensor * ctx

    checks.equal(ringd.allreduce(torch.ones(2), compression=Half), torch.ones(2), "one's own")


if __name__ == "__main__":
    support.run(
        ringd,
        check_allreduce,
        check_ties,
        check_allgather,
        check_broadcast,
        check_reducescatter,
        check_alltoall,
        check_groups,
        check_second_derivatives,
        check_in_a_model,
        check_what_has_none,
        check_compression,
    )
