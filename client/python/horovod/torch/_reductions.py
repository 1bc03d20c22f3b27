"""Reductions: allreduce and reducescatter in all forms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ringd
import ringd.torch as _ringd
import torch

from ..common._errors import raises_horovod_errors
from ..common.exceptions import HorovodInternalError
from ..common.process_sets import ProcessSet, global_process_set
from ..common.reductions import Average, chosen, to_ringd
from ._handles import Number, check_list, names, synchronize
from .compression import Compression


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Number:
    """Starts `allreduce`. Leave the tensor alone until `synchronize(handle)` returns the result."""
    reduction = chosen(op, average)
    return names.start(
        "allreduce",
        name,
        process_set,
        _ringd.allreduce_async,
        tensor,
        op=reduction,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
    )


@raises_horovod_errors
def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """All ranks' tensors reduced to one of the same shape and dtype.

    Args:
        tensor: same shape and dtype on all ranks.
        average: deprecated; True is op=Average, False is op=Sum.
        compression: `Compression.none`, `Compression.fp16`, or a class of the same two methods.
        op: Average (integers: truncated toward zero), Sum, Min, Max, Product or Adasum.
        prescale_factor: multiplies each rank's tensor.
        postscale_factor: multiplies the result.
    """
    reduction = chosen(op, average)
    return _ringd.allreduce(
        tensor,
        op=reduction,
        name=name,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        process_set=process_set,
        compression=compression,
    )


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Number:
    """Starts `allreduce_`. Leave the tensor alone until `synchronize(handle)` returns it."""
    reduction = chosen(op, average)
    return names.start(
        "allreduce",
        name,
        process_set,
        _ringd.allreduce_async_,
        tensor,
        op=reduction,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
    )


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """`allreduce` in place. Returns the tensor."""
    return synchronize(
        allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set)
    )


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Number:
    """Starts `grouped_allreduce`."""
    check_list(tensors)
    reduction = chosen(op, average)
    return names.start(
        "grouped_allreduce",
        name,
        process_set,
        _ringd.grouped_allreduce_async,
        tensors,
        op=reduction,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
    )


@raises_horovod_errors
def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """`allreduce` of each tensor of a list, started together; results in the list's order."""
    check_list(tensors)
    reduction = chosen(op, average)
    return _ringd.grouped_allreduce(
        tensors,
        op=reduction,
        name=name,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        process_set=process_set,
        compression=compression,
    )


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Number:
    """Starts `grouped_allreduce_`."""
    check_list(tensors)
    reduction = chosen(op, average)
    return names.start(
        "grouped_allreduce",
        name,
        process_set,
        _ringd.grouped_allreduce_async_,
        tensors,
        op=reduction,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
    )


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """`grouped_allreduce` in place. Returns the tensors."""
    return synchronize(
        grouped_allreduce_async_(
            tensors, average, name, op, prescale_factor, postscale_factor, process_set
        )
    )


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str,
    op: int,
    process_set: ProcessSet = global_process_set,
) -> Callable[[], torch.Tensor]:
    """Starts an allreduce (Sum or Average) of a sparse COO tensor.

    Returns:
        A function that blocks until it is over and returns the sparse, uncoalesced result;
        `synchronize` takes it too.
    """
    reduction = to_ringd(op)
    handle = names.start(
        "sparse_allreduce", name, process_set, _ringd.sparse_allreduce_async, tensor, op=reduction
    )
    return lambda: synchronize(handle)


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Number:
    """Starts `reducescatter`."""
    reduction = _checked_for_scatter(op)
    return names.start(
        "reducescatter",
        name,
        process_set,
        _ringd.reducescatter_async,
        tensor,
        op=reduction,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
    )


def _checked_for_scatter(op: int) -> ringd.ReduceOp:
    reduction = to_ringd(op)
    if reduction is ringd.Adasum:
        raise HorovodInternalError("reducescatter has no Adasum: use Average or Sum")
    return reduction


@raises_horovod_errors
def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """This rank's rows of the reduced tensor; the first `rows % size` ranks get one row more."""
    reduction = _checked_for_scatter(op)
    return _ringd.reducescatter(
        tensor,
        op=reduction,
        name=name,
        process_set=process_set,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        compression=compression,
    )


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Number:
    """Starts `grouped_reducescatter`."""
    check_list(tensors)
    reduction = _checked_for_scatter(op)
    return names.start(
        "grouped_reducescatter",
        name,
        process_set,
        _ringd.grouped_reducescatter_async,
        tensors,
        op=reduction,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
    )


@raises_horovod_errors
def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """`reducescatter` of each tensor of a list, started together."""
    check_list(tensors)
    reduction = _checked_for_scatter(op)
    return _ringd.grouped_reducescatter(
        tensors,
        op=reduction,
        name=name,
        process_set=process_set,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        compression=compression,
    )
