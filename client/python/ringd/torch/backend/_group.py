"""The process group: what torch.distributed and PyTorch's C++ call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from ..._types import UINT8, Operation, ReduceOp
from . import _buckets, _memory, _sparse, _uneven
from ._base import Finish, GroupBase
from ._channel import HAS_GROUPS, RECV, SEND, counts_of, even_counts
from ._work import RingdWork

_RedOpType = dist.ReduceOp.RedOpType
_REDUCTIONS = {  # By value: hashing the enumeration's members takes longer than all else here.
    _RedOpType.SUM.value: int(ReduceOp.Sum),
    _RedOpType.AVG.value: int(ReduceOp.Average),
    _RedOpType.MIN.value: int(ReduceOp.Min),
    _RedOpType.MAX.value: int(ReduceOp.Max),
    _RedOpType.PRODUCT.value: int(ReduceOp.Product),
}
_AVERAGE = int(ReduceOp.Average)
_NO_ANY_SOURCE = "receiving from any rank is not available in this version of ringd: name a sender"
_NO_SEND = (
    "send and recv are not available in this version of ringd; use broadcast, scatter or all_to_all"
)

_MAX_TAG = 65535

Tensors = Sequence[torch.Tensor]


def _reduction(options: Any, dtype: torch.dtype) -> int:
    """The number of the reduction that options ask for; they may be a ReduceOp themselves."""
    asked = dist.ReduceOp.SUM if options is None else getattr(options, "reduceOp", options)
    kind = getattr(asked, "op", asked)
    number = _REDUCTIONS.get(getattr(kind, "value", None))
    if number is None:
        name = getattr(kind, "name", asked)
        raise ValueError(f"ReduceOp {name}: ringd has SUM, AVG, MIN, MAX and PRODUCT")
    if number == _AVERAGE and dtype == torch.bool:
        raise ValueError("bool has no average: use SUM (or) or PRODUCT (and)")
    return number


def _one(tensors: Any, what: str) -> Any:
    """The only element of a list; a tensor as it is."""
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise ValueError(f"{what} takes one tensor a rank, not {len(tensors)}")
    return tensors[0]


def _is_awaited(options: Any) -> bool:
    """Whether the caller waits at once; PyTorch tells since 2.6."""
    return getattr(options, "asyncOp", None) is False


def _root(options: Any) -> int:
    return options if isinstance(options, int) else options.rootRank


class RingdProcessGroup(GroupBase):
    """A process group whose collectives ringd carries out. CPU tensors only.

    Methods are those of ProcessGroup, under the names of all PyTorch versions, and take lists of
    one tensor as C++ passes them. COLLECTIVE, all of them: every rank of the group calls the same
    ones in the same order; which thread does it doesn't matter. They start the operation and
    return its Work.

    Errors: ValueError or TypeError for what is wrong on this rank alone; RingdError and those below
    it from wait().
    """

    # Reductions.

    def _reduce_in_place(
        self, tensor: torch.Tensor, options: Any
    ) -> tuple[int, Finish | None, Any]:
        memory, finish = _memory.inout_of(tensor)
        code = _memory.code_to_reduce(memory)
        start, count = memory.data_ptr(), memory.numel()
        handle = self._channel.submit(
            Operation.ALLREDUCE,
            code,
            start,
            count,
            start,
            count,
            _reduction(options, memory.dtype),
            awaited=_is_awaited(options),
        )
        return handle, finish, memory

    def allreduce(self, tensors: Any, opts: Any = None, timeout: Any = None) -> RingdWork:
        """Reduces the ranks' tensors, in place. A sparse one blocks until all ranks have called."""
        tensor = _one(tensors, "allreduce")
        if tensor.is_sparse:
            return _sparse.allreduce(self, tensor, opts)
        if self._channel.size > 1 and _buckets.is_bucket(tensor):
            place = self._places.place_of(tensor)
            if place is not None:
                return self._reduce_bucket(tensor, place, opts)
        handle, finish, memory = self._reduce_in_place(tensor, opts)
        return self._work([handle], [finish], memory, [tensor], opts, tensor.nbytes)

    def _reduce_bucket(self, bucket: torch.Tensor, place: torch.Tensor, options: Any) -> RingdWork:
        reduction = _reduction(options, bucket.dtype)
        handles = _buckets.submit(self._channel, bucket, place, reduction)
        limit_us = self._limit_us(options)
        rest = (handles, (), place, [place], limit_us, self._completer, False)
        return self._hold(_buckets.BucketWork(bucket, *rest))

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> RingdWork:
        """allreduce of each tensor."""
        if not isinstance(tensors, (list, tuple)):
            tensors = [tensors]
        started = [self._reduce_in_place(tensor, opts) for tensor in tensors]
        handles, finish, keep = zip(*started, strict=True) if started else ((), (), ())
        nbytes = max((tensor.nbytes for tensor in tensors), default=0)
        return self._work(list(handles), finish, keep, list(tensors), opts, nbytes)

    def reduce(self, tensors: Any, opts: Any, op: Any = None, timeout: Any = None) -> RingdWork:
        """Reduces the ranks' tensors into the root's. The others' stay as they are."""
        tensor = _one(tensors, "reduce")
        source = _memory.source_of(tensor)
        code = _memory.code_to_reduce(source)
        finish: Finish | None = None
        if _root(opts) == self._channel.rank:
            target, finish = _memory.inout_of(tensor)
            source = target
        else:
            target = _memory.scratch(source.numel(), source.dtype)
        handle = self._channel.submit(
            Operation.ALLREDUCE,
            code,
            source.data_ptr(),
            source.numel(),
            target.data_ptr(),
            target.numel(),
            _reduction(opts if op is None else op, source.dtype),
        )
        keep = (source, target)
        return self._work([handle], [finish], keep, [tensor], opts, tensor.nbytes)

    def _scatter_reduced(
        self, output: torch.Tensor, source: int, counts: list[int] | int, options: Any
    ) -> tuple[int, Finish | None, Any]:
        size = self._channel.size
        target, finish = _memory.target_of(output)
        total = counts * size if isinstance(counts, int) else sum(counts)
        handle = self._channel.submit(
            Operation.REDUCESCATTER,
            _memory.code_to_reduce(target),
            source,
            total,
            target.data_ptr(),
            target.numel(),
            _reduction(options, target.dtype),
            0,
            even_counts(counts, size) if isinstance(counts, int) else counts_of(counts),
        )
        return handle, finish, target

    def reduce_scatter(
        self, output: Any, inputs: Any, opts: Any = None, timeout: Any = None
    ) -> RingdWork:
        """Reduces the ranks' lists; each rank gets the element of its number."""
        output = _one(output, "reduce_scatter")
        parts = _parts(inputs, self._channel.size, "reduce_scatter")
        _memory.check_alike([output], parts[0].dtype)
        if output.numel() != parts[self._channel.rank].numel():
            raise ValueError("reduce_scatter: the output has not the size of this rank's input")
        start, owner = _memory.joined_source(parts)
        counts = [part.numel() for part in parts]
        handle, finish, target = self._scatter_reduced(output, start, counts, opts)
        return self._work([handle], [finish], (owner, target), [output], opts, output.nbytes)

    def _reduce_scatter_tensor(
        self, output: torch.Tensor, tensor: torch.Tensor, options: Any
    ) -> tuple[int, Finish | None, Any]:
        source = _memory.source_of(tensor)
        _memory.check_alike([output], source.dtype)
        if source.numel() != output.numel() * self._channel.size:
            raise ValueError(
                f"reduce_scatter_tensor: the input has {source.numel()} elements, the output "
                f"{output.numel()}, and there are {self._channel.size} ranks"
            )
        handle, finish, target = self._scatter_reduced(
            output, source.data_ptr(), output.numel(), options
        )
        return handle, finish, (source, target)

    def _reduce_scatter_base(
        self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None, timeout: Any = None
    ) -> RingdWork:
        """Reduces the ranks' tensors; each rank gets its part of the first dimension."""
        handle, finish, keep = self._reduce_scatter_tensor(output, tensor, opts)
        return self._work([handle], [finish], keep, [output], opts, output.nbytes)

    reduce_scatter_single = _reduce_scatter_base

    def reduce_scatter_tensor_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> RingdWork:
        """_reduce_scatter_base of each pair."""
        started = [
            self._reduce_scatter_tensor(output, tensor, opts)
            for output, tensor in zip(outputs, inputs, strict=True)
        ]
        handles, finish, keep = zip(*started, strict=True) if started else ((), (), ())
        nbytes = max((tensor.nbytes for tensor in outputs), default=0)
        return self._work(list(handles), finish, keep, list(outputs), opts, nbytes)

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    # Movements.

    def broadcast(self, tensors: Any, opts: Any, timeout: Any = None) -> RingdWork:
        """Copies the root's tensor to all ranks'."""
        tensor = _one(tensors, "broadcast")
        root = _root(opts)
        memory, finish = (
            _memory.inout_of(tensor) if root == self._channel.rank else _memory.target_of(tensor)
        )
        code, width = _memory.code_to_move(memory.dtype)
        start, count = memory.data_ptr(), memory.numel() * width
        handle = self._channel.submit(
            Operation.BROADCAST,
            code,
            start,
            count,
            start,
            count,
            0,
            root,
            awaited=_is_awaited(opts),
        )
        return self._work([handle], [finish], memory, [tensor], opts, tensor.nbytes)

    def allgather(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None
    ) -> RingdWork:
        """Gathers the ranks' tensors into each rank's list. They may differ in size."""
        tensor = _one(inputs, "allgather")
        parts = _parts(outputs, self._channel.size, "allgather")
        if parts[self._channel.rank].numel() != tensor.numel():
            raise ValueError("allgather: this rank's output has not the size of its input")
        source = _memory.source_of(tensor)
        _memory.check_alike(parts[:1], source.dtype)
        start, owner, finish = _memory.joined_target(parts)
        code, width = _memory.code_to_move(source.dtype)
        counts = [part.numel() * width for part in parts]
        even = len(set(counts)) == 1
        handle = self._channel.submit(
            Operation.ALLGATHER,
            code,
            source.data_ptr(),
            source.numel() * width,
            start,
            sum(counts),
            counts=None if even else counts_of(counts),
        )
        keep = (source, owner)
        nbytes = sum(counts) * tensor.itemsize
        return self._work([handle], [finish], keep, [list(parts)], opts, nbytes)

    def allgather_coalesced(
        self, output_lists: Sequence[Tensors], inputs: Tensors, opts: Any = None
    ) -> RingdWork:
        """allgather of each input; `output_lists` has a list for each of them."""
        works = [
            self.allgather([list(outputs)], [tensor], opts)
            for outputs, tensor in zip(output_lists, inputs, strict=True)
        ]
        return self._joined(works, [list(outputs) for outputs in output_lists], opts)

    def _joined(self, works: list[RingdWork], outputs: Any, options: Any) -> RingdWork:
        return self._work([], [work.wait_step for work in works], works, outputs, options)

    def _gather_tensor(
        self, output: torch.Tensor, tensor: torch.Tensor
    ) -> tuple[int, Finish | None, Any]:
        source = _memory.source_of(tensor)
        target, finish = _memory.target_of(output)
        _memory.check_alike([target], source.dtype)
        if target.numel() != source.numel() * self._channel.size:
            raise ValueError(
                f"all_gather_into_tensor: the output has {target.numel()} elements, the input "
                f"{source.numel()}, and there are {self._channel.size} ranks"
            )
        code, width = _memory.code_to_move(source.dtype)
        handle = self._channel.submit(
            Operation.ALLGATHER,
            code,
            source.data_ptr(),
            source.numel() * width,
            target.data_ptr(),
            target.numel() * width,
        )
        return handle, finish, (source, target)

    def _allgather_base(
        self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None, timeout: Any = None
    ) -> RingdWork:
        """Gathers the ranks' tensors, one after the other, into each rank's output."""
        handle, finish, keep = self._gather_tensor(output, tensor)
        return self._work([handle], [finish], keep, [output], opts, output.nbytes)

    all_gather_single = _allgather_base

    def allgather_into_tensor_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> RingdWork:
        """_allgather_base of each pair."""
        started = [
            self._gather_tensor(output, tensor)
            for output, tensor in zip(outputs, inputs, strict=True)
        ]
        handles, finish, keep = zip(*started, strict=True) if started else ((), (), ())
        nbytes = max((tensor.nbytes for tensor in outputs), default=0)
        return self._work(list(handles), finish, keep, list(outputs), opts, nbytes)

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def gather(self, outputs: Any, inputs: Any, opts: Any, timeout: Any = None) -> RingdWork:
        """Gathers the ranks' tensors, of one size, into the root's list."""
        tensor = _one(inputs, "gather")
        size, root = self._channel.size, _root(opts)
        source = _memory.source_of(tensor)
        start, owner, finish, parts = 0, None, None, []
        if root == self._channel.rank:
            parts = _parts(outputs, size, "gather")
            _memory.check_alike(parts[:1], source.dtype)
            if any(part.numel() != source.numel() for part in parts):
                raise ValueError("gather: outputs and input differ in size")
            start, owner, finish = _memory.joined_target(parts)
        code, width = _memory.code_to_move(source.dtype)
        count = source.numel() * width
        counts = [count if to == root else 0 for _ in range(size) for to in range(size)]
        handle = self._channel.submit(
            Operation.ALLTOALL,
            code,
            source.data_ptr(),
            count,
            start,
            count * len(parts),
            counts=counts_of(counts),
        )
        keep = (source, owner)
        return self._work([handle], [finish], keep, [list(parts)], opts, count * len(parts))

    def scatter(self, outputs: Any, inputs: Any, opts: Any, timeout: Any = None) -> RingdWork:
        """Gives each rank the element of its number in the root's list, all of one size."""
        output = _one(outputs, "scatter")
        size, root = self._channel.size, _root(opts)
        target, finish = _memory.target_of(output)
        start, owner, parts = 0, None, []
        if root == self._channel.rank:
            parts = _parts(inputs, size, "scatter")
            _memory.check_alike(parts[:1], target.dtype)
            if any(part.numel() != target.numel() for part in parts):
                raise ValueError("scatter: inputs and output differ in size")
            start, owner = _memory.joined_source(parts)
        code, width = _memory.code_to_move(target.dtype)
        count = target.numel() * width
        counts = [count if by == root else 0 for by in range(size) for _ in range(size)]
        handle = self._channel.submit(
            Operation.ALLTOALL,
            code,
            start,
            count * len(parts),
            target.data_ptr(),
            count,
            counts=counts_of(counts),
        )
        keep = (owner, target)
        return self._work([handle], [finish], keep, [output], opts, output.nbytes)

    def alltoall_base(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Any = None,
        timeout: Any = None,
    ) -> RingdWork:
        """Sends rows of the first dimension to each rank. No splits: equal shares.

        With splits the ranks tell one another theirs first. All ranks give splits, or none does.
        """
        if len(input_splits) or len(output_splits):
            return _uneven.alltoall_rows(self, output, tensor, output_splits, input_splits, opts)
        size = self._channel.size
        source = _memory.source_of(tensor)
        target, finish = _memory.target_of(output)
        _memory.check_alike([target], source.dtype)
        if source.numel() != target.numel() or source.numel() % size:
            raise ValueError(
                f"all_to_all_single without splits: input and output have {source.numel()} and "
                f"{target.numel()} elements; {size} ranks need equal shares"
            )
        code, width = _memory.code_to_move(source.dtype)
        count = source.numel() * width
        handle = self._channel.submit(
            Operation.ALLTOALL,
            code,
            source.data_ptr(),
            count,
            target.data_ptr(),
            count,
            counts=even_counts(count // size, size * size),
        )
        keep = (source, target)
        return self._work([handle], [finish], keep, [output], opts, output.nbytes)

    all_to_all_single = alltoall_base

    def alltoall(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None, timeout: Any = None
    ) -> RingdWork:
        """Sends a tensor to each rank. The ranks tell one another their sizes first."""
        return _uneven.alltoall_list(self, outputs, inputs, opts)

    def barrier(self, opts: Any = None, timeout: Any = None) -> RingdWork:
        """Over when all ranks have called it; what this rank started before is over then, too."""
        earlier = [work.settle_quietly for work in self._channel.pending()]
        handle = self._channel.submit(Operation.BARRIER, UINT8, 0, 0, 0, 0)
        return self._work([handle], earlier, None, [], opts)

    # Between two ranks.

    def send(self, tensors: Any, dst_rank: int, tag: int = 0) -> RingdWork:
        """Sends a tensor to a rank of the group. Over when it has been received."""
        tensor = _one(tensors, "send")
        source = _memory.source_of(tensor)
        return self._message(SEND, source, None, dst_rank, tag, tensor)

    def recv(self, tensors: Any, src_rank: int, tag: int = 0) -> RingdWork:
        """Receives a tensor from a rank of the group."""
        tensor = _one(tensors, "recv")
        target, finish = _memory.target_of(tensor)
        work = self._message(RECV, target, finish, src_rank, tag, tensor)
        work.source = src_rank
        return work

    def _message(
        self,
        operation: int,
        memory: torch.Tensor,
        finish: Finish | None,
        peer: int,
        tag: int,
        tensor: torch.Tensor,
    ) -> RingdWork:
        if not HAS_GROUPS:
            raise NotImplementedError(_NO_SEND)
        if peer == self._channel.rank or not 0 <= peer < self._channel.size:
            raise ValueError(f"rank {peer} is not another rank of a group of {self.size()}")
        if not 0 <= tag <= _MAX_TAG:
            raise ValueError(f"tag {tag} is not in 0 to {_MAX_TAG}")
        code, width = _memory.code_to_move(memory.dtype)
        handle = self._channel.submit_message(
            operation, code, memory.data_ptr(), memory.numel() * width, peer, tag
        )
        return self._work([handle], [finish], memory, [tensor], None, tensor.nbytes)

    def recv_anysource(self, tensors: Any, tag: int) -> RingdWork:
        """Not available."""
        raise NotImplementedError(_NO_ANY_SOURCE)

    recvAnysource = recv_anysource  # noqa: N815

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """barrier(); its errors name the missing rank."""
        self.barrier().wait(timeout)

    def _start_coalescing(self, device: torch.device) -> None:
        """What starts from here on is one work, as _end_coalescing() returns it."""
        self._coalesced = []

    def _end_coalescing(self, device: torch.device) -> RingdWork:
        works, self._coalesced = self._coalesced or [], None
        return self._joined(works, [], None)

    startCoalescing = _start_coalescing  # noqa: N815
    endCoalescing = _end_coalescing  # noqa: N815


def _parts(lists: Any, size: int, what: str) -> Tensors:
    """The tensors of a list of one list, one for each rank."""
    parts = lists[0] if len(lists) == 1 and not isinstance(lists[0], torch.Tensor) else lists
    if len(parts) != size:
        raise ValueError(f"{what} takes a list of {size} tensors, not {len(parts)}")
    return parts
