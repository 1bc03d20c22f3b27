"""Starting ranks: the program horovodrun, and `horovod.run` for functions."""

from __future__ import annotations

from ._run import run

__all__ = ["run"]
