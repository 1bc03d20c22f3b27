"""Operations on NumPy arrays with a root, and messages between two ranks; see _numpy.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from . import _ops, _ops_rooted
from ._arrays import _buffer, _in_place, _source, _Target
from ._handles import Handle
from ._numpy import _LateTarget
from ._ops import Buffer
from ._process_sets import ProcessSet, global_process_set, group_of
from ._types import DTYPE_NAMES, ReduceOp


def reduce_async(
    tensor: ArrayLike,
    root_rank: int,
    op: int = ReduceOp.Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    out: np.ndarray[Any, Any] | None = None,
) -> Handle:
    """Starts `reduce`."""
    group = group_of(process_set)
    source = _source(tensor)
    is_root = group.rank_of(root_rank) == group.rank
    target = _Target(source.shape, source.dtype, out) if is_root else None
    return _ops.start(
        _ops_rooted.reduce(
            _buffer(source),
            None if target is None else _buffer(target.array),
            lambda: None if target is None else target.finish(),
            root_rank,
            op,
            name,
            prescale_factor,
            postscale_factor,
            group,
        )
    )


def reduce(
    tensor: ArrayLike,
    root_rank: int,
    op: int = ReduceOp.Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    out: np.ndarray[Any, Any] | None = None,
) -> np.ndarray[Any, Any] | None:
    """`allreduce` whose result the root alone gets; None on the other ranks."""
    return reduce_async(
        tensor, root_rank, op, name, process_set, prescale_factor, postscale_factor, out
    ).wait()


def gather_async(
    tensor: ArrayLike,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    out: np.ndarray[Any, Any] | None = None,
) -> Handle:
    """Starts `gather`. Blocks until all ranks have started it: they exchange their sizes."""
    group = group_of(process_set)
    source = _source(tensor)
    target = _LateTarget(source.dtype, out)

    def finish(buffer: Buffer | None) -> Any:
        return None if buffer is None else target.finish(buffer)

    return _ops.start(
        _ops_rooted.gather(_buffer(source), target.allocate, finish, root_rank, name, group)
    )


def gather(
    tensor: ArrayLike,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    out: np.ndarray[Any, Any] | None = None,
) -> np.ndarray[Any, Any] | None:
    """`allgather` whose result the root alone gets; None on the other ranks."""
    return gather_async(tensor, root_rank, name, process_set, out).wait()


def scatter_async(
    tensors: Sequence[ArrayLike] | None,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    out: np.ndarray[Any, Any] | None = None,
) -> Handle:
    """Starts `scatter`. Blocks until the root has started it: the others hear of shapes."""
    group = group_of(process_set)
    source: np.ndarray[Any, Any] | None = None
    rows: list[int] | None = None
    if group.rank_of(root_rank) == group.rank:
        source, rows = _joined(tensors, group.size)
    target: list[_Target] = []

    def allocate(shape: tuple[int, ...], dtype: int) -> Buffer:
        wanted = _dtype_of(dtype) if source is None else source.dtype
        target.append(_Target(shape, wanted, out))
        return _buffer(target[0].array)

    return _ops.start(
        _ops_rooted.scatter(
            None if source is None else _buffer(source),
            rows,
            allocate,
            lambda _: target[0].finish(),
            root_rank,
            name,
            group,
        )
    )


def scatter(
    tensors: Sequence[ArrayLike] | None,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    out: np.ndarray[Any, Any] | None = None,
) -> np.ndarray[Any, Any]:
    """Gives each rank one of the root's arrays.

    Args:
        tensors: at the root, an array for each rank, in rank order: one dtype, at least one
            dimension, the first one may differ. Ignored elsewhere.
    """
    return scatter_async(tensors, root_rank, name, process_set, out).wait()


def send_async(
    tensor: ArrayLike, rank: int, tag: int = 0, process_set: ProcessSet = global_process_set
) -> Handle:
    """Starts `send`. Leave `tensor` alone until `synchronize(handle)` returns."""
    group = group_of(process_set)
    source = _source(tensor)
    return _ops.start(_ops_rooted.send(_buffer(source), lambda: None, rank, tag, group))


def send(
    tensor: ArrayLike, rank: int, tag: int = 0, process_set: ProcessSet = global_process_set
) -> None:
    """Sends an array to another rank of the job. Blocks until it has been received.

    Not collective. The k-th `send` to a rank with a tag meets the k-th `recv` there from this rank
    with that tag; nothing else orders messages. MismatchError on both ranks where shape or dtype
    differ. Two ranks that both call `send` first wait for one another for ever: use `send_async`.
    """
    send_async(tensor, rank, tag, process_set).wait()


def recv_async(
    tensor_or_shape: np.ndarray[Any, Any] | int | Sequence[int],
    rank: int,
    tag: int = 0,
    process_set: ProcessSet = global_process_set,
    dtype: DTypeLike = np.float32,
) -> Handle:
    """Starts `recv`. Several may be in flight, in any order."""
    group = group_of(process_set)
    if isinstance(tensor_or_shape, np.ndarray):
        array, target = _in_place(tensor_or_shape)
    else:
        shape = _ops_rooted.shape_of(tensor_or_shape)
        target = _Target(shape, np.dtype(dtype), None)
        array = target.array
    return _ops.start(_ops_rooted.recv(_buffer(array), target.finish, rank, tag, group))


def recv(
    tensor_or_shape: np.ndarray[Any, Any] | int | Sequence[int],
    rank: int,
    tag: int = 0,
    process_set: ProcessSet = global_process_set,
    dtype: DTypeLike = np.float32,
) -> np.ndarray[Any, Any]:
    """Receives an array from another rank of the job; see `send`.

    Args:
        tensor_or_shape: the array that is written and returned, or the shape of a new one.
        dtype: of a new one.
    """
    return recv_async(tensor_or_shape, rank, tag, process_set, dtype).wait()


def _dtype_of(code: int) -> np.dtype[Any]:
    name = DTYPE_NAMES[code]
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def _joined(
    tensors: Sequence[ArrayLike] | None, size: int
) -> tuple[np.ndarray[Any, Any], list[int]]:
    arrays = [np.asarray(tensor) for tensor in tensors or ()]
    rows = _ops_rooted.rows_of("arrays", arrays, size)
    return _source(np.concatenate(arrays)), rows
