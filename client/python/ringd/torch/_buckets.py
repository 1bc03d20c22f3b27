"""Which gradients are reduced together, and the memory in the arena where that happens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.autograd.graph import increment_version

from .. import _core
from .._errors import RingdError
from .._process_sets import removal_hooks
from .._types import ReduceOp, fitting_wire, wire_code
from ._tensors import code_of, tensor_at

# The first bucket is small, so that the network starts soon after backward does.
FIRST_BUCKET_BYTES = 1 << 20
# A bucket leaves when its last gradient is there: many small ones keep the network busy during
# backward. Below the least, a bucket's own cost between nodes shows.
_LEAST_BUCKET_BYTES = 2 << 20
_MOST_BUCKET_BYTES = 25 << 20
_BUCKETS = 64


def default_bucket_bytes(nbytes: Sequence[int]) -> int:
    """The most of a bucket, for parameters of those lengths."""
    return min(max(sum(nbytes) // _BUCKETS, _LEAST_BUCKET_BYTES), _MOST_BUCKET_BYTES)


def plan_buckets(
    nbytes: Sequence[int],
    dtypes: Sequence[Any],
    bucket_bytes: int,
    first_bytes: int,
    groups: Sequence[Sequence[int]] = (),
) -> list[list[int]]:
    """Shares parameters out among buckets: their numbers, in the order in which backward ends them.

    Parameters are in the order of their registration, so backward comes to the last ones first. A
    bucket has one dtype and up to `bucket_bytes` (a longer parameter has one of its own); the first
    of a dtype up to `first_bytes`. Members of a group are together, whatever their length, and with
    nobody else: a bucket for each dtype. Buckets are in the order of their last parameters.
    """
    closed: list[list[int]] = []
    for group in groups:
        for dtype in dict.fromkeys(dtypes[i] for i in group):
            closed.append([i for i in sorted(group, reverse=True) if dtypes[i] == dtype])
    grouped = {i for group in groups for i in group}
    open_: dict[Any, list[int]] = {}
    used: dict[Any, int] = {}
    limits: dict[Any, int] = {}
    for i in reversed(range(len(nbytes))):
        if i in grouped:
            continue
        dtype = dtypes[i]
        limit = limits.setdefault(dtype, min(first_bytes, bucket_bytes))
        if dtype in open_ and used[dtype] + nbytes[i] > limit:
            closed.append(open_.pop(dtype))
            limits[dtype] = limit = bucket_bytes
        if dtype not in open_:
            open_[dtype], used[dtype] = [], 0
        open_[dtype].append(i)
        used[dtype] += nbytes[i]
    return sorted([*closed, *open_.values()], key=lambda members: -members[-1])


class _Registry:
    """Which plans' memory no tensor of this rank uses any more."""

    def __init__(self) -> None:
        self._live: dict[int, object] = {}
        self._dead: set[int] = set()

    def add(self, plan: int, buckets: int) -> Callable[[], None]:
        """What to call when the memory of one of the plan's buckets is no longer used."""
        token = object()
        left = [buckets]
        # A number is used again after another init(): the plan before is gone with its client.
        self._live[plan] = token
        self._dead.discard(plan)

        def release() -> None:
            left[0] -= 1
            if left[0] == 0 and self._live.get(plan) is token:
                del self._live[plan]
                self._dead.add(plan)

        return release

    def dead(self, group: int) -> frozenset[int]:
        """Plans of the group with that number."""
        return frozenset(plan for plan in self._dead if plan >> 16 == group)

    def give_back(self, told: Iterable[frozenset[int]]) -> None:
        """COLLECTIVE: unregisters plans that are dead on all ranks of their group."""
        for plan in sorted(frozenset.intersection(*told)):
            self._dead.discard(plan)
            try:
                _core.plan_flush(plan)  # Ends a step that was begun.
                _core.plan_wait(plan, -1)
                _core.plan_unregister(plan)
            except RingdError:
                pass  # It went with another init(), or a failure that the next operation reports.

    def forget(self, group: int) -> None:
        """The group is gone, and its plans with it."""
        self._live = {plan: token for plan, token in self._live.items() if plan >> 16 != group}
        self._dead -= self.dead(group)


registry = _Registry()
removal_hooks.append(registry.forget)


class Buckets:
    """Tensors in the arena for gradients, by bucket, and their reduction: a bucket plan.

    Each bucket also reduces two numbers a gradient: whether this rank has it, and whether this rank
    has it apart, as a sparse tensor. So ranks learn both without a question to one another.

    Life: made; steps, each from `begin_step` over `ready` (each gradient once; `mark_*` before it)
    to `wait`. The memory lives as long as a tensor uses it.
    Thread-compatible: external synchronisation.
    """

    def __init__(
        self,
        names: Sequence[str],
        likes: Sequence[torch.Tensor],
        buckets: Sequence[Sequence[int]],
        op: ReduceOp,
        predivide_factor: float,
        group: int = 0,
        alone: bool = False,
        wire: str | None = None,
    ) -> None:
        """COLLECTIVE.

        Args:
            likes: tell shapes, dtypes and strides.
            group: ringd's number of it.
            alone: it has one rank, and there is no reduction.
            wire: of those buckets that can become it.
        """
        self._alone = alone
        specs, tensors = [], []
        for number, members in enumerate(buckets):
            dtype = code_of(likes[members[0]].dtype)
            code = wire_code(fitting_wire(wire, dtype), dtype)
            specs.append((dtype, int(op), 1.0 / predivide_factor, predivide_factor, code))
            tensors += [(names[i], tuple(likes[i].shape), number) for i in members]
            tensors.append((f"(bucket {number}: used)", (2 * len(members),), number))
        self.plan: int = _core.plan_register(specs, tensors, -1, group)
        nothing = torch.empty(0)
        self.views = [nothing] * len(likes)
        self.numbers = [0] * len(likes)  # The plan's, of gradients.
        self.bucket_of = [0] * len(likes)
        self.flats: list[torch.Tensor] = []
        # Of each bucket: its version after the last gradient was ready, None before the first one.
        self.versions: list[int | None] = [None] * len(buckets)
        self._flags: list[tuple[int, torch.Tensor, Sequence[int]]] = []
        self._used = [nothing] * len(likes)
        self._apart = [nothing] * len(likes)
        release = registry.add(self.plan, len(buckets))
        first = 0
        for number, members in enumerate(buckets):
            self._lay_out(number, members, likes, first, release)
            first += len(members) + 1

    def _lay_out(
        self,
        bucket: int,
        members: Sequence[int],
        likes: Sequence[torch.Tensor],
        first: int,
        release: Callable[[], None],
    ) -> None:
        """Makes the bucket's tensors; `first`: the plan's number of its first gradient."""
        dtype, count = likes[members[0]].dtype, len(members)
        addresses = [_core.plan_tensor_data(self.plan, first + k) for k in range(count + 1)]
        offsets = [(address - addresses[0]) // dtype.itemsize for address in addresses]
        flat = tensor_at(addresses[0], offsets[-1] + 2 * count, dtype, release)
        flags = flat[offsets[-1] :]
        for k, i in enumerate(members):
            like = likes[i]
            # The parameter's own layout where it has no gaps: optimizers are faster then.
            dense = torch.ops.aten.is_non_overlapping_and_dense(like)
            strides = like.stride() if dense else torch.empty(like.shape, device="meta").stride()
            self.views[i] = flat.as_strided(like.shape, strides, offsets[k])
            self.numbers[i] = first + k
            self.bucket_of[i] = bucket
            self._used[i], self._apart[i] = flags[k], flags[count + k]
        self.flats.append(flat)
        self._flags.append((first + count, flags, members))

    def begin_step(self) -> None:
        """All gradients are wanted, and taken for used and not apart."""
        self.versions[:] = [None] * len(self.versions)
        for number, flags, members in self._flags:
            flags[: len(members)] = 1
            flags[len(members) :] = 0
            if not self._alone:
                _core.plan_ready(self.plan, number)

    def ready(self, i: int) -> None:
        """The gradient is in `views[i]`."""
        if self._alone:
            return
        _core.plan_ready(self.plan, self.numbers[i])
        bucket = self.bucket_of[i]
        self.versions[bucket] = self.flats[bucket]._version

    def mark_unused(self, i: int) -> None:
        """This rank has no gradient. It counts as zeros without being `ready`."""
        self._used[i].zero_()
        if self._alone:
            self.views[i].zero_()

    def mark_apart(self, i: int, apart: bool = True) -> None:
        """This rank has the gradient as a sparse tensor, and zeros here."""
        self._apart[i].fill_(apart)

    def was_changed(self) -> bool:
        """Whether somebody has written to gradients that were ready."""
        return any(
            version is not None and version != flat._version
            for version, flat in zip(self.versions, self.flats, strict=True)
        )

    def flush(self) -> None:
        """What is not ready yet counts as zeros."""
        if not self._alone:
            _core.plan_flush(self.plan)

    def wait(self) -> None:
        """Blocks until all buckets are reduced."""
        if self._alone:
            _core.info()  # Raises after a shutdown.
            return
        _core.plan_wait(self.plan, -1)
        for flat in self.flats:
            increment_version(flat)

    def was_used(self, i: int) -> bool:
        """After `wait`: whether some rank had the gradient."""
        return self._used[i].item() != 0

    def kept_apart(self) -> list[int]:
        """After `wait`: gradients that some rank had as a sparse tensor."""
        return sorted(
            members[k]
            for _, flags, members in self._flags
            if flags[len(members) :].any()
            for k in flags[len(members) :].nonzero().flatten().tolist()
        )
