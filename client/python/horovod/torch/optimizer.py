"""DistributedOptimizer with Horovod's arguments."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import ringd.torch as _ringd
import torch

from ..common._errors import horovod_errors
from ..common.process_sets import ProcessSet, global_process_set
from ..common.reductions import Average, to_ringd
from .compression import Compression


class _Translating:
    """Put before the distributed class: its errors become Horovod's."""

    def step(self, closure: Callable[[], Any] | None = None, **options: Any) -> Any:
        base: Any = super()
        with horovod_errors():
            return base.step(closure, **options)

    # As of the class below: profilers and schedulers find their hooks further down.
    step.hooked = True  # type: ignore[attr-defined]
    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]

    def synchronize(self) -> None:
        base: Any = super()
        with horovod_errors():
            base.synchronize()

    def zero_grad(self, set_to_none: bool = True) -> None:
        base: Any = super()
        with horovod_errors():
            base.zero_grad(set_to_none=set_to_none)


_classes: weakref.WeakValueDictionary[type, type] = weakref.WeakValueDictionary()


def _translating_class(base: type) -> type:
    made = _classes.get(base)
    if made is None:
        body = {"__doc__": base.__doc__, "__module__": base.__module__}
        made = _classes[base] = type(base.__name__, (_Translating, base), body)
    return made


def DistributedOptimizer(  # noqa: N802
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """COLLECTIVE: makes an optimizer reduce its gradients over all ranks before each step.

    See `ringd.torch.DistributedOptimizer`, which does it. The optimizer itself becomes the
    distributed one, with its state and options, and is returned. Gradients of
    `backward_passes_per_step` passes are summed, not averaged. `step()` after `synchronize()` does
    not reduce again, inside of `skip_synchronize()` or not.

    Args:
        optimizer: any `torch.optim.Optimizer`.
        named_parameters: pairs of unique name and parameter, all of the optimizer's.
        compression: of gradients on their way.
        backward_passes_per_step: backward passes whose gradients add up before they are reduced.
        op: Average, Sum, Min, Max, Product or Adasum (any number of ranks).
        gradient_predivide_factor: with Average, divides by it before the sum, by the rest after.
        num_groups: deprecated form of `groups`.
        groups: a number of groups, or lists of parameters, that are reduced together.
        sparse_as_dense: sparse gradients are made dense; without it indices and values travel.
        process_set: whose ranks reduce; on others the optimizer stays as it is.
    """
    if process_set.included() is False:
        return optimizer
    with horovod_errors():
        distributed = _ringd.DistributedOptimizer(
            optimizer,
            None if named_parameters is None else list(named_parameters),
            compression,
            backward_passes_per_step,
            to_ringd(op),
            gradient_predivide_factor,
            num_groups,
            groups,
            sparse_as_dense,
            process_set,
        )
    distributed.__class__ = _translating_class(type(distributed))
    return distributed
