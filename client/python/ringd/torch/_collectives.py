"""Collective operations on PyTorch tensors.

All of them are COLLECTIVE: every rank calls the same ones in the same order. Tensors are dense and
on the CPU, of any shape (0-dimensional and empty ones too); dtypes are bool, (u)int8 to (u)int64,
float16, bfloat16, float32 and float64. Inputs that are not contiguous are copied. Those here are
asynchronous, in place, or both, and autograd does not see them: results never require gradients.
Other packages' arrays are taken where DLPack hands them over without a copy.

Errors: ValueError for what is wrong on this rank alone (unknown op, root out of range, other
dtypes, other devices, a non-contiguous tensor to work on in place) and TypeError for what is no
tensor; MismatchError where ranks called different things; PeerFailedError where a rank has died;
see `ringd.RingdError` for the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .. import _combined, _ops
from .._handles import Handle
from .._ops import NO_OPTIONS, Buffer, Request, Uneven
from .._process_sets import Group, ProcessSet, global_process_set, group_of
from .._types import ReduceOp, dtype_code, fitting_wire
from ._tensors import (
    InPlace,
    Target,
    as_tensor,
    buffer_of,
    check_tensor,
    code_of,
    contiguous_source,
    mark_written,
    short_address,
)


def member_names(tensors: Sequence[Any], name: str | None) -> list[str | None]:
    """Names of a group's members. ValueError for an empty group."""
    if len(tensors) == 0:
        raise ValueError("a group of no tensors")
    return [None if name is None else f"{name}.{i}" for i in range(len(tensors))]


def _fitting(wire: str | None, tensor: Any) -> str | None:
    if wire is None:
        return None
    plain = as_tensor(tensor)
    check_tensor(plain)
    return fitting_wire(wire, code_of(plain.dtype))


def allreduce_request(
    tensor: torch.Tensor,
    op: int,
    name: str | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    weight: float | None = None,
    out: torch.Tensor | None = None,
    wire: str | None = None,
) -> Request | Uneven:
    """An allreduce, ready to be started."""
    source = contiguous_source(tensor)
    target = Target(source.shape, source.dtype, out)
    return _reduction(source, target, op, name, (prescale, postscale), process_set, weight, wire)


def _reduction(
    source: torch.Tensor,
    target: Target,
    op: int,
    name: str | None,
    factors: tuple[float, float],
    process_set: ProcessSet,
    weight: float | None,
    wire: str | None,
) -> Request | Uneven:
    group = group_of(process_set)
    _ops.check_plain(wire, weight, op)
    buffer = buffer_of(source)
    if weight is not None or op == ReduceOp.Adasum:
        return _combine(source, target, op, name, factors, group, weight)
    into = buffer if target.tensor is source else buffer_of(target.tensor)
    return _ops.allreduce(buffer, into, target.finish, op, name, *factors, group, wire)


def _combine(
    source: torch.Tensor,
    target: Target,
    op: int,
    name: str | None,
    factors: tuple[float, float],
    group: Group,
    weight: float | None,
) -> Request | Uneven:
    """A weighted average or Adasum, by way of NumPy (bfloat16, which it has not, as float32)."""
    precise = source.float() if source.dtype == torch.bfloat16 else source
    array = precise.numpy()

    def store(result: Any) -> torch.Tensor:
        target.tensor.copy_(torch.from_numpy(result).view(target.tensor.shape))
        return target.finish()

    if weight is not None:
        value = _combined.check_weight(weight, op, array.dtype)
        code = lambda dtype: dtype_code(dtype.name)  # noqa: E731
        return _combined.weighted(array, value, code, store, name, *factors, group)
    return _combined.adasum(array, buffer_of(precise), store, name, *factors, group)


def _in_place_request(
    tensor: torch.Tensor,
    op: int,
    name: str | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    weight: float | None = None,
    wire: str | None = None,
) -> Request | Uneven:
    target = InPlace(tensor)
    factors = (prescale, postscale)
    return _reduction(target.tensor, target, op, name, factors, process_set, weight, wire)


def run_short(source: Any, out: Any, op: int) -> Any:
    """COLLECTIVE: `allreduce` of plain tensors, without options and gradient.

    None, and nothing done: it takes the long way.
    """
    pointer = short_address(source)
    if pointer is None or (source.requires_grad and out is not source and torch.is_grad_enabled()):
        return None
    shape, dtype = source.shape, source.dtype
    result, target = out, pointer
    if out is None:
        result = torch.empty_like(source)
        target = result.data_ptr()
    elif out is not source:
        target = short_address(out)
        if target is None or out.dtype != dtype or out.shape != shape:
            return None
    count, keep = source.numel(), (source, result)
    if not _ops.run_allreduce(pointer, target, count, shape, code_of(dtype), op, keep):
        return None
    if out is not None:
        mark_written(out)
    return result


def allreduce_async(
    tensor: torch.Tensor,
    op: int = ReduceOp.Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    weight: float | None = None,
    out: torch.Tensor | None = None,
    wire: str | None = None,
) -> Handle:
    """Starts `allreduce`. Leave `tensor` and `out` alone until `synchronize(handle)` returns."""
    factors = (prescale_factor, postscale_factor)
    return _ops.start(allreduce_request(tensor, op, name, *factors, process_set, weight, out, wire))


def allreduce_async_(
    tensor: torch.Tensor,
    op: int = ReduceOp.Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    weight: float | None = None,
    wire: str | None = None,
) -> Handle:
    """Starts `allreduce_`. Leave `tensor` alone until `synchronize(handle)` returns."""
    factors = (prescale_factor, postscale_factor)
    return _ops.start(_in_place_request(tensor, op, name, *factors, process_set, weight, wire))


def allreduce_(
    tensor: torch.Tensor,
    op: int = ReduceOp.Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    weight: float | None = None,
    wire: str | None = None,
) -> torch.Tensor:
    """`allreduce` in place, of a contiguous tensor. Returns `tensor`."""
    options = (name, weight, process_set, prescale_factor, postscale_factor, wire)
    if options == NO_OPTIONS and run_short(tensor, tensor, op) is not None:
        return tensor
    factors = (prescale_factor, postscale_factor)
    return _ops.run(_in_place_request(tensor, op, name, *factors, process_set, weight, wire))


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    op: int = ReduceOp.Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    wire: str | None = None,
) -> Handle:
    """Starts `grouped_allreduce`."""
    options = (prescale_factor, postscale_factor, process_set)
    return _ops.start_group(
        [
            allreduce_request(tensor, op, each, *options, wire=_fitting(wire, tensor))
            for tensor, each in zip(tensors, member_names(tensors, name), strict=True)
        ]
    )


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    op: int = ReduceOp.Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    wire: str | None = None,
) -> Handle:
    """Starts `grouped_allreduce_`."""
    options = (prescale_factor, postscale_factor, process_set)
    return _ops.start_group(
        [
            _in_place_request(tensor, op, each, *options, wire=_fitting(wire, tensor))
            for tensor, each in zip(tensors, member_names(tensors, name), strict=True)
        ]
    )


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    op: int = ReduceOp.Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    wire: str | None = None,
) -> list[torch.Tensor]:
    """`grouped_allreduce` in place. Returns the tensors."""
    return grouped_allreduce_async_(
        tensors, op, name, prescale_factor, postscale_factor, process_set, wire
    ).wait()


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    out: torch.Tensor | None = None,
) -> Handle:
    """Starts `broadcast`."""
    return _ops.start(broadcast_request(tensor, root_rank, name, process_set, out))


def broadcast_request(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None,
    process_set: ProcessSet,
    out: torch.Tensor | None = None,
) -> Request:
    """A broadcast, ready to be started."""
    source = contiguous_source(tensor)
    target = Target(source.shape, source.dtype, out)
    return _broadcast(source, target, root_rank, name, process_set)


def _broadcast(
    source: torch.Tensor,
    target: Target,
    root_rank: int,
    name: str | None,
    process_set: ProcessSet,
) -> Request:
    buffer = buffer_of(source)
    into = buffer if target.tensor is source else buffer_of(target.tensor)
    return _ops.broadcast(buffer, into, target.finish, root_rank, name, group_of(process_set))


def broadcast_in_place_request(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None,
    process_set: ProcessSet = global_process_set,
) -> Request:
    """`broadcast_`, ready to be started."""
    target = InPlace(tensor)
    return _broadcast(target.tensor, target, root_rank, name, process_set)


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Starts `broadcast_`."""
    return _ops.start(broadcast_in_place_request(tensor, root_rank, name, process_set))


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """`broadcast` in place, of a contiguous tensor. Returns `tensor`."""
    return _ops.run(broadcast_in_place_request(tensor, root_rank, name, process_set))


class LateTarget:
    """A target whose shape is known once the ranks have told one another theirs."""

    __slots__ = ("_dtype", "_out", "_target")

    def __init__(self, dtype: torch.dtype, out: torch.Tensor | None) -> None:
        self._dtype = dtype
        self._out = out
        self._target: Target | None = None

    def allocate(self, shape: tuple[int, ...]) -> Buffer:
        self._target = Target(shape, self._dtype, self._out)
        return buffer_of(self._target.tensor)

    def finish(self, *_: Any) -> torch.Tensor:
        assert self._target is not None
        return self._target.finish()

    def finish_with_rows(self, _: Buffer, rows: list[int]) -> tuple[torch.Tensor, list[int]]:
        return self.finish(), rows


def allgather_request(
    tensor: torch.Tensor,
    name: str | None,
    process_set: ProcessSet,
    out: torch.Tensor | None = None,
    with_rows: bool = False,
) -> Uneven:
    """An allgather, ready to be started; its result is a pair with all ranks' rows if asked for."""
    source = contiguous_source(tensor)
    target = LateTarget(source.dtype, out)
    finish = target.finish_with_rows if with_rows else target.finish
    group = group_of(process_set)
    return _ops.allgather(buffer_of(source), target.allocate, finish, name, group)


def allgather_async(
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    out: torch.Tensor | None = None,
) -> Handle:
    """Starts `allgather`. Blocks until all ranks have started it: they exchange their sizes."""
    return _ops.start(allgather_request(tensor, name, process_set, out))


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Starts `grouped_allgather`."""
    return _ops.start_group(
        [
            allgather_request(tensor, each, process_set)
            for tensor, each in zip(tensors, member_names(tensors, name), strict=True)
        ]
    )


def reducescatter_request(
    tensor: torch.Tensor,
    op: int,
    name: str | None,
    process_set: ProcessSet,
    prescale: float,
    postscale: float,
    out: torch.Tensor | None = None,
) -> Request:
    """A reducescatter, ready to be started."""
    source = contiguous_source(tensor)
    target = LateTarget(source.dtype, out)
    group = group_of(process_set)
    return _ops.reducescatter(
        buffer_of(source), target.allocate, target.finish, op, name, prescale, postscale, group
    )


def reducescatter_async(
    tensor: torch.Tensor,
    op: int = ReduceOp.Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    out: torch.Tensor | None = None,
) -> Handle:
    """Starts `reducescatter`."""
    return _ops.start(
        reducescatter_request(tensor, op, name, process_set, prescale_factor, postscale_factor, out)
    )


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    op: int = ReduceOp.Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Starts `grouped_reducescatter`."""
    return _ops.start_group(
        [
            reducescatter_request(tensor, op, each, process_set, prescale_factor, postscale_factor)
            for tensor, each in zip(tensors, member_names(tensors, name), strict=True)
        ]
    )


def _checked_splits(splits: Any) -> list[int]:
    tensor = torch.as_tensor(splits)
    if tensor.ndim != 1 or (
        tensor.numel() > 0
        and (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
    ):
        raise ValueError("splits is a list of integers, or a tensor of them with one dimension")
    return [int(n) for n in tensor.tolist()]


def alltoall_async(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    out: torch.Tensor | None = None,
) -> Handle:
    """Starts `alltoall`. Blocks until all ranks have started it: they exchange their sizes."""
    return _ops.start(alltoall_request(tensor, splits, name, process_set, out))


def alltoall_request(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None,
    name: str | None,
    process_set: ProcessSet,
    out: torch.Tensor | None = None,
) -> Uneven:
    """An alltoall, ready to be started."""
    source = contiguous_source(tensor)
    target = LateTarget(source.dtype, out)

    def finish(buffer: Buffer, received: list[int]) -> Any:
        result = target.finish(buffer)
        return result if splits is None else (result, torch.tensor(received, dtype=torch.int32))

    rows = None if splits is None else _checked_splits(splits)
    group = group_of(process_set)
    return _ops.alltoall(buffer_of(source), rows, target.allocate, finish, name, group)
