"""What this cluster could do at best, measured in the same run: memory or links.

A limit is sampled once a round, between the implementations; `algbw` turns its samples into the
bandwidth that an operation at the limit would have.
"""

from __future__ import annotations

import contextlib
import os
import socket
import statistics
import subprocess
import threading
import time
from pathlib import Path

import numpy as np

import ringd

from .._types import dtype_code
from ._operations import BARRIER, LATENCY, MANY, link_factor, prepare

PROGRAM = Path(__file__).parents[1] / "bin" / "ringd-limits"
# Below, threads of one process don't say what ranks could do, nor a link's rate what it costs to
# wait for an answer.
SMALLEST_FOR_MEMORY = 1 << 20
SMALLEST_FOR_LINK = 64 << 10
MAX_RANKS = 64  # Of ringd-limits.
COPY_BYTES = 64 << 20
COPY_ROUNDS = 5

_PIECE_BYTES = 1 << 20
_SAMPLE_SECONDS = 0.1
_CONNECT_SECONDS = 10.0
_TIMEOUT_SECONDS = 60.0
_TOKEN_BYTES = 16


class NoLimit:
    """None is known."""

    def sample(self) -> None:
        """COLLECTIVE."""

    def algbw(self, nbytes: int) -> float | None:
        """Bytes a second; None: no limit is known."""
        return None

    def close(self) -> None:
        """Ends what it has started."""


class Kernel(NoLimit):
    """The operation by threads of one process (ringd-limits), run by rank 0 while others wait."""

    def __init__(self, operation: str, count: int, dtype: np.dtype, ranks: int) -> None:
        self._micros: list[float] = []
        self._process: subprocess.Popen[str] | None = None
        if ringd.rank() != 0:
            return
        threads = len(os.sched_getaffinity(0))
        words = [PROGRAM, operation, dtype_code(dtype.name), ranks, count * dtype.itemsize, threads]
        self._process = subprocess.Popen(
            [str(word) for word in words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def sample(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None and self._process.stdout is not None
            with contextlib.suppress(BrokenPipeError):  # It has said why on standard error.
                self._process.stdin.write("\n")
                self._process.stdin.flush()
            line = self._process.stdout.readline()
            if line:
                self._micros.append(float(line))
        ringd.barrier()

    def algbw(self, nbytes: int) -> float | None:
        return nbytes / (statistics.median(self._micros) * 1e-6) if self._micros else None

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate()


class OneAllreduce(NoLimit):
    """All bytes in one tensor."""

    def __init__(self, count: int, dtype: np.dtype, outside: bool) -> None:
        self._whole = prepare("allreduce", count, dtype, outside)
        self._seconds: list[float] = []

    def sample(self) -> None:
        self._whole.fill()
        ringd.barrier()
        start = time.perf_counter()
        self._whole.call()
        took = np.array([time.perf_counter() - start])
        self._seconds.append(float(ringd.allreduce(took, op=ringd.Max)[0]))

    def algbw(self, nbytes: int) -> float | None:
        return nbytes / statistics.median(self._seconds)


def memory_bandwidth() -> float | None:
    """COLLECTIVE: bytes a second, read and written, of copies by all of a node's cores (rank 0's).

    None on other ranks and where ringd-limits is not installed.
    """
    kernel = Kernel("copy", COPY_BYTES, np.dtype(np.uint8), 1) if PROGRAM.exists() else NoLimit()
    for _ in range(COPY_ROUNDS):
        kernel.sample()
    kernel.close()
    rate = kernel.algbw(COPY_BYTES)
    return None if rate is None else 2 * rate


class FixedLink(NoLimit):
    """Links of a known rate."""

    def __init__(self, bytes_per_second: float, factor: float) -> None:
        self._algbw = bytes_per_second / factor

    def algbw(self, nbytes: int) -> float | None:
        return self._algbw


class Wire:
    """Sockets from each node to the next, as a ring has them: one rank of each node sends and
    receives at once. COLLECTIVE: constructor (ConnectionError on all ranks) and `sample`.
    """

    def __init__(self) -> None:
        self._lead = ringd.local_rank() == 0
        self._bytes = _PIECE_BYTES
        self._piece = bytearray(_PIECE_BYTES)
        token = ringd.broadcast_object(os.urandom(_TOKEN_BYTES))
        listener, address, reason = None, None, ""
        if self._lead:
            own = _own_address()
            listener = socket.create_server((own, 0), family=_family(own))
            address = listener.getsockname()[:2]
        told = dict(filter(all, ringd.allgather_object((ringd.cross_rank() + 1, address))))
        if listener is not None:
            following = told[(ringd.cross_rank() + 1) % ringd.cross_size() + 1]
            try:
                self._connect(listener, following, token)
            except OSError as error:
                reason = f"{following[0]} can't be reached at a free port: {error}"
        reasons = [told for told in ringd.allgather_object(reason) if told]
        if reasons:
            raise ConnectionError(reasons[0])
        self._calibrate()

    def _connect(self, listener: socket.socket, following: tuple[str, int], token: bytes) -> None:
        """The token keeps strangers out."""
        with listener:
            listener.settimeout(_CONNECT_SECONDS)
            self._to = socket.create_connection(following, timeout=_CONNECT_SECONDS)
            self._to.sendall(token)
            while True:
                self._from, _ = listener.accept()
                self._from.settimeout(_CONNECT_SECONDS)
                if self._from.recv(_TOKEN_BYTES, socket.MSG_WAITALL) == token:
                    break
                self._from.close()
        for end in (self._to, self._from):
            end.settimeout(_TIMEOUT_SECONDS)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _calibrate(self) -> None:
        """Chooses how much to send: the links open up while it does."""
        while self.sample() < _SAMPLE_SECONDS / 2:
            self._bytes *= 2

    def sample(self) -> float:
        """Seconds that one exchange took on the slowest node."""
        ringd.barrier()
        start = time.perf_counter()
        if self._lead:
            sender = threading.Thread(target=self._send)
            sender.start()
            left = self._bytes
            while left > 0:
                got = self._from.recv_into(self._piece, min(left, _PIECE_BYTES))
                if got == 0:
                    raise ConnectionError("the node before closed the connection of the benchmark")
                left -= got
            sender.join()
        seconds = np.array([time.perf_counter() - start if self._lead else 0.0])
        return float(ringd.allreduce(seconds, op=ringd.Max)[0])

    def _send(self) -> None:
        piece = memoryview(bytes(_PIECE_BYTES))
        left = self._bytes
        while left > 0:
            self._to.sendall(piece[: min(left, _PIECE_BYTES)])
            left -= _PIECE_BYTES

    def rate(self, seconds: float) -> float:
        """Bytes a second in each direction."""
        return self._bytes / seconds

    def close(self) -> None:
        if self._lead:
            self._to.close()
            self._from.close()


class WireLimit(NoLimit):
    """What an operation could do on the links that `wire` measures."""

    def __init__(self, wire: Wire, factor: float) -> None:
        self._wire = wire
        self._factor = factor
        self._rates: list[float] = []

    def sample(self) -> None:
        self._rates.append(self._wire.rate(self._wire.sample()))

    def algbw(self, nbytes: int) -> float | None:
        return statistics.median(self._rates) / self._factor


def _family(address: str) -> socket.AddressFamily:
    return socket.getaddrinfo(address, None)[0][0]


def _own_address() -> str:
    """This node's address on the way to rank 0's."""
    first = os.environ.get("MASTER_ADDR", "127.0.0.1")
    if ringd.cross_rank() == 0:
        return first
    with socket.socket(_family(first), socket.SOCK_DGRAM) as probe:
        probe.connect((first, 9))
        return probe.getsockname()[0]


class Limits:
    """Chooses the limit of each line. COLLECTIVE: constructor and all methods."""

    def __init__(self, link_gbit: float | None) -> None:
        told = ringd.allgather_object((ringd.cross_rank(), ringd.local_size()))
        self.ranks_by_node = [local for _, local in sorted(set(told))]
        self._link_rate = None if link_gbit is None else link_gbit * 1e9 / 8
        self.has_kernel = bool(ringd.broadcast_object(PROGRAM.exists()))
        self.wire: Wire | None = None
        self.reason = ""  # Why the links are not measured.
        if len(self.ranks_by_node) > 1 and self._link_rate is None:
            try:
                self.wire = Wire()
            except ConnectionError as error:
                self.reason = str(error)

    def of(self, operation: str, count: int, dtype: np.dtype, outside: bool) -> NoLimit:
        """The limit of one line of the table."""
        nbytes = count * dtype.itemsize
        if operation == BARRIER:
            return NoLimit()
        if operation == MANY:
            return OneAllreduce(count, dtype, outside)
        if len(self.ranks_by_node) > 1:
            factor = link_factor(operation, self.ranks_by_node)
            if self._link_rate is not None:
                return FixedLink(self._link_rate, factor)
            if self.wire is None or nbytes < SMALLEST_FOR_LINK:
                return NoLimit()
            return WireLimit(self.wire, factor)
        if not self.has_kernel or nbytes < SMALLEST_FOR_MEMORY or ringd.size() > MAX_RANKS:
            return NoLimit()
        kernel = "allreduce" if operation == LATENCY else operation
        return Kernel(kernel, count, dtype, ringd.size())

    def close(self) -> None:
        """Ends what it has started."""
        if self.wire is not None:
            self.wire.close()
