"""Joining the job, and who this rank is: the same in horovod's packages for all frameworks."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import ringd
from ringd import (
    ccl_built,
    cuda_built,
    ddl_built,
    mpi_built,
    mpi_enabled,
    nccl_built,
    rocm_built,
    stop_timeline,
)

from . import _errors

__all__ = [
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]

# One of them is in the environment of whatever a launcher has started; with it, how many there are.
LAUNCHER_VARIABLES = {
    "RINGD_SOCKET": "",
    "RINGD_RANK": "",
    "HOROVOD_RANK": "HOROVOD_SIZE",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "HOROVOD_SIZE",
    "OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE",
    "PMI_RANK": "PMI_SIZE",
    "PMIX_RANK": "SLURM_NTASKS",
    "SLURM_PROCID": "SLURM_NTASKS",
    "TORCHELASTIC_RUN_ID": "WORLD_SIZE",
}
_ALONE = (
    "horovod: no launcher has started this process in a job, so it trains alone (size 1); to train "
    "on several ranks start it by `horovodrun` or `ringctl run`"
)


_errors.install()


@_errors.raises_horovod_errors
def init(comm: Any = None, process_sets: Sequence[ringd.ProcessSet] | str | None = None) -> None:
    """Joins the job. Does nothing in a process that has joined already.

    Without any launcher's variable in the environment, or with one that started this process alone,
    it is the whole job; a line on stderr says so.

    HOROVOD_TIMELINE=FILE in the environment starts a timeline.

    Args:
        comm: None, or a list of all ranks.
        process_sets: sets to register, or "dynamic": sets can be added later (they always can).

    Raises:
        HorovodInternalError: a launcher's variable is there, but no job of ringd to join.
        ValueError: `comm` is another list of ranks, or an MPI communicator.
    """
    if ringd.is_initialized():
        return
    asked = os.environ.get("RINGD_STANDALONE", "0") not in ("", "0")
    alone = not asked and not any(
        name in os.environ and os.environ.get(count) != "1"
        for name, count in LAUNCHER_VARIABLES.items()
    )
    if alone:
        print(_ALONE, file=sys.stderr, flush=True)
    sets = None if process_sets == "dynamic" else process_sets
    ringd.init(process_sets=sets, standalone=alone)
    _check_comm(comm)
    timeline = os.environ.get("HOROVOD_TIMELINE", "")
    if timeline not in ("", "DYNAMIC"):
        ringd.start_timeline(timeline)


@_errors.raises_horovod_errors
def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """From now on this rank's operations are written to a Chrome trace file.

    Any number of times, with `stop_timeline` between. HOROVOD_TIMELINE names a file to begin with.

    Raises:
        ValueError: before init(), or while a timeline is being written.
    """
    _ask(ringd.rank)
    try:
        ringd.start_timeline(file_path, mark_cycles)
    except ringd.RingdError as error:
        raise ValueError(str(error)) from None


def _check_comm(comm: Any) -> None:
    if comm is None or list_of_ranks(comm) == list(range(ringd.size())):
        return
    ringd.shutdown()
    raise ValueError(
        f"init(comm={comm!r}): a job is always all of its ranks; start as many as you need, or "
        "make a ProcessSet of some of them"
    )


def list_of_ranks(comm: Any) -> list[int] | None:
    """None for an MPI communicator."""
    return list(comm) if isinstance(comm, Sequence) else None


def shutdown() -> None:
    """Leaves the job. Peers' operations that wait for this rank fail."""
    if ringd.is_initialized():
        ringd.shutdown()


def is_initialized() -> bool:
    """Whether this process has joined its job."""
    return ringd.is_initialized()


def _ask(question: Any) -> int:
    if not ringd.is_initialized():
        raise ValueError("Horovod has not been initialized: call hvd.init() first")
    return question()


def rank() -> int:
    """This process's number in the job. ValueError before init()."""
    return _ask(ringd.rank)


def size() -> int:
    """Number of ranks in the job. ValueError before init()."""
    return _ask(ringd.size)


def local_rank() -> int:
    """This process's number among the job's ranks on its node. ValueError before init()."""
    return _ask(ringd.local_rank)


def local_size() -> int:
    """Number of the job's ranks on this node. ValueError before init()."""
    return _ask(ringd.local_size)


def cross_rank() -> int:
    """The number of this node among the job's nodes. ValueError before init()."""
    return _ask(ringd.cross_rank)


def cross_size() -> int:
    """Number of nodes of the job. ValueError before init()."""
    return _ask(ringd.cross_size)


def is_homogeneous() -> bool:
    """Whether all nodes have as many ranks as this one, as far as totals say. Asks nobody."""
    return size() == local_size() * cross_size()


def mpi_threads_supported() -> bool:
    """False: there is no MPI below. ValueError before init()."""
    _ask(ringd.rank)
    return False


def gloo_enabled() -> bool:
    """True: what scripts ask Gloo for (no MPI, restarts in one process) is there."""
    return True


def gloo_built() -> bool:
    """True: what scripts ask Gloo for (no MPI, restarts in one process) is there."""
    return True
