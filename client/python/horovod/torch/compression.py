"""How tensors are made smaller on their way to other ranks: ringd's, by Horovod's names."""

from __future__ import annotations

from ringd.torch import Compression, Compressor

NoneCompressor = Compression.none
FP16Compressor = Compression.fp16

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]
