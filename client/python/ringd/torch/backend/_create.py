"""Makes process groups for torch.distributed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from ... import _core, _lifecycle
from ..._errors import RingdError
from ._channel import Channel
from ._group import RingdProcessGroup


@dataclass
class Options:
    """`pg_options` of init_process_group and new_group.

    Attributes:
        blocking_futures: Work.get_future() waits until the operation is over, so that callbacks run
            in the thread that asked, in the same place on all ranks. Needed where callbacks start
            operations themselves (PowerSGD); computation and communication don't overlap then.
    """

    blocking_futures: bool = False


_JOB = "job"
_channels: dict[Any, Channel] = {}


def create_group(options: Any, backend_options: Any = None) -> RingdProcessGroup:
    """The group that init_process_group or new_group asks for. Attaches this process if need be.

    Args:
        options: torch.distributed's _DistributedBackendOptions.
        backend_options: None or Options.

    Raises:
        RingdError: ranks are not those of the ringd job.
        NotImplementedError: a group of some of the ranks.
    """
    chosen = Options() if backend_options is None else backend_options
    if not isinstance(chosen, Options):
        raise TypeError(
            f"pg_options is a {type(chosen).__name__}, not a ringd.torch.backend.Options"
        )
    rank, size = options.group_rank, options.group_size
    alone = size == 1 and "RINGD_SOCKET" not in os.environ
    if "RINGD_SOCKET" not in os.environ and not alone:
        raise RingdError(
            f'init_process_group("ringd") for {size} ranks in a process that ringd did not start: '
            "use ringctl run -n N -- python ... (or ringctl submit)"
        )
    _lifecycle.init(standalone=alone)
    mine, world = _core.info()[:2]
    members = list(options.global_ranks_in_group)
    if not members and (rank, size) != (mine, world):
        raise RingdError(
            f"torch.distributed calls this process rank {rank} of {size}, but it is rank {mine} of "
            f"{world} of its ringd job: leave rank and world_size to the environment"
        )
    channel = _channel_of(members or list(range(world)), rank, size, world)
    return RingdProcessGroup(channel, options.store, options.timeout, chosen.blocking_futures)


def _channel_of(members: list[int], rank: int, size: int, world: int) -> Channel:
    if size == 1:
        return Channel(0, 1)
    if members != list(range(world)):
        raise NotImplementedError(
            f"a group of ranks {members} of {world}: this version of ringd has groups of all ranks "
            "and of one rank only"
        )
    # Groups of all ranks share one sequence, so their operations are ordered among themselves.
    channel = _channels.get(_JOB)
    if channel is None or (channel.rank, channel.size) != (rank, size):
        _channels[_JOB] = channel = Channel(rank, size)
    return channel
