"""Batch normalisation over the batches of all ranks: ringd's."""

from __future__ import annotations

from ringd.torch import SyncBatchNorm

__all__ = ["SyncBatchNorm"]
