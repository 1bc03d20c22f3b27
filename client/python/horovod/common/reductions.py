"""Reductions by Horovod's numbers."""

from __future__ import annotations

import enum
import warnings
from typing import Any

import ringd

from .exceptions import HorovodInternalError


class ReduceOp(enum.IntEnum):
    """How ranks' tensors become one. Scripts know them as hvd.Average, hvd.Sum, ..."""

    Average = 0
    Sum = 1
    Adasum = 2
    Min = 3
    Max = 4
    Product = 5


Average = ReduceOp.Average
Sum = ReduceOp.Sum
Adasum = ReduceOp.Adasum
Min = ReduceOp.Min
Max = ReduceOp.Max
Product = ReduceOp.Product


def to_ringd(op: int) -> ringd.ReduceOp:
    """Ringd's member. HorovodInternalError for a number that is none of Horovod's."""
    if isinstance(op, ringd.ReduceOp):
        return op
    try:
        return ringd.ReduceOp[ReduceOp(op).name]
    except ValueError:
        names = ", ".join(member.name for member in ReduceOp)
        raise HorovodInternalError(
            f"reduction op {op!r} is not supported; there are {names}"
        ) from None


def chosen(op: int | None, average: Any) -> ringd.ReduceOp:
    """The reduction that `op` and the deprecated `average` ask for; Average by default.

    Raises:
        ValueError: both are given, or `average` is no truth value.
    """
    if average is None:
        return to_ringd(Average if op is None else op)
    if op is not None:
        raise ValueError("average and op are both given; leave out average, which is deprecated")
    if isinstance(average, enum.Enum):
        raise ValueError(f"average is {average!r}, a reduction: give it as op={average.name}")
    warnings.warn(
        "average is deprecated: use op=hvd.Average or op=hvd.Sum", DeprecationWarning, stacklevel=4
    )
    return to_ringd(Average if average else Sum)
