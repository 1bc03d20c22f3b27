"""What other packages load by the entry points of ringd's wheel."""

from __future__ import annotations

from typing import Any

BACKEND = "ringd"


def _create_group(options: Any, backend_options: Any) -> Any:
    from .torch.backend import create_group

    return create_group(options, backend_options)


def register_torch_backend() -> None:
    """Makes "ringd" a backend of torch.distributed. Run by `import torch` (PyTorch 2.5 on).

    Loads nothing more before the first process group is made. Doing it again changes nothing.
    """
    import torch.distributed as dist

    if not dist.is_available() or BACKEND in dist.Backend.backend_list:
        return
    dist.Backend.register_backend(BACKEND, _create_group, extended_api=True, devices=["cpu"])
    dist.register_rendezvous_handler(BACKEND, _rendezvous)


def _rendezvous(url: str, **options: Any) -> Any:
    from .torch.backend import rendezvous

    return rendezvous(url, **options)
