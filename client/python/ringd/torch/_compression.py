"""Compression: what tensors become for the way between ranks, and back."""

from __future__ import annotations

from typing import Any

import torch


class Compressor:
    """Base of compressors: subclass it for one of your own.

    What is compressed must make sense when it is reduced: the sum of compressed tensors,
    decompressed, is the result. It has the same shape and dtype on all ranks.
    """

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
    """Floating-point tensors of more bits travel as `wire`; others as they are."""

    wire: torch.dtype

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """The tensor cast, and its dtype."""
        if tensor.is_floating_point() and tensor.dtype.itemsize > cls.wire.itemsize:
            return tensor.to(cls.wire), tensor.dtype
        return tensor, tensor.dtype

    @classmethod
    def decompress(cls, tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """The tensor cast back."""
        return tensor.to(ctx)


class FP16Compressor(_CastCompressor):
    """float32 and float64 travel as float16. What is above 65504 becomes infinite."""

    wire = torch.float16


class BF16Compressor(_CastCompressor):
    """float32 and float64 travel as bfloat16: 8 bits of precision, the range of float32."""

    wire = torch.bfloat16


class Compression:
    """The compressors there are: `Compression.none`, `Compression.fp16`, `Compression.bf16`."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
