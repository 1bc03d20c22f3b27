"""Open MPI and MPICH: their own ranks, one beside each of ours, run a loop in C (mpi_loop.c).

Each rank of the benchmark tells the MPI rank of its number what to do and gets its times back; in
between MPI's ranks sleep in a read.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import ringd

from ._operations import BARRIER, LATENCY, MANY, SMALLEST_TO_REFILL, Prepared

SOURCE = Path(__file__).with_name("mpi_loop.c")
# Debian's names where both are installed, then everybody's.
PAIRS = [("mpirun.openmpi", "mpicc.openmpi"), ("mpirun.mpich", "mpicc.mpich"), ("mpirun", "mpicc")]
MAX_ITEMS = (1 << 31) - 1  # MPI counts in int.

_START_SECONDS = 60.0
_ANSWER_SECONDS = 600.0


def _name(mpirun: str) -> str:
    said = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=False)
    text = said.stdout + said.stderr
    if "Open MPI" in text or "OpenRTE" in text:
        return "openmpi"
    return "mpich" if "HYDRA" in text else "mpi"


def find() -> tuple[dict[str, tuple[str, str]], str]:
    """mpirun and mpicc by library, on this host; if there are none, what is missing."""
    if shutil.which("mpirun") is None:
        return {}, "mpirun is not on PATH"
    found: dict[str, tuple[str, str]] = {}
    for names in PAIRS:
        mpirun, mpicc = (shutil.which(name) for name in names)
        if mpirun is not None and mpicc is not None:
            found.setdefault(_name(mpirun), (mpirun, mpicc))
    return found, "" if found else "mpicc is not on PATH (the library's development package)"


class Mpi:
    """COLLECTIVE: constructor (RuntimeError on all ranks: it doesn't start) and methods."""

    def __init__(self, name: str, mpirun: str, mpicc: str) -> None:
        self.name = name
        self._process: subprocess.Popen[bytes] | None = None
        made = tempfile.mkdtemp(prefix="ringd-mpi-") if ringd.rank() == 0 else ""
        self._folder = Path(ringd.broadcast_object(made))
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self._folder / str(ringd.rank())))
        listener.listen()
        listener.settimeout(_START_SECONDS)
        ringd.barrier()
        reason = self._start(mpirun, mpicc) if ringd.rank() == 0 else ""
        reason = ringd.broadcast_object(reason)
        if not reason:
            try:
                self._socket, _ = listener.accept()
            except OSError:
                reason = f"{mpirun} did not start its ranks in {_START_SECONDS:.0f} s"
        listener.close()
        reasons = [told for told in ringd.allgather_object(reason) if told]
        if reasons:
            self._end()
            raise RuntimeError(reasons[0])
        if ringd.rank() == 0:  # All of it is in use; nothing is left behind whatever ends the job.
            shutil.rmtree(self._folder, ignore_errors=True)
        self._socket.settimeout(_ANSWER_SECONDS)
        self._answers = self._socket.makefile("r")

    def _start(self, mpirun: str, mpicc: str) -> str:
        """Why it can't, or ""."""
        program = str(self._folder / "mpi_loop")
        build = subprocess.run(
            [mpicc, "-O2", "-o", program, str(SOURCE)], capture_output=True, text=True, check=False
        )
        if build.returncode != 0:
            return f"{mpicc}: {build.stderr.strip() or 'failed'}"
        environment = {
            **os.environ,
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_rmaps_base_oversubscribe": "1",
            "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        }
        words = [mpirun, "-n", str(ringd.size()), program, str(self._folder)]
        self._process = subprocess.Popen(
            words, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        return ""

    def prepare(self, operation: str, count: int, dtype: np.dtype[Any]) -> Prepared:
        """The operation on `count` elements. ValueError: MPI hasn't it."""
        if operation == MANY:
            raise ValueError("it is measured with ringd and Gloo only")
        if count > MAX_ITEMS:
            raise ValueError(f"{count} elements are more than an int counts")
        named = "allreduce" if operation == LATENCY else operation
        fresh = operation != BARRIER and count * dtype.itemsize >= SMALLEST_TO_REFILL

        def run(calls: int) -> list[int]:
            ringd.barrier()
            line = f"{named} {count} {dtype.name} {calls} {int(fresh)}\n"
            self._socket.sendall(line.encode())
            answer = self._answers.readline()
            if not answer or answer.startswith("error"):
                raise ValueError(answer.strip() or f"{self.name} has ended")
            return [int(word) for word in answer.split()]

        return Prepared(lambda: run(1), lambda: None, run)

    def close(self) -> None:
        """Ends MPI's ranks."""
        self._answers.close()
        self._socket.close()
        self._end()

    def _end(self) -> None:
        if ringd.rank() != 0:
            return
        if self._process is not None:
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
