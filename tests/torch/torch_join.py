"""`join` with `ringd.torch.DistributedOptimizer` and with named operations: ranks whose data end at
different steps, against one process that adds up the same gradients.

    ringctl run -n 4 -- python tests/torch/torch_join.py
"""

import copy

import checks as support
import ringd.torch as ringd
import torch
from torch import nn


def make_model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))


def loss_of(model, rank, step):
    generator = torch.Generator().manual_seed(1000 * rank + step)
    x = torch.randn(5, 6, generator=generator)
    y = torch.randn(5, 2, generator=generator)
    return nn.functional.mse_loss(model(x), y)


def reference_steps(model, batches):
    """What the rank with the most steps ends with: absent ranks add nothing, the divisor stays."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(max(batches)):
        optimizer.zero_grad()
        for rank, count in enumerate(batches):
            if step < count:
                (loss_of(model, rank, step) / len(batches)).backward()
        optimizer.step()


def check_optimizer(checks, rank, size, **options):
    model = make_model()
    optimizer = ringd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), **options
    )
    reference = copy.deepcopy(model)
    for epoch in range(3):
        batches = [2 + (3 * (r + epoch)) % (2 * size) for r in range(size)]
        for step in range(batches[rank]):
            optimizer.zero_grad()
            loss_of(model, rank, step).backward()
            optimizer.step()
        last = ringd.join()
        checks.true(batches[last] == max(batches), f"rank {last} joined last, of {batches}")
        ringd.broadcast_parameters(model.state_dict(), root_rank=last)
        reference_steps(reference, batches)
        for mine, expected in zip(model.parameters(), reference.parameters(), strict=True):
            checks.close(mine.detach(), expected.detach(), f"epoch {epoch}, {options}")


def check_named(checks, rank, size):
    """Horovod's way: an allreduce a gradient, by name, in whatever order."""
    for step in range(5 + rank):
        names = [f"grad.{i}" for i in range(20)]
        order = names[rank:] + names[:rank]
        handles = {name: ringd.allreduce_async(torch.ones(7), name=name) for name in order}
        present = sum(step < 5 + r for r in range(size))
        for name in names:
            expected = torch.full((7,), present / size)
            checks.close(ringd.synchronize(handles[name]), expected, f"{name} in step {step}")
    checks.true(ringd.join() == size - 1, "the last rank")


def check_small_buckets(checks, rank, size):
    check_optimizer(checks, rank, size, bucket_bytes=100)


if __name__ == "__main__":
    support.run(ringd, check_named, check_optimizer, check_small_buckets, check_named)
