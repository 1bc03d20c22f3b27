"""Process sets: groups of ranks that run operations among themselves."""

from __future__ import annotations

from ringd import ProcessSet, add_process_set, global_process_set, remove_process_set

__all__ = ["ProcessSet", "global_process_set", "add_process_set", "remove_process_set"]
