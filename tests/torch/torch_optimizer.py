"""`ringd.torch.DistributedOptimizer` against one process on the whole batch.

    ringctl run -n 4 -- python tests/torch/torch_optimizer.py

Each rank of the job runs both and compares.
"""

import copy
import warnings

import checks as support
import ringd.torch as ringd
import torch
from models import (
    OPTIMIZERS,
    batch,
    close_models,
    loss_of,
    make_model,
    mine,
    same_bits,
)
from torch import nn


def check_equivalence(checks, rank, size):
    for name, make in OPTIMIZERS.items():
        for options in ({}, {"bucket_bytes": 2000}, {"gradient_predivide_factor": 2.0}):
            for set_to_none in (True, False):
                model, reference = make_model(), make_model()
                plain = make(reference.parameters())
                optimizer = ringd.DistributedOptimizer(
                    make(model.parameters()), model.named_parameters(), **options
                )
                for step in range(4):
                    x, y = batch(step, size)
                    plain.zero_grad()
                    loss_of(reference, x, y).backward()
                    plain.step()
                    optimizer.zero_grad(set_to_none=set_to_none)
                    loss_of(model, mine(x, rank), mine(y, rank)).backward()
                    optimizer.step()
                close_models(checks, model, reference, f"{name} {options} {set_to_none}")


def check_memory_and_messages(checks, rank, size):
    model = make_model()
    optimizer = ringd.DistributedOptimizer(OPTIMIZERS["adam"](model.parameters()))
    places = None
    for step in range(6):
        x, y = batch(step, 1)
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        optimizer.step()
        now = [p.grad.data_ptr() for p in model.parameters()]
        if size > 1:  # One rank has nothing to reduce: gradients stay where autograd makes them.
            checks.true(places in (None, now), "gradients stay in their places in the arena")
        copied = ringd.stats()["bytes_copied"]
        if places is None:
            before = ringd.stats()
        places = now
    after = ringd.stats()
    checks.true(copied == before["bytes_copied"], "no copies in and out of the arena")
    checks.true(
        after["negotiation_messages"] == before["negotiation_messages"], "no messages in a step"
    )
    wanted = before["operations"] + (5 if size > 1 else 0)
    checks.true(after["operations"] == wanted, "one operation a bucket and step")


def check_accumulation(checks, rank, size):
    model, reference = make_model(), make_model()
    plain = OPTIMIZERS["sgd"](reference.parameters())
    optimizer = ringd.DistributedOptimizer(
        OPTIMIZERS["sgd"](model.parameters()), backward_passes_per_step=3
    )
    for step, passes in enumerate((3, 3, 2, 3)):  # The third step comes early.
        plain.zero_grad()
        optimizer.zero_grad()
        for part in range(passes):
            x, y = batch(10 * step + part, size)
            loss_of(reference, x, y).backward()
            loss_of(model, mine(x, rank), mine(y, rank)).backward()
        plain.step()
        optimizer.step()
    close_models(checks, model, reference, "accumulation")
    optimizer.set_backward_passes_per_step(1)
    optimizer.zero_grad()
    x, y = batch(0, size)
    loss_of(model, mine(x, rank), mine(y, rank)).backward()
    checks.raises(
        ringd.RingdError,
        lambda: loss_of(model, mine(x, rank), mine(y, rank)).backward(),
        "more than 1 times",
        "backward_passes_per_step",
    )
    checks.raises(ringd.StepOrderError, optimizer.synchronize, "written to", "synchronize()")
    optimizer.zero_grad()
    loss_of(model, mine(x, rank), mine(y, rank)).backward()
    optimizer.step()
    same_bits(checks, model, "after an error")


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.common = nn.Linear(5, 4)
        self.some = nn.Linear(4, 2)
        self.never = nn.Linear(4, 2)

    def forward(self, x, use_some):
        hidden = torch.tanh(self.common(x))
        return hidden.sum() + (self.some(hidden).sum() if use_some else 0)


def check_unused(checks, rank, size):
    model, reference = Branches(), Branches()
    never = copy.deepcopy(model.never.state_dict())
    plain = OPTIMIZERS["sgd"](reference.parameters())
    optimizer = ringd.DistributedOptimizer(
        OPTIMIZERS["sgd"](model.parameters()), model.named_parameters()
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(3):
            x, _ = batch(step, size)
            plain.zero_grad()
            (sum(reference(mine(x, r), r == 0) for r in range(size)) / size).backward()
            plain.step()
            optimizer.zero_grad()
            model(mine(x, rank), rank == 0).backward()
            optimizer.step()
    checks.true(len(caught) == 1 and "'never.weight'" in str(caught[0].message), "one warning")
    close_models(checks, model, reference, "unused parameters")
    checks.true(model.never.weight.grad is None, "used by no rank: no gradient")
    checks.equal(model.never.weight.data, never["weight"], "used by no rank: unchanged")


def check_frozen(checks, rank, size):
    model, reference = Branches(), Branches()
    reference.never.requires_grad_(False)
    model.never.requires_grad_(False)
    if rank > 0:
        model.some.requires_grad_(False)
    plain = OPTIMIZERS["sgd"](reference.parameters())
    optimizer = ringd.DistributedOptimizer(
        OPTIMIZERS["sgd"](model.parameters()), model.named_parameters()
    )
    for step in range(3):
        x, _ = batch(step, size)
        plain.zero_grad()
        for r in range(size):
            reference.some.requires_grad_(r == 0)
            (reference(mine(x, r), True) / size).backward()
        plain.step()
        optimizer.zero_grad()
        model(mine(x, rank), True).backward()
        optimizer.step()
    close_models(checks, model, reference, "frozen on some ranks")
    model.never.requires_grad_(True)
    model.never(torch.ones(1, 4)).sum().backward()
    checks.raises(ringd.RingdError, optimizer.step, "never.weight", "frozen")


def check_two_optimizers(checks, rank, size):
    model, reference = make_model(), make_model()
    plain = [
        OPTIMIZERS["sgd"](reference[0].parameters()),
        OPTIMIZERS["adam"](reference[2:].parameters()),
    ]
    both = [
        ringd.DistributedOptimizer(OPTIMIZERS["sgd"](model[0].parameters())),
        ringd.DistributedOptimizer(OPTIMIZERS["adam"](model[2:].parameters())),
    ]
    for step in range(3):
        x, y = batch(step, size)
        for optimizer in plain + both:
            optimizer.zero_grad()
        loss_of(reference, x, y).backward()
        loss_of(model, mine(x, rank), mine(y, rank)).backward()
        for optimizer in plain + both:
            optimizer.step()
    close_models(checks, model, reference, "two optimizers")


def check_closure(checks, rank, size):
    for name in ("sgd", "lbfgs"):
        model, reference = make_model(), make_model()
        make = OPTIMIZERS.get(name) or (
            lambda params: torch.optim.LBFGS(params, lr=0.5, max_iter=3)
        )
        plain = make(reference.parameters())
        optimizer = ringd.DistributedOptimizer(make(model.parameters()))
        for step in range(2):
            x, y = batch(step, size)

            def whole(x=x, y=y, plain=plain, reference=reference):
                plain.zero_grad()
                loss = loss_of(reference, x, y)
                loss.backward()
                return loss

            def part(x=x, y=y, optimizer=optimizer, model=model):
                optimizer.zero_grad()
                loss = loss_of(model, mine(x, rank), mine(y, rank))
                loss.backward()
                return loss

            plain.step(whole)
            optimizer.step(part)
        close_models(checks, model, reference, f"closure {name}")


def check_clipping(checks, rank, size):
    for skip in (False, True):
        model, reference = make_model(), make_model()
        plain = OPTIMIZERS["sgd"](reference.parameters())
        optimizer = ringd.DistributedOptimizer(OPTIMIZERS["sgd"](model.parameters()))
        for step in range(3):
            x, y = batch(step, size)
            plain.zero_grad()
            loss_of(reference, x, y).backward()
            torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.05)
            plain.step()
            optimizer.zero_grad()
            loss_of(model, mine(x, rank), mine(y, rank)).backward()
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            if skip:
                with optimizer.skip_synchronize():
                    optimizer.step()
            else:
                optimizer.step()
        close_models(checks, model, reference, f"clipping, skip={skip}")


def check_sum_and_dtypes(checks, rank, size):
    params = [
        nn.Parameter(torch.zeros(shape, dtype=dtype))
        for shape in [(3,), (2, 2), ()]
        for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.float16)
    ]
    params.append(nn.Parameter(torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last)))
    optimizer = ringd.DistributedOptimizer(torch.optim.SGD(params, lr=1.0), op=ringd.Sum)
    for _ in range(2):
        optimizer.zero_grad()
        sum((p * (rank + 1)).sum().double() for p in params).backward()
        optimizer.step()
    total = size * (size + 1) / 2
    for param in params:
        checks.equal(param.grad, torch.full_like(param.data, total), "sum of gradients")
        checks.equal(param.data, torch.full_like(param.data, -2 * total), "two steps")
    checks.true(params[-1].grad.stride() == params[-1].stride(), "the parameter's layout")


def check_zero_grad(checks, rank, size):
    model = make_model()
    optimizer = ringd.DistributedOptimizer(OPTIMIZERS["sgd"](model.parameters()))
    x, y = batch(0, size)
    loss_of(model, mine(x, rank), mine(y, rank)).backward()
    checks.raises(ringd.RingdError, optimizer.zero_grad, "between backward() and step()")
    optimizer.synchronize()
    optimizer.zero_grad()
    checks.true(all(p.grad is None for p in model.parameters()), "gradients are None")
    if rank == size - 1:
        loss_of(model, mine(x, rank), mine(y, rank)).backward()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimizer.step()  # A rank without data takes part.
    same_bits(checks, model, "a rank without data")


def check_object(checks, rank, size):
    model = make_model()
    original = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loss_of(model, *batch(0, 1)).backward()
    original.step()
    scheduler = torch.optim.lr_scheduler.StepLR(original, 1, gamma=0.5)
    optimizer = ringd.DistributedOptimizer(original)
    checks.true(isinstance(optimizer, torch.optim.SGD), "isinstance")
    checks.true(type(optimizer).__name__ == "SGD", "class name")
    checks.true(len(optimizer.state) == 6, "state is kept")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.zero_grad()
        loss_of(model, *batch(1, 1)).backward()
        optimizer.step()
        scheduler.step()
        torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        optimizer.step()
    checks.true(abs(optimizer.param_groups[0]["lr"] - 0.05) < 1e-9, "the scheduler works")
    checks.raises(ValueError, lambda: ringd.DistributedOptimizer(optimizer), "already")
    checks.raises(TypeError, lambda: ringd.DistributedOptimizer(model), "Sequential")
    fresh = torch.optim.SGD(model.parameters(), lr=0.1)
    names = list(model.named_parameters())
    bad = [(names[1:], "lacks 1"), ([*names, names[0]], "twice"), ([1], "pair")]
    for given, text in bad:
        checks.raises(ValueError, lambda g=given: ringd.DistributedOptimizer(fresh, g), text)
    for options in (
        {"op": 99}, {"backward_passes_per_step": 0}, {"gradient_predivide_factor": 0.0},
        {"bucket_bytes": 0}, {"op": ringd.Sum, "gradient_predivide_factor": 2.0},
    ):  # fmt: skip
        checks.raises(ValueError, lambda o=options: ringd.DistributedOptimizer(fresh, **o))
    checks.true(type(fresh) is torch.optim.SGD, "an error leaves the optimizer alone")


def check_many(checks, rank, size):
    """More optimizers in a row than there can be plans."""
    model = make_model()
    arena = 0
    for i in range(270):
        optimizer = ringd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01))
        if i % 30 == 0:
            optimizer.zero_grad()
            loss_of(model, *batch(i, 1)).backward()
            optimizer.step()
        if i == 10:
            arena = ringd.stats()["arena_bytes"]
    checks.true(ringd.stats()["arena_bytes"] == arena, "memory is given back")


def check_param_group(checks, rank, size):
    model, extra = make_model(), nn.Linear(2, 2)
    ringd.broadcast_parameters(extra.named_parameters())
    optimizer = ringd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01))
    optimizer.add_param_group({"params": list(extra.parameters()), "lr": 0.1})
    x, _ = batch(0, size)
    extra(model(mine(x, rank))).sum().backward()
    optimizer.step()
    same_bits(checks, nn.ModuleList([model, extra]), "add_param_group")


def check_mismatch(checks, rank, size):
    if size == 1:
        return
    last = rank == size - 1

    def make(model, **options):
        return ringd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), **options
        )

    def model_of(bias=True, width=2, dtype=torch.float32):
        return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, width, bias=bias)).to(dtype)

    error = checks.raises(
        ringd.MismatchError,
        lambda: make(model_of(bias=not last)),
        f"rank {size - 1} has no '1.bias', which is float32[2] on rank 0",
    )
    checks.true(error.names == ("1.bias",) and error.ranks == (0, size - 1), "attributes")
    checks.raises(
        ringd.MismatchError,
        lambda: make(model_of(width=2 + last)),
        f"'1.weight' is float32[2, 4] on rank 0 and float32[3, 4] on rank {size - 1}",
    )
    checks.raises(
        ringd.MismatchError,
        lambda: make(model_of(dtype=torch.float64 if last else torch.float32)),
        "float64[4, 3]",
    )
    checks.raises(
        ringd.MismatchError,
        lambda: make(model_of(), backward_passes_per_step=1 + last),
        "backward_passes_per_step=2",
    )
    checks.raises(
        ringd.MismatchError,
        lambda: ringd.broadcast_parameters(model_of(bias=not last).state_dict()),
        "1.bias",
    )
    checks.equal(ringd.allreduce(torch.ones(2)), torch.ones(2), "the job goes on")


def check_broadcast_parameters(checks, rank, size):
    root = size - 1
    for form in (
        lambda m: m.state_dict(),
        lambda m: m.named_parameters(),
        lambda m: list(m.named_parameters()),
    ):
        model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)).to(
            memory_format=torch.channels_last
        )
        for tensor in model.state_dict().values():
            tensor.fill_(rank)
        ringd.broadcast_parameters(form(model), root_rank=root)
        for param in model.parameters():
            checks.equal(param.data, torch.full_like(param.data, root), "broadcast_parameters")
    ringd.broadcast_parameters({"a": None, "b": 3, "c": torch.tensor(rank)})
    checks.raises(ValueError, lambda: ringd.broadcast_parameters(model.parameters()), "pairs")


def check_broadcast_optimizer_state(checks, rank, size):
    makes = {
        **OPTIMIZERS,
        "lbfgs": lambda params: torch.optim.LBFGS(params, max_iter=2),
        "tensor lr": lambda params: torch.optim.Adam(params, lr=torch.tensor(0.02)),
    }
    for name, make in makes.items():
        model = make_model()
        optimizer = make(model.parameters())

        def closure(model=model, optimizer=optimizer):
            optimizer.zero_grad()
            loss = loss_of(model, *batch(rank, 1))
            loss.backward()
            return loss

        if rank == 0:
            optimizer.step(closure)
            optimizer.step(closure)
            optimizer.param_groups[0]["note"] = (1, "two")
        ringd.broadcast_optimizer_state(optimizer, root_rank=0)
        states = ringd.allgather_object(optimizer.state_dict())
        for state in states:
            checks.true(same_state(state, states[0]), f"broadcast_optimizer_state {name}")
        checks.true(optimizer.param_groups[0]["note"] == (1, "two"), "options")
        checks.true(rank > 0 or len(optimizer.state) > 0, "the root keeps its state")


def same_state(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same_state(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same_state, a, b))
    return type(a) is type(b) and a == b


if __name__ == "__main__":
    support.run(
        ringd,
        check_equivalence,
        check_memory_and_messages,
        check_accumulation,
        check_unused,
        check_frozen,
        check_two_optimizers,
        check_closure,
        check_clipping,
        check_sum_and_dtypes,
        check_zero_grad,
        check_object,
        check_param_group,
        check_mismatch,
        check_broadcast_parameters,
        check_broadcast_optimizer_state,
        check_many,
    )
