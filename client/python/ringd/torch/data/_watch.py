"""Watching a loader's worker processes: what each of them does, and since when."""

from __future__ import annotations

import contextlib
import ctypes
import enum
import faulthandler
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch.utils.data

from ..._errors import RingdError

# Asks a worker for its stack. Not one that programs use.
_ASK = signal.SIGRTMAX - 3
_ANSWER_SECONDS = 1.0
_START_SECONDS = 60.0  # Spawned workers import the user's modules first.
_END_SECONDS = 5.0
_STACK_LINES = 6


class WorkerFailedError(RingdError):
    """A worker process of this rank's loader has died or does not get on.

    Attributes:
        worker: its number.
        pid: its process, 0 if unknown.
        doing: what it was doing.
        seconds: for how long; 0: it is dead.
    """

    def __init__(
        self, message: str, worker: int, pid: int, doing: str = "", seconds: float = 0
    ) -> None:
        super().__init__(message)
        self.worker = worker
        self.pid = pid
        self.doing = doing
        self.seconds = seconds


WorkerFailedError.__module__ = "ringd.torch.data"


class Activity(enum.IntEnum):
    """What a worker does."""

    STARTING = 0
    INITIALISING = 1
    LOADING = 2
    COLLATING = 3
    IDLE = 4


class Status(NamedTuple):
    """What a worker says of itself."""

    pid: int
    activity: Activity
    sample: int
    since: float

    def doing(self) -> str:
        """In words."""
        return {
            Activity.STARTING: "starting",
            Activity.INITIALISING: "running worker_init_fn",
            Activity.LOADING: f"loading sample {self.sample}",
            Activity.COLLATING: "running collate_fn",
            Activity.IDLE: "waiting for work",
        }[self.activity]


_FIELDS = len(Status._fields)


class Board:
    """Memory that workers write what they do to. Passed to them when they start.

    Thread-compatible: each worker writes its own part; the parent reads.
    """

    def __init__(self, context: Any, workers: int) -> None:
        self._cells = context.RawArray(ctypes.c_int64, workers * _FIELDS)
        pipes = [context.Pipe(duplex=False) for _ in range(workers)]
        self._readers = [reader for reader, _ in pipes]
        self._writers = [writer for _, writer in pipes]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_readers": []}  # For spawned workers.

    def clear(self) -> None:
        """Before new workers start."""
        for worker in range(len(self._writers)):
            self.write(worker, Activity.STARTING, pid=0)

    def write(
        self, worker: int, activity: Activity, sample: int = -1, pid: int | None = None
    ) -> None:
        """Says what this worker does from now on."""
        at = worker * _FIELDS
        if pid is not None:
            self._cells[at] = pid
        self._cells[at + 1] = activity
        self._cells[at + 2] = sample
        self._cells[at + 3] = time.monotonic_ns()

    def read(self, worker: int) -> Status:
        """What a worker has said."""
        at = worker * _FIELDS
        pid, activity, sample, since = self._cells[at : at + _FIELDS]
        return Status(pid, Activity(activity), sample, since / 1e9)

    def read_all(self) -> list[Status]:
        """By worker."""
        return [self.read(worker) for worker in range(len(self._writers))]

    def answer_on(self, worker: int) -> None:
        """In the worker: its stack goes to its pipe whenever the parent asks."""
        faulthandler.register(_ASK, file=self._writers[worker].fileno(), all_threads=True)

    def stack_of(self, worker: int) -> list[str]:
        """Innermost frames of a worker, as `file:line in function`; empty: it can't answer."""
        status = self.read(worker)
        if status.activity is Activity.STARTING or state_of(status.pid) in "TtDZ":
            return []
        with contextlib.suppress(OSError):
            os.kill(status.pid, _ASK)
        return _frames(_read_for(self._readers[worker], _ANSWER_SECONDS))


def _read_for(pipe: Any, seconds: float) -> str:
    """What arrives until it pauses."""
    text = b""
    pause = seconds
    while pipe.poll(pause):
        text += os.read(pipe.fileno(), 1 << 16)
        pause = 0.1
    return text.decode(errors="replace")


def _frames(dump: str) -> list[str]:
    for block in dump.split("\n\n"):
        frames = re.findall(r'File "([^"]+)", line (\d+) in (\S+)', block)
        if not any(name == "_worker_loop" for *_, name in frames):
            continue
        own = []
        for file, line, name in frames:
            if file == __file__ or "/torch/utils/data/_utils/" in file:
                break
            own.append(f"{os.path.basename(file)}:{line} in {name}")
        return own[:_STACK_LINES]
    return []


def state_of(pid: int) -> str:
    """The letter of a process's state, as in ps; Z: it is dead, but for other threads maybe."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "Z"


def is_dead(pid: int) -> bool:
    """Whether a worker has ended with all its threads, collected or not."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # Collected, or a child of multiprocessing's fork server.
        return state_of(pid) == "Z"


class WatchedDataset:
    """A dataset whose reading a worker notes on the board. Other attributes are the dataset's."""

    __slots__ = ("_board", "_dataset")

    def __init__(self, dataset: Any, board: Board) -> None:
        object.__setattr__(self, "_dataset", dataset)
        object.__setattr__(self, "_board", board)

    def __reduce__(self) -> Any:
        return WatchedDataset, (self._dataset, self._board)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._dataset, name)
        return partial(self._get_several, found) if name == "__getitems__" and found else found

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._dataset, name, value)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: Any) -> Any:
        self._note(index)
        return self._dataset[index]

    def _get_several(self, get: Callable[[list[Any]], Any], indices: list[Any]) -> Any:
        self._note(indices[0])
        return get(indices)

    def _note(self, index: Any) -> None:
        info = torch.utils.data.get_worker_info()
        if info is not None:
            self._board.write(info.id, Activity.LOADING, index if isinstance(index, int) else -1)


class WatchedCollate:
    """A collate_fn that notes itself on the board."""

    def __init__(self, collate: Callable[[Any], Any], board: Board) -> None:
        self._collate = collate
        self._board = board

    def __call__(self, samples: Any) -> Any:
        worker = torch.utils.data.get_worker_info().id
        self._board.write(worker, Activity.COLLATING)
        batch = self._collate(samples)
        self._board.write(worker, Activity.IDLE)
        return batch


class WatchedStart:
    """A worker_init_fn that notes itself on the board and lets the parent ask for stacks."""

    def __init__(self, init: Callable[[int], None] | None, board: Board) -> None:
        self._init = init
        self._board = board

    def __call__(self, worker: int) -> None:
        self._board.answer_on(worker)
        self._board.write(worker, Activity.INITIALISING, pid=os.getpid())
        if self._init is not None:
            self._init(worker)
        self._board.write(worker, Activity.IDLE)


class Watch:
    """Finds a worker that does not get on while the parent waits, and ends it.

    Its end wakes the parent up, wherever it waits; `failure` then says why. Stop() ends the thread.

    Thread-safe.
    """

    def __init__(self, board: Board, rank: int, timeout: float) -> None:
        self._board = board
        self._rank = rank
        self._timeout = timeout
        self._waiting_since: float | None = None
        self._stopped = threading.Event()
        self.failure: WorkerFailedError | None = None
        self._thread = threading.Thread(target=self._run, name="ringd-loader", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """No more looking."""
        self._stopped.set()

    @contextlib.contextmanager
    def waiting(self):
        """The parent waits for a batch inside of it."""
        self._waiting_since = time.monotonic()
        try:
            yield
        finally:
            self._waiting_since = None

    def _run(self) -> None:
        while not self._stopped.wait(min(0.5, self._timeout / 4)):
            since = self._waiting_since
            if since is None or self.failure is not None:
                continue
            found = self._find_hung(since)
            if found is None:
                continue
            self.failure = self._describe(*found)
            if self.failure.pid > 0:
                with contextlib.suppress(OSError):
                    os.kill(self.failure.pid, signal.SIGKILL)

    def _find_hung(self, waiting_since: float) -> tuple[int, Status, float] | None:
        now = time.monotonic()
        longest = None
        for worker, status in enumerate(self._board.read_all()):
            if status.activity is Activity.IDLE:
                continue
            seconds = now - status.since
            starting = status.activity is Activity.STARTING
            limit = max(self._timeout, _START_SECONDS) if starting else self._timeout
            if seconds > limit and (longest is None or seconds > longest[2]):
                longest = worker, status, seconds
        return longest

    def _describe(self, worker: int, status: Status, seconds: float) -> WorkerFailedError:
        text = (
            f"rank {self._rank}: worker {worker} of the data loader (pid "
            f"{status.pid or 'unknown'}) has been {status.doing()} for {seconds:.1f} s, longer "
            f"than worker_timeout={self._timeout:g}"
        )
        state = state_of(status.pid) if status.pid else ""
        if state and state in "Tt":
            text += "; it is stopped (SIGSTOP or a debugger)"
        elif state == "D":
            text += "; it is in a system call that can't be interrupted (disk or network storage)"
        elif frames := self._board.stack_of(worker):
            text += "; it is at " + ", called at ".join(frames)
        return WorkerFailedError(text, worker, status.pid, status.doing(), seconds)


def end_all(pids: list[int]) -> None:
    """Kills workers and waits till they are dead: PyTorch raises RuntimeError for one meanwhile."""
    for pid in pids:
        with contextlib.suppress(RuntimeError, OSError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + _END_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(RuntimeError):
            dead = all(is_dead(pid) for pid in pids)
            time.sleep(0.01)  # For the last one's signal, too.
            if dead:
                return


def find_dead(board: Board, rank: int, reason: str) -> WorkerFailedError | None:
    """The first worker that is dead, with PyTorch's words on it; None: all are alive."""
    for worker, status in enumerate(board.read_all()):
        if status.pid > 0 and is_dead(status.pid):
            return WorkerFailedError(
                f"rank {rank}: worker {worker} of the data loader (pid {status.pid}) died while it "
                f"was {status.doing()}: {reason}",
                worker,
                status.pid,
                status.doing(),
            )
    return None
