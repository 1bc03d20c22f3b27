"""What each rank of a `horovod.run` executes: `python -m horovod.runner.run_task FOLDER`."""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from pathlib import Path

from ._run import CALL, Outcome, _pickled, outcome_path


def main() -> None:
    folder = Path(sys.argv[1])
    call = folder / CALL
    try:
        if call.stat().st_uid != os.getuid():
            sys.exit(f"horovod.run: {call} belongs to somebody else")
        content = call.read_bytes()
    except OSError as error:
        sys.exit(
            f"horovod.run: {error}: set TMPDIR to a folder that all nodes share before you call it"
        )
    try:
        func, args, kwargs = pickle.loads(content)
        outcome = Outcome(func(*args, **kwargs), "")
        data = _pickled(tuple(outcome))
    except BaseException:
        _leave(folder, _pickled((None, traceback.format_exc())))
        raise
    _leave(folder, data)


def _leave(folder: Path, data: bytes) -> None:
    path = outcome_path(folder, int(os.environ["RINGD_RANK"]))
    partial = path.with_suffix(".partial")
    partial.write_bytes(data)
    partial.rename(path)


if __name__ == "__main__":
    main()
