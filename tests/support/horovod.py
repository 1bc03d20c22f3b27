"""The wheel ringd-horovod, installed where only those who ask for it see it."""

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@functools.cache
def folder() -> Path:
    """A folder with the package `horovod` and bin/horovodrun, for PYTHONPATH."""
    wheels = list((ROOT / "dist").glob("ringd_horovod-*.whl"))
    assert len(wheels) == 1, "deploy/setup.sh leaves exactly one wheel of ringd-horovod in dist/"
    target = Path(tempfile.mkdtemp(prefix="horovod-"))
    atexit.register(shutil.rmtree, target, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--target", target, wheels[0]], check=True, timeout=100)
    return target


def environment(**variables: str) -> dict[str, str]:
    """Of a process that can import horovod and these tests' modules."""
    path = os.pathsep.join([str(folder()), str(ROOT)])
    return {**os.environ, "PYTHONPATH": path, **variables}


def horovodrun() -> str:
    """The program's path."""
    return str(folder() / "bin/horovodrun")
