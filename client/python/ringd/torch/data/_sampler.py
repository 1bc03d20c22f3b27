"""Which samples are this rank's, and how far all ranks are."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any

import torch
from torch.utils.data import Sampler

from ... import _core

UNEVEN = ("pad", "drop", "join")
# From one seed to the next; odd, so that orders of other seeds and epochs are far away. PyTorch's
# generator looks at the lower 32 bits only.
_SEED_STRIDE = 0x9E3779B1


class DistributedSampler(Sampler[int]):
    """Gives each rank every size()-th sample of an order that all ranks share.

    So what all ranks have used after as many samples each is the beginning of that order: a
    position, which goes on with any number of ranks. An epoch gives every sample once, but for what
    `uneven` says. The order changes with the epoch.

    `DataLoader` of this package keeps the position. With PyTorch's own, call `set_epoch` before
    each epoch and `advance(count)` after each batch.

    Args:
        dataset: anything with a length.
        shuffle: an order by chance for each epoch; False: as they are.
        seed: the same on all ranks.
        uneven: where samples don't divide among ranks: "pad" gives some of them twice, "drop"
            leaves out the last ones, "join" gives some ranks one less.
        rank: None: this process's.
        size: number of ranks; None: the job's.

    Raises:
        ValueError: `uneven` is something else, or the dataset has no length.
    """

    def __init__(
        self,
        dataset: Sized,
        *,
        shuffle: bool = True,
        seed: int = 0,
        uneven: str = "pad",
        rank: int | None = None,
        size: int | None = None,
    ) -> None:
        if uneven not in UNEVEN:
            raise ValueError(f"uneven is {uneven!r}; it can be 'pad', 'drop' or 'join'")
        if not hasattr(dataset, "__len__"):
            raise ValueError(
                f"{type(dataset).__name__} has no length, so it has no positions to share out: "
                "give it a __len__ and a __getitem__"
            )
        self.dataset = dataset
        self.shuffle = bool(shuffle)
        self.seed = int(seed)
        self.uneven = uneven
        self.epoch = 0
        self.position = 0
        self._resumed = False
        self._rank = rank
        self._size = size

    @property
    def rank(self) -> int:
        """Whose share this is."""
        return _core.info()[0] if self._rank is None else self._rank

    @property
    def size(self) -> int:
        """Number of shares."""
        return _core.info()[1] if self._size is None else self._size

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is of this epoch: from a loaded position if that is in it."""
        if epoch != self.epoch:
            self.epoch = int(epoch)
            self.position = 0
            self._resumed = False

    def advance(self, count: int) -> None:
        """Each rank has used `count` more samples."""
        self.position = min(self.position + count * self.size, len(self.dataset))

    def finish(self) -> None:
        """The epoch is over: the next iteration is of the next one."""
        self.set_epoch(self.epoch + 1)

    def state_dict(self) -> dict[str, Any]:
        """Where all ranks are; the same on each of them."""
        return {
            "epoch": self.epoch,
            "position": self.position,
            "length": len(self.dataset),
            "seed": self.seed,
            "shuffle": self.shuffle,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next iteration goes on from there, on any number of ranks.

        Raises:
            ValueError: it is the state of a dataset of another length.
        """
        if state["length"] != len(self.dataset):
            raise ValueError(
                f"the state is of a dataset of {state['length']} samples, this one has "
                f"{len(self.dataset)}: positions don't match"
            )
        self.epoch = state["epoch"]
        self.position = state["position"]
        self.seed = state["seed"]
        self.shuffle = state["shuffle"]
        self._resumed = True

    def counts(self) -> list[int]:
        """How many samples each rank gets in the next iteration."""
        left = len(self.dataset) - self._first()
        share, extra = divmod(left, self.size)
        if self.uneven == "join":
            return [share + (rank < extra) for rank in range(self.size)]
        return [share + (self.uneven == "pad" and extra > 0)] * self.size

    def _first(self) -> int:
        return self.position if self._resumed else 0

    def _order(self) -> list[int]:
        length = len(self.dataset)
        if not self.shuffle:
            return list(range(length))
        generator = torch.Generator()
        generator.manual_seed((self.seed * _SEED_STRIDE + self.epoch) % (1 << 32))
        return torch.randperm(length, generator=generator).tolist()

    def __iter__(self) -> Iterator[int]:
        order = self._order()
        first, count, rank, size = self._first(), self.counts()[self.rank], self.rank, self.size
        self.position = first
        self._resumed = False
        return iter([order[(first + rank + i * size) % len(order)] for i in range(count)])

    def __len__(self) -> int:
        return self.counts()[self.rank]
