"""Handles: operations in flight, for every framework package."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from . import _core
from ._errors import RingdError

# A result longer than this is copied out without holding the GIL.
_LONG_COPY_BYTES = 64 << 10


class Handle:
    """One operation, or several, in flight. Ends with `synchronize`.

    It keeps the tensors alive. Dropping it does not cancel anything: the operation completes and
    its result is thrown away.
    """

    __slots__ = ("__weakref__", "_copies", "_finish", "_keep", "_raw", "_sequence")

    def __init__(
        self,
        raw: list[int],
        finish: Callable[[], Any],
        keep: Any,
        result_bytes: int = 0,
        sequence: int | None = None,
    ) -> None:
        self._raw = raw
        self._finish: Callable[[], Any] | None = finish
        self._keep = keep
        self._copies = result_bytes > _LONG_COPY_BYTES
        self._sequence = None if sequence is None else _sequences.setdefault(sequence, _Sequence())
        if self._sequence is not None:
            self._sequence.enter()

    def done(self) -> bool:
        """Whether it is over, successfully or not."""
        if self._finish is None:
            raise ValueError("this handle was synchronized already")
        return all(_core.poll(raw) for raw in self._raw)

    def wait(self, timeout: float | None = None) -> Any:
        """Blocks until it is over; the result. DeadlineExceeded leaves the handle as it was."""
        if self._finish is None:
            raise ValueError("this handle was synchronized already")
        timeout_us = -1 if timeout is None else max(0, int(timeout * 1e6))
        first_error: RingdError | None = None
        while self._raw:
            try:
                _core.wait(self._raw[0], timeout_us, self._copies)
            except RingdError as error:
                if error.code == 5:
                    raise
                first_error = first_error or error
            self._raw.pop(0)
        finish, self._finish, self._keep = self._finish, None, None
        if self._sequence is not None:
            self._sequence.leave()
        if first_error is not None:
            raise first_error
        return finish()

    def __call__(self) -> Any:
        """As `wait`: a sparse allreduce's handle of Horovod is called."""
        return self.wait()

    def map(self, change: Callable[[Any], Any]) -> Handle:
        """The handle itself, its result changed by `change`."""
        finish = self._finish
        if finish is None:
            raise ValueError("this handle was synchronized already")
        self._finish = lambda: change(finish())
        return self

    def __del__(self) -> None:
        if self._finish is None:
            return
        if self._sequence is not None:
            self._sequence.leave()
        if self._raw:
            _abandoned.append((self._raw, self._keep))


class _Sequence:
    """Finds threads that submit unnamed operations to a group side by side: their order would be
    chance."""

    def __init__(self) -> None:
        self._owner = 0
        self._in_flight = 0

    def check(self) -> None:
        if self._in_flight > 0 and self._owner != threading.get_ident():
            raise RingdError(
                "another thread's unnamed operation is in flight: ranks match unnamed operations "
                "by their order, which two threads can't keep. Use one thread, or wait for the "
                "other's operations first"
            )

    def enter(self) -> None:
        self._owner = threading.get_ident()
        self._in_flight += 1

    def leave(self) -> None:
        self._in_flight -= 1


_sequences: dict[int, _Sequence] = {}  # By group.
_abandoned: list[tuple[list[int], Any]] = []


def check_sequence(name: str | None, group: int = 0) -> None:
    """RingdError where an unnamed operation can't be submitted by this thread now."""
    sequence = _sequences.get(group) if name is None else None
    if sequence is not None:
        sequence.check()


def reap_abandoned() -> None:
    """Gives back what dropped handles hold, as far as their operations are over."""
    if not _abandoned:
        return
    dropped = _abandoned[:]
    del _abandoned[: len(dropped)]
    for raw, keep in dropped:
        while raw:
            try:
                if not _core.poll(raw[0]):
                    _abandoned.append((raw, keep))
                    break
                _core.wait(raw[0], 0, False)
            except RingdError:
                pass
            raw.pop(0)
