"""Sparse tensors between ranks: indices and values travel, zeros don't."""

from __future__ import annotations

import itertools
from typing import Any

import torch

from .. import _ops
from .._errors import MismatchError
from .._handles import Handle
from .._process_sets import ProcessSet, global_process_set
from .._types import ReduceOp, signature
from ._collectives import allgather_request
from ._tensors import code_of


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str | None,
    op: int,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Starts the sum or average of sparse tensors over all ranks.

    Blocks until all ranks have started it: they exchange their sizes. The result, by
    `synchronize(handle)`, is a sparse tensor of the same shape with all ranks' indices: those that
    several ranks have come several times, and their values add up (`.coalesce()`, `.to_dense()`).

    Args:
        tensor: of layout torch.sparse_coo, coalesced or not; same shape, dtype and sparse
            dimensions on all ranks, any number of indices.
        name: appears in messages; all ranks must give the same one.
        op: Sum or Average.
        process_set: the ranks that take part.

    Raises:
        TypeError, ValueError: no tensor, not sparse, another op.
        MismatchError: ranks differ in shape, dtype or sparse dimensions.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"a torch.Tensor is needed, not a {type(tensor).__name__}")
    if tensor.layout is not torch.sparse_coo:
        raise ValueError(f"a tensor of layout {tensor.layout}; .to_sparse() makes it sparse_coo")
    if op not in (ReduceOp.Average, ReduceOp.Sum):
        raise ValueError("a sparse allreduce is for op=Average or op=Sum")
    merged = tensor.detach().coalesce()
    dims = torch.tensor([tensor.shape[: tensor.sparse_dim()]])
    names = [None, None] if name is None else [f"{name}.indices", f"{name}.values"]
    places = torch.cat([dims, merged.indices().t()])  # The first row lets ranks compare shapes.
    requests = [
        allgather_request(places, names[0], process_set, with_rows=True),
        allgather_request(merged.values(), names[1], process_set),
    ]
    divisor = process_set.size() if op == ReduceOp.Average else 1

    def join(gathered: Any) -> torch.Tensor:
        (told, rows), values = gathered
        indices = _without_dims(told, rows, tensor, name)
        if divisor != 1:
            values = values / divisor
        return torch.sparse_coo_tensor(indices.t(), values, tensor.shape, check_invariants=False)

    return _ops.start_group(requests).map(join)


def _without_dims(
    told: torch.Tensor, rows: list[int], tensor: torch.Tensor, name: str | None
) -> torch.Tensor:
    """All ranks' indices. MismatchError where ranks have other dimensions."""
    starts = list(itertools.accumulate(rows[:-1], initial=0))
    for rank, start in enumerate(starts):
        if torch.equal(told[start], told[0]):
            continue
        dense, dtype = tensor.shape[tensor.sparse_dim() :], code_of(tensor.dtype)
        values = tuple(signature(dtype, (*told[at].tolist(), *dense)) for at in (0, start))
        label = "sparse_allreduce" if name is None else f"sparse_allreduce '{name}'"
        raise MismatchError(
            f"{label} is not the same on all ranks: rank 0 has {values[0]}, rank {rank} has "
            f"{values[1]}",
            () if name is None else (name,),
            (0, rank),
            values,
        )
    keep = torch.ones(len(told), dtype=torch.bool)
    keep[starts] = False
    return told[keep]


def empty_like(param: torch.Tensor) -> torch.Tensor:
    """A sparse tensor of the parameter's shape without indices, as an embedding's gradient."""
    indices = torch.empty((1, 0), dtype=torch.int64)
    values = torch.empty((0, *param.shape[1:]), dtype=param.dtype)
    return torch.sparse_coo_tensor(indices, values, param.shape, check_invariants=False)


def sum_gradient(
    param: torch.Tensor, grad: torch.Tensor | None, name: str, op: int, process_set: ProcessSet
) -> torch.Tensor:
    """COLLECTIVE: the reduced gradient, coalesced. None and dense gradients are taken too."""
    if grad is None:
        grad = empty_like(param)
    elif grad.layout is torch.strided:
        grad = grad.detach().to_sparse(1)
    return sparse_allreduce_async(grad, name, op, process_set).wait().coalesce()
