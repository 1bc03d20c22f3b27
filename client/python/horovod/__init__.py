"""Horovod's names on ringd: `import horovod.torch as hvd` in scripts that know nothing of ringd."""

from __future__ import annotations

from .runner import run

# Of the Horovod whose names these are: scripts compare it. `ringd.__version__` is ringd's own.
__version__ = "0.28.1"

__all__ = ["run", "__version__"]
