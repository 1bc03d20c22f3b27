"""DistributedOptimizer with Horovod's arguments."""

from __future__ import annotations

import inspect
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import ringd.torch as _ringd
import torch

from ..common._errors import horovod_errors
from ..common.exceptions import NotAvailableError
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
        op: Average, Sum, Min, Max or Product.
        gradient_predivide_factor: with Average, divides by it before the sum, by the rest after.
        num_groups: deprecated form of `groups`.
        groups: a number, or lists of parameters to be reduced together. Checked, and left to
            ringd's bucket plan: it changes no result.
        sparse_as_dense: sparse gradients are made dense.
        process_set: whose ranks reduce; on others the optimizer stays as it is.
    """
    if num_groups != 0:
        warnings.warn("num_groups is deprecated: use groups", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    _check_groups(groups)
    if not process_set.included():
        return optimizer
    options = {
        "op": to_ringd(op),
        "backward_passes_per_step": backward_passes_per_step,
        "gradient_predivide_factor": gradient_predivide_factor,
        "sparse_as_dense": sparse_as_dense,
        "process_set": process_set,
        **_compression_option(compression),
    }
    with horovod_errors():
        distributed = _ringd.DistributedOptimizer(
            optimizer, None if named_parameters is None else list(named_parameters), **options
        )
    distributed.__class__ = _translating_class(type(distributed))
    return distributed


def _check_groups(groups: int | Sequence[Sequence[torch.Tensor]] | None) -> None:
    if groups is None:
        return
    if isinstance(groups, int):
        if groups < 1:
            raise ValueError(f"groups is {groups}; a number of groups is 1 at least")
        return
    if not isinstance(groups, list | tuple) or not all(
        isinstance(group, list | tuple) for group in groups
    ):
        raise ValueError("groups is a number or a list of lists of parameters")
    members = [id(tensor) for group in groups for tensor in group]
    if len(set(members)) != len(members):
        raise ValueError("groups has the same parameter twice")


def _compression_option(compression: Any) -> dict[str, Any]:
    """What ringd's optimizer takes for a compressor of Horovod's."""
    if compression is Compression.none:
        return {}
    if "compression" not in inspect.signature(_ringd.DistributedOptimizer).parameters:
        raise NotAvailableError(
            "DistributedOptimizer: compression is not available in this version of ringd; leave it "
            "out"
        )
    return {"compression": compression}
