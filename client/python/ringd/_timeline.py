"""The timeline: a file with this rank's operations and their times, for chrome://tracing."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Sequence
from typing import Any

from . import _core
from ._errors import RingdError
from ._handles import Handle
from ._types import DTYPE_BYTES, DTYPE_NAMES, Operation

# Events in memory before they are written: a file that is at most a second or so behind.
_BATCH = 256
_END = b"\n]\n"


class Timeline:
    """A file of trace events: valid JSON after each write.

    Each operation is a pair of events: submitted, and seen to be over by this rank's `wait`. Times
    are microseconds of the wall clock, so that several ranks' files can be laid side by side.
    Thread-safe.
    """

    def __init__(self, path: str, rank: int, node: int) -> None:
        """OSError where the file can't be made; one that exists is overwritten."""
        self._file = open(path, "wb")  # noqa: SIM115 (closed by close)
        self._lock = threading.Lock()
        self._events: list[dict[str, Any]] = []
        self._next = 0
        self._rank = rank
        self._start = time.time_ns() - time.monotonic_ns()
        self._file.write(b"[" + _END)
        self._add("M", "process_name", args={"name": f"rank {rank} (node {node})"})
        self._flush_locked(first=True)

    def _add(self, phase: str, name: str, **more: Any) -> None:
        now = (self._start + time.monotonic_ns()) / 1000
        self._events.append({"ph": phase, "name": name, "pid": self._rank, "ts": now, **more})

    def _flush_locked(self, first: bool = False) -> None:
        if not self._events or self._file.closed:
            return
        text = ",\n".join(map(json.dumps, self._events)).encode()
        self._events.clear()
        self._file.seek(self._file.tell() - len(_END))
        self._file.write((b"\n" if first else b",\n") + text + _END)
        self._file.flush()

    def begin(self, kind: str, name: str, **arguments: Any) -> int:
        """Something starts; its number for `end`."""
        with self._lock:
            self._next += 1
            self._add("b", name, cat=kind, id=self._next, tid=0, args=arguments)
            return self._next

    def end(self, kind: str, name: str, number: int) -> None:
        """It is over."""
        with self._lock:
            self._add("e", name, cat=kind, id=number, tid=0)
            if len(self._events) >= _BATCH:
                self._flush_locked()

    def watch(self, handle: Handle, operations: Sequence[tuple[Any, ...]]) -> None:
        """Records submitted operations, and their end when the handle is waited for."""
        begun = []
        for packed in operations:
            kind = Operation(packed[0]).name.lower()
            label = kind if packed[10] is None else f"{kind} '{packed[10]}'"
            number = self.begin(
                kind,
                label,
                dtype=DTYPE_NAMES[packed[1]],
                shape=list(packed[8]),
                bytes=packed[5] * DTYPE_BYTES[packed[1]],
                line=packed[11],
            )
            begun.append((kind, label, number))

        def over(result: Any) -> Any:
            for each in begun:
                self.end(*each)
            return result

        handle.map(over)

    def close(self) -> None:
        """Writes what is left."""
        with self._lock:
            self._flush_locked()
            self._file.close()


active: Timeline | None = None


def start_timeline(file_path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
    """From now on this rank's operations are written to a file, for chrome://tracing or Perfetto.

    Each operation has the time of its submission and that of its end as this rank saw it (`wait`,
    `synchronize`); steps of a DistributedOptimizer have their wait for the last gradients.

    Args:
        file_path: rank 0's file; rank N writes `file_path.rankN`. One that exists is overwritten.
        mark_cycles: for Horovod's sake; there are no cycles.

    Raises:
        OSError: the file can't be written.
        RingdError: not initialized, or a timeline is being written already.
    """
    global active
    info = _core.info()
    if active is not None:
        raise RingdError("a timeline is being written already: call stop_timeline() first")
    path = os.fspath(file_path)
    active = Timeline(path if info[0] == 0 else f"{path}.rank{info[0]}", info[0], info[4])


def stop_timeline() -> None:
    """Ends the timeline, if there is one: its file is complete then. `shutdown()` does it, too."""
    global active
    if active is not None:
        timeline, active = active, None
        timeline.close()
