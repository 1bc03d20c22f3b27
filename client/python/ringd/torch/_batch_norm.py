"""SyncBatchNorm: batch normalisation over all ranks' batches."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch.nn.modules.batchnorm import _BatchNorm

from .. import _ops
from .._process_sets import ProcessSet, global_process_set, group_of
from .._types import ReduceOp
from ._collectives import allreduce_
from ._tensors import buffer_of


class _Normalise(torch.autograd.Function):
    """Batch normalisation by statistics of all ranks; also their mean and unbiased variance."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        eps: float,
        process_set: ProcessSet,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        mean, variance, count = _merge(_gather(_statistics(x), process_set))
        if count <= 1:
            raise ValueError(
                f"SyncBatchNorm needs more than 1 value per channel in training; {count:.0f} on "
                "all ranks together"
            )
        precise = torch.float64 if x.dtype == torch.float64 else torch.float32
        narrow = [each.to(precise) for each in (mean, variance)]
        ctx.save_for_backward(x, weight, narrow[0], (variance + eps).rsqrt().to(precise))
        ctx.count, ctx.process_set = count, process_set
        result = F.batch_norm(x, *narrow, weight, bias, training=False, eps=eps)
        unbiased = variance * (count / (count - 1))
        ctx.mark_non_differentiable(mean, unbiased)
        return result, mean, unbiased

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: torch.Tensor, *_: Any) -> Any:
        x, weight, mean, inverse = ctx.saved_tensors
        per_channel = _per_channel(x)
        grad = grad.to(mean.dtype)
        normal = (x.to(mean.dtype) - per_channel(mean)) * per_channel(inverse)
        dims = _other_dims(x)
        sums = torch.stack([grad.sum(dims), (grad * normal).sum(dims)])
        grad_weight, grad_bias = sums[1].clone(), sums[0].clone()
        grad_x = None
        if ctx.needs_input_grad[0]:
            # Of all ranks: how the input moves the mean and the deviation.
            allreduce_(sums, ReduceOp.Sum, process_set=ctx.process_set)
            scale = inverse if weight is None else inverse * weight
            shift = per_channel(sums[0] / ctx.count)
            slope = per_channel(sums[1] / ctx.count)
            grad_x = (per_channel(scale) * (grad - shift - normal * slope)).to(x.dtype)
        if weight is None:
            return grad_x, None, None, None, None
        return grad_x, grad_weight.to(weight.dtype), grad_bias.to(weight.dtype), None, None


def _other_dims(x: torch.Tensor) -> list[int]:
    return [0, *range(2, x.ndim)]


def _per_channel(x: torch.Tensor) -> Any:
    """Makes a tensor of one number per channel fit x."""
    shape = (1, -1, *[1] * (x.ndim - 2))
    return lambda tensor: tensor.view(shape)


def _statistics(x: torch.Tensor) -> torch.Tensor:
    """Of each channel: mean and squared deviations from it; then how many values it has."""
    precise = x if x.dtype in (torch.float32, torch.float64) else x.float()
    channels, count = x.shape[1], x.numel() // max(x.shape[1], 1)
    result = torch.zeros(2 * channels + 1, dtype=torch.float64)
    if count > 0:
        variance, mean = torch.var_mean(precise, _other_dims(x), correction=0)
        result[:channels] = mean
        result[channels:-1] = variance.double() * count
        result[-1] = count
    return result


def _gather(own: torch.Tensor, process_set: ProcessSet) -> torch.Tensor:
    """COLLECTIVE: a row of each rank."""
    group = group_of(process_set)
    every = torch.empty((group.size, own.numel()), dtype=own.dtype)
    request = _ops.allgather_alike(buffer_of(own), buffer_of(every), lambda: every, None, group)
    return _ops.run(request)


def _merge(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Mean, variance and count of all ranks' values (Chan, Golub and LeVeque, 1979)."""
    channels = (rows.shape[1] - 1) // 2
    means, deviations, counts = rows[:, :channels], rows[:, channels:-1], rows[:, -1:]
    count = counts.sum().item()
    mean = (means * counts).sum(0) / max(count, 1)
    between = ((means - mean) ** 2 * counts).sum(0)
    return mean, (deviations.sum(0) + between) / max(count, 1), count


class SyncBatchNorm(_BatchNorm):
    """Batch normalisation whose statistics in training are those of all ranks' batches together.

    Output, gradients and running statistics are those that one process has on the joined batch;
    gradients of weight and bias are this rank's part, to be summed or averaged as others are. The
    ranks' batches may differ in size, and be empty. One message forward, one backward.

    In training forward is COLLECTIVE, and so is backward. In evaluation (and with one rank) this is
    `torch.nn.BatchNorm`.

    Args:
        num_features: channels: input and output are `(N, C, ...)`, of a floating-point dtype, on
            the CPU.
        eps: added to the variance.
        momentum: weight of a batch in the running statistics; None: the mean of all batches.
        affine: learn a weight and a bias per channel.
        track_running_stats: keep running statistics for evaluation.
        process_set: the ranks that take part.

    Raises:
        ValueError: an input of fewer than two dimensions or of other channels, or a joined batch of
            one value per channel.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_set: ProcessSet = global_process_set,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device=device, dtype=dtype
        )
        self.process_set = process_set

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.ndim < 2:
            raise ValueError(f"SyncBatchNorm: an input of {input.ndim} dimensions; 2 are the least")
        if input.shape[1] != self.num_features:
            raise ValueError(
                f"SyncBatchNorm: an input of {input.shape[1]} channels, not {self.num_features}"
            )

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalises `(N, C, ...)`; the result has the same shape, dtype and strides."""
        self._check_input_dim(input)
        if not self.training or group_of(self.process_set).size == 1:
            return super().forward(input)
        result, mean, variance = _Normalise.apply(
            input, self.weight, self.bias, self.eps, self.process_set
        )
        if self.track_running_stats:
            self._track(mean, variance)
        return result

    @torch.no_grad()
    def _track(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        momentum = self.momentum
        if momentum is None:
            momentum = 1.0 / float(self.num_batches_tracked)
        for running, now in ((self.running_mean, mean), (self.running_var, variance)):
            assert running is not None
            running.lerp_(now.to(running.dtype), momentum)

    @classmethod
    def convert_sync_batchnorm(
        cls, module: torch.nn.Module, process_set: ProcessSet = global_process_set
    ) -> torch.nn.Module:
        """The module with each `torch.nn.BatchNorm*d` in it replaced, sharing parameters."""
        if isinstance(module, _BatchNorm) and not isinstance(module, cls):
            made = cls(
                module.num_features,
                module.eps,
                module.momentum,
                module.affine,
                module.track_running_stats,
                process_set,
            )
            made.weight, made.bias = module.weight, module.bias
            made.running_mean, made.running_var = module.running_mean, module.running_var
            made.num_batches_tracked = module.num_batches_tracked
            made.training = module.training
            return made
        for name, child in module.named_children():
            module.add_module(name, cls.convert_sync_batchnorm(child, process_set))
        return module
