"""NumPy arrays as what operations read and write."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from . import _core
from ._ops import Buffer
from ._types import dtype_code

_core_address = _core.address
_DTYPE_CODES: dict[np.dtype[Any], int] = {}


def _code_of(dtype: np.dtype[Any]) -> int:
    code = _DTYPE_CODES.get(dtype)
    if code is None:
        code = dtype_code(dtype.name)
        if not dtype.isnative:
            raise ValueError(f"dtype {dtype} has a foreign byte order; use astype({dtype.name!r})")
        _DTYPE_CODES[dtype] = code
    return code


def _buffer(array: np.ndarray[Any, Any]) -> Buffer:
    return Buffer(_core_address(array.__array_struct__), array.shape, _code_of(array.dtype), array)


def _source(tensor: ArrayLike) -> np.ndarray[Any, Any]:
    array = np.asarray(tensor)
    _code_of(array.dtype)
    flags = array.flags
    return array if flags.c_contiguous and flags.aligned else array.copy(order="C")


class _Target:
    """Where a result goes: a new array, or one of the caller's by way of a copy if need be."""

    __slots__ = ("array", "out")

    def __init__(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], out: np.ndarray[Any, Any] | None
    ) -> None:
        self.out = out
        if out is None:
            self.array = np.empty(shape, dtype)
            return
        if not isinstance(out, np.ndarray):
            raise TypeError(f"out is a {type(out).__name__}, not an array")
        if out.shape != tuple(shape) or out.dtype != dtype:
            raise ValueError(
                f"out is {out.dtype}{list(out.shape)}, but the result is {dtype}{list(shape)}"
            )
        if not out.flags.writeable:
            raise ValueError("out is read-only")
        self.array = out if out.flags.carray else np.empty(shape, dtype)

    def finish(self) -> np.ndarray[Any, Any]:
        if self.out is None or self.out is self.array:
            return self.array
        self.out[...] = self.array
        return self.out


def _in_place(tensor: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], _Target]:
    if not isinstance(tensor, np.ndarray):
        raise TypeError(f"an array is needed to work in place, not a {type(tensor).__name__}")
    target = _Target(tensor.shape, tensor.dtype, tensor)
    if target.array is tensor:
        return tensor, target
    target.array[...] = tensor
    return target.array, target
