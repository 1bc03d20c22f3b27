"""Horovod's exceptions."""

from __future__ import annotations


class HorovodInternalError(RuntimeError):
    """A collective operation failed. Ringd's error of the same text is a base of what is raised."""


class HostsUpdatedInterrupt(RuntimeError):
    """Nodes came or went while the job was running.

    Attributes:
        skip_sync: the state need not be synchronised, since ranks only left.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("nodes have come or gone")
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """Horovod was built for another version of a framework. Never raised: nothing is built."""

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(f"built for {name} {version}, but {installed_version} is installed")
        self.name = name
        self.version = version
        self.installed_version = installed_version
