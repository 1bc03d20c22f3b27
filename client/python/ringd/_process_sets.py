"""Process sets: groups of ranks. So far only the set of all ranks can run operations."""

from __future__ import annotations

from collections.abc import Iterable

from . import _core
from ._errors import RingdError


class ProcessSet:
    """Ranks that run operations among themselves."""

    def __init__(self, ranks: Iterable[int]) -> None:
        self.ranks: list[int] | None = sorted(ranks)
        if any(type(rank) is not int or rank < 0 for rank in self.ranks):
            raise ValueError("a process set's ranks are non-negative integers")
        if len(set(self.ranks)) != len(self.ranks):
            raise ValueError("a process set has the same rank twice")
        self.process_set_id: int | None = None

    def size(self) -> int:
        """Number of ranks in the set."""
        return len(self.ranks) if self.ranks is not None else _core.info()[1]

    def rank(self) -> int:
        """This process's rank within the set. ValueError if it is not a member."""
        rank = _core.info()[0]
        if self.ranks is None:
            return rank
        return self.ranks.index(rank)

    def included(self) -> bool:
        """Whether this process is a member."""
        return self.ranks is None or _core.info()[0] in self.ranks

    def __repr__(self) -> str:
        return f"ProcessSet(id={self.process_set_id}, ranks={self.ranks or 'all'})"


def _make_global() -> ProcessSet:
    everyone = ProcessSet([])
    everyone.ranks = None
    everyone.process_set_id = 0
    return everyone


global_process_set = _make_global()

_NOT_YET = "process sets other than global_process_set are not available in this version of ringd"


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """COLLECTIVE: every rank registers the same set. Not available yet: raises RingdError."""
    raise RingdError(_NOT_YET)


def remove_process_set(process_set: ProcessSet) -> bool:
    """COLLECTIVE: every rank removes the same set. False for the global set."""
    if process_set is global_process_set:
        return False
    raise RingdError(_NOT_YET)


def require_global(process_set: ProcessSet) -> None:
    """TypeError for something that is no process set, RingdError for one that is not global."""
    if process_set is global_process_set:
        return
    if not isinstance(process_set, ProcessSet):
        raise TypeError(f"process_set is a {type(process_set).__name__}, not a ProcessSet")
    raise RingdError(_NOT_YET)
