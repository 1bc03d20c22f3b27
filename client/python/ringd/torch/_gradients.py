"""Gradients of a set of parameters: they lie in the arena and are reduced by a bucket plan.

A hook on each parameter moves its gradient into its place (once: from then on autograd adds in
place while the user keeps it) and marks it ready; the last one of a bucket starts the bucket's
reduction, while backward goes on. A step has no message besides the reductions.

Each bucket also reduces one number a parameter: whether this rank used it. So a parameter that no
rank used keeps its gradient None, as in a single process, without a question to the other ranks.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.autograd.graph import increment_version
from torch.utils.weak import WeakTensorKeyDictionary

from .. import _core
from .._errors import RingdError
from .._types import ReduceOp
from ._agreement import agree, entry_of
from ._tensors import check_tensor, code_of, tensor_at

# The first bucket is small, so that the network starts soon after backward does.
FIRST_BUCKET_BYTES = 1 << 20
# Names that a warning shows.
_SHOWN_NAMES = 5


def plan_buckets(
    nbytes: Sequence[int], dtypes: Sequence[Any], bucket_bytes: int, first_bytes: int
) -> list[list[int]]:
    """Shares parameters out among buckets: their numbers, in the order in which backward ends them.

    Parameters are in the order of their registration, so backward comes to the last ones first. A
    bucket has one dtype and up to `bucket_bytes` (a longer parameter has one of its own); the first
    of a dtype up to `first_bytes`. Buckets are in the order of their last parameters.
    """
    closed: list[list[int]] = []
    open_: dict[Any, list[int]] = {}
    used: dict[Any, int] = {}
    limits: dict[Any, int] = {}
    for i in reversed(range(len(nbytes))):
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


class _PlanRegistry:
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

    def dead(self) -> frozenset[int]:
        return frozenset(self._dead)

    def give_back(self, told: Iterable[frozenset[int]]) -> None:
        """COLLECTIVE: unregisters plans that are dead on all ranks."""
        for plan in sorted(frozenset.intersection(*told)):
            self._dead.discard(plan)
            try:
                _core.plan_flush(plan)  # Ends a step that was begun.
                _core.plan_wait(plan, -1)
                _core.plan_unregister(plan)
            except RingdError:
                pass  # It went with another init(), or a failure that the next operation reports.


_registry = _PlanRegistry()
_hooks = WeakTensorKeyDictionary()


class Gradients:
    """The gradients of some parameters, reduced over all ranks in each step.

    Life: made; steps (hooks in backward, `synchronize`); `close`. `param.grad` stays usable after.
    Thread-compatible: external synchronisation (autograd calls hooks in the thread of backward).
    Failure: a failed reduction is raised by `synchronize`, a wrong number of backward passes by
    backward itself.
    """

    def __init__(
        self,
        params: Sequence[tuple[str, torch.nn.Parameter]],
        *,
        op: ReduceOp,
        passes: int,
        predivide_factor: float,
        bucket_bytes: int,
        sparse_as_dense: bool,
    ) -> None:
        """COLLECTIVE. MismatchError names the rank and parameter where ranks differ."""
        self.passes = passes
        self._sparse_as_dense = sparse_as_dense
        self._find_unused = op in (ReduceOp.Average, ReduceOp.Sum, ReduceOp.Max)
        trained, self._frozen = self._agree(
            params,
            f"op={op.name}, backward_passes_per_step={passes}, "
            f"gradient_predivide_factor={predivide_factor}, bucket_bytes={bucket_bytes}",
        )
        self._names = [name for name, _ in trained]
        self._params = [param for _, param in trained]
        self._counts = [0] * len(trained)  # Backward passes of this step, by parameter.
        self._no_counts = tuple(self._counts)
        self._views: list[torch.Tensor] = [torch.empty(0)] * len(trained)
        self._used: list[torch.Tensor] = [torch.empty(0)] * len(trained)
        self._flats: list[torch.Tensor] = []
        self._all_used: list[tuple[int, torch.Tensor]] = []
        self._unused: list[int] = []
        self._warned = False
        self._handles: list[Any] = []
        self._plan = 0
        if trained:
            self._register(op, predivide_factor, bucket_bytes)
            self._begin_step()
            self._add_hooks()

    def _agree(
        self, params: Sequence[tuple[str, torch.nn.Parameter]], options: str
    ) -> tuple[list[tuple[str, Any]], list[tuple[str, Any]]]:
        """Parameters that some rank trains, and those that no rank does."""
        entries = [("options", options)]
        for name, param in params:
            try:
                check_tensor(param)
            except ValueError as error:
                raise ValueError(f"parameter '{name}': {error}") from None
            entry, value = entry_of(name, param)
            strides = "" if param.is_contiguous() else f" with strides {list(param.stride())}"
            entries.append((entry, value + strides))
        mine = (bytes(param.requires_grad for _, param in params), _registry.dead())
        told = agree("DistributedOptimizer", entries, mine)
        _registry.give_back(dead for _, dead in told)
        trained, frozen = [], []
        for i, pair in enumerate(params):
            (trained if any(flags[i] for flags, _ in told) else frozen).append(pair)
        return trained, frozen

    def _register(self, op: ReduceOp, predivide_factor: float, bucket_bytes: int) -> None:
        params = self._params
        buckets = plan_buckets(
            [param.numel() * param.element_size() for param in params],
            [param.dtype for param in params],
            bucket_bytes,
            FIRST_BUCKET_BYTES,
        )
        specs, tensors = [], []
        for number, members in enumerate(buckets):
            dtype = code_of(params[members[0]].dtype)
            specs.append((dtype, int(op), 1.0 / predivide_factor, predivide_factor))
            tensors += [(self._names[i], tuple(params[i].shape), number) for i in members]
            tensors.append((f"(bucket {number}: used)", (len(members),), number))
        self._plan = plan = _core.plan_register(specs, tensors, -1)
        release = _registry.add(plan, len(buckets))
        self._ready_numbers = [0] * len(params)
        first = 0
        for members in buckets:
            self._lay_out(members, first, release)
            first += len(members) + 1

    def _lay_out(self, members: list[int], first: int, release: Callable[[], None]) -> None:
        """Makes the bucket's tensors; `first`: the plan's number of its first parameter."""
        dtype = self._params[members[0]].dtype
        addresses = [_core.plan_tensor_data(self._plan, first + k) for k in range(len(members) + 1)]
        offsets = [(address - addresses[0]) // dtype.itemsize for address in addresses]
        flat = tensor_at(addresses[0], offsets[-1] + len(members), dtype, release)
        used = flat[offsets[-1] :]
        for k, i in enumerate(members):
            param = self._params[i]
            # The parameter's own layout where it has no gaps: optimizers are faster then.
            dense = torch.ops.aten.is_non_overlapping_and_dense(param)
            strides = param.stride() if dense else torch.empty(param.shape, device="meta").stride()
            self._views[i] = flat.as_strided(param.shape, strides, offsets[k])
            self._used[i] = used[k]
            self._ready_numbers[i] = first + k
        self._flats.append(flat)
        self._all_used.append((first + len(members), used))

    def _begin_step(self) -> None:
        self._counts[:] = self._no_counts
        self._unused.clear()
        for number, used in self._all_used:
            used.fill_(1)
            _core.plan_ready(self._plan, number)

    def _add_hooks(self) -> None:
        for i, param in enumerate(self._params):
            previous = _hooks.pop(param, None)
            if previous is not None:
                previous.remove()  # A parameter belongs to the optimizer that was made last.
            if not param.requires_grad:
                continue
            handle = param.register_post_accumulate_grad_hook(self._make_hook(i))
            _hooks[param] = handle
            self._handles.append(handle)

    def _make_hook(self, i: int) -> Callable[[torch.Tensor], None]:
        view, counts = self._views[i], self._counts
        plan, number, ready = self._plan, self._ready_numbers[i], _core.plan_ready

        def hook(param: torch.Tensor) -> None:
            grad = param.grad
            if grad is not view:
                if counts[i] >= self.passes:
                    self._raise_too_many(i)
                self._move(i, grad)
            count = counts[i] + 1
            counts[i] = count
            if count >= self.passes:
                if count > self.passes:
                    self._raise_too_many(i)
                ready(plan, number)

        return hook

    def _move(self, i: int, grad: Any) -> None:
        """Puts a gradient into its place in the arena."""
        if grad.requires_grad:
            grad = grad.detach()  # Of backward(create_graph=True).
        view = self._views[i]
        if grad.layout is not torch.strided:
            if not self._sparse_as_dense:
                raise RingdError(
                    f"parameter '{self._names[i]}' has a sparse gradient: pass "
                    "sparse_as_dense=True to DistributedOptimizer, or make its layer with "
                    "sparse=False"
                )
            grad = grad.to_dense()
        view.copy_(grad)
        self._params[i].grad = view

    def _raise_too_many(self, i: int) -> None:
        raise RingdError(
            f"parameter '{self._names[i]}' got its gradient more than {self.passes} times in one "
            "step: call step() after each backward(), or give DistributedOptimizer "
            "backward_passes_per_step=K for K backward passes a step"
        )

    def has_begun(self) -> bool:
        """Whether a backward pass of this step has reached a parameter."""
        return any(self._counts)

    @torch.no_grad()
    def synchronize(self) -> None:
        """COLLECTIVE: ends the step. Blocks until all parameters' gradients are reduced."""
        for name, param in self._frozen:
            if param.grad is not None:
                raise RingdError(
                    f"parameter '{name}' has a gradient, but was frozen on all ranks when the "
                    "DistributedOptimizer was made: make it again after unfreezing parameters"
                )
        if not self._params:
            return
        if self._counts.count(self.passes) != len(self._counts):
            self._complete()
        try:
            _core.plan_wait(self._plan, -1)
        except RingdError:
            self._recover()
            raise
        for flat in self._flats:
            increment_version(flat)
        for i in self._unused:
            if not self._find_unused or self._used[i].item() != 0:
                self._params[i].grad = self._views[i]
        self._begin_step()

    def _recover(self) -> None:
        # If the plan is gone: the error that is on its way says why.
        with contextlib.suppress(RingdError):
            self._begin_step()

    def _complete(self) -> None:
        """Marks what no hook has: fewer passes than usual, or gradients that are missing."""
        counts = self._counts
        for i, param in enumerate(self._params):
            if counts[i] >= self.passes:
                continue
            grad = param.grad
            if counts[i] == 0 and grad is None:
                self._unused.append(i)
                continue
            if grad is None:
                self._views[i].zero_()
            elif grad is not self._views[i]:
                self._move(i, grad)
            counts[i] = self.passes
            _core.plan_ready(self._plan, self._ready_numbers[i])
        for i in self._unused:
            self._used[i].zero_()
            counts[i] = self.passes
        _core.plan_flush(self._plan)
        self._warn_of_unused()

    def _warn_of_unused(self) -> None:
        unused = [self._names[i] for i in self._unused if self._params[i].requires_grad]
        if self._warned or not unused:
            return
        self._warned = True
        shown = ", ".join(f"'{name}'" for name in unused[:_SHOWN_NAMES])
        more = f" and {len(unused) - _SHOWN_NAMES} more" if len(unused) > _SHOWN_NAMES else ""
        warnings.warn(
            f"backward did not reach the parameters {shown}{more}: this rank contributes zeros for "
            "them (shown once)",
            stacklevel=5,
        )

    def close(self) -> None:
        """Removes the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
