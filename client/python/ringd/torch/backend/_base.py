"""What a process group says of itself, and how its calls become works."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ._buckets import Places
from ._channel import CPP_HOLDS_WORKS, Channel
from ._work import Completer, RingdWork, micros

Finish = Callable[[], None]

# Above, a wait lets other Python threads run while it copies the result.
_LONG_COPY_BYTES = 64 << 10


# Of one operation that is over when it has been submitted.
_OVER = [0]
_NOTHING_LEFT = [None]


class GroupBase(dist.ProcessGroup):
    """A process group without operations. Its names are those that PyTorch's C++ calls."""

    def __init__(
        self,
        channel: Channel,
        store: Any = None,
        timeout: timedelta | None = None,
        blocking_futures: bool = False,
    ) -> None:
        super().__init__(channel.rank, channel.size)
        self._channel = channel
        self._store = store
        self._completer = Completer(blocking_futures)
        self._places = Places()
        self._coalesced: list[RingdWork] | None = None
        self._timeout_us = micros(timeout, -1)
        self._name = ""
        self._description = "undefined"

    # What a group says of itself.

    def getBackendName(self) -> str:  # noqa: N802
        """What get_backend() says in C++."""
        return "ringd"

    def name(self) -> str:
        """The backend's name."""
        return "ringd"

    def getRank(self) -> int:  # noqa: N802
        """This rank's number in the group."""
        return self._channel.rank

    def getSize(self) -> int:  # noqa: N802
        """Number of ranks in the group."""
        return self._channel.size

    rank = getRank
    size = getSize

    def getGroupName(self) -> str:  # noqa: N802
        """The name by which functional collectives find the group."""
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        """Sets what getGroupName() says."""
        self._name = name

    def getGroupDesc(self) -> str:  # noqa: N802
        """What the group is for."""
        return self._description

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        """Sets what getGroupDesc() says."""
        self._description = description

    _set_group_name = setGroupName
    _set_group_desc = setGroupDesc
    group_name = property(getGroupName, setGroupName)
    group_desc = property(getGroupDesc, setGroupDesc)

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    def _get_backend(self, device: torch.device) -> GroupBase:
        return self

    def _get_backend_name(self) -> str:
        return "ringd"

    supports_splitting = False
    supports_coalescing = False
    supports_time_estimation = False

    def get_group_store(self) -> Any:
        """The store that the group was made with."""
        return self._store

    def _set_sequence_number_for_group(self) -> None:
        pass

    def _get_sequence_number_for_group(self) -> int:
        return 0

    def set_timeout(self, timeout: timedelta) -> None:
        """How long wait() waits where the call does not say."""
        self._timeout_us = micros(timeout, -1)

    _set_default_timeout = set_timeout

    def _wait_for_pending_works(self) -> None:
        for work in self._channel.pending():
            work.settle_quietly()

    def shutdown(self) -> None:
        """Waits for what is in flight. The job stays attached."""
        self._wait_for_pending_works()
        self._completer.stop()

    def abort(self) -> None:
        """Lets go without waiting."""
        self._completer.stop()

    # Work.

    def _limit_us(self, options: Any) -> int:
        timeout = getattr(options, "timeout", None)
        if timeout is None or timeout.days < 0:
            return self._timeout_us
        return micros(timeout, self._timeout_us)

    def _work(
        self,
        handles: list[int],
        finish: Sequence[Finish | None],
        keep: Any,
        outputs: Any,
        options: Any = None,
        nbytes: int = 0,
    ) -> RingdWork:
        is_over = handles == _OVER and finish == _NOTHING_LEFT
        if is_over and self._coalesced is None and CPP_HOLDS_WORKS:
            return RingdWork.over(outputs, self._completer)
        work = RingdWork(
            [handle for handle in handles if handle],
            [step for step in finish if step is not None],
            keep,
            outputs,
            self._limit_us(options),
            self._completer,
            nbytes > _LONG_COPY_BYTES,
        )
        return self._hold(work)

    def _hold(self, work: RingdWork) -> RingdWork:
        if self._coalesced is not None:
            self._coalesced.append(work)
        return self._channel.hold(work)
