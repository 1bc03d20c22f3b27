"""Python objects between ranks, pickled."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np

from . import _core, _numpy
from ._process_sets import ProcessSet, global_process_set


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """COLLECTIVE: the root's object on every rank. Other ranks' `obj` is ignored.

    The object must be picklable; unpickling runs code that the root chose, so this is for ranks of
    one job only.
    """
    mine = _core.info()[0] == root_rank
    payload = np.frombuffer(_dump(obj) if mine else b"", dtype=np.uint8)
    length = np.array([payload.size], dtype=np.int64)
    _numpy.broadcast_(length, root_rank, _sub(name, "length"), process_set)
    data = payload.copy() if mine else np.empty(int(length[0]), dtype=np.uint8)
    _numpy.broadcast_(data, root_rank, _sub(name, "data"), process_set)
    return obj if mine else pickle.loads(data.data)


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """COLLECTIVE: the list of all ranks' objects, in rank order. The objects must be picklable."""
    payload = np.frombuffer(_dump(obj), dtype=np.uint8)
    sizes = _numpy.allgather(
        np.array([payload.size], dtype=np.int64), _sub(name, "lengths"), process_set
    )
    data = _numpy.allgather(payload, _sub(name, "data"), process_set)
    ends = np.cumsum(sizes)
    return [
        pickle.loads(data[end - size : end].data) for end, size in zip(ends, sizes, strict=True)
    ]


def _dump(obj: Any) -> bytes:
    return pickle.dumps(obj, protocol=pickle.HIGHEST_PROTOCOL)


def _sub(name: str | None, part: str) -> str | None:
    return None if name is None else f"{name}.{part}"


_homogeneous: dict[int, bool] = {}


def is_homogeneous() -> bool:
    """Whether all nodes have the same number of the job's ranks.

    COLLECTIVE when it is called first (and after a change of membership): ranks compare.
    """
    local_size, generation = _core.info()[3], _core.info()[6]
    if generation not in _homogeneous:
        _homogeneous[generation] = len(set(allgather_object(local_size))) == 1
    return _homogeneous[generation]
