"""Buckets of DistributedDataParallel: reduced in the arena, from where it copies the gradients.

Its C++ hands a bucket over during backward, takes the result from the Work's future and never looks
into the bucket again, so that the way back into the bucket is spared. Whoever waits for the Work
instead finds the result in the bucket, as everywhere.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from ... import _lifecycle
from ..._errors import RingdError
from ..._types import Operation
from .._tensors import empty, is_plain
from . import _memory
from ._channel import Channel
from ._work import RingdWork

_LEAST_BYTES = 64 << 10  # A copy of fewer is not worth the memory.
_PIECE_BYTES = 2 << 20
_AUTOGRAD = "torch.autograd"


class Places:
    """The memory in the arena of each bucket that there is. Thread-bound: with backward."""

    def __init__(self) -> None:
        self._places = WeakTensorKeyDictionary()

    def place_of(self, bucket: torch.Tensor) -> torch.Tensor | None:
        """Memory for the bucket's elements, the same in each step. None: the arena is full."""
        place = self._places.get(bucket)
        if place is None:
            try:
                place = self._places[bucket] = empty(bucket.numel(), bucket.dtype)
            except RingdError:
                return None
        return place


class BucketWork(RingdWork):
    """The allreduce of a bucket; its future's value is the memory in the arena."""

    _is_home = False

    def __init__(self, bucket: torch.Tensor, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._bucket = bucket

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Blocks until it is over, and brings the result into the bucket."""
        self.await_result(timeout)
        with self._lock:
            if not self._is_home:
                self._bucket.detach().copy_(self._outputs[0])
                self._is_home = True
        return True


def is_bucket(tensor: torch.Tensor) -> bool:
    """Whether autograd's C++ calls the caller's caller with it: nobody but its hooks does."""
    if tensor.nbytes < _LEAST_BYTES or not is_plain(tensor) or tensor.dtype not in _memory.CODES:
        return False
    frame = sys._getframe(1).f_back
    return frame is not None and frame.f_globals.get("__name__", "").startswith(_AUTOGRAD)


def submit(
    channel: Channel, bucket: torch.Tensor, place: torch.Tensor, reduction: int
) -> list[int]:
    """Starts the allreduce of a bucket by way of its place, between nodes in pieces: the first one
    leaves while the next is copied. The handles."""
    handles = []
    code = _memory.code_to_reduce(place)
    is_local = _lifecycle.cross_size() == 1
    length = place.numel() if is_local else _PIECE_BYTES // place.itemsize
    for source, target in zip(
        bucket.detach().view(-1).split(length), place.split(length), strict=True
    ):
        target.copy_(source)
        start, count = target.data_ptr(), target.numel()
        handles.append(
            channel.submit(Operation.ALLREDUCE, code, start, count, start, count, reduction)
        )
    return handles
