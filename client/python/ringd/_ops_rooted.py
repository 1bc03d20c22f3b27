"""Operations on memory with a root or between two ranks; see _ops.py."""

from __future__ import annotations

import array
import math
from collections.abc import Callable, Sequence
from typing import Any

from . import _ops
from ._ops import Allocate, Buffer, Finish, Request
from ._process_sets import Group
from ._types import INT64, Operation

_HEADER_DIMS = 32
_MAX_TAG = (1 << 32) - 1


def _nothing(dtype: int) -> Buffer:
    return Buffer(0, (0,), dtype, None)


def reduce(
    source: Buffer,
    target: Buffer | None,
    finish: Finish,
    root: int,
    op: int,
    name: str | None,
    prescale: float,
    postscale: float,
    group: Group,
) -> Request:
    """Reduces all ranks' `source` into the root's `target`; None elsewhere. root: of the job."""
    into = target if target is not None else _nothing(source.dtype)
    packed = _ops.pack(
        Operation.REDUCE,
        source,
        into,
        op=_ops.check_reduction(op, source.dtype),
        root=group.rank_of(root),
        name=_ops.check_name(name),
        prescale=float(prescale),
        postscale=float(postscale),
        group=group.number,
    )
    return Request(packed, source, into, finish)


def gather(
    source: Buffer,
    allocate: Allocate,
    finish: Callable[[Buffer | None], Any],
    root: int,
    name: str | None,
    group: Group,
) -> _ops.Uneven:
    """Concatenates all ranks' `source` at the root, along the first dimension.

    `finish` gets None on the other ranks.
    """
    _ops.check_first_dim("gather", source)
    index = group.rank_of(root)
    first, read = _ops.tell("gather", source, [source.shape[0]], name, group)

    def then() -> Request:
        rows = [told[0] for told in read()]
        row = math.prod(source.shape[1:])
        is_root = index == group.rank
        target = allocate((sum(rows), *source.shape[1:])) if is_root else None
        into = target if target is not None else _nothing(source.dtype)
        packed = _ops.pack(
            Operation.GATHER,
            source,
            into,
            root=index,
            counts=_ops.int64s([n * row for n in rows]),
            name=name,
            group=group.number,
        )
        return Request(packed, source, into, lambda: finish(target))

    return _ops.Uneven(name, first, then)


def scatter(
    source: Buffer | None,
    rows: Sequence[int] | None,
    allocate: Callable[[tuple[int, ...], int], Buffer],
    finish: Callable[[Buffer], Any],
    root: int,
    name: str | None,
    group: Group,
) -> Request:
    """COLLECTIVE: splits the root's `source` along the first dimension, `rows[r]` for rank r.

    Blocks until the root has called it: the others hear of shapes and dtype first. source and rows
    are None on the other ranks; `allocate` gets a dtype, too.
    """
    index = group.rank_of(root)
    numbers = [0] * (2 + _HEADER_DIMS + group.size)
    if source is not None and rows is not None:
        tail = source.shape[1:]
        numbers[: 2 + len(tail)] = [source.dtype, len(tail), *tail]
        numbers[2 + _HEADER_DIMS :] = list(rows)
    told = array.array("q", numbers)
    _share(told, root, name, group)
    dtype, ndim = told[0], told[1]
    tail = tuple(told[2 : 2 + ndim])
    shares = list(told[2 + _HEADER_DIMS :])
    target = allocate((shares[group.rank], *tail), dtype)
    row = math.prod(tail)
    outof = source if source is not None else _nothing(dtype)
    packed = list(
        _ops.pack(
            Operation.SCATTER,
            outof,
            target,
            root=index,
            counts=_ops.int64s([n * row for n in shares]),
            name=name,
            group=group.number,
        )
    )
    packed[8] = target.shape  # What the ranks must agree on, but for the first dimension.
    return Request(tuple(packed), outof, target, lambda: finish(target))


def rows_of(what: str, parts: Sequence[Any], size: int) -> list[int]:
    """Rows of what scatter's root gives each rank. ValueError: the parts are not alike."""
    if len(parts) != size:
        raise ValueError(f"scatter: {len(parts)} {what} at the root for {size} ranks")
    first = parts[0]
    for rank, part in enumerate(parts):
        if part.ndim == 0:
            raise ValueError(f"scatter needs {what} of at least one dimension")
        if part.dtype != first.dtype or part.shape[1:] != first.shape[1:]:
            raise ValueError(
                f"scatter: that for rank {rank} is {part.dtype}{list(part.shape)}, the "
                f"first one {first.dtype}{list(first.shape)}; only the first dimension may differ"
            )
    return [part.shape[0] for part in parts]


def shape_of(given: int | Sequence[int]) -> tuple[int, ...]:
    """The shape of what recv makes. ValueError for a negative dimension."""
    dims = tuple(int(n) for n in given) if isinstance(given, Sequence) else (int(given),)
    if any(dim < 0 for dim in dims):
        raise ValueError(f"shape {dims} has a negative dimension")
    return dims


def _share(numbers: array.array[int], root: int, name: str | None, group: Group) -> None:
    """The root's numbers to all."""
    memory = Buffer(numbers.buffer_info()[0], (len(numbers),), INT64, numbers)
    _ops.start(_ops.broadcast(memory, memory, lambda: None, root, name, group)).wait()


def send(source: Buffer, finish: Finish, to: int, tag: int, group: Group) -> Request:
    """A message to a rank of the job. Over when it has been received."""
    packed = _pack_message(Operation.SEND, source, _nothing(source.dtype), to, tag, group)
    return Request(packed, source, _nothing(source.dtype), finish)


def recv(target: Buffer, finish: Finish, sender: int, tag: int, group: Group) -> Request:
    """A message from a rank of the job, of the target's shape and dtype."""
    packed = _pack_message(Operation.RECV, target, target, sender, tag, group)
    return Request(packed, target, target, finish)


def _pack_message(
    operation: Operation, source: Buffer, target: Buffer, peer: int, tag: int, group: Group
) -> tuple[Any, ...]:
    if not 0 <= tag <= _MAX_TAG:
        raise ValueError(f"tag {tag} is not in 0 to {_MAX_TAG}")
    other = group.rank_of(peer, "rank")
    if other == group.rank:
        raise ValueError(f"rank {peer} is this rank: a message goes to another one")
    return _ops.pack(operation, source, target, root=other, tag=tag, group=group.number)
