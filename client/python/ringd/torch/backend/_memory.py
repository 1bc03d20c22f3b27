"""Tensors of torch.distributed calls as the memory that an operation reads or writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from ..._errors import RingdError
from ..._types import DTYPES, UINT8
from .._tensors import empty, is_plain

# Reduced by number; other dtypes can be moved only, as bytes.
CODES: dict[torch.dtype, int] = {
    getattr(torch, name): code for name, code in DTYPES.items() if hasattr(torch, name)
}
# A scratch tensor of that size lies in the arena: one copy less. Smaller ones are not worth it.
_ARENA_SCRATCH_BYTES = 64 << 10

Finish = Callable[[], None]


def check(tensor: Any) -> None:
    """TypeError for what is no tensor; ValueError for one that is not dense CPU memory."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"a torch.Tensor is needed, not a {type(tensor).__name__}")
    if not tensor.is_cpu:
        raise ValueError(
            f'the tensor is on {tensor.device}; the backend "ringd" works on CPU tensors only for '
            "now: move it with .cpu()"
        )
    if tensor.layout is not torch.strided:
        raise ValueError(f"a tensor of layout {tensor.layout}; use .to_dense() first")


def code_to_reduce(tensor: torch.Tensor) -> int:
    """The number of its element type. ValueError for one that ringd can't reduce."""
    code = CODES.get(tensor.dtype)
    if code is None:
        names = ", ".join(DTYPES)
        raise ValueError(f"dtype {tensor.dtype} can't be reduced by ringd; it can: {names}")
    return code


def code_to_move(dtype: torch.dtype) -> tuple[int, int]:
    """(number of an element type, how many of them one element is)."""
    code = CODES.get(dtype)
    return (UINT8, dtype.itemsize) if code is None else (code, 1)


def source_of(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a contiguous copy of it: memory to be read."""
    check(tensor)
    return tensor if is_plain(tensor) else tensor.detach().contiguous().resolve_conj().resolve_neg()


def target_of(tensor: torch.Tensor) -> tuple[torch.Tensor, Finish | None]:
    """Memory to be written, and what then brings it into the tensor, if that is elsewhere."""
    check(tensor)
    if is_plain(tensor):
        return tensor, None
    memory = torch.empty(tensor.shape, dtype=tensor.dtype)
    return memory, partial(_copy, tensor, memory)


def inout_of(tensor: torch.Tensor) -> tuple[torch.Tensor, Finish | None]:
    """Memory to be read and written, and what then brings it into the tensor."""
    source = source_of(tensor)
    return source, None if source is tensor else partial(_copy, tensor, source)


def _copy(tensor: torch.Tensor, memory: torch.Tensor) -> None:
    tensor.detach().copy_(memory)


def scratch(count: int, dtype: torch.dtype) -> torch.Tensor:
    """One-dimensional memory for one operation."""
    if dtype in CODES and count * dtype.itemsize >= _ARENA_SCRATCH_BYTES:
        try:
            return empty(count, dtype)
        except RingdError:
            pass  # The arena is full, or this process has none.
    return torch.empty(count, dtype=dtype)


def check_alike(tensors: Sequence[torch.Tensor], dtype: torch.dtype) -> None:
    """ValueError unless all are of that dtype."""
    for tensor in tensors:
        check(tensor)
        if tensor.dtype != dtype:
            raise ValueError(f"tensors of different dtypes: {tensor.dtype} and {dtype}")


def _shared_start(tensors: Sequence[torch.Tensor]) -> int | None:
    """The first one's address if the tensors lie one after the other in memory, else None."""
    start = end = 0
    for tensor in tensors:
        if tensor.numel() == 0:
            continue
        if not is_plain(tensor) or end not in (0, tensor.data_ptr()):
            return None
        start = start or tensor.data_ptr()
        end = tensor.data_ptr() + tensor.nbytes
    return start


def joined_source(tensors: Sequence[torch.Tensor]) -> tuple[int, Any]:
    """(address, owner) of the tensors' elements, one after the other: their own memory if so."""
    dtype = tensors[0].dtype
    check_alike(tensors, dtype)
    start = _shared_start(tensors)
    if start is not None:
        return start, tensors
    memory = scratch(sum(tensor.numel() for tensor in tensors), dtype)
    torch.cat([tensor.detach().reshape(-1) for tensor in tensors], out=memory)
    return memory.data_ptr(), memory


def joined_target(tensors: Sequence[torch.Tensor]) -> tuple[int, Any, Finish | None]:
    """(address, owner, finish) of memory for the tensors' elements, one after the other."""
    dtype = tensors[0].dtype
    check_alike(tensors, dtype)
    start = _shared_start(tensors)
    if start is not None:
        return start, tensors, None
    memory = scratch(sum(tensor.numel() for tensor in tensors), dtype)
    return memory.data_ptr(), memory, partial(spread, memory, tensors)


def spread(memory: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """Copies memory to the tensors, one after the other."""
    start = 0
    for tensor in tensors:
        part = memory[start : start + tensor.numel()]
        tensor.detach().copy_(part.view(tensor.shape))
        start += tensor.numel()
