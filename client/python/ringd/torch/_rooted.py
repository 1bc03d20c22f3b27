"""Operations on PyTorch tensors with a root, and messages between two ranks; see _collectives.py.

Autograd does not see them: results never require gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .. import _ops, _ops_rooted
from .._handles import Handle
from .._ops import Buffer
from .._process_sets import ProcessSet, global_process_set, group_of
from .._types import DTYPE_NAMES, ReduceOp
from ._collectives import LateTarget
from ._tensors import InPlace, Target, buffer_of, contiguous_source


def reduce_async(
    tensor: torch.Tensor,
    root_rank: int,
    op: int = ReduceOp.Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    out: torch.Tensor | None = None,
) -> Handle:
    """Starts `reduce`."""
    group = group_of(process_set)
    source = contiguous_source(tensor)
    is_root = group.rank_of(root_rank) == group.rank
    target = Target(source.shape, source.dtype, out) if is_root else None
    return _ops.start(
        _ops_rooted.reduce(
            buffer_of(source),
            None if target is None else buffer_of(target.tensor),
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
    tensor: torch.Tensor,
    root_rank: int,
    op: int = ReduceOp.Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    out: torch.Tensor | None = None,
) -> torch.Tensor | None:
    """`allreduce` whose result the root alone gets; None on the other ranks. Not differentiable."""
    return reduce_async(
        tensor, root_rank, op, name, process_set, prescale_factor, postscale_factor, out
    ).wait()


def gather_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    out: torch.Tensor | None = None,
) -> Handle:
    """Starts `gather`. Blocks until all ranks have started it: they exchange their sizes."""
    source = contiguous_source(tensor)
    target = LateTarget(source.dtype, out)

    def finish(buffer: Buffer | None) -> Any:
        return None if buffer is None else target.finish()

    return _ops.start(
        _ops_rooted.gather(
            buffer_of(source), target.allocate, finish, root_rank, name, group_of(process_set)
        )
    )


def gather(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    out: torch.Tensor | None = None,
) -> torch.Tensor | None:
    """`allgather` whose result the root alone gets; None on the other ranks. Not differentiable."""
    return gather_async(tensor, root_rank, name, process_set, out).wait()


def scatter_async(
    tensors: Sequence[torch.Tensor] | None,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    out: torch.Tensor | None = None,
) -> Handle:
    """Starts `scatter`. Blocks until the root has started it: others hear of shape and dtype."""
    group = group_of(process_set)
    source: torch.Tensor | None = None
    rows: list[int] | None = None
    if group.rank_of(root_rank) == group.rank:
        source, rows = _joined(tensors, group.size)
    target: list[Target] = []

    def allocate(shape: tuple[int, ...], code: int) -> Buffer:
        dtype = getattr(torch, DTYPE_NAMES[code]) if source is None else source.dtype
        target.append(Target(shape, dtype, out))
        return buffer_of(target[0].tensor)

    return _ops.start(
        _ops_rooted.scatter(
            None if source is None else buffer_of(source),
            rows,
            allocate,
            lambda _: target[0].finish(),
            root_rank,
            name,
            group,
        )
    )


def scatter(
    tensors: Sequence[torch.Tensor] | None,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Gives each rank one of the root's tensors. Not differentiable.

    Args:
        tensors: at the root, a tensor for each rank, in rank order: one dtype, at least one
            dimension, the first one may differ. Ignored elsewhere.
    """
    return scatter_async(tensors, root_rank, name, process_set, out).wait()


def _joined(tensors: Sequence[Any] | None, size: int) -> tuple[torch.Tensor, list[int]]:
    parts = [contiguous_source(tensor) for tensor in tensors or ()]
    rows = _ops_rooted.rows_of("tensors", parts, size)
    return torch.cat(parts), rows


def send_async(
    tensor: torch.Tensor, rank: int, tag: int = 0, process_set: ProcessSet = global_process_set
) -> Handle:
    """Starts `send`. Leave `tensor` alone until `synchronize(handle)` returns."""
    group = group_of(process_set)
    source = contiguous_source(tensor)
    return _ops.start(_ops_rooted.send(buffer_of(source), lambda: None, rank, tag, group))


def send(
    tensor: torch.Tensor, rank: int, tag: int = 0, process_set: ProcessSet = global_process_set
) -> None:
    """Sends a tensor to another rank of the job. Blocks until it has been received.

    Not collective. The k-th `send` to a rank with a tag meets the k-th `recv` there from this rank
    with that tag; nothing else orders messages. MismatchError on both ranks where shape or dtype
    differ. Two ranks that both call `send` first wait for one another for ever: use `send_async`.
    """
    send_async(tensor, rank, tag, process_set).wait()


def recv_async(
    tensor_or_shape: torch.Tensor | int | Sequence[int],
    rank: int,
    tag: int = 0,
    process_set: ProcessSet = global_process_set,
    dtype: torch.dtype | None = None,
) -> Handle:
    """Starts `recv`. Several may be in flight, in any order."""
    group = group_of(process_set)
    target: Target
    if isinstance(tensor_or_shape, int | Sequence | torch.Size):
        shape = _ops_rooted.shape_of(tensor_or_shape)
        target = Target(shape, torch.get_default_dtype() if dtype is None else dtype)
    else:
        target = InPlace(tensor_or_shape)
    return _ops.start(_ops_rooted.recv(buffer_of(target.tensor), target.finish, rank, tag, group))


def recv(
    tensor_or_shape: torch.Tensor | int | Sequence[int],
    rank: int,
    tag: int = 0,
    process_set: ProcessSet = global_process_set,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Receives a tensor from another rank of the job; see `send`.

    Args:
        tensor_or_shape: the tensor that is written and returned, or the shape of a new one.
        dtype: of a new one; None: PyTorch's default dtype.
    """
    return recv_async(tensor_or_shape, rank, tag, process_set, dtype).wait()
