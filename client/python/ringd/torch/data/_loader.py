"""A DataLoader for ranks."""

from __future__ import annotations

import contextlib
import multiprocessing
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch.utils.data
from torch.utils.data import IterableDataset, default_collate
from torch.utils.data._utils.collate import default_convert

from ... import _core
from ..._errors import RingdError
from ._sampler import DistributedSampler
from ._watch import Board, Watch, WatchedCollate, WatchedDataset, WatchedStart, end_all, find_dead

_TICK_SECONDS = 1  # How often a waiting parent asks PyTorch whether all workers are alive.
_Made = tuple[torch.utils.data.DataLoader, Board | None]
_OURS = ("sampler", "batch_sampler", "timeout")


class DataLoader:
    """PyTorch's DataLoader over this rank's share of a dataset.

    All ranks make it alike and iterate alike. An iteration is an epoch; the next one has the next
    number and another order. After `load_state_dict` it goes on where the state was taken.

    Workers may be forked or spawned while this process is attached to its job; they can't use ringd
    themselves. One that dies, or is longer than `worker_timeout` at one sample (at collate_fn, at
    worker_init_fn), raises `WorkerFailedError` here; errors of the dataset raise as they are. When
    this process is busy elsewhere, a dead worker raises PyTorch's RuntimeError in it.

    Args:
        dataset: map-style, with a length: the same on all ranks.
        batch_size: samples of this rank in a batch; None: samples one by one, not collated.
        shuffle: another order in each epoch.
        uneven: where samples don't divide among ranks: "pad" gives some of them twice, "drop"
            leaves out the last ones; all ranks then have as many batches. "join" gives every sample
            once: ranks with a batch less call `ringd.torch.join` at the end of the epoch.
        seed: of the order; the same on all ranks.
        num_workers: processes that load; 0: this one does.
        worker_timeout: seconds that a worker may take for one sample.
        collate_fn, worker_init_fn, multiprocessing_context, drop_last, pin_memory, **options: as
            PyTorch's.

    Raises:
        RingdError: "join" in a version of ringd without it.
        ValueError: an option out of range or of no use here.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool = False,
        *,
        uneven: str = "pad",
        seed: int = 0,
        num_workers: int = 0,
        worker_timeout: float = 30.0,
        collate_fn: Callable[[Any], Any] | None = None,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        drop_last: bool = False,
        persistent_workers: bool = False,
        **options: Any,
    ) -> None:
        _check(dataset, worker_timeout, options)
        self.sampler = DistributedSampler(dataset, shuffle=shuffle, seed=seed, uneven=uneven)
        if uneven == "join":
            _join_or_raise()
        self.dataset = dataset
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.num_workers = num_workers
        self.worker_timeout = float(worker_timeout)
        self._persistent = persistent_workers
        self._options = dict(
            options,
            batch_size=batch_size,
            drop_last=drop_last,
            num_workers=num_workers,
            persistent_workers=persistent_workers,
            sampler=self.sampler,
        )
        self._context = multiprocessing_context
        self._collate = collate_fn
        self._init = worker_init_fn
        self._kept: _Made | None = None
        self._fresh: _Made | None = self._make()  # Wrong options show here.

    def _make(self) -> _Made:
        if self.num_workers == 0:
            inner = torch.utils.data.DataLoader(
                self.dataset, collate_fn=self._collate, worker_init_fn=self._init, **self._options
            )
            return inner, None
        context = self._context
        if not hasattr(context, "RawArray"):
            context = multiprocessing.get_context(context)
        board = Board(context, self.num_workers)
        default = default_convert if self.batch_size is None else default_collate
        inner = torch.utils.data.DataLoader(
            WatchedDataset(self.dataset, board),  # type: ignore[arg-type]
            collate_fn=WatchedCollate(self._collate or default, board),
            worker_init_fn=WatchedStart(self._init, board),
            multiprocessing_context=context,
            timeout=_TICK_SECONDS,
            **self._options,
        )
        return inner, board

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is of this epoch; it needs no call when epochs follow one another."""
        self.sampler.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Position after the batches given so far, the same on all ranks."""
        return self.sampler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next iteration goes on from there, on any number of ranks and with any batch size.

        Raises:
            ValueError: it is the state of a dataset of another length.
        """
        self.sampler.load_state_dict(state)

    def batch_counts(self) -> list[int]:
        """How many batches each rank gets in the next iteration."""
        each = self.batch_size or 1
        round_up = 0 if self.drop_last else each - 1
        return [(count + round_up) // each for count in self.sampler.counts()]

    def __len__(self) -> int:
        return self.batch_counts()[self.sampler.rank]

    def __iter__(self) -> Iterator[Any]:
        if self._kept is not None:
            return _Batches(self, *self._kept)
        made = self._fresh or self._make()
        self._fresh = None
        if made[1] is not None:
            made[1].clear()
        if self._persistent:
            self._kept = made
        return _Batches(self, *made)


def _check(dataset: Any, worker_timeout: float, options: dict[str, Any]) -> None:
    if isinstance(dataset, IterableDataset):
        raise ValueError(
            "an IterableDataset has no positions to share out among ranks: use a map-style "
            "dataset, or PyTorch's DataLoader and a share of your own"
        )
    for name in _OURS:
        if options.get(name) is not None:
            raise ValueError(
                f"{name}: this loader has its own; shuffle, seed, uneven and worker_timeout say how"
            )
    if options.get("worker_method", "multiprocessing") != "multiprocessing":
        raise ValueError("worker_method: threads can't be watched; leave it out")
    if not worker_timeout > 0:
        raise ValueError("worker_timeout is a positive number of seconds")


def _join_or_raise() -> Callable[[], int]:
    import ringd.torch

    join = getattr(ringd.torch, "join", None)
    if join is None:
        raise RingdError(
            "uneven='join' is not available in this version of ringd: use 'pad' or 'drop'"
        )
    return join


class _Batches:
    """One iteration of a loader."""

    def __init__(
        self, loader: DataLoader, inner: torch.utils.data.DataLoader, board: Board | None
    ) -> None:
        self._loader = loader
        self._sampler = loader.sampler
        self._left = self._sampler.counts()[self._sampler.rank]
        self._uneven_batches = len(set(loader.batch_counts())) > 1
        self._ended = False
        self._board = board
        self._watch: Watch | None = None
        self._inner: Iterator[Any] = iter(())
        with self._failures_named():  # A worker may die at its first sample already.
            self._inner = iter(inner)
        if board is not None:
            self._watch = Watch(board, _core.info()[0], loader.worker_timeout)
            weakref.finalize(self, self._watch.stop)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            batch = next(self._inner) if self._watch is None else self._next_watched(self._watch)
        except StopIteration:
            self._end()
            raise
        count = min(self._loader.batch_size or 1, self._left)
        self._left -= count
        self._sampler.advance(count)
        return batch

    def _next_watched(self, watch: Watch) -> Any:
        with watch.waiting():
            while True:
                try:
                    with self._failures_named():
                        return next(self._inner)
                except RuntimeError as error:
                    if not str(error).startswith("DataLoader timed out"):
                        raise

    @contextlib.contextmanager
    def _failures_named(self) -> Iterator[None]:
        """What PyTorch raises when a worker is dead becomes a WorkerFailedError."""
        try:
            yield
        except (RuntimeError, OSError, EOFError) as error:
            failure = self._failure_of(error)
            if failure is None:
                raise
            self._close()
            raise failure from None

    def _failure_of(self, error: Exception) -> Exception | None:
        if self._watch is not None and self._watch.failure is not None:
            return self._watch.failure
        if self._board is None or str(error).startswith("Caught "):
            return None  # The dataset's own, here or in a worker that is alive.
        return find_dead(self._board, _core.info()[0], str(error))

    def _close(self) -> None:
        """Ends all workers: PyTorch would wait for those that hang."""
        if self._watch is not None:
            self._watch.stop()
        assert self._board is not None
        end_all([status.pid for status in self._board.read_all() if status.pid > 0])
        self._loader._kept = None
        self._ended = True
        with contextlib.suppress(RuntimeError):
            self._inner = iter(())

    def _end(self) -> None:
        if self._ended:
            return
        self._ended = True
        if self._watch is not None:
            self._watch.stop()
        self._sampler.finish()
        if self._loader.sampler.uneven == "join" and self._uneven_batches:
            _join_or_raise()()
