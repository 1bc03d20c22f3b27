"""A small model, its data on all ranks, and what must come out alike."""

import hashlib

import ringd.torch as ringd
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

ROWS = 6  # Of a rank in a step.
OPTIMIZERS = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda params: torch.optim.Adam(params, lr=0.01),
    "adamw foreach": lambda params: torch.optim.AdamW(params, lr=0.01, foreach=True),
}


def make_model(seed=3):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(5, 40), nn.Tanh(), nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 2)
    )


def batch(step, size):
    """The same on all ranks: inputs and targets of all of them."""
    generator = torch.Generator().manual_seed(100 + step)
    x = torch.randn(ROWS * size, 5, generator=generator)
    return x, torch.randn(ROWS * size, 2, generator=generator)


def loss_of(model, x, y):
    return F.mse_loss(model(x), y)


def mine(tensor, rank):
    return tensor[rank * ROWS : (rank + 1) * ROWS]


def same_bits(checks, model, what):
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    checks.true(len(set(ringd.allgather_object(digest.hexdigest()))) == 1, what + ": same bits")


def close_models(checks, model, reference, what):
    for (name, result), right in zip(
        model.state_dict().items(), reference.state_dict().values(), strict=True
    ):
        checks.close(result, right, f"{what}: {name}", rtol=1e-4, atol=1e-5)
    same_bits(checks, model, what)
