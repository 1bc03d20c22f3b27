"""allreduce of sparse tensors (nn.Embedding(sparse=True) below DistributedDataParallel)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ._work import RingdWork

if TYPE_CHECKING:
    from ._group import RingdProcessGroup


def allreduce(group: RingdProcessGroup, tensor: torch.Tensor, options: Any) -> RingdWork:
    """Sums the ranks' sparse tensors, in place. Blocks until all ranks have called it."""
    asked = getattr(options, "reduceOp", options)
    if asked is not None and getattr(asked, "op", asked) != dist.ReduceOp.SUM:
        raise ValueError("a sparse tensor can be reduced with ReduceOp SUM only")
    mine = tensor.detach().coalesce()
    size = group.size()
    lengths = torch.zeros(size, dtype=torch.int64)
    group._allgather_base(lengths, torch.tensor([mine._nnz()])).wait()
    indices, values = mine.indices(), mine.values()
    all_indices = [indices.new_empty((indices.shape[0], n)) for n in lengths.tolist()]
    all_values = [values.new_empty((n, *values.shape[1:])) for n in lengths.tolist()]
    works = [
        group.allgather([all_indices], [indices.contiguous()]),
        group.allgather([all_values], [values.contiguous()]),
    ]

    def finish() -> None:
        for work in works:
            work.wait()
        total = torch.sparse_coo_tensor(
            torch.cat(all_indices, dim=1), torch.cat(all_values), tensor.shape
        )
        tensor.copy_(total.coalesce())

    return group._work([], [finish], works, [tensor], options)
