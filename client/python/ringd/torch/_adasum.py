"""DistributedOptimizer with op=Adasum: ranks step alone, and combine how far they went."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from .._errors import RingdError
from .._process_sets import ProcessSet
from .._types import ReduceOp
from ._compression import Compressor
from ._differentiable import grouped_allreduce


class AdasumOptions(NamedTuple):
    """How steps are combined; the same on all ranks."""

    compression: type[Compressor]
    process_set: ProcessSet
    is_member: bool


class AdasumDistributed:
    """Put before the user's optimizer class: its steps become Adasum of all ranks' steps.

    Each rank's optimizer steps from the same parameters by its own gradients; what it added to a
    parameter is combined with what the others added (`allreduce` with op=Adasum, by parameter).
    """

    _ringd_adasum: AdasumOptions

    def step(self, closure: Callable[[], Any] | None = None, **options: Any) -> Any:
        """COLLECTIVE: the base class's step, and the combination."""
        combining = self.__dict__.get("_ringd_adasum")
        if combining is None:
            raise RingdError(
                "this optimizer is a copy of a distributed one: pass it to DistributedOptimizer"
            )
        base: Any = super()
        if not combining.is_member:
            return base.step(closure=closure, **options)
        groups = self.param_groups  # type: ignore[attr-defined]
        params = [param for group in groups for param in group["params"]]
        before = [param.detach().clone() for param in params]
        result = base.step(closure=closure, **options)
        with torch.no_grad():
            moved = [param.detach() - old for param, old in zip(params, before, strict=True)]
            together = grouped_allreduce(
                moved,
                ReduceOp.Adasum,
                process_set=combining.process_set,
                compression=combining.compression,
            )
            for param, old, delta in zip(params, before, together, strict=True):
                param.copy_(old + delta)
        return result

    def synchronize(self) -> None:
        """Nothing: gradients are not reduced."""

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """An AssertionError, as in Horovod: there is no step without the combination."""
        raise AssertionError("skip_synchronize() is not for op=Adasum")
        yield  # pragma: no cover
