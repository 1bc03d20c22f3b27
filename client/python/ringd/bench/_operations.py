"""The operations by name: how ringd does them, and what they move.

A size is the larger of a rank's input and output, in bytes, and bandwidths follow nccl-tests: algbw
is size / time; busbw is algbw times a factor that makes it comparable with a link's rate.
"""

from __future__ import annotations

import ctypes
import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import ringd

from .._types import dtype_code

Call = Callable[[], object]

LATENCY = "latency"  # allreduce of small sizes.
BARRIER = "barrier"
PATH = "path"  # To the daemon and back: one rank, nothing to do.
MANY = "many"  # Named allreduces in flight at once, begun in another order on each rank.
MANY_TENSORS = 200
# From here on buffers are written anew before each call, as a training step does.
SMALLEST_TO_REFILL = 1 << 20
QUIET_MICROS = 10_000  # After that the daemon sleeps.
QUIET_CALLS = 20  # In a round.
_SETTLE_SECONDS = 0.002  # The other ranks sleep then.
LOOP = Path(__file__).parents[1] / "lib" / "libringd-loop.so"


class Prepared(NamedTuple):
    """An operation on buffers that are there."""

    call: Call
    fill: Callable[[], None]  # Writes the inputs anew.
    # Nanoseconds of each of so many calls; None: time `call`.
    run: Callable[[int], list[int]] | None = None
    note: str = ""  # For people.


def busbw_factor(operation: str, ranks: int) -> float:
    """busbw / algbw."""
    if operation in ("allreduce", LATENCY, MANY):
        return 2 * (ranks - 1) / ranks
    if operation == "broadcast":
        return 1.0
    if operation in (BARRIER, PATH):
        return 0.0
    return (ranks - 1) / ranks


def link_factor(operation: str, ranks_by_node: Sequence[int]) -> float:
    """The least that the busiest node's link carries in one direction, in sizes."""
    ranks, nodes = sum(ranks_by_node), len(ranks_by_node)
    if operation in ("allreduce", LATENCY):
        return 2 * (nodes - 1) / nodes
    if operation == "broadcast":
        return 1.0
    if operation == "alltoall":
        return max(local * (ranks - local) / ranks for local in ranks_by_node)
    return max((ranks - local) / ranks for local in ranks_by_node)


def elements(operation: str, nbytes: int, itemsize: int, ranks: int) -> int:
    """Elements of a size, at least one; a multiple of the ranks where they share it.

    Of `many`: elements of all tensors, each of that size.
    """
    if operation in (BARRIER, PATH):
        return 0
    if operation == MANY:
        return MANY_TENSORS * max(1, nbytes // itemsize)
    multiple = 1 if operation in ("allreduce", LATENCY, "broadcast") else ranks
    return max(1, nbytes // (itemsize * multiple)) * multiple


def prepare(
    operation: str, count: int, dtype: np.dtype[Any], outside: bool, wire: str | None = None
) -> Prepared:
    """ringd's operation on `count` elements, in arena buffers or outside of the arena."""
    allocate = np.empty if outside else ringd.empty
    share = count // ringd.size()
    if operation == BARRIER:
        return Prepared(ringd.barrier, lambda: None)
    if operation == MANY:
        return _prepare_many([allocate(count // MANY_TENSORS, dtype) for _ in range(MANY_TENSORS)])
    mine = allocate(share if operation == "allgather" else count, dtype)
    mine.fill(0)
    if operation in ("allreduce", LATENCY):
        call: Call = functools.partial(ringd.allreduce_, mine, op=ringd.Sum, wire=wire)
    elif operation == "broadcast":
        call = functools.partial(ringd.broadcast_, mine, 0)
    else:
        out = allocate(share if operation == "reducescatter" else count, dtype)
        out.fill(0)
        if operation == "allgather":
            call = functools.partial(ringd.allgather, mine, out=out)
        elif operation == "reducescatter":
            call = functools.partial(ringd.reducescatter, mine, op=ringd.Sum, out=out)
        else:
            call = functools.partial(ringd.alltoall, mine, out=out)
    return Prepared(call, functools.partial(mine.fill, 0))


def prepare_loop(count: int, dtype: np.dtype[Any], outside: bool) -> Prepared | None:
    """allreduce in a loop without Python; None where the library for it is not installed."""
    try:
        library = ctypes.CDLL(str(LOOP))
    except OSError:
        return None
    mine = (np.empty if outside else ringd.empty)(count, dtype)
    mine.fill(0)

    def run(calls: int) -> list[int]:
        times = np.zeros(calls, np.int64)
        ringd.barrier()
        code = library.ringd_loop_allreduce(
            ctypes.c_void_p(mine.ctypes.data),
            ctypes.c_uint64(count),
            ctypes.c_uint32(dtype_code(dtype.name)),
            ctypes.c_int64(calls),
            ctypes.c_void_p(times.ctypes.data),
        )
        if code != 0:
            raise ringd.RingdError(f"an allreduce in a loop failed with code {code}")
        return times.tolist()

    return Prepared(lambda: run(1), lambda: None, run)


def prepare_path() -> dict[str, Prepared]:
    """What the way to the daemon and back takes at rank 0: in a loop, and after some quiet.

    Beside it what the system takes to wake a sleeping thread. RingdError where the library for it
    is not installed.
    """
    try:
        library = ctypes.CDLL(str(LOOP))
    except OSError as error:
        raise ringd.RingdError(f"{PATH}: {error}; install ringd's wheel again") from error

    def prepare_one(loop: Any, quiet_micros: int) -> Prepared:
        def run(calls: int) -> list[int]:
            times = np.zeros(calls, np.int64)
            ringd.barrier()
            if ringd.rank() == 0:
                time.sleep(_SETTLE_SECONDS)
                arguments = (ctypes.c_int64(quiet_micros), ctypes.c_int64(calls))
                code = loop(*arguments, ctypes.c_void_p(times.ctypes.data))
                if code != 0:
                    raise ringd.RingdError(f"{PATH}: a call in a loop failed with code {code}")
            return times.tolist()

        most = QUIET_CALLS if quiet_micros > 0 else None
        return Prepared(lambda: run(1), lambda: None, lambda calls: run(min(calls, most or calls)))

    return {
        "ringd-c": prepare_one(library.ringd_loop_noop, 0),
        "ringd-c-quiet": prepare_one(library.ringd_loop_noop, QUIET_MICROS),
        "wake-quiet": prepare_one(library.ringd_loop_wake, QUIET_MICROS),
    }


def _prepare_many(tensors: list[np.ndarray[Any, Any]]) -> Prepared:
    """In another order on each rank, where this version of ringd allows it."""
    own_order = [int(i) for i in np.random.default_rng(ringd.rank()).permutation(len(tensors))]

    def call(order: list[int]) -> None:
        handles = [
            ringd.allreduce_async_(tensors[i], op=ringd.Sum, name=f"gradient.{i}") for i in order
        ]
        failures = []
        for handle in handles:
            try:
                handle.wait()
            except ringd.MismatchError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def fill() -> None:
        for tensor in tensors:
            tensor.fill(0)

    fill()
    try:
        call(own_order)
        note = ""
    except ringd.MismatchError:
        note = f"{MANY}: this version of ringd needs them in the same order on all ranks"
    notes = [told for told in ringd.allgather_object(note) if told]
    order = list(range(len(tensors))) if notes else own_order
    return Prepared(functools.partial(call, order), fill, note=notes[0] if notes else "")
