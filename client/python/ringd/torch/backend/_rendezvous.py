"""`init_method="ringd://"`: a store for torch.distributed at a port that the system chose."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from ... import _core, _lifecycle, _objects

_LOCALHOST = "127.0.0.1"


def rendezvous(
    url: str, timeout: timedelta | None = None, **options: Any
) -> Iterator[tuple[dist.Store, int, int]]:
    """COLLECTIVE: rank 0 opens a store at a free port, and tells the others by ringd.

    Yields:
        The store, this rank, and the number of ranks: those of the ringd job.
    """
    _lifecycle.init(standalone=_core.launcher() is None)
    rank, size = _core.info()[:2]
    limit = timeout or timedelta(minutes=5)
    address: tuple[str, int] | None = None
    if rank == 0:
        host = os.environ.get("MASTER_ADDR", _LOCALHOST)
        store = dist.TCPStore(host, 0, size, True, limit, wait_for_workers=False)
        address = (host, store.port)
    address = _objects.broadcast_object(address, root_rank=0)
    if rank != 0:
        store = dist.TCPStore(*address, size, False, limit, wait_for_workers=False)
    yield store, rank, size
    raise RuntimeError("ringd:// can't form the same group again; call init_process_group again")
