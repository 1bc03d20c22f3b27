"""`ringd.torch.SyncBatchNorm` against `torch.nn.BatchNorm` on the joined batch in one process.

ringctl run -n 4 -- python tests/torch/torch_batch_norm.py
"""

import copy

import checks as support
import ringd.torch as ringd
import torch
from torch import nn

EVEN = lambda rank: 3  # noqa: E731
UNEVEN = lambda rank: 2 + 2 * rank  # noqa: E731
ALL_ON_LAST = lambda size: lambda rank: 4 * (rank == size - 1)  # noqa: E731


def batches(size, rows, tail, dtype, step):
    generator = torch.Generator().manual_seed(step)
    return [
        (torch.randn(rows(r), 5, *tail, generator=generator) * (r + 1) + 10 * r).to(dtype)
        for r in range(size)
    ]


def joined_loss(output):
    return (output.double().sin() + output.double() ** 2 / 3).sum()


def compare(checks, rank, size, rows, tail, dtype=torch.float32, steps=3, **options):
    what = f"{[rows(r) for r in range(size)]} x 5 x {tail} {dtype} {options}"
    kinds = {0: nn.BatchNorm1d, 1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
    torch.manual_seed(0)
    reference = kinds[len(tail)](5, **options).to(torch.float64 if dtype == torch.float64 else None)
    if reference.affine:
        nn.init.normal_(reference.weight)
        nn.init.normal_(reference.bias)
    layer = ringd.SyncBatchNorm(5, **options).to(torch.float64 if dtype == torch.float64 else None)
    layer.load_state_dict(reference.state_dict())
    tolerance = {"rtol": 1e-3, "atol": 2e-4} if dtype != torch.float64 else {}
    if dtype == torch.bfloat16:
        tolerance = {"rtol": 0.02, "atol": 0.05}
    for step in range(steps):
        parts = batches(size, rows, tail, dtype, step)
        whole = torch.cat(parts).requires_grad_()
        own = parts[rank].clone().requires_grad_()
        for each in (layer, reference):
            each.zero_grad()
        right = reference(whole)
        joined_loss(right).backward()
        result = layer(own)
        joined_loss(result).backward()
        rows_before = sum(rows(r) for r in range(rank))
        mine = slice(rows_before, rows_before + rows(rank))
        checks.true(result.dtype == dtype, what + ": dtype")
        checks.close(result.detach(), right.detach()[mine], what + ": output", **tolerance)
        checks.close(own.grad, whole.grad[mine], what + ": gradient", **tolerance)
        if reference.affine:
            for name in ("weight", "bias"):
                total = ringd.allreduce(getattr(layer, name).grad, op=ringd.Sum)
                loose = {key: 10 * value for key, value in tolerance.items()}
                checks.close(total, getattr(reference, name).grad, f"{what}: {name}", **loose)
    for name, right in reference.state_dict().items():
        loose = {"rtol": 1e-2, "atol": 1e-2} if dtype == torch.bfloat16 else {}
        checks.close(layer.state_dict()[name], right, f"{what}: {name}", **loose)
    for each in (layer, reference):
        each.eval()
    if rank == 0:  # Evaluation is no collective operation.
        x = batches(1, lambda r: 2, tail, dtype, 9)[0]
        checks.close(layer(x), reference(x), what + ": evaluation", **tolerance)


def check_batches(checks, rank, size):
    for rows in (EVEN, UNEVEN, ALL_ON_LAST(size)):
        for tail in ((), (4,), (2, 3), (2, 1, 2)):
            compare(checks, rank, size, rows, tail)
            compare(checks, rank, size, rows, tail, torch.float64)


def check_options(checks, rank, size):
    for options in (
        {"momentum": None}, {"momentum": 0.5, "eps": 0.1}, {"affine": False},
        {"track_running_stats": False},
    ):  # fmt: skip
        compare(checks, rank, size, UNEVEN, (3,), torch.float64, **options)


def check_dtypes(checks, rank, size):
    compare(checks, rank, size, UNEVEN, (3, 2), torch.bfloat16, steps=1)


def check_large_mean(checks, rank, size):
    """Sums of squares would lose the variance."""
    x = torch.randn(6, 5, 4, generator=torch.Generator().manual_seed(rank), dtype=torch.float64)
    every = ringd.allgather(x)
    layer = ringd.SyncBatchNorm(5).double()
    checks.close(layer(x + 1e7), layer(x), "a large mean", rtol=1e-4, atol=1e-6)
    mean, variance = every.mean((0, 2)), every.var((0, 2))
    layer = ringd.SyncBatchNorm(5, momentum=1.0).double()
    layer(x)
    checks.close(layer.running_mean, mean, "mean")
    checks.close(layer.running_var, variance, "variance")


def check_layout(checks, rank, size):
    x = torch.randn(2, 5, 3, 3).to(memory_format=torch.channels_last).requires_grad_()
    result = ringd.SyncBatchNorm(5)(x)
    checks.true(result.is_contiguous(memory_format=torch.channels_last), "channels_last")
    result.sum().backward()
    checks.true(x.grad.is_contiguous(memory_format=torch.channels_last), "its gradient")


def check_model(checks, rank, size):
    """Convolutions, SyncBatchNorm twice, an optimizer: one process on the whole batch."""
    torch.manual_seed(0)
    reference = nn.Sequential(
        nn.Conv2d(2, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Sequential(
            nn.Conv2d(5, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3)
        ),
    ).double()  # fmt: skip
    model = ringd.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(reference))
    kinds = [type(module).__name__ for module in model.modules()]
    checks.true(kinds.count("SyncBatchNorm") == 2 and "BatchNorm2d" not in kinds, "converted")
    plain = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9)
    optimizer = ringd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), bucket_bytes=500
    )
    for step in range(4):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(4 * size, 2, 6, 6, generator=generator, dtype=torch.float64)
        for each in (plain, optimizer):
            each.zero_grad()
        reference(x).square().mean().backward()
        model(x[4 * rank : 4 * rank + 4]).square().mean().backward()
        plain.step()
        optimizer.step()
    for name, right in reference.state_dict().items():
        checks.close(model.state_dict()[name], right, f"model: {name}", rtol=1e-7, atol=1e-9)


def check_errors(checks, rank, size):
    layer = ringd.SyncBatchNorm(5)
    checks.raises(ValueError, lambda: layer(torch.ones(5)), "dimensions")
    checks.raises(ValueError, lambda: layer(torch.ones(2, 4)), "channels")
    one = torch.ones(1 if rank == 0 else 0, 5)
    checks.raises(ValueError, lambda: layer(one), "more than 1 value per channel")
    checks.equal(ringd.allreduce(torch.ones(2)), torch.ones(2), "the job goes on")


if __name__ == "__main__":
    support.run(
        ringd,
        check_batches,
        check_options,
        check_dtypes,
        check_large_mean,
        check_layout,
        check_model,
        check_errors,
    )
