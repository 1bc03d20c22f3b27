"""A distributed sampler that knows what was processed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sized
from typing import Any

import torch
from torch.utils.data import Sampler

from ..mpi_ops import rank, size


class ElasticSampler(Sampler[int]):
    """Gives each rank its part of what this epoch has not processed yet.

    The order is the same on all ranks, by seed and epoch. Where it does not divide evenly, some
    items come twice. `record_batch` after each batch and `set_epoch` after each epoch; after ranks
    have come or gone `reset` shares out the rest. Part of a `TorchState`, it is synchronised.

    Args:
        dataset: anything with a length.
        shuffle: a new order each epoch.
        seed: the same on all ranks.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Starts an epoch: nothing of it is processed."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Batches of that size have been processed on all ranks. `batch_idx` is not needed."""
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, Any]:
        """Where in which epoch it is."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on where the other one was, on any number of ranks."""
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Shares out what is not processed among the ranks that there are now."""
        self.num_replicas = size()
        self.rank = rank()
        order = list(range(len(self.dataset)))
        if self.shuffle:
            generator = torch.Generator().manual_seed(self.seed + self.epoch)
            order = torch.randperm(len(order), generator=generator).tolist()
        self.remaining_indices = order[self.processed_num :]
        self.num_samples = math.ceil(len(self.remaining_indices) / self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        rest = self.remaining_indices
        padded = [rest[i % len(rest)] for i in range(self.total_size)]
        return iter(padded[self.rank :: self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples
