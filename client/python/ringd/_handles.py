"""Handles: operations in flight, for every framework package."""

from __future__ import annotations

import collections
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from . import _core
from ._errors import DeadlineExceeded, RingdError

# A result longer than this is copied out without holding the GIL.
_LONG_COPY_BYTES = 64 << 10
_DEADLINE_EXCEEDED = 5


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
        if in_parts and not _advancing:
            timeout_us = _wait_beside_parts(self, timeout_us)
        first_error: RingdError | None = None
        while self._raw:
            try:
                _core.wait(self._raw[0], timeout_us, self._copies)
            except RingdError as error:
                if error.code == _DEADLINE_EXCEEDED:
                    raise
                if first_error is None or _OF_A_GROUP in str(first_error):
                    first_error = error
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


# The words for an operation that fails since another one of its group does.
_OF_A_GROUP = "in another group of operations"


class _Parts:
    """An operation of several parts, each submitted by its step when the one before is over."""

    def __init__(self, steps: Sequence[Callable[[], Handle]]) -> None:
        self._steps = list(steps)
        self._current: Handle | None = None
        self._error: Exception | None = None  # Raised by whoever waits.

    def advance(self) -> bool:
        """Submits what can be submitted. Whether the last part is."""
        while self._steps and self._error is None:
            if self._current is not None and not self._current.done():
                return False
            try:
                if self._current is not None:
                    self._current.wait()
                self._current = self._steps.pop(0)()
            except Exception as error:
                self._error = error
        return True

    def done(self) -> bool:
        if self._error is not None:
            return True
        return not self._steps and self._current is not None and self._current.done()

    def wait(self) -> Any:
        if self._error is not None:
            raise self._error
        assert self._current is not None
        return self._current.wait()


class _Composite(Handle):
    """A handle of what is submitted bit by bit."""

    __slots__ = ("_parts",)

    def __init__(self, parts: Sequence[Handle | _Parts], finish: Callable[[], Any]) -> None:
        super().__init__([], finish, parts)
        self._parts = parts

    def done(self) -> bool:
        """Whether it is over, successfully or not."""
        advance_all()
        return super().done() and all(part.done() for part in self._parts)

    def wait(self, timeout: float | None = None) -> Any:
        """Blocks until it is over; the result. DeadlineExceeded leaves the handle as it was."""
        _poll_until(self.done, -1 if timeout is None else max(0, int(timeout * 1e6)))
        return super().wait()


def handle_of_all(handles: list[Handle]) -> Handle:
    """Several as one; its result is the list of theirs."""
    return _Composite(handles, lambda: [handle.wait() for handle in handles])


def submit_in_parts(key: tuple[int, str], steps: Sequence[Callable[[], Handle]]) -> Handle:
    """A named operation of several parts, or one that comes after such a one of the same name.

    key: group and name: what is submitted under it keeps its order. For named operations alone,
    since ranks submit later parts at different times.
    """
    parts = _Parts(steps)
    in_parts.setdefault(key, collections.deque()).append(parts)
    advance_all()
    return _Composite([parts], parts.wait)


def advance_all() -> None:
    """Submits the parts that can be submitted."""
    global _advancing
    if _advancing:
        return
    _advancing = True
    try:
        for key, queue in list(in_parts.items()):
            while queue and queue[0].advance():
                queue.popleft()
            if not queue:
                del in_parts[key]
    finally:
        _advancing = False


def _wait_beside_parts(handle: Handle, timeout_us: int) -> int:
    """Waits as long as operations have parts to come: other ranks may wait for those first. The
    time that is left."""

    def is_simple() -> bool:
        advance_all()
        return not in_parts or handle.done()

    return _poll_until(is_simple, timeout_us)


def _poll_until(is_over: Callable[[], bool], timeout_us: int) -> int:
    deadline = math.inf if timeout_us < 0 else time.monotonic() + timeout_us / 1e6
    pause = 50e-6
    while not is_over():
        if time.monotonic() >= deadline:
            error = DeadlineExceeded("the operation is not over")
            error.code = _DEADLINE_EXCEEDED
            raise error
        time.sleep(pause)
        pause = min(2 * pause, 5e-3)
    return -1 if timeout_us < 0 else max(0, int((deadline - time.monotonic()) * 1e6))


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


in_parts: dict[tuple[int, str], collections.deque[_Parts]] = {}  # Those with parts to come.
_advancing = False
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
