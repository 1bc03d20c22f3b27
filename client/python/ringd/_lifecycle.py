"""Joining and leaving the job, and who this rank is."""

from __future__ import annotations

import atexit
import contextlib
import sys
from collections.abc import Sequence

from . import _core
from ._errors import RingdError, make_error
from ._process_sets import ProcessSet, add_process_set, forget_all
from ._timeline import stop_timeline
from ._torchrun import exchange_by_torchrun

_core.set_error_factory(make_error)


def init(
    process_sets: Sequence[ProcessSet] | str | None = None,
    timeout: float | None = None,
    standalone: bool = False,
) -> None:
    """Attaches this process to its job. Does nothing if it is attached already.

    Its job is that of the launcher that started this process: `ringctl`, `torchrun`, `mpirun` (Open
    MPI's or MPICH's) or `srun`, the innermost one. Under the last three the first `init()` starts
    ringd for the job, and returns when all ranks have called it.

    Args:
        process_sets: sets to register, the same ones on all ranks. `"dynamic"`, as Horovod has it,
            changes nothing: `add_process_set` works always.
        timeout: seconds to find this rank's worker; None: 60, or 300 where it waits for all ranks.
        standalone: a job of this process alone, without a daemon: `size()` is 1. Also with
            RINGD_STANDALONE=1 in the environment of a process that no launcher started.

    Raises:
        ValueError: process sets that `add_process_set` refuses.
        RingdError: no launcher started this process, and it did not ask for standalone; the
            launcher's variables are incomplete; ranks are missing; the job has ended; or another
            process holds this rank.
    """
    if isinstance(process_sets, str) and process_sets != "dynamic":
        raise ValueError(f'process_sets is {process_sets!r}, not a list of sets or "dynamic"')
    if timeout is not None and timeout <= 0:
        raise ValueError("timeout must be positive")
    timeout_us = -1 if timeout is None else max(1, int(timeout * 1e6))
    if _core.is_initialized():
        return
    forget_all()
    _core.init(None, timeout_us, bool(standalone), exchange_by_torchrun(timeout))
    if process_sets is not None and not isinstance(process_sets, str):
        for process_set in process_sets:
            add_process_set(process_set)


def shutdown() -> None:
    """Detaches. Waits for operations in flight, at most five seconds. Arrays stay readable."""
    stop_timeline()
    _core.shutdown()
    forget_all()


@atexit.register
def _leave() -> None:
    # After an unhandled exception nobody waits for operations that may never end: the process's
    # end is what tells the daemon.
    if not _core.is_initialized() or getattr(sys, "last_value", None) is not None:
        return
    with contextlib.suppress(RingdError):
        shutdown()


def is_initialized() -> bool:
    """Whether this process is attached."""
    return _core.is_initialized()


def rank() -> int:
    """This process's number in the job, 0 to size() - 1."""
    return _core.info()[0]


def size() -> int:
    """Number of ranks in the job."""
    return _core.info()[1]


def local_rank() -> int:
    """This process's number among the job's ranks on this node."""
    return _core.info()[2]


def local_size() -> int:
    """Number of the job's ranks on this node."""
    return _core.info()[3]


def cross_rank() -> int:
    """The number of this node among the job's nodes."""
    return _core.info()[4]


def cross_size() -> int:
    """Number of nodes of the job."""
    return _core.info()[5]


def generation() -> int:
    """The number of the job's membership: grows whenever ranks come or go."""
    return _core.info()[6]


def configure(*, fusion_threshold: int | None = None, cycle_time_ms: float | None = None) -> None:
    """Takes what scripts tune at run time elsewhere. Nothing changes: there is nothing to tune.

    Small operations that are under way at the same time leave in one write, whatever their sizes,
    and are looked at when they come, not once a cycle.

    Args:
        fusion_threshold: bytes, at least 0.
        cycle_time_ms: milliseconds, more than 0.
    """
    if fusion_threshold is not None and fusion_threshold < 0:
        raise ValueError(f"fusion_threshold is {fusion_threshold}; it is a number of bytes")
    if cycle_time_ms is not None and not cycle_time_ms > 0:
        raise ValueError(f"cycle_time_ms is {cycle_time_ms}; it is a time in milliseconds")


def stats() -> dict[str, int]:
    """Counters of this rank since init().

    Keys: `operations` (completed), `bytes_reduced`, `bytes_copied` (between the caller's memory and
    the arena), `negotiation_messages`, `arena_bytes`, `stalls`, `generation`, and `backstops`
    (sleeps that ended by their timer; a wake-up was lost).
    """
    return _core.counters()
