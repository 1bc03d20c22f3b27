"""Loading data on every rank: even shares, positions as state, workers that can't hang.

    from ringd.torch.data import DataLoader

    loader = DataLoader(dataset, batch_size=32, shuffle=True, num_workers=4)
    for epoch in range(10):
        for images, labels in loader:
            ...
    torch.save({"loader": loader.state_dict(), ...}, "checkpoint.pt")

A loader worker that dies or hangs raises `WorkerFailedError` on its rank within seconds, with its
pid and what it was doing, instead of letting all other ranks wait.
"""

from __future__ import annotations

from ._loader import DataLoader
from ._sampler import DistributedSampler
from ._watch import WorkerFailedError

__all__ = ["DataLoader", "DistributedSampler", "WorkerFailedError"]
