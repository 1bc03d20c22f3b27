"""Models, optimizer states and objects from one rank to all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import ringd.torch as _ringd
import torch

from ..common._errors import raises_horovod_errors
from ..common.process_sets import ProcessSet, global_process_set


@raises_horovod_errors
def broadcast_parameters(params: Mapping[str, Any] | Iterable[tuple[str, Any]], root_rank: int):
    """COLLECTIVE: overwrites tensors on all ranks, in place, by those of the root.

    Args:
        params: `model.state_dict()` or `model.named_parameters()`.
        root_rank: whose values count.
    """
    _ringd.broadcast_parameters(params, root_rank)


@raises_horovod_errors
def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: torch.nn.Module | None = None
) -> None:
    """COLLECTIVE: gives all ranks the root's optimizer state and options.

    State may be missing on other ranks: no step is run to make it.

    Raises:
        ValueError: LBFGS, as in Horovod.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("the state of torch.optim.LBFGS can't be broadcast")
    _ringd.broadcast_optimizer_state(optimizer, root_rank, model)


@raises_horovod_errors
def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """COLLECTIVE: the root's object on every rank; others' is ignored. It must be picklable."""
    return _ringd.broadcast_object(obj, root_rank, name, process_set)


@raises_horovod_errors
def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """COLLECTIVE: the list of all ranks' objects, in rank order. They must be picklable."""
    return _ringd.allgather_object(obj, name)
