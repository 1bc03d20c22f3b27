"""Collective operations on NumPy arrays.

All of them are COLLECTIVE: every rank of the job calls the same ones in the same order, or every
rank of `process_set`, in an order of its own; "all ranks" means those below. Roots are ranks of the
job, whatever the set; results are in the order of the set's ranks. Arrays may be of any
shape (0-dimensional, empty, non-contiguous); dtypes are bool, (u)int8 to (u)int64, float16,
float32, float64, and bfloat16 of the package ml_dtypes. Anything that `np.asarray` takes will do as
an input.

Errors: ValueError for what is wrong on this rank alone (unknown op, root out of range, dtype that
ringd does not have); MismatchError where ranks called different things; PeerFailedError where a
rank has died; see `ringd.RingdError` for the others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from . import _combined, _core, _ops
from ._arrays import _DTYPE_CODES, _buffer, _code_of, _in_place, _source, _Target
from ._handles import Handle
from ._ops import NO_OPTIONS, Buffer, Request, Uneven
from ._process_sets import ProcessSet, global_process_set, group_of
from ._types import ReduceOp, fitting_wire

_core_address = _core.address


def _reduction(
    source: np.ndarray[Any, Any],
    target: _Target,
    op: int,
    name: str | None,
    factors: tuple[float, float],
    process_set: ProcessSet,
    weight: float | None = None,
    wire: str | None = None,
) -> Request | Uneven:
    group = group_of(process_set)
    _ops.check_plain(wire, weight, op)
    buffer = _buffer(source)

    def store(result: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        target.array[...] = result.astype(source.dtype)
        return target.finish()

    if weight is not None:
        value = _combined.check_weight(weight, op, source.dtype)
        return _combined.weighted(source, value, _code_of, store, name, *factors, group)
    if op == ReduceOp.Adasum:
        return _combined.adasum(source, buffer, store, name, *factors, group)
    into = buffer if target.array is source else _buffer(target.array)
    return _ops.allreduce(buffer, into, target.finish, op, name, *factors, group, wire)


def _allreduce(
    tensor: ArrayLike,
    op: int,
    name: str | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    out: np.ndarray[Any, Any] | None = None,
    weight: float | None = None,
    wire: str | None = None,
) -> Request | Uneven:
    source = _source(tensor)
    target = _Target(source.shape, source.dtype, out)
    return _reduction(source, target, op, name, (prescale, postscale), process_set, weight, wire)


def _run_short(source: Any, out: Any, op: int) -> Any:
    """COLLECTIVE: `allreduce` of plain arrays, without options. None: it takes the long way."""
    if source.__class__ is not np.ndarray:
        return None
    shape, dtype = source.shape, source.dtype
    code = _DTYPE_CODES.get(dtype)
    if code is None:
        return None
    if out is not source:
        flags = source.flags
        if not (flags.c_contiguous and flags.aligned):
            return None
        if out is None:
            out = np.empty(shape, dtype)
        elif out.__class__ is not np.ndarray or out.shape != shape or out.dtype != dtype:
            return None
    if not out.flags.carray:
        return None
    pointer = _core_address(source.__array_struct__)
    target = pointer if out is source else _core_address(out.__array_struct__)
    keep = (source, out)
    return out if _ops.run_allreduce(pointer, target, source.size, shape, code, op, keep) else None


def allreduce_async(
    tensor: ArrayLike,
    op: int = ReduceOp.Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    weight: float | None = None,
    out: np.ndarray[Any, Any] | None = None,
    wire: str | None = None,
) -> Handle:
    """Starts `allreduce`. Leave `tensor` and `out` alone until `synchronize(handle)` returns.

    With `weight` it blocks until all ranks have started it: they exchange their weights.
    """
    return _ops.start(
        _allreduce(
            tensor, op, name, prescale_factor, postscale_factor, process_set, out, weight, wire
        )
    )


def allreduce(
    tensor: ArrayLike,
    op: int = ReduceOp.Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    weight: float | None = None,
    out: np.ndarray[Any, Any] | None = None,
    wire: str | None = None,
) -> np.ndarray[Any, Any]:
    """Reduces an array over all ranks; the result, of the same shape and dtype, on each of them.

    Args:
        tensor: same shape and dtype on all ranks.
        op: Average (integers: truncated toward zero), Sum, Min, Max, Product or Adasum. For bool
            Sum and Max are "or", Product and Min are "and". Adasum is for floating-point numbers;
            with a name or below 64 KB every rank needs memory for all ranks' arrays.
        name: the same on all ranks. Operations with names may be called in another order on each
            rank; those without are matched by their order.
        prescale_factor: multiplies each rank's input.
        postscale_factor: multiplies the result.
        process_set: the ranks that take part.
        weight: of this rank's array, at least 0, on all ranks or on none; op is Average. The result
            is sum(weight * tensor) / sum(weight) over the ranks: products and their sum in float32
            for float16, bfloat16 and float32, in float64 for float64 and integers (which are
            truncated toward zero at the end); weights are summed in float64. ValueError where all
            weights are 0.
        out: array for the result. May be `tensor` itself.
        wire: narrower type between nodes, the same on all ranks: "bf16" or "fp16" for float32,
            "fp8_e4m3" or "fp8_e5m2" (each 32 elements with a scale of their own) for float32,
            float16 and bfloat16. Sums are rounded to it at each node on the way, and the result
            once more, to the same bits on all ranks. Not with `weight` and Adasum. Ranks of one
            node ignore it.
    """
    options = (name, weight, process_set, prescale_factor, postscale_factor, wire)
    if options == NO_OPTIONS:
        result = _run_short(tensor, out, op)
        if result is not None:
            return result
    return _ops.run(
        _allreduce(
            tensor, op, name, prescale_factor, postscale_factor, process_set, out, weight, wire
        )
    )


def allreduce_async_(
    tensor: np.ndarray[Any, Any],
    op: int = ReduceOp.Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    weight: float | None = None,
    wire: str | None = None,
) -> Handle:
    """Starts `allreduce_`."""
    array, target = _in_place(tensor)
    factors = (prescale_factor, postscale_factor)
    return _ops.start(_reduction(array, target, op, name, factors, process_set, weight, wire))


def allreduce_(
    tensor: np.ndarray[Any, Any],
    op: int = ReduceOp.Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    weight: float | None = None,
    wire: str | None = None,
) -> np.ndarray[Any, Any]:
    """`allreduce` in place. Returns `tensor`."""
    options = (name, weight, process_set, prescale_factor, postscale_factor, wire)
    if options == NO_OPTIONS and _run_short(tensor, tensor, op) is not None:
        return tensor
    array, target = _in_place(tensor)
    factors = (prescale_factor, postscale_factor)
    return _ops.run(_reduction(array, target, op, name, factors, process_set, weight, wire))


def grouped_allreduce_async(
    tensors: Sequence[ArrayLike],
    op: int = ReduceOp.Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    wire: str | None = None,
) -> Handle:
    """Starts `grouped_allreduce`."""
    options = (prescale_factor, postscale_factor, process_set)
    names = _member_names(tensors, name)
    arrays = list(map(_source, tensors))
    return _ops.start_group(
        [
            _allreduce(array, op, each, *options, wire=fitting_wire(wire, _code_of(array.dtype)))
            for array, each in zip(arrays, names, strict=True)
        ]
    )


def grouped_allreduce(
    tensors: Sequence[ArrayLike],
    op: int = ReduceOp.Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    wire: str | None = None,
) -> list[np.ndarray[Any, Any]]:
    """`allreduce` of each array of a list, started together. The arrays may differ in dtype.

    wire: of those arrays that can become it.
    """
    return grouped_allreduce_async(
        tensors, op, name, prescale_factor, postscale_factor, process_set, wire
    ).wait()


def broadcast_async(
    tensor: ArrayLike,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    out: np.ndarray[Any, Any] | None = None,
) -> Handle:
    """Starts `broadcast`."""
    group = group_of(process_set)
    source = _source(tensor)
    target = _Target(source.shape, source.dtype, out)
    into = _buffer(target.array)
    return _ops.start(_ops.broadcast(_buffer(source), into, target.finish, root_rank, name, group))


def broadcast(
    tensor: ArrayLike,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    out: np.ndarray[Any, Any] | None = None,
) -> np.ndarray[Any, Any]:
    """The root's array, on each rank. `tensor` has the same shape and dtype on all ranks."""
    return broadcast_async(tensor, root_rank, name, process_set, out).wait()


def broadcast_async_(
    tensor: np.ndarray[Any, Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Starts `broadcast_`."""
    group = group_of(process_set)
    array, target = _in_place(tensor)
    buffer = _buffer(array)
    return _ops.start(_ops.broadcast(buffer, buffer, target.finish, root_rank, name, group))


def broadcast_(
    tensor: np.ndarray[Any, Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> np.ndarray[Any, Any]:
    """`broadcast` in place. Returns `tensor`."""
    return broadcast_async_(tensor, root_rank, name, process_set).wait()


class _LateTarget:
    """A target whose shape is known once the ranks have told one another theirs."""

    __slots__ = ("_dtype", "_out", "_target")

    def __init__(self, dtype: np.dtype[Any], out: np.ndarray[Any, Any] | None) -> None:
        self._dtype = dtype
        self._out = out
        self._target: _Target | None = None

    def allocate(self, shape: tuple[int, ...]) -> Buffer:
        self._target = _Target(shape, self._dtype, self._out)
        return _buffer(self._target.array)

    def finish(self, *_: Any) -> np.ndarray[Any, Any]:
        assert self._target is not None
        return self._target.finish()


def _allgather(
    tensor: ArrayLike,
    name: str | None,
    process_set: ProcessSet,
    out: np.ndarray[Any, Any] | None = None,
) -> Uneven:
    group = group_of(process_set)
    source = _source(tensor)
    target = _LateTarget(source.dtype, out)
    return _ops.allgather(_buffer(source), target.allocate, target.finish, name, group)


def allgather_async(
    tensor: ArrayLike,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    out: np.ndarray[Any, Any] | None = None,
) -> Handle:
    """Starts `allgather`. Blocks until all ranks have started it: they exchange their sizes."""
    return _ops.start(_allgather(tensor, name, process_set, out))


def allgather(
    tensor: ArrayLike,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    out: np.ndarray[Any, Any] | None = None,
) -> np.ndarray[Any, Any]:
    """All ranks' arrays, concatenated along the first dimension in rank order.

    The first dimension may differ between ranks, and be 0; the others and the dtype may not.
    """
    return allgather_async(tensor, name, process_set, out).wait()


def grouped_allgather_async(
    tensors: Sequence[ArrayLike],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Starts `grouped_allgather`."""
    names = _member_names(tensors, name)
    return _ops.start_group(
        [_allgather(tensor, each, process_set) for tensor, each in zip(tensors, names, strict=True)]
    )


def grouped_allgather(
    tensors: Sequence[ArrayLike],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[np.ndarray[Any, Any]]:
    """`allgather` of each array of a list."""
    return grouped_allgather_async(tensors, name, process_set).wait()


def _reducescatter(
    tensor: ArrayLike,
    op: int,
    name: str | None,
    process_set: ProcessSet,
    prescale: float,
    postscale: float,
    out: np.ndarray[Any, Any] | None = None,
) -> Request:
    group = group_of(process_set)
    source = _source(tensor)
    target = _LateTarget(source.dtype, out)
    return _ops.reducescatter(
        _buffer(source), target.allocate, target.finish, op, name, prescale, postscale, group
    )


def reducescatter_async(
    tensor: ArrayLike,
    op: int = ReduceOp.Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    out: np.ndarray[Any, Any] | None = None,
) -> Handle:
    """Starts `reducescatter`."""
    return _ops.start(
        _reducescatter(tensor, op, name, process_set, prescale_factor, postscale_factor, out)
    )


def reducescatter(
    tensor: ArrayLike,
    op: int = ReduceOp.Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    out: np.ndarray[Any, Any] | None = None,
) -> np.ndarray[Any, Any]:
    """This rank's rows of the array reduced over all ranks.

    The first dimension is divided among the ranks; the first `rows % size()` ranks get one row
    more. `tensor` has the same shape (at least one dimension) and dtype on all ranks.
    """
    return reducescatter_async(
        tensor, op, name, process_set, prescale_factor, postscale_factor, out
    ).wait()


def grouped_reducescatter_async(
    tensors: Sequence[ArrayLike],
    op: int = ReduceOp.Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Starts `grouped_reducescatter`."""
    names = _member_names(tensors, name)
    return _ops.start_group(
        [
            _reducescatter(tensor, op, each, process_set, prescale_factor, postscale_factor)
            for tensor, each in zip(tensors, names, strict=True)
        ]
    )


def grouped_reducescatter(
    tensors: Sequence[ArrayLike],
    op: int = ReduceOp.Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[np.ndarray[Any, Any]]:
    """`reducescatter` of each array of a list, started together."""
    return grouped_reducescatter_async(
        tensors, op, name, process_set, prescale_factor, postscale_factor
    ).wait()


def alltoall_async(
    tensor: ArrayLike,
    splits: ArrayLike | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    out: np.ndarray[Any, Any] | None = None,
) -> Handle:
    """Starts `alltoall`. Blocks until all ranks have started it: they exchange their sizes."""
    group = group_of(process_set)
    source = _source(tensor)
    target = _LateTarget(source.dtype, out)

    def finish(buffer: Buffer, received: list[int]) -> Any:
        result = target.finish(buffer)
        return result if splits is None else (result, np.array(received, dtype=np.int32))

    rows = None if splits is None else _checked_splits(splits)
    return _ops.start(_ops.alltoall(_buffer(source), rows, target.allocate, finish, name, group))


def alltoall(
    tensor: ArrayLike,
    splits: ArrayLike | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    out: np.ndarray[Any, Any] | None = None,
) -> Any:
    """Sends rows of the first dimension to each rank; what this rank received, in rank order.

    Args:
        tensor: at least one dimension; dimensions but the first and the dtype are the same on all
            ranks.
        splits: `size()` integers: rows for each rank. Rows beyond their sum are not sent. None:
            equal shares.

    Returns:
        The array; with `splits` a pair: the array, and an int32 array of the rows that each rank
        sent.
    """
    return alltoall_async(tensor, splits, name, process_set, out).wait()


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Blocks until all ranks have called it."""
    _ops.run(_ops.barrier_request(group_of(process_set)))


def poll(handle: Handle) -> bool:
    """Whether the operation is over, so that `synchronize` won't block."""
    return handle.done()


def synchronize(handle: Handle) -> Any:
    """Blocks until the operation is over; its result. Once for each handle."""
    return handle.wait()


class _ArenaBlock:
    """Memory in the arena for as long as arrays refer to it."""

    __slots__ = ("__array_interface__", "_pointer")

    def __init__(self, nbytes: int) -> None:
        self._pointer = _core.allocate(nbytes)
        self.__array_interface__ = {
            "data": (self._pointer, False),
            "shape": (nbytes,),
            "typestr": "|u1",
            "version": 3,
        }

    def __del__(self, free: Any = _core.free) -> None:
        pointer = getattr(self, "_pointer", None)
        if pointer is None:
            return
        with contextlib.suppress(RuntimeError):  # A forked child: its memory goes with it.
            free(pointer)


def empty(shape: int | Sequence[int], dtype: DTypeLike = np.float32) -> np.ndarray[Any, Any]:
    """An uninitialised array in the arena: operations on it copy nothing on submission.

    Freed when the last array that refers to it is collected. RingdError where the arena can't grow.
    """
    wanted = np.dtype(dtype)
    _code_of(wanted)
    dims = (int(shape),) if isinstance(shape, int | np.integer) else tuple(int(n) for n in shape)
    if any(dim < 0 for dim in dims):
        raise ValueError(f"shape {dims} has a negative dimension")
    nbytes = wanted.itemsize
    for dim in dims:
        nbytes *= dim
    block = np.asarray(_ArenaBlock(max(nbytes, 1)))
    return block[:nbytes].view(wanted).reshape(dims)


def _member_names(tensors: Sequence[Any], name: str | None) -> list[str | None]:
    return [None if name is None else f"{name}.{i}" for i in range(len(tensors))]


def _checked_splits(splits: ArrayLike) -> list[int]:
    array = np.asarray(splits)
    if array.ndim != 1 or not (np.issubdtype(array.dtype, np.integer) or array.size == 0):
        raise ValueError("splits is a list of integers, or an array of them with one dimension")
    return [int(n) for n in array]
