"""Join: for ranks that run out of data before the others."""

from __future__ import annotations

from . import _core


def join() -> int:
    """COLLECTIVE: this rank has no more data; blocks until all ranks have called it.

    Until then the others' operations of all ranks go on without this one, whatever they are and
    however they are called (buckets of an optimizer, too): it adds nothing to a reduction and no
    rows to an allgather, and drops what it is sent. An average still divides by `size()`, as in
    Horovod; one with `weight=` divides by the weights that there are. What has this rank as its
    root fails on all ranks, as does what is registered meanwhile (process sets, optimizers).

    Returns:
        The rank that joined last, the same on all ranks.
    """
    return int(_core.join(-1))
