"""Makes process groups for torch.distributed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ... import _core, _lifecycle
from ..._errors import RingdError
from ._channel import HAS_GROUPS, Channel
from ._group import RingdProcessGroup
from ._work import micros


@dataclass
class Options:
    """`pg_options` of init_process_group and new_group.

    Attributes:
        blocking_futures: Work.get_future() waits until the operation is over, so that callbacks run
            in the thread that asked, in the same place on all ranks. Needed where callbacks start
            operations themselves (PowerSGD); computation and communication don't overlap then.
    """

    blocking_futures: bool = False


_channels: dict[int, Channel] = {}  # By ringd's number of the group: the same ranks share one.
_NOT_SOME = (
    "a group of ranks {members} of {world}: ringd with PyTorch {version} has groups of all ranks "
    "and of one rank only"
)
_NOT_ALONE = (
    "a group of ranks {members} made by its members alone (use_local_synchronization): ringd needs "
    "all ranks to call new_group"
)


def create_group(options: Any, backend_options: Any = None) -> RingdProcessGroup:
    """The group that init_process_group or new_group asks for. Attaches this process if need be.

    Args:
        options: torch.distributed's _DistributedBackendOptions.
        backend_options: None or Options.

    Raises:
        RingdError: ranks are not those of the ringd job.
        NotImplementedError: a group of some of the ranks (before PyTorch 2.13).
    """
    rank, size = options.group_rank, options.group_size
    alone = size == 1 and _core.launcher() is None
    if _core.launcher() is None and not alone:
        raise RingdError(
            f'init_process_group("ringd") for {size} ranks in a process that no launcher started: '
            "use ringctl run -n N -- python ... (or ringctl submit, torchrun, mpirun, srun)"
        )
    _lifecycle.init(standalone=alone)
    mine, world = _core.info()[:2]
    members = list(options.global_ranks_in_group)
    if not members and (rank, size) != (mine, world):
        raise RingdError(
            f"torch.distributed calls this process rank {rank} of {size}, but it is rank {mine} of "
            f"{world} of its ringd job: leave rank and world_size to the environment"
        )
    if size == 1:
        channel = Channel(0, 1)
    elif members in ([], list(range(world))):
        channel = _channel(rank, size)
    else:
        raise NotImplementedError(
            _NOT_SOME.format(members=members, world=world, version=torch.__version__)
        )
    return _make(channel, options.store, options.timeout, backend_options)


def _make(channel: Channel, store: Any, timeout: Any, backend_options: Any) -> RingdProcessGroup:
    chosen = Options() if backend_options is None else backend_options
    if not isinstance(chosen, Options):
        raise TypeError(
            f"pg_options is a {type(chosen).__name__}, not a ringd.torch.backend.Options"
        )
    return RingdProcessGroup(channel, store, timeout, chosen.blocking_futures)


def _channel(rank: int, size: int, number: int = 0) -> Channel:
    channel = _channels.get(number)
    if channel is None or (channel.rank, channel.size) != (rank, size):
        channel = _channels[number] = Channel(rank, size, number)
    return channel


def new_group(
    self: RingdProcessGroup,
    ranks: list[int],
    timeout: timedelta | None = None,
    pg_options: Any = None,
    group_name: str = "",
    group_desc: str | None = None,
) -> RingdProcessGroup | None:
    """COLLECTIVE: what dist.new_group() does on PyTorch 2.13 on. None where this rank is no member.

    All ranks register the group with ringd, in one order; but for a group of one.
    """
    rank, size = self.rank(), self.size()
    members = list(ranks)
    number = 0
    if len(members) > 1:
        if len(members) < size and not group_name.isdigit():
            raise NotImplementedError(_NOT_ALONE.format(members=members))
        if members != sorted(members):
            raise ValueError(f"ranks {members} are not in ascending order")
        number = _channel(rank, size).register_group(members, micros(timeout, -1))
    if rank not in members:
        return None
    alone = len(members) == 1
    channel = Channel(0, 1) if alone else _channel(members.index(rank), len(members), number)
    store = dist.PrefixStore(f"{group_name}/", self.get_group_store())
    group = _make(channel, store, timeout, pg_options)
    group.setGroupName(group_name)
    group.setGroupDesc(group_desc or "undefined")
    return group


# PyTorch calls it where a group has it, and then on all ranks.
if HAS_GROUPS:
    RingdProcessGroup.new_group = new_group
