"""Other libraries on the same ranks, with the same sizes, between ringd's own rounds."""

from __future__ import annotations

import functools
import os
import socket
import warnings
from typing import Any, Protocol

import numpy as np

import ringd

from . import _mpi
from ._operations import BARRIER, LATENCY, MANY, MANY_TENSORS, Prepared


class Gloo:
    """torch.distributed's Gloo, as it comes. COLLECTIVE: constructor."""

    name = "gloo"

    def __init__(self) -> None:
        import torch
        import torch.distributed as dist

        warnings.simplefilter("ignore", FutureWarning)  # Of names that only newer ones have.
        torch.set_num_threads(1)
        # Gloo guesses its interface from the host's name; between nodes name a real one.
        real = [name for _, name in socket.if_nameindex() if name != "lo"]
        if ringd.cross_size() > 1 and real:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", real[0])
        dist.init_process_group("gloo")
        self._torch = torch
        self._dist = dist

    def prepare(self, operation: str, count: int, dtype: np.dtype[Any]) -> Prepared:
        """The operation on `count` elements."""
        torch, dist = self._torch, self._dist
        if operation == BARRIER:
            return Prepared(dist.barrier, lambda: None)
        if operation == MANY:
            kind = getattr(torch, dtype.name)
            return self._prepare_many(
                [torch.zeros(count // MANY_TENSORS, dtype=kind) for _ in range(MANY_TENSORS)]
            )
        share = count // ringd.size()
        kind = getattr(torch, dtype.name)
        mine = torch.zeros(share if operation == "allgather" else count, dtype=kind)
        out = torch.zeros(share if operation == "reducescatter" else count, dtype=kind)
        calls = {
            "allreduce": functools.partial(dist.all_reduce, mine),
            LATENCY: functools.partial(dist.all_reduce, mine),
            "broadcast": functools.partial(dist.broadcast, mine, 0),
            "allgather": functools.partial(dist.all_gather_into_tensor, out, mine),
            "reducescatter": functools.partial(dist.reduce_scatter_tensor, out, mine),
            "alltoall": functools.partial(dist.all_to_all_single, out, mine),
        }
        return Prepared(calls[operation], functools.partial(mine.fill_, 0))

    def _prepare_many(self, tensors: list[Any]) -> Prepared:
        """In one order on all ranks, as Gloo needs it."""

        def call() -> None:
            works = [self._dist.all_reduce(tensor, async_op=True) for tensor in tensors]
            for work in works:
                work.wait()

        return Prepared(call, lambda: [tensor.fill_(0) for tensor in tensors])

    def close(self) -> None:
        """Leaves the group."""
        self._dist.destroy_process_group()


class Peer(Protocol):
    """A library on the same ranks. All methods are COLLECTIVE."""

    name: str

    def prepare(self, operation: str, count: int, dtype: np.dtype[Any]) -> Prepared:
        """The operation on `count` elements. An exception: it hasn't it."""

    def close(self) -> None:
        """Ends what it has started."""


def _find_gloo() -> tuple[list[Peer], list[str]]:
    try:
        import torch.distributed as dist

        reason = "" if dist.is_available() else "this PyTorch has no torch.distributed"
    except ImportError as error:
        reason = f"{error} (pip install torch)"
    reasons = [told for told in ringd.allgather_object(reason) if told]
    return ([], [f"no gloo: {reasons[0]}"]) if reasons else ([Gloo()], [])


def _find_mpi() -> tuple[list[Peer], list[str]]:
    if ringd.cross_size() > 1:
        return [], ["no mpi: it is measured on one node only"]
    found, reason = ringd.broadcast_object(_mpi.find() if ringd.rank() == 0 else None)
    peers: list[Peer] = []
    missing = [f"no mpi: {reason}"] if reason else []
    for name, (mpirun, mpicc) in found.items():
        try:
            peers.append(_mpi.Mpi(name, mpirun, mpicc))
        except RuntimeError as error:
            missing.append(f"no {name}: {error}")
    return peers, missing


def find_peers() -> tuple[list[Peer], list[str]]:
    """COLLECTIVE: the peers that every rank has, and what to say about the others."""
    gloo, no_gloo = _find_gloo()
    mpi, no_mpi = _find_mpi()
    return [*gloo, *mpi], [*no_gloo, *no_mpi]
