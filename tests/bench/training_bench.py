"""What a training step costs on several ranks: DistributedDataParallel on Gloo and on ringd, and
ringd.torch, in one run.

    ringctl run -n 2 -- python tests/bench/training_bench.py [--models resnet50,transformer]

Every model is measured in rounds; in each round each way runs some steps (forward, backward,
optimizer), and the model alone, without other ranks. Prints for each way the median step on the
slowest rank; its communication, which is what a step takes longer than alone; the gradients by
themselves, reduced with nothing to hide behind; and how many times as long Gloo takes. `limit` is
the least that the gradients take on the links (--link-gbit) or, on one node, as one allreduce.
With one rank the communication is what hooks cost.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import ringd.torch as ringd
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.nn.parallel import DistributedDataParallel

Loss = Callable[[nn.Module], torch.Tensor]


class Block(nn.Module):
    """ResNet's bottleneck."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        shapes = [(inputs, width, 1, 1), (width, width, 3, stride), (width, outputs, 1, 1)]
        self.layers = nn.ModuleList(_convolution(*shape) for shape in shapes)
        change = stride != 1 or inputs != outputs
        self.shortcut = _convolution(inputs, outputs, 1, stride) if change else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second, third = self.layers
        return F.relu(third(F.relu(second(F.relu(first(x))))) + self.shortcut(x))


def _convolution(inputs: int, outputs: int, size: int, stride: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False), nn.BatchNorm2d(outputs)
    )


def make_resnet50() -> tuple[nn.Module, Loss]:
    """ResNet-50 (161 parameters, 102 MB) on small pictures."""
    blocks: list[nn.Module] = [_convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for width, depth in [(64, 3), (128, 4), (256, 6), (512, 3)]:
        for i in range(depth):
            blocks.append(Block(inputs, width, 2 if i == 0 and width > 64 else 1))
            inputs = 4 * width
    model = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))
    pictures, labels = torch.randn(4, 3, 64, 64), torch.arange(4)
    return model, lambda module: F.cross_entropy(module(pictures), labels)


def make_transformer() -> tuple[nn.Module, Loss]:
    """A transformer of 4 layers (13 MB)."""
    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    words = torch.randn(4, 64, 256)
    return model, lambda module: module(words).square().mean()


MODELS = {"resnet50": make_resnet50, "transformer": make_transformer}


class Way(NamedTuple):
    """A way to train."""

    name: str
    step: Callable[[], None]
    reduce: Callable[[torch.Tensor], object] | None  # All gradients at once; None: no other ranks.


def training(make: Callable[[], tuple[nn.Module, Loss]], wrap: Callable) -> Callable[[], None]:
    """A step of a model that `wrap` makes distributed."""
    torch.manual_seed(1)
    model, loss = make()
    module, optimizer = wrap(model, torch.optim.SGD(model.parameters(), lr=1e-3))

    def step() -> None:
        optimizer.zero_grad()
        loss(module).backward()
        optimizer.step()

    return step


def ways_of(make: Callable, backend: dist.ProcessGroup) -> list[Way]:
    """COLLECTIVE."""

    def ddp(group: dist.ProcessGroup | None) -> Callable[[], None]:
        def wrap(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple:
            return DistributedDataParallel(model, process_group=group), optimizer

        return training(make, wrap)

    def ours(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple:
        ringd.broadcast_parameters(model.state_dict())
        return model, ringd.DistributedOptimizer(optimizer, model.named_parameters())

    return [
        Way("alone", training(make, lambda *given: given), None),
        Way("DDP on Gloo", ddp(None), dist.all_reduce),
        Way("DDP on ringd", ddp(backend), lambda flat: dist.all_reduce(flat, group=backend)),
        Way("ringd.torch", training(make, ours), lambda flat: ringd.allreduce_(flat, ringd.Sum)),
    ]


def seconds_of(
    call: Callable[[], object], count: int, prepare: Callable[[], object] = lambda: None
) -> list[float]:
    """COLLECTIVE: of each of so many calls, on the slowest rank."""
    times = []
    for _ in range(count):
        prepare()
        ringd.barrier()
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return ringd.allreduce(torch.tensor(times, dtype=torch.float64), ringd.Max).tolist()


def bench(name: str, backend: dist.ProcessGroup, options: argparse.Namespace) -> None:
    """COLLECTIVE: measures and prints one model."""
    make = MODELS[name]
    ways = ways_of(make, backend)
    count = sum(parameter.numel() for parameter in make()[0].parameters())
    flat = ringd.empty(count, dtype=torch.float32)
    steps: dict[str, list[float]] = {way.name: [] for way in ways}
    bare: dict[str, list[float]] = {way.name: [] for way in ways}
    for round_number in range(options.rounds + 1):
        for way in ways:
            times = seconds_of(way.step, options.steps)
            alone = [0.0]
            if way.reduce is not None:
                alone = seconds_of(lambda way=way: way.reduce(flat), 1, flat.zero_)
            if round_number > 0:  # The first one warms up.
                steps[way.name] += times
                bare[way.name] += alone
    if ringd.rank() == 0:
        report(name, count * 4, steps, bare, options.link_gbit)


def report(
    name: str,
    nbytes: int,
    steps: dict[str, list[float]],
    bare: dict[str, list[float]],
    link_gbit: float | None,
) -> None:
    step = {way: statistics.median(times) * 1e3 for way, times in steps.items()}
    gradients = {way: statistics.median(times) * 1e3 for way, times in bare.items()}
    nodes, alone = ringd.cross_size(), step["alone"]
    print(f"{name}: {nbytes / 2**20:.0f} MB of gradients, {ringd.size()} ranks, {nodes} node(s)")
    print(f"{'ms':14} {'step':>9} {'communic.':>9} {'gradients':>9}   of Gloo's")
    for way in step:
        times = [step[way], step[way] - alone, gradients[way]]
        line = f"{way:14} " + " ".join(f"{ms:9.2f}" for ms in times)
        if way not in ("alone", "DDP on Gloo"):
            peer = [step["DDP on Gloo"], step["DDP on Gloo"] - alone, gradients["DDP on Gloo"]]
            for theirs, mine in zip(peer, times, strict=True):
                line += f" {theirs / mine:5.2f}x" if mine > 0 else "     -"
        print(line)
    if nodes > 1 and link_gbit:
        limit = 2 * (nodes - 1) / nodes * nbytes * 8 / (link_gbit * 1e9) * 1e3
    else:
        limit = min(gradients["DDP on ringd"], gradients["ringd.torch"])
    print(f"limit: {limit:.2f} ms for the gradients\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5, help="of each way in a round")
    parser.add_argument("--link-gbit", type=float, help="what the links between nodes carry")
    options = parser.parse_args()
    ringd.init()
    torch.set_num_threads(1)
    real = [name for _, name in socket.if_nameindex() if name != "lo"]
    if ringd.cross_size() > 1 and real:  # Gloo guesses its interface from the host's name.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", real[0])
    dist.init_process_group("gloo")  # Groups of a group of ringd's would be ringd's.
    backend = dist.new_group(backend="ringd")
    load = os.getloadavg()[0]
    if ringd.rank() == 0 and load > (os.cpu_count() or 1) / 2:
        print(f"warning: busy (load {load:.1f}): figures say little", flush=True)
    for name in options.models.split(","):
        bench(name, backend, options)
    dist.destroy_process_group()
    ringd.shutdown()


if __name__ == "__main__":
    main()
