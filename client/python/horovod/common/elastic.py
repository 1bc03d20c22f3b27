"""State of elastic training, for all frameworks, and `run`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import wraps
from typing import Any


class State:
    """What survives a failure: saved in memory by `commit`, brought back by `restore`."""

    def __init__(self, **_: Any) -> None:
        self._reset_callbacks: list[Callable[[], None]] = []

    def register_reset_callbacks(self, callbacks: list[Callable[[], None]]) -> None:
        """Functions to call when ranks have come or gone, as to set a learning rate anew."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Called when the job has its new ranks."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Called when nodes have come or gone. Ringd tells ranks by itself: nothing to do."""

    def commit(self) -> None:
        """COLLECTIVE: `save`, then `check_host_updates`."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """COLLECTIVE: HostsUpdatedInterrupt on all ranks when nodes have come or gone.

        In this version of ringd they don't: a job keeps its ranks.
        """

    def save(self) -> None:
        """Keeps the state in memory."""
        raise NotImplementedError

    def restore(self) -> None:
        """Brings back what `save` kept last."""
        raise NotImplementedError

    def sync(self) -> None:
        """COLLECTIVE: gives all ranks the state of rank 0."""
        raise NotImplementedError

    def reset(self) -> None:
        """Called before the reset callbacks; for subclasses."""


class ObjectState(State):
    """State of picklable objects, which become attributes.

    Args:
        bcast_object: `hvd.broadcast_object`.
        get_rank: `hvd.rank`.
        **kwargs: attributes and their first values. `save` copies them deeply.
    """

    def __init__(
        self, bcast_object: Callable[..., Any], get_rank: Callable[[], int], **kwargs: Any
    ) -> None:
        super().__init__()
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._saved_state: dict[str, Any] = dict(kwargs)
        for name, value in kwargs.items():
            setattr(self, name, value)
        self.save()

    def save(self) -> None:
        current = {name: getattr(self, name) for name in self._saved_state}
        self._saved_state = copy.deepcopy(current)

    def restore(self) -> None:
        for name, value in copy.deepcopy(self._saved_state).items():
            setattr(self, name, value)

    def sync(self) -> None:
        if self._saved_state:
            self.save()
            self._saved_state = self._bcast_object(self._saved_state, name="ObjectState")
            self.restore()


def run_fn(func: Callable[..., Any], reset: Callable[[], None] | None = None) -> Callable[..., Any]:
    """`run`, for a framework. In this version of ringd a job keeps its ranks: no reset happens."""

    @wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        state.sync()
        return func(state, *args, **kwargs)

    return wrapper
