"""Model parameters and optimizer state from one rank to all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch

from .. import _ops
from .._objects import broadcast_object
from .._process_sets import ProcessSet, global_process_set, group_of
from ._agreement import agree, entry_of
from ._collectives import broadcast_in_place_request
from ._feedback import STATE_KEY
from ._tensors import check_tensor, is_plain

# Operations in flight at a time: enough to keep the network busy, few enough to bound the copies.
_BATCH = 64


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[tuple[str, Any]],
    root_rank: int = 0,
    process_set: ProcessSet = global_process_set,
) -> None:
    """COLLECTIVE: overwrites tensors on all ranks, in place, by those of the root.

    Args:
        params: `model.state_dict()`, or `model.named_parameters()` or a list of such pairs. Values
            that are no tensors are left alone. All ranks have the same names, shapes and dtypes.
        root_rank: whose values count; a rank of the job.
        process_set: the ranks that take part.

    Raises:
        MismatchError: names, shapes or dtypes differ; it names rank and tensor.
        ValueError: something else than pairs of name and tensor, a name twice, or a tensor that is
            not on the CPU.
    """
    group_of(process_set).rank_of(root_rank)
    pairs = sorted(params.items()) if isinstance(params, Mapping) else list(params)
    tensors: dict[str, torch.Tensor] = {}
    for pair in pairs:
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)):
            raise ValueError(
                "params is a state_dict or pairs of name and tensor, such as "
                "model.named_parameters()"
            )
        name, value = pair
        if not isinstance(value, torch.Tensor):
            continue
        if name in tensors:
            raise ValueError(f"params has the name '{name}' twice")
        check_tensor(value)
        tensors[name] = value
    entries = [entry_of(*item) for item in tensors.items()]
    agree("broadcast_parameters", entries, process_set=process_set)
    _broadcast_all(list(tensors.items()), root_rank, process_set)


def _broadcast_all(
    tensors: list[tuple[str, torch.Tensor]], root_rank: int, process_set: ProcessSet
) -> None:
    for start in range(0, len(tensors), _BATCH):
        batch = tensors[start : start + _BATCH]
        plain = [
            tensor if is_plain(tensor) else tensor.detach().contiguous().resolve_neg()
            for _, tensor in batch
        ]
        _ops.start_group(
            [
                broadcast_in_place_request(memory, root_rank, name, process_set)
                for (name, _), memory in zip(batch, plain, strict=True)
            ]
        ).wait()
        with torch.no_grad():
            for (_, tensor), memory in zip(batch, plain, strict=True):
                if memory is not tensor:
                    tensor.copy_(memory)


class _TensorPlace(NamedTuple):
    """Stands for a tensor in a structure that travels as an object."""

    name: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int = 0,
    model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """COLLECTIVE: gives all ranks the root's optimizer state and options (learning rate, ...).

    The state may be anything that `state_dict()` returns, and may be missing on ranks other than
    the root: no step is run to make it. Numbers stay numbers, tensors stay tensors.

    Args:
        optimizer: of the same class and parameters on all ranks.
        root_rank: whose state counts.
        model: for Horovod's sake; not needed.
        process_set: the ranks that take part.

    Raises:
        ValueError: this rank's optimizer has other parameter groups than the root's, or its state
            has a tensor that is not on the CPU.
    """
    group = group_of(process_set)
    is_root = group.rank == group.rank_of(root_rank)
    found: dict[str, torch.Tensor] = {}
    structure = None
    if is_root:
        # What gradients have lost is each rank's own.
        state = {key: each for key, each in optimizer.state_dict().items() if key != STATE_KEY}
        structure = _take_tensors(state, "optimizer", found)
    structure = broadcast_object(structure, root_rank, process_set=process_set)
    if not is_root:
        state = _put_tensors(structure, found)
    _broadcast_all(list(found.items()), root_rank, process_set)
    if not is_root:
        optimizer.load_state_dict(state)


def _take_tensors(value: Any, path: str, found: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        check_tensor(value)
        found[path] = value
        return _TensorPlace(path, tuple(value.shape), value.stride(), value.dtype)
    return _rebuild(value, path, lambda item, at: _take_tensors(item, at, found))


def _put_tensors(value: Any, found: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, _TensorPlace):
        tensor = torch.empty_strided(value.shape, value.stride, dtype=value.dtype)
        found[value.name] = tensor
        return tensor
    return _rebuild(value, "", lambda item, _: _put_tensors(item, found))


def _rebuild(value: Any, path: str, change: Any) -> Any:
    """A dict, list or tuple with its items changed; other values as they are."""
    if isinstance(value, Mapping):
        items = {key: change(item, f"{path}.{key}") for key, item in value.items()}
        return items if type(value) is dict else _like(value, items)
    if isinstance(value, list | tuple):
        changed = [change(item, f"{path}.{i}") for i, item in enumerate(value)]
        if isinstance(value, list):
            return changed
        return type(value)(*changed) if hasattr(value, "_fields") else tuple(changed)
    return value


def _like(value: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    try:
        copy = value.copy()  # Keeps a defaultdict's factory.
        copy.update(items)
        return copy
    except AttributeError:
        return items
