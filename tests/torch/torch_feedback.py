"""Error feedback of narrow types between nodes: what rounding takes arrives later.

    ringctl run -n 4 -- python tests/torch/torch_feedback.py

On one node nothing is rounded, and nothing is kept.
"""

import copy

import checks as support
import ringd.torch as ringd
import torch
from ringd.torch import Compression
from sklearn.datasets import load_digits
from torch import nn

STEPS = 64
SMALL = 2.0**-11  # Beside 256 E4M3's smallest number is 2^-9.


def applied(gradient, compression, steps=STEPS, op=ringd.Average):
    """The sum of what the steps took, and the optimizer: `gradient` is this rank's in each step."""
    param = nn.Parameter(torch.zeros_like(gradient))
    optimizer = ringd.DistributedOptimizer(
        torch.optim.SGD([param], lr=1.0), compression=compression, op=op
    )
    for _ in range(steps):
        optimizer.zero_grad()
        (param * gradient).sum().backward()
        optimizer.step()
    return -param.detach(), optimizer


def check_sums(checks, rank, size):
    """Numbers that every sum on the way holds: all that was sent has arrived."""
    nodes = ringd.cross_size()
    gradient = torch.full((3, 32), SMALL)
    gradient[:, 0] = 256.0
    feeding = Compression.fp8.with_error_feedback()
    total, _ = applied(gradient, feeding)
    checks.equal(total, STEPS * gradient, "the true sum")
    without, _ = applied(gradient, Compression.fp8)
    small = 0.0 if nodes > 1 else SMALL
    checks.equal(without[:, 1:], torch.full((3, 31), STEPS * small), "rounded to 0 without it")
    # After 2 of 4 steps half of the smallest number is still to come.
    total, optimizer = applied(gradient, feeding, STEPS - 2)
    if nodes > 1:
        lost = optimizer.state_dict()["ringd"]["lost"][0]
        checks.equal(total + lost, (STEPS - 2) * gradient, "the true sum, with what is kept")
        checks.true(lost[0, 1] == 2 * SMALL, "kept")
    # Each rank has a block of its own, and the others add zeros.
    mine = torch.zeros(size, 32)
    mine[rank] = gradient[0] * 2.0**rank
    total, _ = applied(mine, feeding, op=ringd.Sum)
    right = gradient[:1] * 2.0 ** torch.arange(size).view(-1, 1)
    checks.equal(total, STEPS * right, "the true sum of blocks")


def check_any_numbers(checks, rank, size):
    """Where sums are rounded on their way, too."""
    gradients = [
        torch.randn(500, generator=torch.Generator().manual_seed(r)).pow(3) for r in range(size)
    ]
    mean = torch.stack(gradients).double().mean(0)
    for name in ("wire_bf16", "fp8", "fp8_e5m2"):
        compression = getattr(Compression, name)
        errors = []
        for each in (compression, compression.with_error_feedback()):
            total, _ = applied(gradients[rank], each)
            errors.append((total.double() / STEPS - mean).abs().mean().item())
        better = errors[1] < 0.9 * errors[0] if ringd.cross_size() > 1 else max(errors) < 1e-5
        checks.true(better, f"{name}: errors of the mean step {errors}")


def check_checkpoints(checks, rank, size):
    def make():
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 4, bias=False))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        feeding = Compression.fp8.with_error_feedback()
        return model, ringd.DistributedOptimizer(
            optimizer, model.named_parameters(), compression=feeding
        )

    def train(model, optimizer, steps):
        for step in steps:
            torch.manual_seed(100 * step + rank)
            optimizer.zero_grad()
            model(torch.randn(8, 20)).square().sum().backward()
            optimizer.step()

    model, optimizer = make()
    train(model, optimizer, range(5))
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    train(model, optimizer, range(5, 9))
    again, resumed = make()
    again.load_state_dict(saved[0])
    resumed.load_state_dict(saved[1])
    train(again, resumed, range(5, 9))
    for right, param in zip(model.parameters(), again.parameters(), strict=True):
        checks.equal(param.detach(), right.detach(), "goes on from a checkpoint")
    plain = torch.optim.Adam(again.parameters())
    plain.load_state_dict(saved[1])  # Others leave it alone.
    ringd.broadcast_optimizer_state(resumed)
    if ringd.cross_size() == 1:
        checks.true("ringd" not in saved[1], "one node keeps nothing")
        return
    kept = saved[1]["ringd"]
    checks.true(sorted(kept["lost"]) == [0, 1, 2], "a tensor for each parameter")
    checks.true(all(lost.any() for lost in kept["lost"].values()), "something was lost")
    for key in ("rank", "size"):
        other = copy.deepcopy(saved[1])
        other["ringd"][key] += 1
        resumed.load_state_dict(other)
        lost = resumed.state_dict()["ringd"]["lost"]
        checks.true(not any(each.any() for each in lost.values()), f"another {key}: from 0")


def check_digits(checks, rank, size):
    images, labels = load_digits(return_X_y=True)
    images = torch.tensor(images, dtype=torch.float32) / 16
    labels = torch.tensor(labels)

    def accuracy(compression):
        torch.manual_seed(2)
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        optimizer = ringd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
            model.named_parameters(),
            compression=compression,
        )
        rows = torch.arange(rank, 1500, size)
        for step in range(400):
            part = rows[(step * 32) % (len(rows) - 32) :][:32]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[part]), labels[part]).backward()
            optimizer.step()
        with torch.no_grad():
            right = model(images[1500:]).argmax(1) == labels[1500:]
        return right.float().mean().item()

    exact = accuracy(Compression.none)
    narrow = accuracy(Compression.fp8.with_error_feedback())
    checks.true(exact > 0.85, f"fp32 learns: {exact}")
    checks.true(narrow >= exact - 0.01, f"fp8 learns as well: {narrow}, fp32 {exact}")


def check_errors(checks, rank, size):
    feeding = Compression.fp8.with_error_feedback()
    checks.true(feeding is Compression.fp8.with_error_feedback(), "one class")
    one = torch.ones(3)
    for call in (
        lambda: ringd.allreduce(one, compression=feeding),
        lambda: ringd.grouped_allreduce([one], compression=feeding),
    ):
        checks.raises(ValueError, call, "DistributedOptimizer")
    for options in ({"op": ringd.Max}, {"op": ringd.Adasum}, {"gradient_predivide_factor": 2.0}):
        optimizer = torch.optim.SGD([nn.Parameter(one.clone())], lr=1.0)
        checks.raises(
            ValueError,
            lambda optimizer=optimizer, options=options: ringd.DistributedOptimizer(
                optimizer, compression=feeding, **options
            ),
            "error feedback is for",
        )
    if size > 1:
        compression = feeding if rank == 0 else Compression.fp8
        optimizer = torch.optim.SGD([nn.Parameter(one.clone())], lr=1.0)
        checks.raises(
            ringd.MismatchError,
            lambda: ringd.DistributedOptimizer(optimizer, compression=compression),
            "FP8CompressorWithErrorFeedback",
        )


if __name__ == "__main__":
    support.run(
        ringd,
        check_sums,
        check_any_numbers,
        check_checkpoints,
        check_digits,
        check_errors,
    )
