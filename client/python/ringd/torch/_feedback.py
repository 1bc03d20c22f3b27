"""Error feedback: what gradients lose in narrow types between nodes is added in the next step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from .. import _core
from .._types import fitting_wire, wire_code
from ._tensors import code_of

STATE_KEY = "ringd"  # Of an optimizer's state_dict.


class Feedback:
    """What this rank's gradients have lost so far (sent too little), by parameter.

    The loss is that of this rank's own gradients: each is sent as a number that the narrow type
    has, so that no rounding of it is left to the daemons. Sums of several ranks are rounded on
    their way as ever. Thread-compatible: external synchronisation.
    """

    def __init__(self, wire: str, rank: int, size: int) -> None:
        self._wire = wire
        self._place = {"rank": rank, "size": size}
        self._lost: dict[int, torch.Tensor] = {}  # By the parameter's id.
        self._rounds: list[tuple[int, ...] | None] = []

    def lay_out(self, params: Sequence[torch.Tensor], views: Sequence[torch.Tensor]) -> None:
        """From now on parameters' gradients are sent from these views. What was lost is kept."""
        before, self._lost, self._rounds = self._lost, {}, []
        for param, view in zip(params, views, strict=True):
            dtype = code_of(view.dtype)
            wire = wire_code(fitting_wire(self._wire, dtype), dtype)
            if wire == 0:
                self._rounds.append(None)
                continue
            lost = before.get(id(param))
            if lost is None:
                lost = torch.zeros_like(view)
            self._lost[id(param)] = lost
            places = view.data_ptr(), lost.data_ptr()
            self._rounds.append((dtype, wire, *places, view.numel()))

    def round(self, i: int) -> None:
        """Adds what was lost to the gradient in view i, and rounds it."""
        arguments = self._rounds[i]
        if arguments is not None:
            _core.round_to_wire(*arguments)

    def state(self, params: Iterable[torch.Tensor]) -> dict[str, Any]:
        """What a checkpoint keeps, parameters by their place among `params`."""
        lost = {i: self._lost[id(p)] for i, p in enumerate(params) if id(p) in self._lost}
        return {**self._place, "lost": lost}

    def load(self, params: Iterable[torch.Tensor], state: Mapping[str, Any] | None) -> None:
        """Goes on from `state`. Of another rank, or another number of them, or None: from 0."""
        of_this_rank = state is not None and all(
            state.get(key) == value for key, value in self._place.items()
        )
        found = state["lost"] if state is not None and of_this_rank else {}
        for i, param in enumerate(params):
            lost = self._lost.get(id(param))
            if lost is None:
                continue
            if i in found and found[i].shape == lost.shape:
                lost.copy_(found[i])
            else:
                lost.zero_()
