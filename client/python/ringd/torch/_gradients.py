"""Gradients of a set of parameters: they lie in the arena and are reduced by a bucket plan.

A hook on each parameter moves its gradient into its place (once: from then on autograd adds in
place while the user keeps it) and marks it ready; the last one of a bucket starts the bucket's
reduction, while backward goes on. A step has no message besides the reductions. With compression
the gradient stays where it is, and what travels is copied there and back.

A parameter that no rank used keeps its gradient None, as in a single process; one whose gradient
turns out to be sparse leaves the buckets at the end of that step, on all ranks (see `Buckets`).
"""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from .. import _core, _lifecycle, _timeline
from .._errors import RingdError, StepOrderError
from .._process_sets import ProcessSet, group_of
from .._types import ReduceOp
from ._agreement import agree, entry_of
from ._buckets import FIRST_BUCKET_BYTES, Buckets, default_bucket_bytes, plan_buckets, registry
from ._compression import Compressor, has_error_feedback, moves_nothing, wire_of
from ._feedback import Feedback
from ._sparse import sum_gradient
from ._tensors import check_tensor

# Names that a warning shows.
_SHOWN_NAMES = 5

_hooks = WeakTensorKeyDictionary()

NamedParameter = tuple[str, torch.nn.Parameter]


class Options(NamedTuple):
    """How gradients are reduced; the same on all ranks but for `groups`' parameters."""

    op: ReduceOp
    passes: int
    predivide_factor: float
    bucket_bytes: int | None
    sparse_as_dense: bool
    compression: type[Compressor]
    groups: int | Sequence[Sequence[torch.Tensor]] | None
    process_set: ProcessSet

    def __str__(self) -> str:
        groups = self.groups if self.groups is None or isinstance(self.groups, int) else "given"
        return (
            f"op={self.op.name}, backward_passes_per_step={self.passes}, "
            f"gradient_predivide_factor={self.predivide_factor}, "
            f"bucket_bytes={self.bucket_bytes}, sparse_as_dense={self.sparse_as_dense}, "
            f"compression={self.compression.__name__}, groups={groups}"
        )


def _groups_of(options: Options, params: Sequence[torch.Tensor]) -> list[list[int]]:
    """The numbers of the parameters of each group."""
    groups = options.groups
    if groups is None:
        return []
    if isinstance(groups, int):
        share, extra = divmod(len(params), groups)
        ends = [share * k + min(k, extra) for k in range(groups + 1)]
        made = [list(range(*pair)) for pair in itertools.pairwise(ends)]
        return [group for group in made if group]
    numbers = {id(param): i for i, param in enumerate(params)}
    return [[numbers[id(p)] for p in group if id(p) in numbers] for group in groups]


class _Sparse:
    """A parameter whose gradients are sparse tensors: reduced apart, at the end of the step."""

    def __init__(self, name: str, param: torch.nn.Parameter) -> None:
        self.name = name
        self.param = param
        self.count = 0


class Gradients:
    """The gradients of some parameters, reduced over all ranks in each step.

    Life: made; steps (hooks in backward, `synchronize`); `close`. `param.grad` stays usable after.
    Thread-compatible: external synchronisation (autograd calls hooks in the thread of backward).
    Failure: a failed reduction is raised by `synchronize`, a wrong number of backward passes by
    backward itself.
    """

    def __init__(self, params: Sequence[NamedParameter], options: Options) -> None:
        """COLLECTIVE. MismatchError names the rank and parameter where ranks differ."""
        self.passes = options.passes
        self._options = options
        self._compresses = not moves_nothing(options.compression)
        # One rank's gradients are what they would become: there is no reduction.
        self._alone = group_of(options.process_set).size == 1 and not self._compresses
        self._keeps = self._compresses or self._alone  # Gradients stay where autograd made them.
        self.feedback = self._make_feedback()
        self._find_unused = options.op in (ReduceOp.Average, ReduceOp.Sum, ReduceOp.Max)
        self._sparse: list[_Sparse] = []
        self._handles: list[Any] = []
        self._warned = False
        trained, self._frozen = self._agree(params)
        self._lay_out(trained)
        self._begin_step()

    def _make_feedback(self) -> Feedback | None:
        wire = wire_of(self._options.compression)
        if wire is None or not has_error_feedback(self._options.compression):
            return None
        group = group_of(self._options.process_set)
        # On one node nothing is rounded.
        return Feedback(wire, group.rank, group.size) if _lifecycle.cross_size() > 1 else None

    def _agree(
        self, params: Sequence[NamedParameter]
    ) -> tuple[list[NamedParameter], list[NamedParameter]]:
        """Parameters that some rank trains, and those that no rank does."""
        entries = [("options", str(self._options))]
        groups = _groups_of(self._options, [param for _, param in params])
        group_of = {i: number for number, group in enumerate(groups) for i in group}
        for i, (name, param) in enumerate(params):
            try:
                check_tensor(param)
            except ValueError as error:
                raise ValueError(f"parameter '{name}': {error}") from None
            entry, value = entry_of(name, param)
            strides = "" if param.is_contiguous() else f" with strides {list(param.stride())}"
            group = f" in group {group_of[i]}" if i in group_of else ""
            entries.append((entry, value + strides + group))
        number = self._options.process_set.process_set_id or 0
        mine = (bytes(param.requires_grad for _, param in params), registry.dead(number))
        told = agree("DistributedOptimizer", entries, mine, self._options.process_set)
        registry.give_back(dead for _, dead in told)
        trained, frozen = [], []
        for i, pair in enumerate(params):
            (trained if any(flags[i] for flags, _ in told) else frozen).append(pair)
        return trained, frozen

    def _lay_out(self, trained: Sequence[NamedParameter]) -> None:
        """COLLECTIVE: shares the parameters out among buckets; hooks for all of them."""
        self._names = [name for name, _ in trained]
        self._params = params = [param for _, param in trained]
        self._counts = [0] * len(params)  # Backward passes of this step, by parameter.
        self._unused: list[int] = []
        self._apart: set[int] = set()  # Sparse gradients of this step, on this rank.
        self._contexts: list[Any] = [None] * len(params)  # Of compressed gradients.
        self._sent: list[int | None] = [None] * len(params)  # Their versions when they were sent.
        self._buckets: Buckets | None = None
        if params:
            likes: list[torch.Tensor] = list(params)
            if self._compresses:
                for i, param in enumerate(params):
                    likes[i], self._contexts[i] = self._compress(torch.zeros_like(param.detach()))
            nbytes = [like.nbytes for like in likes]
            buckets = plan_buckets(
                nbytes,
                [like.dtype for like in likes],
                self._options.bucket_bytes or default_bucket_bytes(nbytes),
                FIRST_BUCKET_BYTES,
                _groups_of(self._options, params),
            )
            options = self._options
            self._buckets = Buckets(
                self._names,
                likes,
                buckets,
                options.op,
                options.predivide_factor,
                group_of(options.process_set).number,
                self._alone,
                wire_of(options.compression),
            )
            if self.feedback is not None:
                self.feedback.lay_out(params, self._buckets.views)
        self._add_hooks()

    def _compress(self, grad: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return self._options.compression.compress(grad)

    def _add_hooks(self) -> None:
        self.close()
        make = self._make_sending_hook if self._keeps else self._make_hook
        hooks = [(param, make(i)) for i, param in enumerate(self._params) if param.requires_grad]
        hooks += [
            (each.param, self._make_sparse_hook(each))
            for each in self._sparse
            if each.param.requires_grad
        ]
        for param, hook in hooks:
            previous = _hooks.pop(param, None)
            if previous is not None:
                previous.remove()  # A parameter belongs to the optimizer that was made last.
            handle = param.register_post_accumulate_grad_hook(hook)
            _hooks[param] = handle
            self._handles.append(handle)

    def _make_hook(self, i: int) -> Callable[[torch.Tensor], None]:
        buckets = self._buckets
        assert buckets is not None
        view, counts, versions = buckets.views[i], self._counts, buckets.versions
        plan, number, bucket = buckets.plan, buckets.numbers[i], buckets.bucket_of[i]
        flat, plan_ready = buckets.flats[bucket], _core.plan_ready
        feedback, apart = self.feedback, self._apart

        def hook(param: torch.Tensor) -> None:
            grad = param.grad
            if grad is not view:
                if counts[i] >= self.passes:
                    self._raise_too_many(self._names[i])
                self._move(i, grad)
            counts[i] = count = counts[i] + 1
            if count >= self.passes:
                if count > self.passes:
                    self._raise_too_many(self._names[i])
                if feedback is not None and i not in apart:
                    feedback.round(i)
                plan_ready(plan, number)  # As buckets.ready(i), which costs more.
                versions[bucket] = flat._version

        return hook

    def _make_sending_hook(self, i: int) -> Callable[[torch.Tensor], None]:
        def hook(param: torch.Tensor) -> None:
            if self._counts[i] >= self.passes:
                self._raise_too_many(self._names[i])
            if self._counts[i] + 1 == self.passes:
                self._send(i)
            self._counts[i] += 1

        return hook

    def _make_sparse_hook(self, each: _Sparse) -> Callable[[torch.Tensor], None]:
        def hook(param: torch.Tensor) -> None:
            each.count += 1
            if each.count > self.passes:
                self._raise_too_many(each.name)

        return hook

    def _place(self, i: int) -> torch.Tensor:
        assert self._buckets is not None
        return self._buckets.views[i]

    def _move(self, i: int, grad: Any) -> None:
        """Puts a gradient into its place in the arena."""
        if grad.requires_grad:
            grad = grad.detach()  # Of backward(create_graph=True).
        if grad.layout is not torch.strided:
            if not self._options.sparse_as_dense:
                self._keep_apart(i)
                return
            grad = grad.to_dense()
        if i in self._apart:
            self._keep_apart(i, False)  # Another pass of this step made it dense.
        view = self._place(i)
        view.copy_(grad)
        self._params[i].grad = view

    def _keep_apart(self, i: int, apart: bool = True) -> None:
        assert self._buckets is not None
        if self._options.op not in (ReduceOp.Average, ReduceOp.Sum):
            raise RingdError(
                f"parameter '{self._names[i]}' has a sparse gradient, which op=Average and op=Sum "
                "can reduce: pass sparse_as_dense=True to DistributedOptimizer for others"
            )
        (self._apart.add if apart else self._apart.discard)(i)
        self._place(i).zero_()
        self._buckets.mark_apart(i, apart)

    def _send(self, i: int) -> None:
        """Compresses a gradient, if it is to be, and marks it ready."""
        assert self._buckets is not None
        grad: Any = self._params[i].grad
        if grad.layout is not torch.strided and self._options.sparse_as_dense:
            grad = self._params[i].grad = grad.detach().to_dense()
        if grad.layout is not torch.strided:
            self._keep_apart(i)
        elif self._alone:
            if grad.requires_grad:  # Of backward(create_graph=True).
                grad = self._params[i].grad = grad.detach()
        else:
            wire, self._contexts[i] = self._compress(grad.detach())
            place = self._place(i)
            if wire.shape != place.shape or wire.dtype != place.dtype:
                raise RingdError(
                    f"{self._options.compression.__name__} made {wire.dtype}{list(wire.shape)} of "
                    f"the gradient of '{self._names[i]}', and {place.dtype}{list(place.shape)} of "
                    "zeros: what it makes must depend on shape and dtype only"
                )
            place.copy_(wire)
        self._sent[i] = grad._version
        self._buckets.ready(i)

    def _raise_too_many(self, name: str) -> None:
        raise StepOrderError(
            f"parameter '{name}' got its gradient more than {self.passes} times in one step: call "
            "step() after each backward(), or give DistributedOptimizer "
            "backward_passes_per_step=K for K backward passes a step"
        )

    def has_begun(self) -> bool:
        """Whether a backward pass of this step has reached a parameter."""
        return any(self._counts) or any(each.count for each in self._sparse)

    @torch.no_grad()
    def synchronize(self) -> None:
        """COLLECTIVE: ends the step. Blocks until all parameters' gradients are reduced."""
        for name, param in self._frozen:
            if param.grad is not None:
                raise RingdError(
                    f"parameter '{name}' has a gradient, but was frozen on all ranks when the "
                    "DistributedOptimizer was made: make it again after unfreezing parameters"
                )
        changed = self._was_changed()
        timeline = _timeline.active
        if timeline is not None:
            wait = timeline.begin("step", "wait for gradients", parameters=len(self._params))
        try:
            found = [] if self._buckets is None else self._end_step(self._buckets)
            for each in self._sparse:
                self._sum_sparse(each)
            if found:
                self._learn(found)
        except RingdError:
            # If the plan is gone: the error that is on its way says why.
            with contextlib.suppress(RingdError):
                self._begin_step()
            raise
        if timeline is not None:
            timeline.end("step", "wait for gradients", wait)
        self._begin_step()
        if changed:
            raise StepOrderError(
                "gradients were written to between backward() and step(), while they were being "
                "reduced: call optimizer.synchronize() before clipping, GradScaler.unscale_() and "
                "the like"
            )

    def _was_changed(self) -> bool:
        """Whether somebody has written to gradients after they were sent."""
        if self._buckets is None:
            return False
        if not self._keeps:
            return self._buckets.was_changed()
        return any(
            version is not None and param.grad is not None and param.grad._version != version
            for version, param in zip(self._sent, self._params, strict=True)
        )

    def _end_step(self, buckets: Buckets) -> list[int]:
        """Parameters that some rank has a sparse gradient of."""
        failure: Exception | None = None
        if self._counts.count(self.passes) != len(self._counts):
            try:
                self._complete(buckets)
            except Exception as error:
                failure = error  # The other ranks' step ends all the same.
            buckets.flush()
        buckets.wait()
        if failure is not None:
            raise failure
        self._take(buckets)
        return buckets.kept_apart() if self._find_unused else []

    def _begin_step(self) -> None:
        self._counts[:] = [0] * len(self._counts)
        self._sent[:] = [None] * len(self._sent)
        for each in self._sparse:
            each.count = 0
        self._unused.clear()
        self._apart.clear()
        if self._buckets is not None:
            self._buckets.begin_step()

    def _take(self, buckets: Buckets) -> None:
        """Gives parameters their reduced gradients."""
        unused = set(self._unused)
        for i in self._unused:
            if not self._find_unused or buckets.was_used(i):
                self._params[i].grad = buckets.views[i] if not self._compresses else self._open(i)
        if not self._compresses:
            return
        for i, param in enumerate(self._params):
            if i not in unused and i not in self._apart:
                if param.grad is None or param.grad.requires_grad:
                    param.grad = self._open(i)
                else:
                    param.grad.copy_(self._open(i))

    def _open(self, i: int) -> torch.Tensor:
        opened = self._options.compression.decompress(self._place(i), self._contexts[i])
        return opened.clone() if opened.data_ptr() == self._place(i).data_ptr() else opened

    def _sum_sparse(self, each: _Sparse) -> None:
        op, process_set = self._options.op, self._options.process_set
        total = sum_gradient(each.param, each.param.grad, each.name, op, process_set)
        if each.param.grad is not None or total._nnz() > 0:
            each.param.grad = total

    def _learn(self, found: list[int]) -> None:
        """COLLECTIVE: from now on these parameters' gradients are reduced apart."""
        for i in found:
            each = _Sparse(self._names[i], self._params[i])
            if i not in self._apart:
                each.param.grad = None
            self._sum_sparse(each)
            dense = self._open(i)
            if dense.any():  # Of ranks whose gradients were dense.
                sparse = each.param.grad
                each.param.grad = dense if sparse is None else sparse.to_dense() + dense
            self._sparse.append(each)
        views = {
            id(self._params[i]): self._place(i)
            for i in range(len(self._params))
            if i not in found and self._params[i].grad is self._place(i)
        }
        self._lay_out(
            [
                pair
                for i, pair in enumerate(zip(self._names, self._params, strict=True))
                if i not in found
            ]
        )
        for i, param in enumerate(self._params):
            if id(param) in views:
                self._place(i).copy_(views[id(param)])
                param.grad = self._place(i)

    def _complete(self, buckets: Buckets) -> None:
        """Marks what no hook has: fewer passes than usual, or gradients that are missing."""
        counts = self._counts
        for i, param in enumerate(self._params):
            if counts[i] >= self.passes:
                continue
            if counts[i] == 0 and param.grad is None:
                self._unused.append(i)
                continue
            if param.grad is not None and self._keeps:
                self._send(i)
            else:
                if param.grad is None:
                    self._place(i).zero_()
                elif param.grad is not self._place(i):
                    self._move(i, param.grad)
                if self.feedback is not None and i not in self._apart:
                    self.feedback.round(i)
                buckets.ready(i)
            counts[i] = self.passes
        for i in self._unused:
            buckets.mark_unused(i)
            counts[i] = self.passes
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
            stacklevel=8,
        )

    def close(self) -> None:
        """Removes the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
