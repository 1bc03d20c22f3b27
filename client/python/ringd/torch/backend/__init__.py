"""The torch.distributed backend "ringd", for CPU tensors.

    torch.distributed.init_process_group("ringd")

needs no import of ringd: its wheel tells PyTorch (2.5 on) of the backend. Before 2.5, or where
TORCH_DEVICE_BACKEND_AUTOLOAD=0 turns that off, import this module first.

Ranks are those of `ringctl run`; a process that it did not start can have a group of itself only.
`init_method="ringd://"` is a rendezvous without a port to agree on beforehand.
"""

from __future__ import annotations

from ..._entry_points import register_torch_backend
from . import _base, _channel, _group, _memory, _sparse, _tracing, _uneven, _work
from ._create import Options, create_group
from ._group import RingdProcessGroup
from ._rendezvous import rendezvous

__all__ = ["Options", "RingdProcessGroup", "create_group", "rendezvous"]

register_torch_backend()
_tracing.keep_out(_base, _channel, _group, _memory, _sparse, _uneven, _work)
