"""What the nodes of a job of torchrun tell each other, by the store that its ranks have."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

_TIMEOUT_SECONDS = 300.0  # As ringd_init's.

# While this process lives: rank 0's may be the server of the others.
_stores: list[Any] = []


def exchange_by_torchrun(timeout: float | None) -> Callable[[str, str | None], str] | None:
    """For `_core.init`; None where torchrun started all ranks on this node, or none.

    Returns:
        exchange(key, text): puts the text; exchange(key, None): waits for what another process puts
        under this key.
    """
    environment = os.environ
    if "TORCHELASTIC_RUN_ID" not in environment:
        return None
    if environment.get("LOCAL_WORLD_SIZE") == environment.get("WORLD_SIZE"):
        return None
    limit = timedelta(seconds=timeout or _TIMEOUT_SECONDS)

    def exchange(key: str, text: str | None) -> str:
        store = _stores[0] if _stores else _open_store(limit)
        if text is not None:
            store.set(key, text)
            return ""
        store.wait([key], limit)
        return store.get(key).decode()

    return exchange


def _open_store(limit: timedelta) -> Any:
    import torch.distributed as dist

    environment = os.environ
    host, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    # Where torchrun's agent doesn't serve it, rank 0 does, as for init_process_group.
    agent_serves = environment.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)
    serves = not agent_serves and environment["RANK"] == "0"
    store = dist.TCPStore(
        host, port, None, serves, limit, wait_for_workers=False, multi_tenant=serves
    )
    attempt = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    _stores.append(dist.PrefixStore(f"ringd/{attempt}", store))
    return _stores[0]
