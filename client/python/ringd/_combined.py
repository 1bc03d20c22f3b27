"""Reductions that are made of others: weighted averages and Adasum."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from . import _ops
from ._adasum import add_two, by_halves, is_long
from ._ops import Buffer, Request, Uneven
from ._process_sets import Group
from ._types import DTYPES, ReduceOp

Array = np.ndarray[Any, Any]
_FLOAT64 = DTYPES["float64"]
# Dtypes that weights are applied in; 16-bit ones would lose too much.
_WIDE = {"float16": np.float32, "bfloat16": np.float32, "float32": np.float32}


def check_weight(weight: float, op: int, dtype: np.dtype[Any]) -> float:
    """ValueError for a weight that can't be applied."""
    value = float(weight)
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"weight {weight!r} is not a finite number of at least 0")
    if op != ReduceOp.Average:
        raise ValueError("weight goes with op=Average only")
    if dtype.kind == "b":
        raise ValueError("bool has no average; use Sum (or) or Product (and)")
    return value


def weighted(
    source: Array,
    weight: float,
    code: Callable[[np.dtype[Any]], int],
    store: Callable[[Array], Any],
    name: str | None,
    prescale: float,
    postscale: float,
    group: Group,
) -> Request:
    """COLLECTIVE: sum(weight * source) / sum(weight) over all ranks. Blocks for the sum of weights.

    ValueError on all ranks where all weights are 0. `store` gets the result in a wider dtype.
    """
    total = np.array([weight])
    memory = Buffer(total.ctypes.data, (1,), _FLOAT64, total)
    label = None if name is None else f"{name}.weight"
    _ops.start(
        _ops.allreduce(memory, memory, lambda: None, ReduceOp.Sum, label, 1.0, 1.0, group)
    ).wait()
    if total[0] == 0:
        raise ValueError("the weights of all ranks are 0")
    wide = np.dtype(_WIDE.get(source.dtype.name, np.float64))
    product = np.multiply(source, weight, dtype=wide, casting="unsafe", order="C")
    product = np.asarray(product, order="C")
    buffer = Buffer(product.ctypes.data, product.shape, code(wide), product)
    return _ops.allreduce(
        buffer,
        buffer,
        lambda: store(product),
        ReduceOp.Sum,
        name,
        prescale,
        postscale / float(total[0]),
        group,
    )


def adasum(
    source: Array,
    buffer: Buffer,
    store: Callable[[Array], Any],
    name: str | None,
    prescale: float,
    postscale: float,
    group: Group,
) -> Request | Uneven:
    """Combines all ranks' `source` as `combine` does; long ones by halves."""
    if source.dtype.kind in "biu":
        raise ValueError(f"Adasum is for floating-point numbers, not {source.dtype}")
    everything = np.empty((group.size, *source.shape), source.dtype)  # Not touched by halves.
    target = Buffer(everything.ctypes.data, everything.shape, buffer.dtype, everything)
    outof = buffer._replace(shape=(1, *buffer.shape))  # The whole shape has to agree.

    def finish() -> Any:
        vectors = [each.astype(np.float64) * prescale for each in everything]
        return store(combine(vectors) * postscale)

    gathering = _ops.allgather_alike(outof, target, finish, name, group)
    if not is_long(source, name, group):
        return gathering
    wide = np.multiply(source, prescale, dtype=_WIDE.get(source.dtype.name, np.float64))

    def last(combined: Array) -> Any:
        return store(combined.reshape(source.shape) * postscale)

    return by_halves(np.ascontiguousarray(wide), buffer, last, group, gathering)


def combine(vectors: list[Array]) -> Array:
    """Adasum of float64 arrays, in pairs, then pairs of pairs; one without a partner waits.

    a and b become (1 - a.b / (2 |a|^2)) a + (1 - a.b / (2 |b|^2)) b: equal ones their average,
    orthogonal ones their sum (Maleki et al., "Scaling Distributed Training with Adaptive
    Summation", 2020).
    """
    while len(vectors) > 1:
        pairs = [_combine_two(vectors[i], vectors[i + 1]) for i in range(0, len(vectors) - 1, 2)]
        vectors = pairs + (vectors[-1:] if len(vectors) % 2 else [])
    return vectors[0]


def _combine_two(a: Array, b: Array) -> Array:
    dot = float(np.sum(a * b))
    a_norm, b_norm = float(np.sum(a * a)), float(np.sum(b * b))
    return add_two(a, b, dot, a_norm, b_norm)
