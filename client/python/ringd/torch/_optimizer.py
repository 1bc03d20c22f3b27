"""DistributedOptimizer: a PyTorch optimizer whose gradients are reduced over all ranks."""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from .._errors import RingdError, StepOrderError
from .._process_sets import ProcessSet, global_process_set, group_of
from .._types import ReduceOp
from ._adasum import AdasumDistributed, AdasumOptions
from ._collectives import allreduce_
from ._compression import Compression, Compressor, has_error_feedback
from ._feedback import STATE_KEY, Feedback
from ._gradients import Gradients, NamedParameter, Options


class _State:
    """What an optimizer has beside its base class's attributes."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.parts: list[Gradients] = []
        self.reduced = False  # synchronize() was called, step() not yet.
        self.skip = False

    def has_begun(self) -> bool:
        return any(part.has_begun() for part in self.parts)


class _Distributed:
    """Put before the user's optimizer class: what DistributedOptimizer adds to it."""

    _ringd: _State

    def _state_or_raise(self) -> _State:
        state = self.__dict__.get("_ringd")
        if state is None:
            raise RingdError(
                "this optimizer is a copy of a distributed one: pass it to DistributedOptimizer"
            )
        return state

    def step(self, closure: Callable[[], Any] | None = None, **options: Any) -> Any:
        """COLLECTIVE: reduces the gradients (unless `synchronize()` just did), then steps.

        With a closure, gradients are reduced after each call of it, before the base class uses
        them.
        """
        state = self._state_or_raise()
        self._opt_called = True  # What learning rate schedulers look for; the next, PyTorch 2.1's.
        self._step_count = getattr(self, "_step_count", 0) + 1
        base: Any = super()
        if closure is not None:
            return base.step(closure=closure if state.skip else self._reducing(closure), **options)
        if not state.skip and not (state.reduced and not state.has_begun()):
            self.synchronize()
        state.reduced = False
        return base.step(**options)

    # The base class's step has PyTorch's hooks for profilers and schedulers; this one needs none.
    step.hooked = True  # type: ignore[attr-defined]
    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    step._with_counter = True  # type: ignore[attr-defined]

    def _reducing(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def reducing() -> Any:
            loss = closure()
            self.synchronize()
            self._ringd.reduced = False
            if isinstance(self, torch.optim.LBFGS):
                # It decides by the loss how often to call: all ranks must decide alike.
                mean = torch.as_tensor(loss).detach().clone()
                if _is_member(self._ringd.options.process_set):
                    allreduce_(mean, process_set=self._ringd.options.process_set)
                return mean
            return loss

        return reducing

    def synchronize(self) -> None:
        """COLLECTIVE: ends the reductions of this step. Blocks until `param.grad` have the results.

        Parameters that backward did not reach contribute zeros. For gradient clipping:

            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        """
        state = self._state_or_raise()
        for part in state.parts:
            part.synchronize()
        state.reduced = True

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """`step()` inside of it does not reduce. (Nor does it right after `synchronize()`.)"""
        state = self._state_or_raise()
        state.skip = True
        try:
            yield
        finally:
            state.skip = False

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As the base class's. Between backward and step it is an error: reductions are running.

        (A RingdError that is an AssertionError too.)
        """
        state = self._state_or_raise()
        if state.has_begun():
            raise StepOrderError(
                "zero_grad() between backward() and step(): the gradients are being reduced. Call "
                "it before backward(), or end the reduction by step() or synchronize() first"
            )
        state.reduced = False
        base: Any = super()
        base.zero_grad(set_to_none=set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """COLLECTIVE: as the base class's; the group's gradients are reduced too."""
        base: Any = super()
        base.add_param_group(param_group)
        state = self.__dict__.get("_ringd")
        if state is None:
            return
        groups = self.param_groups  # type: ignore[attr-defined]
        number = len(groups) - 1
        if not _is_member(state.options.process_set):
            return
        params = [(f"param_group.{number}.{j}", p) for j, p in enumerate(groups[number]["params"])]
        part = Gradients(params, state.options)
        state.parts.append(part)
        weakref.finalize(self, part.close)

    def state_dict(self) -> dict[str, Any]:
        """As the base class's. With error feedback also what this rank's gradients have lost."""
        base: Any = super()
        state: dict[str, Any] = base.state_dict()
        for feedback in self._feedbacks():
            kept = state.setdefault(STATE_KEY, {"lost": {}})
            added = feedback.state(self._all_params())
            kept.update(added, lost={**kept["lost"], **added["lost"]})
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As the base class's. What was lost is taken where it is of this rank of as many."""
        base: Any = super()
        base.load_state_dict(state_dict)
        for feedback in self._feedbacks():
            feedback.load(self._all_params(), state_dict.get(STATE_KEY))

    def _feedbacks(self) -> list[Feedback]:
        state = self.__dict__.get("_ringd")
        parts = [] if state is None else state.parts
        return [part.feedback for part in parts if part.feedback is not None]

    def _all_params(self) -> list[torch.Tensor]:
        groups = self.param_groups  # type: ignore[attr-defined]
        return [param for group in groups for param in group["params"]]

    def set_backward_passes_per_step(self, passes: int) -> None:
        """From the next step on. All ranks must give the same number."""
        state = self._state_or_raise()
        _check_passes(passes)
        if state.has_begun():
            raise StepOrderError("set_backward_passes_per_step() between backward() and step()")
        state.options = state.options._replace(passes=passes)
        for part in state.parts:
            part.passes = passes


def _check_passes(passes: int) -> None:
    if not isinstance(passes, int) or passes < 1:
        raise ValueError("backward_passes_per_step is an integer of at least 1")


_classes: weakref.WeakValueDictionary[tuple[type, type], type] = weakref.WeakValueDictionary()


def _become(optimizer: torch.optim.Optimizer, added: type) -> None:
    """Puts a class before the optimizer's own."""
    base = type(optimizer)
    made = _classes.get((added, base))
    if made is None:
        body = {"__doc__": base.__doc__, "__module__": base.__module__}
        made = _classes[added, base] = type(base.__name__, (added, base), body)
    optimizer.__dict__.pop("step", None)  # A scheduler's wrapper around the base class's step.
    optimizer.__class__ = made


def DistributedOptimizer(  # noqa: N802
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[NamedParameter] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = ReduceOp.Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    *,
    bucket_bytes: int | None = None,
) -> Any:
    """COLLECTIVE: makes an optimizer reduce its gradients over all ranks before each step.

    The optimizer itself becomes the distributed one and is returned: an instance of its class
    still, with its state, options and schedulers. Gradients lie in the arena, in buckets that are
    reduced while backward goes on; `param.grad` are views of them, with the same bits on all ranks.

    In each step all ranks call `step()` (or `synchronize()`); which parameters backward reaches may
    differ. Those that this rank does not reach contribute zeros; those that no rank reaches keep
    their gradient None. Frozen parameters may differ between ranks too; those frozen everywhere
    cost nothing, and must not get gradients later.

    Args:
        optimizer: any `torch.optim.Optimizer` over CPU parameters. LBFGS gets the mean loss.
        named_parameters: names for messages, such as `model.named_parameters()`: all parameters of
            the optimizer, the same on all ranks. None: numbers.
        compression: how gradients travel. Compression.wire_bf16, wire_fp16, fp8 and fp8_e5m2: so
            between nodes; `.with_error_feedback()` of them: what a gradient loses is added in the
            next step (Average and Sum), and `state_dict()` has it. Compression.fp16,
            Compression.bf16 or a Compressor of yours: they are copied there and back.
        backward_passes_per_step: backward passes whose gradients add up on this rank before they
            are reduced, during the last of them. They are summed: Average divides by ranks only. A
            `step()` after fewer passes reduces what is there.
        op: Average (over ranks), Sum, Min, Max or Product. Adasum: each rank's optimizer steps by
            its own gradients, and the steps are combined (`allreduce`); `groups`, `bucket_bytes`
            and `sparse_as_dense` say nothing then, and nothing is reduced during backward.
        gradient_predivide_factor: with Average, divides by it before the sum, by the rest after.
        num_groups: as `groups`, which replaces it; 0 for none.
        groups: parameters to reduce together: a number of groups, or lists of parameters. Without
            it, and for parameters in none, buckets of up to `bucket_bytes` are made.
        sparse_as_dense: sparse gradients are made dense. Without it their indices and values
            travel: the first step that meets one learns it on all ranks.
        process_set: the ranks that take part; on others the optimizer steps as it did.
        bucket_bytes: the most of a bucket, unless one parameter is longer. The first is smaller.
            None: a 64th of all gradients, within 2 and 25 MB.

    Raises:
        MismatchError: ranks have other parameters or options; it names rank and parameter.
        TypeError: `optimizer` is no optimizer.
        ValueError: an option out of range, a parameter without or with a doubled name, on another
            device than the CPU, or of a dtype that ringd does not have.
    """
    is_member = _is_member(process_set)
    if isinstance(optimizer, _Distributed | AdasumDistributed):
        raise ValueError("this optimizer is distributed already")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"a torch.optim.Optimizer is needed, not a {type(optimizer).__name__}")
    _check_passes(backward_passes_per_step)
    if bucket_bytes is not None and bucket_bytes < 1:
        raise ValueError("bucket_bytes must be positive")
    options = Options(
        op=_check_op(op, gradient_predivide_factor, compression),
        passes=backward_passes_per_step,
        predivide_factor=float(gradient_predivide_factor),
        bucket_bytes=bucket_bytes,
        sparse_as_dense=bool(sparse_as_dense),
        compression=compression,
        groups=_check_groups(num_groups, groups),
        process_set=process_set,
    )
    named = _name_parameters(optimizer, named_parameters)
    if options.op is ReduceOp.Adasum:
        _become(optimizer, AdasumDistributed)
        optimizer._ringd_adasum = AdasumOptions(  # type: ignore[attr-defined]
            compression, process_set, is_member
        )
        return optimizer
    state = _State(options)
    if is_member:
        state.parts.append(Gradients(named, options))
    _become(optimizer, _Distributed)
    optimizer._ringd = state  # type: ignore[attr-defined]
    for part in state.parts:
        weakref.finalize(optimizer, part.close)
    return optimizer


def _is_member(process_set: ProcessSet) -> bool:
    """TypeError for what is no registered process set."""
    try:
        group_of(process_set)
    except ValueError:
        return False
    return True


def _check_groups(num_groups: int, groups: Any) -> int | list[list[torch.Tensor]] | None:
    if num_groups:
        warnings.warn("num_groups is deprecated: pass groups", FutureWarning, stacklevel=3)
        groups = num_groups if groups is None else groups
    if groups is None:
        return None
    if isinstance(groups, int) and groups > 0:
        return groups
    if isinstance(groups, int) or not all(
        isinstance(param, torch.Tensor) for group in groups for param in group
    ):
        raise ValueError("groups is a positive number, or lists of parameters")
    numbers = [id(param) for group in groups for param in group]
    if len(set(numbers)) < len(numbers):
        raise ValueError("groups has a parameter twice")
    return [list(group) for group in groups]


def _check_op(op: int, predivide_factor: float, compression: Any) -> ReduceOp:
    try:
        op = ReduceOp(op)
    except ValueError:
        names = ", ".join(member.name for member in ReduceOp)
        raise ValueError(f"op {op!r} is not one of {names}") from None
    if predivide_factor != 1.0 and op is not ReduceOp.Average:
        raise ValueError("gradient_predivide_factor is for op=Average only")
    adds_up = op in (ReduceOp.Average, ReduceOp.Sum) and predivide_factor == 1.0
    if has_error_feedback(compression) and not adds_up:
        raise ValueError(
            "error feedback is for op=Average and op=Sum, without gradient_predivide_factor"
        )
    if not predivide_factor > 0:
        raise ValueError("gradient_predivide_factor must be positive")
    return op


def _name_parameters(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[NamedParameter] | None,
) -> list[NamedParameter]:
    """The optimizer's parameters in its order, with their names."""
    groups = [group["params"] for group in optimizer.param_groups]
    if named_parameters is None:
        return [
            (f"param_group.{i}.{j}", param)
            for i, params in enumerate(groups)
            for j, param in enumerate(params)
        ]
    names: dict[int, str] = {}
    seen: set[str] = set()
    for pair in named_parameters:
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)):
            raise ValueError("named_parameters has something that is no pair of name and parameter")
        name, param = pair
        if name in seen:
            raise ValueError(f"named_parameters has the name '{name}' twice")
        seen.add(name)
        names[id(param)] = name
    missing = sum(id(param) not in names for params in groups for param in params)
    if missing:
        raise ValueError(f"named_parameters lacks {missing} of the optimizer's parameters")
    return [(names[id(param)], param) for params in groups for param in params]
