"""Models, optimizer states and objects from one rank to all."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from typing import Any

import ringd.torch as _ringd
import torch

from ..common._errors import raises_horovod_errors
from ..common.basics import rank
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


def _pickled(obj: Any) -> bytes:
    """By cloudpickle where it is installed: lambdas and local classes too."""
    try:
        import cloudpickle
    except ImportError:
        return pickle.dumps(obj)
    return cloudpickle.dumps(obj)


@raises_horovod_errors
def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """COLLECTIVE: the root's object on every rank; others' is ignored. It must be picklable."""
    mine = rank() == root_rank
    data = _ringd.broadcast_object(_pickled(obj) if mine else b"", root_rank, name, process_set)
    return obj if mine else pickle.loads(data)


@raises_horovod_errors
def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """COLLECTIVE: the list of all ranks' objects, in rank order. They must be picklable."""
    return [pickle.loads(data) for data in _ringd.allgather_object(_pickled(obj), name)]
