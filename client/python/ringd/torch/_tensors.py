"""PyTorch tensors as memory for ringd._ops, and tensors that lie in the arena."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.autograd.graph import increment_version

from .. import _core
from .._ops import Buffer
from .._types import dtype_code

_DTYPE_CODES: dict[torch.dtype, int] = {}


def code_of(dtype: torch.dtype) -> int:
    """The number of an element type. ValueError for one that ringd does not have."""
    code = _DTYPE_CODES.get(dtype)
    if code is None:
        _DTYPE_CODES[dtype] = code = dtype_code(str(dtype).removeprefix("torch."))
    return code


def check_tensor(tensor: Any) -> None:
    """TypeError for what is no tensor; ValueError for one that is not dense CPU memory."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"a torch.Tensor is needed, not a {type(tensor).__name__}")
    if tensor.device.type != "cpu":
        raise ValueError(
            f"the tensor is on {tensor.device}; ringd.torch works on CPU tensors only for now: "
            "move it with .cpu()"
        )
    if tensor.layout is not torch.strided:
        raise ValueError(f"a tensor of layout {tensor.layout}; use .to_dense() first")
    if tensor.is_nested:
        raise ValueError("a nested tensor; use .to_padded_tensor() or its .values() first")
    code_of(tensor.dtype)


def as_tensor(value: Any) -> Any:
    """What can be had as a tensor by DLPack without a copy; other values as they are."""
    if isinstance(value, torch.Tensor) or not hasattr(value, "__dlpack__"):
        return value
    try:
        return torch.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError) as error:
        if isinstance(value, np.ndarray) and not value.flags.writeable:
            return torch.from_numpy(value.copy())  # Older PyTorch can't be told: read only.
        raise ValueError(f"a {type(value).__name__} that DLPack can't hand over: {error}") from None


def contiguous_source(tensor: Any) -> torch.Tensor:
    """The tensor detached, or a contiguous copy of it."""
    tensor = as_tensor(tensor)
    check_tensor(tensor)
    return tensor.detach() if is_plain(tensor) else tensor.detach().contiguous().resolve_neg()


def buffer_of(tensor: torch.Tensor) -> Buffer:
    """The memory of a contiguous tensor. ValueError for a subclass that has none (fake tensors)."""
    pointer = tensor.data_ptr()
    if pointer == 0 and tensor.numel() > 0:
        raise ValueError(f"a {type(tensor).__name__} without memory of its own")
    return Buffer(pointer, tuple(tensor.shape), code_of(tensor.dtype), tensor)


def mark_written(tensor: torch.Tensor) -> None:
    """Tells autograd that the tensor's memory has changed behind its back."""
    if not tensor.is_inference():
        increment_version(tensor)


_PLAIN_CLASSES = (torch.Tensor, torch.nn.Parameter)


def short_address(tensor: Any) -> int | None:
    """Where a plain tensor's elements lie; None for all other objects, and empty ones."""
    if (
        tensor.__class__ in _PLAIN_CLASSES
        and tensor.dtype in _DTYPE_CODES  # Not complex, so it is no conjugate.
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and tensor.is_contiguous()
        and not tensor.is_neg()
    ):
        return tensor.data_ptr() or None
    return None


class Target:
    """Where a result goes: a new tensor, or one of the caller's (`tensor` is its memory, kept)."""

    __slots__ = ("_out", "tensor")

    _out: Any

    def __init__(
        self, shape: Sequence[int], dtype: torch.dtype, out: torch.Tensor | None = None
    ) -> None:
        self._out = out
        if out is None:
            self.tensor = torch.empty(tuple(shape), dtype=dtype)
            return
        check_tensor(out)
        if tuple(out.shape) != tuple(shape) or out.dtype != dtype:
            raise ValueError(
                f"out is {out.dtype}{list(out.shape)}, but the result is {dtype}{list(shape)}"
            )
        if not is_plain(out):
            raise ValueError("out is not contiguous")
        self.tensor = out.detach()

    def finish(self, _: Any = None) -> torch.Tensor:
        """The result, once its memory is written."""
        if self._out is None:
            return self.tensor
        mark_written(self.tensor)
        return self._out


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the tensor's memory holds its elements as they are, in order."""
    return tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()


class InPlace(Target):
    """A tensor, or an array by DLPack, that is worked on where it lies.

    ValueError for one that can't be. The result is the object that was given.
    """

    __slots__ = ()

    def __init__(self, value: Any) -> None:
        is_array = not isinstance(value, torch.Tensor) and hasattr(value, "__dlpack__")
        if is_array and not getattr(getattr(value, "flags", None), "writeable", True):
            raise ValueError(f"a read-only {type(value).__name__} can't be worked on in place")
        tensor = as_tensor(value)
        check_tensor(tensor)
        if not is_plain(tensor):
            raise ValueError(
                "the tensor is not contiguous, so it can't be worked on in place: use the form "
                "that returns a new tensor, or .contiguous()"
            )
        self.tensor = tensor.detach()
        self._out = value


class _Memory:
    """Memory of the arena for as long as tensors refer to it."""

    __slots__ = ("__array_interface__", "_release")

    def __init__(self, pointer: int, nbytes: int, release: Callable[[], None]) -> None:
        self._release = release
        self.__array_interface__ = {
            "data": (pointer, False),
            "shape": (nbytes,),
            "typestr": "|u1",
            "version": 3,
        }

    def __del__(self) -> None:
        self._release()


def tensor_at(
    pointer: int, count: int, dtype: torch.dtype, release: Callable[[], None]
) -> torch.Tensor:
    """`count` elements at an address, one-dimensional; `release` runs when no tensor is left."""
    nbytes = max(count * dtype.itemsize, 1)
    data = torch.from_numpy(np.asarray(_Memory(pointer, nbytes, release)))
    return torch.empty(0, dtype=dtype).set_(data.untyped_storage(), 0, (count,))


def _free(pointer: int, free: Callable[[int], None] = _core.free) -> None:
    try:  # noqa: SIM105 (no other module is needed while the interpreter ends)
        free(pointer)
    except RuntimeError:
        pass  # A forked child: the memory goes with the process.


def empty(
    shape: int | Sequence[int],
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> torch.Tensor:
    """An uninitialised tensor in the arena: operations on it copy nothing on submission.

    Freed when the last tensor that shares its memory is collected.

    Args:
        shape: a number or a sequence of them.
        dtype: None: PyTorch's default dtype.
        device: None or "cpu".

    Raises:
        RingdError: the arena can't grow.
        ValueError: a dtype that ringd does not have, a negative dimension, or another device.
    """
    if device is not None and torch.device(device).type != "cpu":
        raise ValueError(f"device {device}: ringd.torch works on CPU tensors only for now")
    dtype = torch.get_default_dtype() if dtype is None else dtype
    code_of(dtype)
    dims = (shape,) if isinstance(shape, int) else tuple(int(n) for n in shape)
    if any(dim < 0 for dim in dims):
        raise ValueError(f"shape {dims} has a negative dimension")
    count = 1
    for dim in dims:
        count *= dim
    pointer = _core.allocate(max(count * dtype.itemsize, 1))
    return tensor_at(pointer, count, dtype, partial(_free, pointer)).resize_(dims)
