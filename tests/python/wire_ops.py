"""Allreduces that travel narrower, with NumPy and PyTorch: run by each rank of a job over nodes.

    ringctl run -n 4 -- python tests/python/wire_ops.py

Each rank knows all ranks' inputs. The last line of a rank is "rank R of N: K checks passed".
"""

import sys
from pathlib import Path

import numpy as np
import ringd
import ringd.torch
import torch
from ringd.torch import Compression

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.checks import Checks

# Half a unit in the last place.
PRECISION = {"bf16": 2**-8, "fp16": 2**-11, "fp8_e4m3": 2**-4, "fp8_e5m2": 2**-3}


def inputs(size, count):
    return [np.random.default_rng(rank).normal(size=count).astype("f") for rank in range(size)]


def same_everywhere(checks, array, what):
    told = ringd.allgather_object(np.asarray(array).tobytes())
    checks.true(all(bits == told[0] for bits in told), f"the same bits on all ranks: {what}")


def check_numpy(checks, rank, size, nodes):
    every = inputs(size, 30_001)
    mean = np.mean(np.array(every, dtype="d"), axis=0)
    magnitude = np.mean(np.abs(every), axis=0)
    for wire, precision in PRECISION.items():
        result = ringd.allreduce(every[rank], wire=wire)
        bound = nodes * precision * (1.2 * magnitude + 1e-3) if nodes > 1 else 1e-6
        checks.true((np.abs(result - mean) <= bound).all(), f"near the mean: {wire}")
        checks.true(nodes == 1 or (result != mean.astype("f")).any(), f"rounded: {wire}")
        same_everywhere(checks, result, wire)
        in_place = every[rank].copy()
        ringd.allreduce_(in_place, wire=wire)
        checks.true((in_place == result).all(), f"in place: {wire}")
        # 3 significant bits fit every type.
        exact = ringd.allreduce(np.full(100, 2.0, "f"), op=ringd.Sum, wire=wire)
        checks.true((exact == 2 * size).all(), f"numbers that fit: {wire}")
        half = ringd.allreduce(np.ones(5, "e"), wire=wire) if wire.startswith("fp8") else None
        checks.true(half is None or (half.dtype == "e" and (half == 1).all()), wire)


def check_errors(checks, rank, size, nodes):
    for call, text in [
        (lambda: ringd.allreduce(np.ones(3, "f"), wire="fp4"), "not one of bf16, fp16, fp8_e4m3"),
        (lambda: ringd.allreduce(np.ones(3), wire="bf16"), "float64 can't travel as bf16"),
        (lambda: ringd.allreduce(np.ones(3, "f"), weight=1.0, wire="bf16"), "weighted"),
    ]:
        checks.raises(ValueError, call, text)
    if nodes > 1:
        wire = "bf16" if rank == size - 1 else "fp16"
        checks.raises(
            ringd.MismatchError, lambda: ringd.allreduce(np.ones(3, "f"), wire=wire), "wire bf16"
        )


def check_torch(checks, rank, size, nodes):
    tensors = [torch.from_numpy(each) for each in inputs(size, 5000)]
    mean = torch.stack(tensors).mean(0)
    kinds = {"wire_bf16": "bf16", "wire_fp16": "fp16", "fp8": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2"}
    for name, wire in kinds.items():
        compression = getattr(Compression, name)
        result = ringd.torch.allreduce(tensors[rank], compression=compression)
        direct = ringd.torch.allreduce(tensors[rank], wire=wire)
        checks.true(torch.equal(result, direct), f"Compression.{name} is wire={wire}")
        grouped = ringd.torch.grouped_allreduce(
            [tensors[rank], torch.ones(3, dtype=torch.int32)], compression=compression
        )
        checks.true(torch.equal(grouped[0], result), f"grouped: {name}")
        checks.true(torch.equal(grouped[1], torch.ones(3, dtype=torch.int32)), "as it is")
        error = (result - mean).abs().max().item()
        checks.true(error <= 4 * nodes * PRECISION[wire], f"near the mean: {name} {error}")
    leaf = tensors[rank].clone().requires_grad_()
    ringd.torch.allreduce(leaf, op=ringd.Sum, wire="bf16").sum().backward()
    checks.true(torch.equal(leaf.grad, torch.full_like(leaf, size)), "gradient of an allreduce")


def train(compression, rank, size):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(10, 33), torch.nn.Tanh(), torch.nn.Linear(33, 1))
    unused = torch.nn.Parameter(torch.zeros(3))
    params = [*model.named_parameters(), ("unused", unused)]
    optimizer = ringd.torch.DistributedOptimizer(
        torch.optim.SGD([param for _, param in params], lr=0.1), params, compression=compression
    )
    x = torch.randn(64 * size, 10)
    y = x[:, :1] * 0.5 - x[:, 1:2]
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        losses.append(loss.item())
        rows = slice(64 * rank, 64 * (rank + 1))
        torch.nn.functional.mse_loss(model(x[rows]), y[rows]).backward()
        optimizer.step()
    assert unused.grad is None, "no rank used it"
    return losses, torch.cat([param.detach().flatten() for param in model.parameters()])


def check_optimizer(checks, rank, size, nodes):
    exact, _ = train(Compression.none, rank, size)
    for name in ("wire_bf16", "wire_fp16", "fp8", "fp8_e5m2"):
        losses, weights = train(getattr(Compression, name), rank, size)
        same_everywhere(checks, weights.numpy(), f"weights after training with {name}")
        checks.true(losses[-1] < 0.5 * losses[0], f"it learns: {name}")
        near = abs(losses[-1] - exact[-1]) < (0.1 * losses[0] if nodes > 1 else 1e-6)
        checks.true(near, f"as without: {name} {losses[-1]} {exact[-1]}")


def main():
    ringd.init()
    torch.set_num_threads(1)
    checks = Checks()
    for check in (check_numpy, check_errors, check_torch, check_optimizer):
        check(checks, ringd.rank(), ringd.size(), ringd.cross_size())
    print(f"rank {ringd.rank()} of {ringd.size()}: {checks.passed} checks passed")
    ringd.shutdown()


main()
