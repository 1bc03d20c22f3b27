"""`horovod.run`: a function as a job, with its results."""

from __future__ import annotations

import os
import pickle
import shutil
import socket
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .launch import execute, parse, plan

CALL = "call.pickle"


class Outcome(NamedTuple):
    """What a rank leaves in the job's folder."""

    value: Any
    traceback: str  # Empty: it returned.


def outcome_path(folder: Path, rank: int) -> Path:
    """Where rank `rank` leaves its Outcome."""
    return folder / f"outcome-{rank}.pickle"


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: Sequence[int] | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    start_timeout: int | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: bool | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: str | None = None,
    executable: str | None = None,
    host_discovery_script: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Calls a function on each rank of a job of its own, and waits for all of them.

    The function and its results are pickled (by cloudpickle) into files of a private folder below
    TMPDIR; on several nodes that is a folder that all of them share.

    Args:
        func: what each rank calls; it calls `hvd.init()`.
        args: its positional arguments.
        kwargs: its named arguments.
        num_proc: number of ranks; default 1.
        hosts: nodes and slots, `a:2,b:2`.
        hostfile: the same in a file. Not both.
        output_filename: folder for the ranks' output.
        verbose: say each change of the job's state.
        executable: the ranks' Python; default: this one.
        np, min_np, max_np: deprecated forms of num_proc, min_num_proc, max_num_proc.

    The other arguments mean what horovodrun's flags of their names do.

    Returns:
        What the function returned, by rank.

    Raises:
        ValueError: `func` is not callable, or arguments contradict each other.
        RuntimeError: the job failed; it has the first failing rank's traceback.
    """
    if not callable(func):
        raise ValueError(f"func is {func!r}, which can't be called")
    if hosts and hostfile:
        raise ValueError("hosts and hostfile both name nodes: give one of them")
    if hostfile and not os.path.isfile(hostfile):
        raise ValueError(f"hostfile {hostfile}: there is no such file")
    if any(old is not None for old in (np, min_np, max_np)):
        warnings.warn(
            "np, min_np and max_np are deprecated: use num_proc, min_num_proc and max_num_proc",
            DeprecationWarning,
            stacklevel=2,
        )
    ranks = num_proc or np or 1
    flags = {
        "-np": ranks,
        "--min-np": min_num_proc or min_np,
        "--max-np": max_num_proc or max_np,
        "--slots-per-host": slots,
        "--reset-limit": reset_limit,
        "--blacklist-cooldown-range": cooldown_range,
        "--hosts": hosts,
        "--hostfile": hostfile,
        "--start-timeout": start_timeout,
        "--ssh-port": ssh_port,
        "--ssh-identity-file": ssh_identity_file,
        "--disable-cache": disable_cache,
        "--output-filename": output_filename,
        "--verbose": verbose,
        "--gloo": use_gloo,
        "--mpi": use_mpi,
        "--mpi-args": mpi_args,
        "--network-interfaces": network_interfaces or network_interface,
        "--host-discovery-script": host_discovery_script,
    }
    words = [word for name, value in flags.items() for word in _words(name, value)]
    folder = Path(tempfile.mkdtemp(prefix="horovod-run-"))
    try:
        (folder / CALL).write_bytes(_pickled((func, tuple(args), dict(kwargs or {}))))
        command = [executable or sys.executable, "-m", "horovod.runner.run_task", str(folder)]
        code = _launch([*words, *command])
        return _results(folder, ranks, code)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _words(name: str, value: Any) -> list[str]:
    if value is None or value is False:
        return []
    if value is True:
        return [name]
    if isinstance(value, str) and name == "--mpi-args":
        return [f"{name}={value}"]  # It begins with a dash.
    return [name, *map(str, value if isinstance(value, list | tuple) else [value])]


def _pickled(call: Any) -> bytes:
    try:
        import cloudpickle
    except ImportError:
        return pickle.dumps(call)
    return cloudpickle.dumps(call)


def _launch(arguments: list[str]) -> int:
    made = plan(parse(arguments), os.environ, socket.gethostname())
    for note in made.notes:
        print(f"horovod.run: {note}", file=sys.stderr, flush=True)
    return execute(made)


def _results(folder: Path, ranks: int, code: int) -> list[Any]:
    outcomes: dict[int, Outcome] = {}
    paths = {rank: outcome_path(folder, rank) for rank in range(ranks)}
    by_time = sorted(
        (rank for rank, path in paths.items() if path.exists()),
        key=lambda rank: paths[rank].stat().st_mtime_ns,
    )
    for rank in by_time:
        outcomes[rank] = Outcome(*pickle.loads(paths[rank].read_bytes()))
        if outcomes[rank].traceback:
            raise RuntimeError(
                f"horovod.run() failed on rank {rank}; ringctl's exit code is {code}\n"
                f"{outcomes[rank].traceback}"
            )
    if code != 0:
        raise RuntimeError(
            f"horovod.run() failed: ringctl's exit code is {code}; its report is on stderr"
        )
    missing = [rank for rank in paths if rank not in outcomes]
    if missing:
        raise RuntimeError(
            f"horovod.run(): ranks {missing} left no result in {folder}: set TMPDIR to a folder "
            "that all nodes share"
        )
    return [outcomes[rank].value for rank in range(ranks)]
