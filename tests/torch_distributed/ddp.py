"""DistributedDataParallel on the backend "ringd": the model is that of one process on all data.

ringctl run -n 3 -- python tests/torch_distributed/ddp.py
"""

import contextlib
import copy

import support
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

ROWS = 4  # Of each rank in a step.
STEPS = 3
MEGABYTES = 0.001  # Small buckets: several of them.


class Net(nn.Module):
    """Small; `part` chooses which of two branches is used."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.first = nn.Linear(6, 40)
        self.left = nn.Linear(40, 40)
        self.right = nn.Linear(40, 40)
        self.last = nn.Linear(40, 3)

    def forward(self, x, part=None):
        x = torch.tanh(self.first(x))
        if part != "right":
            x = torch.tanh(self.left(x))
        if part != "left":
            x = torch.tanh(self.right(x))
        return self.last(x)


def batch(step, size):
    """A step's rows of all ranks."""
    torch.manual_seed(100 + step)
    return torch.randn(size * ROWS, 6), torch.randn(size * ROWS, 3)


def mine(tensor, rank):
    return tensor[rank * ROWS : (rank + 1) * ROWS]


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def train(model, optimizer, rows, forward=None, accumulate=1):
    """Trains on rows(step) in each step; `accumulate` backward passes a step."""
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(accumulate):
            x, y = rows(step * accumulate + part)
            last = part == accumulate - 1 or not hasattr(model, "no_sync")
            with contextlib.nullcontext() if last else model.no_sync():
                output = forward(model, x) if forward else model(x)
                nn.functional.mse_loss(output, y).backward()
        optimizer.step()


def alone(size, forward=None, accumulate=1, optimizer=sgd):
    """The model that one process trains on all ranks' rows."""
    model = Net()
    train(model, optimizer(model), lambda step: batch(step, size), forward, accumulate)
    return model


def same(checks, model, right, what, rtol=1e-4, atol=1e-5):
    for (name, tensor), expected in zip(model.named_parameters(), right.parameters(), strict=True):
        checks.close(tensor.detach(), expected.detach(), f"{what}: {name}", rtol, atol)


def rows_of(rank, size):
    return lambda step: tuple(mine(tensor, rank) for tensor in batch(step, size))


def check_options(checks, rank, size):
    right = alone(size)
    for options in (
        {},
        {"gradient_as_bucket_view": True},
        {"static_graph": True},
        {"find_unused_parameters": True},
        {"broadcast_buffers": False, "gradient_as_bucket_view": True, "static_graph": True},
    ):
        model = DistributedDataParallel(Net(), bucket_cap_mb=MEGABYTES, **options)
        train(model, sgd(model), rows_of(rank, size))
        same(checks, model.module, right, f"DDP {options}")


def check_long_buckets(checks, rank, size):
    """Those that are reduced in the arena; once the buckets are laid out anew, too."""

    def make():
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(6, 300), nn.Tanh(), nn.Linear(300, 300), nn.Linear(300, 3))

    right = make()
    train(right, sgd(right), lambda step: batch(step, size))
    for options in ({}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}):
        model = DistributedDataParallel(make(), bucket_cap_mb=0.2, **options)
        train(model, sgd(model), rows_of(rank, size))
        same(checks, model.module, right, f"long buckets, DDP {options}")
    seen = []

    def reduce(parameter):
        work = dist.all_reduce(parameter.grad, async_op=True)
        result = work.get_future().wait()[0]
        seen.append((result, parameter.grad))

    model = DistributedDataParallel(nn.Linear(1500, 1001))  # 6 MB: in pieces.
    (model(torch.ones(1, 1500)) * (rank + 1)).sum().backward()
    mean = torch.full((1001, 1500), (size + 1) / 2)
    checks.equal(model.module.weight.grad, mean, "a bucket of several pieces")
    leaf = torch.zeros(50_000, requires_grad=True)
    leaf.register_post_accumulate_grad_hook(reduce)
    (leaf * (rank + 1)).sum().backward()
    right = torch.full((50_000,), size * (size + 1) / 2)
    for result in seen[0]:
        checks.equal(result, right, "a hook of the user's: the tensor has the result, too")


def check_initial_parameters(checks, rank, size):
    model = Net()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(rank)
    model = DistributedDataParallel(model)
    same(checks, model.module, Net(), "rank 0's parameters")


def check_unused(checks, rank, size):
    def forward(model, x):
        return model(x, "left")

    model = DistributedDataParallel(
        Net(), bucket_cap_mb=MEGABYTES, find_unused_parameters=True, gradient_as_bucket_view=True
    )
    train(model, sgd(model), rows_of(rank, size), forward)
    same(checks, model.module, alone(size, forward), "unused parameters")
    checks.true(model.module.right.weight.grad is None, "an unused parameter has no gradient")

    # Ranks use different branches: gradients are averaged as if the others' were 0.
    def branch(model, x):
        return model(x, "left" if rank % 2 == 0 else "right")

    model = DistributedDataParallel(Net(), find_unused_parameters=True)
    x, y = batch(0, size)
    nn.functional.mse_loss(branch(model, mine(x, rank)), mine(y, rank)).backward()
    model_alone = Net()
    for r in range(size):
        output = model_alone(mine(x, r), "left" if r % 2 == 0 else "right")
        (nn.functional.mse_loss(output, mine(y, r)) / size).backward()
    for part, expected in zip(model.parameters(), model_alone.parameters(), strict=True):
        if expected.grad is not None:
            checks.close(part.grad, expected.grad, "different branches", 1e-4, 1e-6)


def check_no_sync(checks, rank, size):
    model = DistributedDataParallel(Net(), bucket_cap_mb=MEGABYTES)
    train(model, sgd(model), rows_of(rank, size), accumulate=3)
    same(checks, model.module, alone(size, accumulate=3), "no_sync")


def check_hooks(checks, rank, size):
    right = alone(size)
    for hook in (default_hooks.allreduce_hook, default_hooks.fp16_compress_hook):
        model = DistributedDataParallel(Net(), bucket_cap_mb=MEGABYTES)
        model.register_comm_hook(None, hook)
        train(model, sgd(model), rows_of(rank, size))
        exact = hook is default_hooks.allreduce_hook
        same(checks, model.module, right, hook.__name__, *((1e-4, 1e-5) if exact else (0.05, 0.01)))


def check_power_sgd(checks, rank, size):
    from ringd.torch.backend import Options

    # Its callbacks start operations.
    group = dist.new_group(list(range(size)), pg_options=Options(blocking_futures=True))
    models = []
    for shared in (group, None):
        model = DistributedDataParallel(Net(), process_group=shared, bucket_cap_mb=MEGABYTES)
        if shared is not None:
            state = powerSGD_hook.PowerSGDState(
                group, matrix_approximation_rank=64, start_powerSGD_iter=2, min_compression_rate=0.1
            )
            model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        train(model, sgd(model), rows_of(rank, size))
        models.append(model.module)
    same(checks, models[0], models[1], "PowerSGD of full rank", 0.05, 0.02)
    dist.destroy_process_group(group)


def check_join(checks, rank, size):
    model = DistributedDataParallel(Net(), bucket_cap_mb=MEGABYTES)
    optimizer = sgd(model)
    with Join([model]):
        for step in range(rank + 1):
            optimizer.zero_grad()
            x, y = (mine(tensor, rank) for tensor in batch(step, size))
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
    with torch.no_grad():
        for parameter in model.parameters():
            copies = [torch.empty_like(parameter) for _ in range(size)]
            dist.all_gather(copies, parameter)
            for other in copies:
                checks.equal(other, parameter.detach(), "join: the same model everywhere")


def check_zero(checks, rank, size):
    model = DistributedDataParallel(Net())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    train(model, optimizer, rows_of(rank, size))
    right = alone(size, optimizer=lambda m: torch.optim.Adam(m.parameters(), lr=0.01))
    same(checks, model.module, right, "ZeroRedundancyOptimizer", 1e-3, 1e-4)
    optimizer.consolidate_state_dict(to=0)
    checks.true(rank != 0 or len(optimizer.state_dict()["state"]) == 8, "consolidate_state_dict")


def check_sparse(checks, rank, size):
    def made():
        torch.manual_seed(3)
        return nn.Embedding(20, 4, sparse=True)

    words = torch.randint(0, 20, (size * ROWS,), generator=torch.Generator().manual_seed(5))
    model = DistributedDataParallel(made())
    (model(mine(words, rank)) ** 2).mean().backward()
    right = made()
    (right(words) ** 2).mean().backward()
    checks.close(
        model.module.weight.grad.to_dense(), right.weight.grad.to_dense(), "sparse gradients"
    )


def check_buffers(checks, rank, size):
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6))
    model = DistributedDataParallel(copy.deepcopy(model))
    for step in range(2):
        model(mine(batch(step, size)[0], rank)).sum().backward()
    # Forward begins with rank 0's buffers; after it they are this rank's own.
    model(torch.zeros(ROWS, 6)).sum().backward()
    count = model.module[1].num_batches_tracked
    checks.true(int(count) == 3, "buffers")


CHECKS = [
    check_options,
    check_long_buckets,
    check_initial_parameters,
    check_unused,
    check_no_sync,
    check_hooks,
    check_power_sgd,
    check_join,
    check_zero,
    check_sparse,
    check_buffers,
]

if __name__ == "__main__":
    support.run(*CHECKS)
