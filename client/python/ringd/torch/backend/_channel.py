"""Channels: sequences of operations over a set of ranks, as process groups use them."""

from __future__ import annotations

import array
import ctypes
import functools
import threading
from collections import deque
from collections.abc import Callable

import torch

from ... import _core
from ..._errors import RingdError
from ..._ops import call_site
from ..._types import DTYPE_BYTES, Operation
from ._work import RingdWork, in_callback

SEND = 14  # Operations by number.
RECV = 15
_SITE_DEPTH = 2  # Of `submit`: whose methods C++ calls, too.
_OVER = 0  # In place of a handle: the operation is over.

# Before, C++ waits forever for a Work that Python has let go (it has no PyWorkHolder).
CPP_HOLDS_WORKS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)
_MAX_KEPT = 256  # Works that are over and that nobody has waited for: more than C++ has at a time.

_core_submit = _core.submit
_core_run = _core.run
# Groups of some of the ranks, and messages between two.
HAS_GROUPS = hasattr(_core, "group_register")


@functools.lru_cache(maxsize=1024)
def even_counts(count: int, parts: int) -> bytes:
    """`counts` of an operation with equal parts."""
    return array.array("q", [count] * parts).tobytes()


def counts_of(counts: list[int]) -> bytes:
    """`counts` of an operation."""
    return array.array("q", counts).tobytes()


class Channel:
    """The sequence of operations of a group of ranks, or of this rank alone. Thread-safe.

    Ranks match operations by their order, so all of them submit the same ones in one order,
    whichever threads do it. An operation that needs to hear of the others' sizes first has two
    stages; the second one is submitted before any later operation.
    """

    def __init__(self, rank: int, size: int, number: int = 0) -> None:
        """`number`: of the group in ringd; 0: all ranks."""
        self._group = (number,) if HAS_GROUPS else ()
        self.rank = rank
        self.size = size
        self._local = size == 1
        self.order = threading.RLock()
        self._second_stage: Callable[[], None] | None = None
        self._pending: deque[RingdWork] = deque()

    def submit(
        self,
        operation: Operation,
        code: int,
        source: int,
        source_count: int,
        target: int,
        target_count: int,
        reduction: int = 0,
        root: int = 0,
        counts: bytes | None = None,
        awaited: bool = False,
    ) -> int:
        """Submits one operation on memory that stays as it is until the handle has been waited for.

        Args:
            operation: what.
            code: element type by number.
            source: address of `source_count` elements, read.
            target: address of `target_count` elements, written.
            reduction: by its number.
            root: rank in the channel.
            counts: elements of each rank, see ringd.h.
            awaited: the caller waits at once; 0 if it is over already.
        """
        if self._local:
            if source != target and target_count:
                ctypes.memmove(target, source, target_count * DTYPE_BYTES[code])
            return _OVER
        if in_callback():
            raise RingdError(
                "a collective operation in a callback of a future: its place among this rank's "
                "other operations would be chance. Use pg_options="
                "ringd.torch.backend.Options(blocking_futures=True), or wait for the future and "
                "call it then"
            )
        with self.order:
            if self._second_stage is not None:
                self.finish_stages()
            submit = _core_run if awaited else _core_submit
            return submit(
                operation,
                code,
                reduction,
                root,
                source,
                source_count,
                target,
                target_count,
                (source_count,),
                counts,
                None,
                call_site(_SITE_DEPTH),
                1.0,
                1.0,
                0,
                0,
                *self._group,
            )

    def submit_message(
        self,
        operation: int,
        code: int,
        address: int,
        count: int,
        peer: int,
        tag: int,
    ) -> int:
        """Submits a SEND or a RECV of `count` elements. Messages have an order of their own."""
        return _core_submit(
            operation,
            code,
            0,
            peer,
            address,
            count,
            address if operation == RECV else 0,
            count if operation == RECV else 0,
            (count,),
            None,
            None,
            call_site(_SITE_DEPTH),
            1.0,
            1.0,
            tag,
            0,
            *self._group,
        )

    def register_group(self, ranks: list[int], timeout_us: int) -> int:
        """COLLECTIVE: all ranks of the job register a group. Its number.

        REQUIRES: this is the channel of all ranks.
        """
        with self.order:
            self.finish_stages()
            return _core.group_register(tuple(ranks), timeout_us)

    def set_second_stage(self, second_stage: Callable[[], None]) -> None:
        """Has `second_stage` run before the channel's next operation, or by finish_stages().

        REQUIRES: the caller holds `order`, and has since it submitted the first stage.
        """
        self._second_stage = second_stage

    def finish_stages(self) -> None:
        """Runs a second stage that is outstanding. Blocks until the other ranks are that far."""
        with self.order:
            stage, self._second_stage = self._second_stage, None
            if stage is not None:
                stage()

    def hold(self, work: RingdWork) -> RingdWork:
        """Keeps the work, and with it its tensors, until it is over."""
        pending = self._pending
        with self.order:
            while pending and pending[0].reap() and self._may_go(pending[0]):
                pending.popleft()
            pending.append(work)
        return work

    def _may_go(self, work: RingdWork) -> bool:
        return CPP_HOLDS_WORKS or work.was_asked or len(self._pending) > _MAX_KEPT

    def pending(self) -> list[RingdWork]:
        """Works that may be in flight."""
        return list(self._pending)
