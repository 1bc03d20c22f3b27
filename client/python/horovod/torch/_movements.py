"""What moves tensors without reducing them, join and barrier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ringd.torch as _ringd
import torch

from ..common._errors import raises_horovod_errors
from ..common.process_sets import ProcessSet, global_process_set
from ._handles import Number, check_list, names, synchronize


def allgather_async(
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Number:
    """Starts `allgather`."""
    return names.start("allgather", name, process_set, _ringd.allgather_async, tensor)


@raises_horovod_errors
def allgather(
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """All ranks' tensors, concatenated along the first dimension, which alone may differ."""
    return _ringd.allgather(tensor, name=name, process_set=process_set)


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Number:
    """Starts `grouped_allgather`."""
    check_list(tensors)
    return names.start(
        "grouped_allgather", name, process_set, _ringd.grouped_allgather_async, tensors
    )


@raises_horovod_errors
def grouped_allgather(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """`allgather` of each tensor of a list."""
    check_list(tensors)
    return _ringd.grouped_allgather(tensors, name=name, process_set=process_set)


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Number:
    """Starts `broadcast`."""
    return names.start("broadcast", name, process_set, _ringd.broadcast_async, tensor, root_rank)


@raises_horovod_errors
def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """The tensor of `root_rank`, a number in the job also in a process set."""
    return _ringd.broadcast(tensor, root_rank, name=name, process_set=process_set)


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Number:
    """Starts `broadcast_`."""
    return names.start("broadcast", name, process_set, _ringd.broadcast_async_, tensor, root_rank)


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """`broadcast` in place. Returns the tensor."""
    return synchronize(broadcast_async_(tensor, root_rank, name, process_set))


def alltoall_async(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Number:
    """Starts `alltoall`. `synchronize` gives the pair, also without `splits`."""
    rows = _equal_splits(tensor, process_set) if splits is None else splits
    return names.start("alltoall", name, process_set, _ringd.alltoall_async, tensor, rows)


def _equal_splits(tensor: torch.Tensor, process_set: ProcessSet) -> list[int] | None:
    members = process_set.size() or 1
    if tensor.ndim == 0 or tensor.shape[0] % members != 0:
        return None  # Ringd says what is wrong.
    return [tensor.shape[0] // members] * members


@raises_horovod_errors
def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends `splits[i]` rows to the i-th rank; what was received, in rank order.

    Returns:
        The tensor; with `splits` also how many rows came from each rank (int32).
    """
    return _ringd.alltoall(tensor, splits, name=name, process_set=process_set)


@raises_horovod_errors
def join(device: int = -1) -> int:
    """Says that this rank has no more data; others' operations go on without it.

    Blocks until all ranks have joined. `ringd.join` says what becomes of which operation.

    Args:
        device: as in Horovod; not needed.

    Returns:
        The rank that joined last.
    """
    return _ringd.join()


@raises_horovod_errors
def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Blocks until all ranks of the set have called it."""
    _ringd.barrier(process_set=process_set)
