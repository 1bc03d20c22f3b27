"""Compression: what tensors become for the way between ranks, and back."""

from __future__ import annotations

import functools
from typing import Any

import torch


class Compressor:
    """Base of compressors: subclass it for one of your own.

    What is compressed must make sense when it is reduced: the sum of compressed tensors,
    decompressed, is the result. It has the same shape and dtype on all ranks.
    """

    # What it becomes between nodes besides, where its dtype can: `wire` of `ringd.allreduce`.
    wire: str | None = None

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """The tensor as it travels, and what `decompress` needs besides."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """What `compress` was given, but for its loss."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Tensors travel as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """The tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """The tensor itself."""
        return tensor


class _CastCompressor(Compressor):
    """Floating-point tensors of more bits travel as `dtype`; others as they are."""

    dtype: torch.dtype

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """The tensor cast, and its dtype."""
        if tensor.is_floating_point() and tensor.dtype.itemsize > cls.dtype.itemsize:
            return tensor.to(cls.dtype), tensor.dtype
        return tensor, tensor.dtype

    @classmethod
    def decompress(cls, tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """The tensor cast back."""
        return tensor.to(ctx)


class FP16Compressor(_CastCompressor):
    """float32 and float64 travel as float16. What is above 65504 becomes infinite."""

    dtype = torch.float16


class BF16Compressor(_CastCompressor):
    """float32 and float64 travel as bfloat16: 8 bits of precision, the range of float32."""

    dtype = torch.bfloat16


def wire_of(compression: Any) -> str | None:
    """`Compressor.wire` of anything with a compressor's methods."""
    return getattr(compression, "wire", None)


def moves_nothing(compression: Any) -> bool:
    """Whether tensors are reduced where they are."""
    return isinstance(compression, type) and issubclass(compression, NoneCompressor)


class WireCompressor(NoneCompressor):
    """Base of those that change what travels between nodes, and nothing else."""

    error_feedback = False

    @classmethod
    def with_error_feedback(cls) -> type[WireCompressor]:
        """The same for DistributedOptimizer, which then keeps what a rank's gradients lose and adds
        it in the next step, so that small ones arrive, too: a tensor more for each parameter."""
        return _with_error_feedback(cls)


class _ErrorFeedback(WireCompressor):
    error_feedback = True

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """ValueError: there is nowhere to keep what is lost."""
        raise ValueError(
            "error feedback is DistributedOptimizer's, which keeps what gradients lose: pass the "
            "compressor without it to single operations"
        )


@functools.cache
def _with_error_feedback(base: type[WireCompressor]) -> type[WireCompressor]:
    return type(f"{base.__name__}WithErrorFeedback", (_ErrorFeedback, base), {})


def has_error_feedback(compression: Any) -> bool:
    """Whether what is lost is to be kept."""
    return getattr(compression, "error_feedback", False)


class WireBF16Compressor(WireCompressor):
    """float32 is reduced as it is on a node and travels as bfloat16 between nodes."""

    wire = "bf16"


class WireFP16Compressor(WireCompressor):
    """float32 is reduced as it is on a node and travels as float16 between nodes."""

    wire = "fp16"


class FP8Compressor(WireCompressor):
    """Floats of 16 and 32 bits travel between nodes in 8: 4 of precision, a scale for 32 elements.

    Twice as fast as 16 bits where the network is the limit, for gradients that bear the rounding.
    An infinite number becomes NaN.
    """

    wire = "fp8_e4m3"


class FP8E5M2Compressor(WireCompressor):
    """As `FP8Compressor` with 3 bits of precision, for numbers that differ more inside a block."""

    wire = "fp8_e5m2"


class Compression:
    """The compressors there are.

    `none`; `fp16` and `bf16`, which cast what is reduced; `wire_fp16`, `wire_bf16`, `fp8` and
    `fp8_e5m2`, which change what allreduces (but Adasum and weighted averages) send between nodes
    and nothing else: sums on a node are exact, gradients stay where they are, and ranks of one node
    notice nothing. Their `with_error_feedback()` is for DistributedOptimizer.
    """

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
    wire_fp16 = WireFP16Compressor
    wire_bf16 = WireBF16Compressor
    fp8 = FP8Compressor
    fp8_e5m2 = FP8E5M2Compressor
