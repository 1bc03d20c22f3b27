"""Batch normalisation over the batches of all ranks."""

from __future__ import annotations

from typing import Any

import ringd.torch as _ringd
import torch

from ..common.exceptions import NotAvailableError

if hasattr(_ringd, "SyncBatchNorm"):
    SyncBatchNorm = _ringd.SyncBatchNorm
else:

    class SyncBatchNorm(torch.nn.modules.batchnorm._BatchNorm):
        """Not available in this version of ringd."""

        def __init__(self, *_arguments: Any, **_options: Any) -> None:
            raise NotAvailableError("SyncBatchNorm is not available in this version of ringd")
