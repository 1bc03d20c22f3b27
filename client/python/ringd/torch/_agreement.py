"""Ranks compare what they are about to do, so that a difference has a name instead of a hang."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch

from .._errors import MismatchError
from .._objects import allgather_object
from .._process_sets import ProcessSet, global_process_set, group_of
from .._types import signature
from ._tensors import code_of

# A tensor's name and what all ranks must have alike of it.
Entry = tuple[str, str]


def entry_of(name: str, tensor: torch.Tensor) -> Entry:
    """`("fc.weight", "float32[10, 50]")`."""
    return name, signature(code_of(tensor.dtype), tuple(tensor.shape))


def agree(
    what: str,
    entries: Sequence[Entry],
    also: Any = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """COLLECTIVE: all ranks' `also`, in rank order. MismatchError unless entries are the same."""
    digest = hashlib.sha256(repr(list(entries)).encode()).digest()
    told = allgather_object((digest, also), process_set=process_set)
    if all(other[0] == digest for other in told):
        return [other[1] for other in told]
    group = group_of(process_set)
    everything = allgather_object(list(entries), process_set=process_set)
    raise find_difference(what, everything, [group.job_rank(i) for i in range(group.size)])


def find_difference(
    what: str, told: Sequence[Sequence[Entry]], ranks: Sequence[int] | None = None
) -> MismatchError:
    """The first thing in which a rank differs from the first one. ranks: what they are called."""
    names = list(range(len(told))) if ranks is None else ranks
    for rank, entries in enumerate(told):
        if list(entries) != list(told[0]):
            return _difference(what, (names[0], names[rank]), dict(told[0]), dict(entries))
    return MismatchError(f"{what}: differs between ranks")


def _difference(
    what: str, ranks: tuple[int, int], first: dict[str, str], other: dict[str, str]
) -> MismatchError:
    start, rank = ranks
    for name, value in first.items():
        if name not in other:
            text = f"{what}: rank {rank} has no '{name}', which is {value} on rank {start}"
            return MismatchError(text, (name,), ranks, (value, "nothing"))
        if other[name] != value:
            text = f"{what}: '{name}' is {value} on rank {start} and {other[name]} on rank {rank}"
            return MismatchError(text, (name,), ranks, (value, other[name]))
    for name, value in other.items():
        if name not in first:
            text = f"{what}: rank {start} has no '{name}', which is {value} on rank {rank}"
            return MismatchError(text, (name,), ranks, ("nothing", value))
    for mine, theirs in zip(first, other, strict=True):
        if mine != theirs:
            text = (
                f"{what}: the order differs: where rank {start} has '{mine}' ({first[mine]}), rank "
                f"{rank} has '{theirs}' ({other[theirs]})"
            )
            return MismatchError(text, (mine, theirs), ranks, (first[mine], other[theirs]))
    return MismatchError(f"{what}: rank {rank} has a name twice", (), ranks)
