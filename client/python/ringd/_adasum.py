"""Adasum of long tensors by halves: no rank holds more than two tensors.

Groups of ranks merge in pairs, as `combine` does: each group's combined vector lies in equal parts
on its ranks. When two groups merge, every rank of both gets its part of the larger group's vectors,
a and b; the three products a.b, |a|^2 and |b|^2 are summed over the group's ranks, and each rank
combines its part. In the end the parts are gathered. A rank sends at most 2.5 times the tensor in
all, in ceil(log2 n) rounds; gathering all tensors costs it n - 1 times the tensor, and the memory
for n.
(Vector halving, distance doubling: Maleki et al., 2020.)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from . import _ops
from ._arrays import _buffer
from ._ops import Buffer, Request, Uneven
from ._process_sets import Group
from ._types import Operation

Array = np.ndarray[Any, Any]
Span = tuple[int, int]  # Ranks: the first, and the one after the last.

_LEAST_BYTES = 64 << 10  # Below, one message beats many short ones.
_LEAST_RANKS = 3  # Two send as much either way.


def is_long(source: Array, name: str | None, group: Group) -> bool:
    """Whether halves pay. Operations with a name are one operation: ranks may reorder them."""
    return name is None and group.size >= _LEAST_RANKS and source.nbytes >= _LEAST_BYTES


def by_halves(
    source: Array, buffer: Buffer, last: Callable[[Array], Any], group: Group, other: Request
) -> Uneven:
    """COLLECTIVE: Adasum of `source`, float32 or float64 in memory of its own.

    Args:
        buffer: the tensor as it was given, for messages.
        last: makes the result of the combined vector.
        other: how it is done where ranks have joined or tensors differ.
    """
    numbers = [1, buffer.shape[0]]  # Zeros of ranks that have joined.
    tell, read = _ops.tell("Adasum", buffer, numbers, None, group)

    def then() -> Request:
        if any(told != numbers for told in read()):
            return other
        part = _reduce(source.reshape(-1), group)
        return _gather(part, source.size, group, last)

    return Uneven(None, tell, then)


def _part(count: int, span: Span, rank: int) -> range:
    """The elements of a group's vector that lie on a rank."""
    size, place = span[1] - span[0], rank - span[0]
    return range(count * place // size, count * (place + 1) // size)


def _overlap(one: range, other: range) -> int:
    return max(0, min(one.stop, other.stop) - max(one.start, other.start))


def merge(spans: list[Span]) -> list[tuple[Span, Span]]:
    """Which groups merge next; one without a partner waits."""
    return [(spans[i], spans[i + 1]) for i in range(0, len(spans) - 1, 2)]


def _reduce(part: Array, group: Group) -> Array:
    """This rank's part of the combined vector."""
    count, spans = part.size, [(rank, rank + 1) for rank in range(group.size)]
    while len(spans) > 1:
        pairs = merge(spans)
        mine = next((pair for pair in pairs if pair[0][0] <= group.rank < pair[1][1]), None)
        received = _exchange(part, count, pairs, group)
        products = np.zeros(3)
        a, b = np.split(received, 2)
        if mine is not None:
            wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
            products[:] = wide_a @ wide_b, wide_a @ wide_a, wide_b @ wide_b
        told = _tell_all(products, group)
        if mine is not None:
            rows = told[mine[0][0] : mine[1][1]]
            part = add_two(a, b, *(math.fsum(column) for column in rows.T))
        spans = [(a[0], b[1]) for a, b in pairs] + (spans[-1:] if len(spans) % 2 else [])
    return part


def add_two(a: Array, b: Array, dot: float, a_norm: float, b_norm: float) -> Array:
    """Adasum of two vectors, or of parts of them, by the products of the whole ones."""
    a_share = 1.0 if a_norm == 0 else 1.0 - dot / (2.0 * a_norm)
    b_share = 1.0 if b_norm == 0 else 1.0 - dot / (2.0 * b_norm)
    return np.asarray(a_share * a + b_share * b)


def counts_of(count: int, pairs: list[tuple[Span, Span]], size: int) -> Array:
    """Elements that each rank (row) sends to each (column) for the groups to merge."""
    matrix = np.zeros((size, size), np.int64)
    for a, b in pairs:
        whole = (a[0], b[1])
        for source in range(*whole):
            held = _part(count, a if source < a[1] else b, source)
            for target in range(*whole):
                matrix[source, target] = _overlap(held, _part(count, whole, target))
    return matrix


def _exchange(part: Array, count: int, pairs: list[tuple[Span, Span]], group: Group) -> Array:
    """This rank's part of the merged group's a, then of b; nothing without a partner."""
    matrix = counts_of(count, pairs, group.size)
    sent = part if matrix[group.rank].any() else part[:0]
    received = np.empty(int(matrix[:, group.rank].sum()), part.dtype)
    outof, into = _buffer(sent), _buffer(received)
    packed = _ops.pack(Operation.ALLTOALL, outof, into, counts=matrix.tobytes(), group=group.number)
    _ops.run(Request(packed, outof, into, lambda: None))
    return received


def _tell_all(products: Array, group: Group) -> Array:
    told = np.empty((group.size, 3))
    outof, into = _buffer(products), _buffer(told.reshape(-1))
    _ops.run(_ops.allgather_alike(outof, into, lambda: None, None, group))
    return told


def _gather(part: Array, count: int, group: Group, last: Callable[[Array], Any]) -> Request:
    whole = np.empty(count, part.dtype)
    counts = [len(_part(count, (0, group.size), rank)) for rank in range(group.size)]
    outof, into = _buffer(part), _buffer(whole)
    packed = _ops.pack(
        Operation.ALLGATHER, outof, into, counts=_ops.int64s(counts), group=group.number
    )
    return Request(packed, outof, into, lambda: last(whole))
