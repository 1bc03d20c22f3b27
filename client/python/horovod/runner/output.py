"""--output-filename: a folder for each rank with its stdout and stderr, as Horovod leaves them."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO

_LINES = re.compile(rb"[^\r\n]*(?:\r\n|\r|\n)")
_PREFIX = re.compile(rb"\[(\d+)\] ")
_FORWARDED = (signal.SIGTERM, signal.SIGHUP)


class RankFiles:
    """FOLDER/rank.N/NAME of each rank, filled from what ringctl writes to one of its streams.

    Thread-compatible: external synchronisation.
    """

    def __init__(self, folder: Path, name: str, ranks: int) -> None:
        width = len(str(ranks - 1))
        self._files: list[IO[bytes]] = []
        for rank in range(ranks):
            path = folder / f"rank.{rank:0{width}}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            self._files.append(path.open("wb", buffering=0))
        self._held = b""
        self._rank: int | None = 0

    def add(self, data: bytes) -> None:
        """More of the stream. A line's prefix says whose it is; one rank alone has none."""
        self._held += data
        end = 0
        for match in _LINES.finditer(self._held):
            self._write(match[0])
            end = match.end()
        self._held = self._held[end:]

    def close(self) -> None:
        """The stream has ended."""
        if self._held:
            self._write(self._held)
        for file in self._files:
            file.close()

    def _write(self, line: bytes) -> None:
        prefix = _PREFIX.match(line) if len(self._files) > 1 else None
        if prefix is not None:
            self._rank = int(prefix[1])
            line = line[prefix.end() :]
        elif line.startswith(b"ringctl: "):
            self._rank = None  # Its own words, and their other lines.
        elif len(self._files) == 1 and self._rank is None and not line.startswith(b" "):
            self._rank = 0
        if self._rank is not None and self._rank < len(self._files):
            self._files[self._rank].write(line)


def _copy(source: int, target: int, files: RankFiles) -> None:
    with contextlib.suppress(BrokenPipeError):  # Ringctl then learns that nobody reads.
        while data := os.read(source, 1 << 16):
            files.add(data)
            while data:
                data = data[os.write(target, data) :]
    os.close(source)
    files.close()


def run(
    program: str, arguments: Sequence[str], environment: Mapping[str, str], folder: str, ranks: int
) -> int:
    """Runs ringctl, passes on what it writes, and keeps each rank's part. Its exit code.

    Raises:
        OSError: the folder can't be written.
    """
    streams = [RankFiles(Path(folder), name, ranks) for name in ("stdout", "stderr")]
    child = subprocess.Popen(
        [program, *arguments],
        env=dict(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )

    def forward(number: int, _: FrameType | None) -> None:
        child.send_signal(number)

    # Ctrl-C reaches the child by itself, and its end is ours.
    before = {number: signal.signal(number, forward) for number in _FORWARDED}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        assert child.stdout is not None and child.stderr is not None
        pairs = zip(
            (os.dup(child.stdout.fileno()), os.dup(child.stderr.fileno())),
            (1, 2),
            streams,
            strict=True,
        )
        copies = [threading.Thread(target=_copy, args=pair) for pair in pairs]
        child.stdout.close()
        child.stderr.close()
        for copy in copies:
            copy.start()
        code = child.wait()
        for copy in copies:
            copy.join()
        return code if code >= 0 else 128 - code
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
