"""Process sets: groups of ranks that run operations among themselves."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import NamedTuple

from . import _core


class Group(NamedTuple):
    """A process set as operations need it. Ranks of the group count from 0 in its order."""

    number: int
    rank: int
    size: int
    ranks: tuple[int, ...] | None  # Of the job; None: all.

    def rank_of(self, job_rank: int, what: str = "root_rank") -> int:
        """The group's number of a rank of the job. ValueError for one that is no member."""
        if self.ranks is None:
            if not 0 <= job_rank < self.size:
                raise ValueError(f"{what} {job_rank} is not a rank of a job of {self.size}")
            return int(job_rank)
        if job_rank not in self.ranks:
            raise ValueError(f"{what} {job_rank} is not a rank of the process set {self.ranks}")
        return self.ranks.index(job_rank)

    def job_rank(self, rank: int) -> int:
        """The reverse."""
        return rank if self.ranks is None else self.ranks[rank]


class ProcessSet:
    """Ranks that run operations among themselves.

    A set is used once all ranks have registered it, with `init(process_sets=[...])` or
    `add_process_set`. Operations take it as `process_set=`; their root ranks are ranks of the job,
    and results are in the order of the set's ranks, ascending.

    Attributes:
        ranks: sorted; None in `global_process_set`.
        process_set_id: 0 for `global_process_set`, then 1, 2, ..., the same on all ranks; None
            while it is not registered.
    """

    def __init__(self, ranks: Iterable[int]) -> None:
        self.ranks: list[int] | None = sorted(ranks)
        if any(type(rank) is not int or rank < 0 for rank in self.ranks):
            raise ValueError("a process set's ranks are non-negative integers")
        if len(set(self.ranks)) != len(self.ranks):
            raise ValueError("a process set has the same rank twice")
        self.process_set_id: int | None = None

    def size(self) -> int | None:
        """Number of ranks in the set; None while it is not registered."""
        if self.process_set_id is None:
            return None
        return len(self.ranks) if self.ranks is not None else _core.info()[1]

    def rank(self) -> int | None:
        """This process's rank within the set. ValueError if it is not a member."""
        if self.process_set_id is None:
            return None
        rank = _core.info()[0]
        if self.ranks is None:
            return rank
        if rank not in self.ranks:
            raise ValueError(f"rank {rank} is not a member of the process set {self.ranks}")
        return self.ranks.index(rank)

    def included(self) -> bool | None:
        """Whether this process is a member; None while the set is not registered."""
        if self.process_set_id is None:
            return None
        return self.ranks is None or _core.info()[0] in self.ranks

    def __repr__(self) -> str:
        return f"ProcessSet(id={self.process_set_id}, ranks={self.ranks or 'all'})"


def _make_global() -> ProcessSet:
    everyone = ProcessSet([])
    everyone.ranks = None
    everyone.process_set_id = 0
    return everyone


global_process_set = _make_global()

_registered: dict[int, ProcessSet] = {}
# Called with the number of a set that is gone, which may come back for another one.
removal_hooks: list[Callable[[int], None]] = []


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """COLLECTIVE: every rank of the job, member or not, registers the same set. Blocks for all.

    Returns:
        The set, with its `process_set_id`. Ids of sets that were removed come back, the oldest
        first.

    Raises:
        ValueError: a rank is not one of the job's, or the same ranks are a set already (all of them
            are `global_process_set`).
        MismatchError: ranks registered different sets.
    """
    chosen = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    ranks = chosen.ranks
    size = _core.info()[1]
    if ranks is None or chosen.process_set_id is not None:
        raise ValueError(f"{chosen} is registered already")
    if not ranks:
        raise ValueError("a process set has at least one rank")
    if ranks[-1] >= size:
        raise ValueError(f"rank {ranks[-1]} is not a rank of a job of {size}")
    if len(ranks) == size:
        raise ValueError("a process set of all ranks exists already: global_process_set")
    for other in _registered.values():
        if other.ranks == ranks:
            raise ValueError(f"a process set of ranks {ranks} exists already: {other}")
    number = _core.group_register(tuple(ranks), -1)
    chosen.process_set_id = number
    _registered[number] = chosen
    return chosen


def remove_process_set(process_set: ProcessSet) -> bool:
    """COLLECTIVE: every rank of the job removes the same set. Blocks until all have.

    Operations of the set that are in flight fail. The object is not registered any more
    (`process_set_id` is None) and may be added again.

    Returns:
        True; False for the global set, which stays.
    """
    if process_set is global_process_set:
        return False
    number = process_set.process_set_id
    if number is None or _registered.get(number) is not process_set:
        raise ValueError(f"{process_set} is not registered")
    _core.group_unregister(number, -1)
    del _registered[number]
    process_set.process_set_id = None
    for forget in removal_hooks:
        forget(number)
    return True


def forget_all() -> None:
    """After a shutdown: only the global set survives."""
    for process_set in _registered.values():
        process_set.process_set_id = None
    _registered.clear()


@functools.lru_cache(maxsize=8)
def _all_ranks(rank: int, size: int) -> Group:
    return Group(0, rank, size, None)


def group_of(process_set: ProcessSet) -> Group:
    """The group of a set that this rank runs an operation in.

    TypeError for what is no process set or none that is registered, ValueError where this rank is
    not a member.
    """
    if process_set is global_process_set:
        return _all_ranks(*_core.info()[:2])
    if not isinstance(process_set, ProcessSet):
        raise TypeError(f"process_set is a {type(process_set).__name__}, not a ProcessSet")
    number = process_set.process_set_id
    if number is None or process_set.ranks is None:
        raise TypeError(f"{process_set} is not registered: call add_process_set on all ranks first")
    rank = _core.info()[0]
    if rank not in process_set.ranks:
        raise ValueError(f"rank {rank} is not a member of the process set {process_set.ranks}")
    ranks = tuple(process_set.ranks)
    return Group(number, ranks.index(rank), len(ranks), ranks)
