"""Handles of asynchronous operations: integers, as scripts of Horovod expect them."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import ringd

from ..common._errors import horovod_errors

_numbers = itertools.count()


class Number(int):
    """A handle. It keeps its operation; dropping it does not cancel anything."""

    operation: ringd.Handle | None


def number_of(operation: ringd.Handle) -> Number:
    """A new handle of an operation."""
    number = Number(next(_numbers))
    number.operation = operation
    return number


class Names:
    """Names of operations in flight: no two of one kind in one process set have the same."""

    def __init__(self) -> None:
        self._pending: weakref.WeakValueDictionary[tuple[Any, ...], ringd.Handle] = (
            weakref.WeakValueDictionary()
        )

    def start(
        self,
        kind: str,
        name: str | None,
        process_set: ringd.ProcessSet,
        start: Callable[..., ringd.Handle],
        *tensors: Any,
        **options: Any,
    ) -> Number:
        """Starts an operation. ValueError if one of its kind and name is in flight.

        Args:
            start: called with tensors, options, `name` and `process_set`.
        """
        key = (kind, getattr(process_set, "process_set_id", None), name)
        if name is not None and is_running(self._pending.get(key)):
            raise ValueError(
                f"{kind} '{name}': a tensor with the same name as another one that is currently "
                "being processed; synchronize its handle first, or use a different name"
            )
        with horovod_errors():
            operation = start(*tensors, name=name, process_set=process_set, **options)
        if name is not None:
            self._pending[key] = operation
        return number_of(operation)


names = Names()


def check_list(tensors: Sequence[Any]) -> None:
    """ValueError for a grouped operation on nothing."""
    if not tensors:
        raise ValueError("a grouped operation needs one tensor at least")


def is_running(operation: ringd.Handle | None) -> bool:
    """Whether it was neither completed nor synchronized."""
    if operation is None:
        return False
    try:
        return not operation.done()
    except ValueError:
        return False  # Synchronized.


def poll(handle: Any) -> bool:
    """Whether the operation is over, so that `synchronize` returns at once.

    Raises:
        ValueError: `synchronize` has ended this handle already, or it is none.
    """
    if isinstance(handle, Number):
        if handle.operation is None:
            raise ValueError(f"handle {handle} was synchronized already")
        with horovod_errors():
            return handle.operation.done()
    if isinstance(handle, ringd.Handle):
        return handle.done()
    if callable(handle):
        return bool(getattr(handle, "poll", lambda: True)())
    raise ValueError(f"{handle!r} is no handle of an asynchronous operation")


def synchronize(handle: Any) -> Any:
    """Blocks until the operation is over: its result, or None if that was asked for before.

    Raises:
        HorovodInternalError: the operation failed.
        ValueError: `handle` is none.
    """
    if callable(handle):
        return handle()
    if isinstance(handle, ringd.Handle):
        with horovod_errors():
            return handle.wait()
    if not isinstance(handle, Number):
        raise ValueError(f"{handle!r} is no handle of an asynchronous operation")
    operation = handle.operation
    if operation is None:
        return None
    with horovod_errors():
        try:
            return operation.wait()
        finally:
            if not is_running(operation):  # It is after Ctrl-C.
                handle.operation = None
