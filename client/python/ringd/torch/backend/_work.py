"""Work: an operation in flight as torch.distributed sees it, and the futures made of it."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ... import _core
from ..._errors import DeadlineExceeded, RingdError

_DEADLINE_EXCEEDED = 5
_new_lock = threading.Lock
_thread = threading.local()


def in_callback() -> bool:
    """Whether this thread completes futures: their callbacks run in it."""
    return getattr(_thread, "runs_callbacks", False)


def micros(duration: timedelta | None, default_us: int) -> int:
    """A timeout in microseconds; `default_us` for none, zero or less, as PyTorch spells none."""
    if duration is None:
        return default_us
    value = int(duration.total_seconds() * 1e6)
    return value if value > 0 else default_us


class RingdWork(dist.Work):
    """One call of torch.distributed in flight: operations, and what is done with their results.

    Whoever waits first brings the results to their tensors. The tensors live as long as the call is
    in flight, whether or not the caller keeps the Work. Thread-safe.
    """

    # As long as an object has not its own.
    _error: Exception | None = None
    _over = False
    was_asked = False  # Somebody has called wait() or get_future().
    _future: torch.futures.Future | None = None
    source = -1

    def __init__(
        self,
        handles: Sequence[int],
        finish: Sequence[Callable[[], None]],
        keep: Any,
        outputs: Any,
        timeout_us: int,
        completer: Completer,
        copies: bool,
    ) -> None:
        super().__init__()
        self._handles = handles
        self._finish = finish
        self._keep = keep
        self._outputs = outputs
        self._timeout_us = timeout_us
        self._completer = completer
        self._copies = copies
        self._lock = _new_lock()

    @classmethod
    def over(cls, outputs: Any, completer: Completer) -> RingdWork:
        """One that is over, successfully."""
        work = cls((), (), None, outputs, -1, completer, False)
        work._over = True
        return work

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Blocks until it is over. Raises what went wrong, as often as it is called."""
        return self.await_result(timeout)

    def await_result(self, timeout: timedelta | None = None) -> bool:
        """wait(), for the sake of what the future has."""
        self.was_asked = True
        if not self._over:
            limit_us = self._timeout_us if timeout is None else micros(timeout, self._timeout_us)
            with self._lock:
                if not self._over:
                    self._settle(limit_us)
        if self._error is not None:
            raise self._error
        return True

    def _settle(self, timeout_us: int) -> None:
        """With the lock: waits and brings the results home. DeadlineExceeded changes nothing."""
        handles = self._handles
        while handles:
            try:
                _core.wait(handles[0], timeout_us, self._copies)
            except RingdError as error:
                if error.code == _DEADLINE_EXCEEDED:
                    raise DeadlineExceeded(
                        f"an operation of torch.distributed was not over after "
                        f"{timeout_us / 1e6:g} s; init_process_group(timeout=) sets that limit"
                    ) from None
                self._error = self._error or error
            handles.pop(0)
        if self._error is None:
            try:
                for step in self._finish:
                    step()
            except Exception as error:
                self._error = error
        self._finish = self._keep = ()
        self._over = True

    def reap(self) -> bool:
        """Brings the results home if that needs no waiting. Whether it is over."""
        if self._over:
            return True
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if not self._over and all(_core.poll(handle) for handle in self._handles):
                self._settle(-1)
        finally:
            self._lock.release()
        return self._over

    def settle_quietly(self) -> None:
        """Waits; what went wrong is for those who wait()."""
        with contextlib.suppress(RingdError, ValueError, RuntimeError):
            self.wait()

    def wait_step(self) -> None:
        """wait(), as a step of another work."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether it is over, successfully or not."""
        return self.reap()

    def is_success(self) -> bool:
        """Whether it is over, and nothing went wrong."""
        return self.reap() and self._error is None

    def exception(self) -> Exception | None:
        """What went wrong, once it is over."""
        return self._error

    def synchronize(self) -> None:
        """As wait()."""
        self.wait()

    def result(self) -> Any:
        """The tensors that it wrote."""
        self.wait()
        return self._outputs

    def source_rank(self) -> int:
        """The sender, of a receive."""
        return self.source

    def _source_rank(self) -> int:
        return self.source

    def get_future(self) -> torch.futures.Future:
        """A future with the tensors that it wrote. The first call starts a thread that waits."""
        self.was_asked = True
        with self._lock:
            if self._future is not None:
                return self._future
            source: torch.futures.Future = torch.futures.Future()
            self._future = source.then(self._value)
        if self._over:
            source.set_result(None)
        else:
            self._completer.complete(self, source)
        return self._future

    # DistributedDataParallel dies of a future with an exception that set_exception() put there; one
    # that a callback raised is fine.
    def _value(self, _: Any) -> Any:
        self.await_result()
        return self._outputs


class StagedWork(RingdWork):
    """A work whose second operation is submitted later: by who waits, or by the channel."""

    def __init__(self, first: int, advance: Callable[[], None], *arguments: Any) -> None:
        """`first`: handle of the first stage; `advance` waits for it and goes on."""
        super().__init__([], *arguments)
        self._first = first
        self._advance: Callable[[], None] | None = advance

    def set_handles(self, handles: list[int]) -> None:
        """The second stage has been submitted."""
        self._handles = handles
        self._advance = None

    def fail(self, error: Exception) -> None:
        """There is no second stage."""
        self._error = error
        self._advance = None

    def _settle(self, timeout_us: int) -> None:
        if self._advance is not None:
            self._advance()
        super()._settle(timeout_us)

    def reap(self) -> bool:
        """Brings the results home if that needs no waiting, and submits the second stage so."""
        if self._advance is not None and self._is_first_over():
            self._advance()
        return self._over or (self._advance is None and super().reap())

    def _is_first_over(self) -> bool:
        try:
            return _core.poll(self._first)
        except RingdError:
            return False  # Another thread has waited for it and goes on now.


class Completer:
    """Completes the futures of one group, in the order in which they were asked for.

    Callbacks of a future run in its thread. One that asks for a future of its own has it completed
    at once.
    """

    def __init__(self, blocking: bool) -> None:
        """`blocking`: there is no thread; who asks for a future waits until it is complete."""
        self._blocking = blocking
        self._lock = _new_lock()
        self._queue: queue.SimpleQueue[tuple[RingdWork, torch.futures.Future] | None] | None = None

    def complete(self, work: RingdWork, future: torch.futures.Future) -> None:
        """Completes the future when the work is over."""
        if self._blocking or in_callback():
            _complete(work, future)
            return
        with self._lock:
            if self._queue is None:
                self._queue = queue.SimpleQueue()
                thread = threading.Thread(
                    target=_run, args=(self._queue,), name="ringd-futures", daemon=True
                )
                thread.start()
            self._queue.put((work, future))

    def stop(self) -> None:
        """Lets the thread go once the futures asked for are complete."""
        with self._lock:
            if self._queue is not None:
                self._queue.put(None)
                self._queue = None


def _run(waiting: queue.SimpleQueue[Any]) -> None:
    _thread.runs_callbacks = True
    while True:
        item = waiting.get()
        if item is None:
            return
        _complete(*item)
        del item


def _complete(work: RingdWork, future: torch.futures.Future) -> None:
    # What went wrong is found by the future's first callback, which waits too.
    with contextlib.suppress(Exception):
        work.await_result()
    future.set_result(None)
