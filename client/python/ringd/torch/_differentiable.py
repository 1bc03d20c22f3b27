"""Collective operations that autograd sees: those that return new tensors, at once.

Results have gradients where inputs require them. Backward is COLLECTIVE then: all ranks do it, in
the same order. With `g` the gradient that a rank's result gets, an input's gradient is:

- allreduce: the sum of all ranks' g for Sum, their average for Average; for Min and Max the sum
  goes to the ranks that had the result (in equal shares), for Product it is multiplied by the
  others' product. Factors apply again.
- allgather: this rank's rows of the average of all g.
- broadcast: the average of all g on the root, zeros elsewhere.
- alltoall: g's rows on their way back; zeros for rows that were not sent.
- reducescatter: all ranks' g concatenated, times the number of ranks for Sum. Factors apply again.

So it is the gradient of the sum of all ranks' losses for allreduce and alltoall, of their mean for
allgather and broadcast, and the number of ranks times the sum's for reducescatter, as in Horovod.
Operations that are asynchronous, in place or write to `out` have none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .. import _core, _ops
from .._ops import NO_OPTIONS
from .._process_sets import ProcessSet, global_process_set
from .._types import ReduceOp, fitting_wire
from . import _collectives
from ._compression import Compression, Compressor, wire_of
from ._tensors import code_of


def _has_gradient(tensor: Any, out: torch.Tensor | None = None) -> bool:
    if not (torch.is_grad_enabled() and isinstance(tensor, torch.Tensor) and tensor.requires_grad):
        return False
    if out is not None:
        raise ValueError("a result in out= has no gradient: leave out away, or .detach() the input")
    return True


def _grad_name(name: str | None) -> str | None:
    return None if name is None else f"{name}.grad"


def _no_more(gradient: Any, count: int) -> tuple[Any, ...]:
    return (gradient, *[None] * count)


class _Allreduce(torch.autograd.Function):
    """Arguments are those of `allreduce_request`."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, op: int, *options: Any) -> torch.Tensor:
        ctx.op, ctx.options = op, options
        result = _ops.run(_collectives.allreduce_request(tensor, op, *options))
        if op not in (ReduceOp.Average, ReduceOp.Sum):
            ctx.save_for_backward(tensor, result)
        return result

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        name, prescale, postscale, process_set, _, _, wire = ctx.options
        if ctx.op in (ReduceOp.Average, ReduceOp.Sum):
            options = (_grad_name(name), prescale, postscale, process_set)
            return _no_more(allreduce(grad, ctx.op, *options, wire=wire), 8)
        tensor, result = ctx.saved_tensors
        total = allreduce(grad, ReduceOp.Sum, _grad_name(name), process_set=process_set)
        if ctx.op == ReduceOp.Product:
            return _no_more(total * _product_of_others(tensor, name, process_set), 8)
        hit = (tensor == result).to(grad.dtype)
        hits = allreduce(hit, ReduceOp.Sum, _grad_name(name), process_set=process_set)
        return _no_more(total * hit / hits, 8)


def _product_of_others(
    tensor: torch.Tensor, name: str | None, process_set: ProcessSet
) -> torch.Tensor:
    every = allgather(tensor.detach().unsqueeze(0), _grad_name(name), process_set)
    others = [row for rank, row in enumerate(every) if rank != process_set.rank()]
    return torch.stack(others).prod(0) if others else torch.ones_like(tensor)


def allreduce(
    tensor: torch.Tensor,
    op: int = ReduceOp.Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    weight: float | None = None,
    out: torch.Tensor | None = None,
    compression: type[Compressor] = Compression.none,
    wire: str | None = None,
) -> torch.Tensor:
    """Reduces a tensor over all ranks; the result, of the same shape and dtype, on each of them.

    Differentiable.

    Args:
        tensor: same shape and dtype on all ranks.
        op: Average (integers: truncated toward zero), Sum, Min, Max, Product or Adasum (of
            floating-point numbers, without gradient; with a name or below 64 KB every rank needs
            memory for all ranks' tensors). For bool Sum and Max are "or", Product and Min "and".
        name: appears in messages; all ranks must give the same one.
        prescale_factor: multiplies each rank's input.
        postscale_factor: multiplies the result.
        process_set: the ranks that take part.
        weight: of this rank's tensor, at least 0, on all ranks or on none, for Average: the result
            is sum(weight * tensor) / sum(weight). Without gradient.
        out: contiguous tensor for the result. May be `tensor` itself.
        compression: how it travels: one of `Compression` or a Compressor of yours.
        wire: as in `ringd.allreduce`: "bf16", "fp16", "fp8_e4m3" or "fp8_e5m2" between nodes.

    Raises:
        ValueError, TypeError: an argument is wrong on this rank alone.
        MismatchError: ranks differ in shape, dtype, op, factors or name.
        PeerFailedError: a rank has died or left.
    """
    if compression is not Compression.none:
        return _compressed(
            compression,
            tensor,
            out,
            lambda packed: allreduce(
                packed,
                op,
                name,
                prescale_factor,
                postscale_factor,
                process_set,
                weight,
                wire=wire or _wire_of(compression, packed, op, weight),
            ),
        )
    asked = (name, weight, process_set, prescale_factor, postscale_factor, wire)
    if asked == NO_OPTIONS:
        result = _collectives.run_short(tensor, out, op)
        if result is not None:
            return result
    options = (op, name, prescale_factor, postscale_factor, process_set)
    if not _has_gradient(tensor, out):
        return _ops.run(_collectives.allreduce_request(tensor, *options, weight, out, wire))
    if weight is not None or op == ReduceOp.Adasum:
        raise ValueError("Adasum and weighted averages have no gradient: .detach() the input")
    if op in (ReduceOp.Average, ReduceOp.Sum):
        return _Allreduce.apply(tensor, *options, None, None, wire)
    scaled = tensor if prescale_factor == 1.0 else tensor * prescale_factor
    result = _Allreduce.apply(scaled, op, name, 1.0, 1.0, process_set, None, None, wire)
    return result if postscale_factor == 1.0 else result * postscale_factor


def _wire_of(
    compression: type[Compressor], tensor: torch.Tensor, op: int, weight: float | None
) -> str | None:
    if weight is not None or op == ReduceOp.Adasum:
        return None
    return fitting_wire(wire_of(compression), code_of(tensor.dtype))


def _compressed(
    compression: type[Compressor], tensor: torch.Tensor, out: torch.Tensor | None, reduce: Any
) -> torch.Tensor:
    _has_gradient(tensor, out)
    wire, ctx = compression.compress(tensor)
    result = compression.decompress(reduce(wire), ctx)
    return result if out is None else out.copy_(result)


class _GroupedAllreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, options: tuple[Any, ...], *tensors: torch.Tensor) -> Any:
        ctx.options = options
        return tuple(_collectives.grouped_allreduce_async(tensors, *options).wait())

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        op, name, prescale, postscale, process_set, wire = ctx.options
        options = (op, _grad_name(name), prescale, postscale, process_set)
        return None, *_grouped_allreduce(grads, *options, wire)


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    op: int = ReduceOp.Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    compression: type[Compressor] = Compression.none,
    wire: str | None = None,
) -> list[torch.Tensor]:
    """`allreduce` of each tensor of a list, started together. The tensors may differ in dtype.

    wire: of those tensors that can become it. Differentiable. Where one fails the call fails.
    ValueError for an empty list.
    """
    packed = [compression.compress(tensor) for tensor in tensors]
    options = (op, name, prescale_factor, postscale_factor, process_set)
    wire = wire or wire_of(compression)
    results = _grouped_allreduce([each for each, _ in packed], *options, wire)
    return [
        compression.decompress(result, ctx)
        for result, (_, ctx) in zip(results, packed, strict=True)
    ]


def _grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    op: int,
    name: str | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    wire: str | None,
) -> Sequence[torch.Tensor]:
    if op == ReduceOp.Adasum:
        wire = None
    options = (op, name, prescale, postscale, process_set, wire)
    if not any(map(_has_gradient, tensors)):
        return _collectives.grouped_allreduce_async(tensors, *options).wait()
    if op in (ReduceOp.Average, ReduceOp.Sum):
        return _GroupedAllreduce.apply(options, *tensors)
    return [
        allreduce(each, op, its_name, prescale, postscale, process_set)
        for each, its_name in zip(tensors, _collectives.member_names(tensors, name), strict=True)
    ]


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, name: str | None, process_set: ProcessSet
    ) -> torch.Tensor:
        request = _collectives.allgather_request(tensor, name, process_set, with_rows=True)
        result, ctx.rows = _ops.run(request)
        ctx.name, ctx.process_set = name, process_set
        return result

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        mean = allreduce(grad, name=_grad_name(ctx.name), process_set=ctx.process_set)
        return _no_more(_own_rows(mean, ctx.rows, ctx.process_set), 2)


def _own_rows(grad: torch.Tensor, rows: list[int], process_set: ProcessSet) -> torch.Tensor:
    rank = process_set.rank()
    return grad.narrow(0, sum(rows[:rank]), rows[rank])


def allgather(
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """All ranks' tensors, concatenated along the first dimension in rank order. Differentiable.

    The first dimension may differ between ranks, and be 0; the others and the dtype may not.
    ValueError for a tensor without dimensions.
    """
    if _has_gradient(tensor, out):
        return _Allgather.apply(tensor, name, process_set)
    return _ops.run(_collectives.allgather_request(tensor, name, process_set, out))


def grouped_allgather(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """`allgather` of each tensor of a list. Differentiable. ValueError for an empty list."""
    if not any(map(_has_gradient, tensors)):
        return _collectives.grouped_allgather_async(tensors, name, process_set).wait()
    names = _collectives.member_names(tensors, name)
    return [
        allgather(tensor, each, process_set) for tensor, each in zip(tensors, names, strict=True)
    ]


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet
    ) -> torch.Tensor:
        ctx.root_rank, ctx.name, ctx.process_set = root_rank, name, process_set
        return _ops.run(_collectives.broadcast_request(tensor, root_rank, name, process_set))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        mean = allreduce(grad, name=_grad_name(ctx.name), process_set=ctx.process_set)
        if _core.info()[0] != ctx.root_rank:
            mean = mean.masked_fill(torch.ones((), dtype=torch.bool), 0)
        return _no_more(mean, 3)


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The root's tensor, on each rank. `tensor` has the same shape and dtype on all ranks.

    Differentiable. `root_rank` is a rank of the job, within a process set too.
    """
    if _has_gradient(tensor, out):
        return _Broadcast.apply(tensor, root_rank, name, process_set)
    return _ops.run(_collectives.broadcast_request(tensor, root_rank, name, process_set, out))


class _Reducescatter(torch.autograd.Function):
    """Arguments are those of `reducescatter_async`."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, *options: Any) -> torch.Tensor:
        ctx.options = options
        return _ops.run(_collectives.reducescatter_request(tensor, *options))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        op, name, process_set, prescale, postscale = ctx.options
        factor = prescale * postscale * (process_set.size() if op == ReduceOp.Sum else 1)
        gathered = allgather(grad, _grad_name(name), process_set)
        return _no_more(gathered if factor == 1 else gathered * factor, 5)


def reducescatter(
    tensor: torch.Tensor,
    op: int = ReduceOp.Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    out: torch.Tensor | None = None,
    compression: type[Compressor] = Compression.none,
) -> torch.Tensor:
    """This rank's rows of the tensor reduced over all ranks.

    The first dimension is divided among the ranks; the first `rows % size()` ranks get one row
    more. `tensor` has the same shape (at least one dimension) and dtype on all ranks.
    Differentiable for Average and Sum.
    """
    options = (op, name, process_set, prescale_factor, postscale_factor)
    if compression is not Compression.none:
        return _compressed(compression, tensor, out, lambda wire: reducescatter(wire, *options))
    if not _has_gradient(tensor, out):
        return _ops.run(_collectives.reducescatter_request(tensor, *options, out))
    if op not in (ReduceOp.Average, ReduceOp.Sum):
        raise ValueError(
            "reducescatter has a gradient for Average and Sum only: .detach() the input"
        )
    return _Reducescatter.apply(tensor, *options)


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    op: int = ReduceOp.Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    compression: type[Compressor] = Compression.none,
) -> list[torch.Tensor]:
    """`reducescatter` of each tensor of a list, started together.

    Differentiable for Average and Sum. ValueError for an empty list.
    """
    options = (process_set, prescale_factor, postscale_factor)
    packed = [compression.compress(tensor) for tensor in tensors]
    wires = [wire for wire, _ in packed]
    if any(map(_has_gradient, wires)):
        names = _collectives.member_names(wires, name)
        results = [
            reducescatter(wire, op, each, *options) for wire, each in zip(wires, names, strict=True)
        ]
    else:
        results = _collectives.grouped_reducescatter_async(wires, op, name, *options).wait()
    return [
        compression.decompress(result, ctx)
        for result, (_, ctx) in zip(results, packed, strict=True)
    ]


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, splits: Any, name: str | None, process_set: ProcessSet
    ) -> Any:
        ctx.rows, ctx.name, ctx.process_set = tensor.shape[0], name, process_set
        result = _ops.run(_collectives.alltoall_request(tensor, splits, name, process_set))
        ctx.received = None if splits is None else result[1]
        if ctx.received is not None:
            ctx.mark_non_differentiable(ctx.received)
        return result

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, _: Any = None) -> Any:
        back = alltoall(grad, ctx.received, _grad_name(ctx.name), ctx.process_set)
        if ctx.received is not None:
            back = back[0]
            unsent = ctx.rows - back.shape[0]
            if unsent > 0:
                back = torch.cat([back, back.new_zeros(unsent, *back.shape[1:])])
        return _no_more(back, 3)


def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    out: torch.Tensor | None = None,
) -> Any:
    """Sends rows of the first dimension to each rank; what this rank received, in rank order.

    Differentiable.

    Args:
        tensor: at least one dimension; dimensions but the first and the dtype are the same on all
            ranks.
        splits: `size()` integers: rows for each rank. Rows beyond their sum are not sent. None:
            equal shares.

    Returns:
        The tensor; with `splits` a pair: the tensor, and an int32 tensor of the rows that each rank
        sent.
    """
    if _has_gradient(tensor, out):
        return _Alltoall.apply(tensor, splits, name, process_set)
    return _ops.run(_collectives.alltoall_request(tensor, splits, name, process_set, out))
