"""all_to_all where shares differ: the ranks tell one another their sizes first.

Both stages are asynchronous: the second one is submitted when somebody waits, or before the next
operation of the channel, whatever comes first (see Channel).
"""

from __future__ import annotations

import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ... import _core
from ..._errors import MismatchError, RingdError
from ..._types import INT64, Operation
from . import _memory
from ._work import RingdWork, StagedWork

if TYPE_CHECKING:
    from ._group import RingdProcessGroup


def alltoall_rows(
    group: RingdProcessGroup,
    output: torch.Tensor,
    tensor: torch.Tensor,
    output_splits: Sequence[int],
    input_splits: Sequence[int],
    options: Any,
) -> RingdWork:
    """all_to_all_single with splits: rows of the first dimension."""
    sent = _elements(tensor, input_splits, group.size())
    received = _elements(output, output_splits, group.size())
    source = _memory.source_of(tensor)
    target, finish = _memory.target_of(output)
    _memory.check_alike([target], source.dtype)
    return _start(
        group,
        (source.data_ptr(), source, sent),
        (target.data_ptr(), target, received),
        source.dtype,
        [output],
        finish,
        options,
    )


def alltoall_list(
    group: RingdProcessGroup,
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    options: Any,
) -> RingdWork:
    """all_to_all: one tensor for each rank."""
    if len(outputs) != group.size() or len(inputs) != group.size():
        raise ValueError(
            f"all_to_all takes lists of {group.size()} tensors, not {len(outputs)} and "
            f"{len(inputs)}"
        )
    dtype = inputs[0].dtype
    _memory.check_alike(outputs[:1], dtype)
    start, owner = _memory.joined_source(inputs)
    target, target_owner, finish = _memory.joined_target(outputs)
    return _start(
        group,
        (start, owner, [tensor.numel() for tensor in inputs]),
        (target, target_owner, [tensor.numel() for tensor in outputs]),
        dtype,
        list(outputs),
        finish,
        options,
    )


def _elements(tensor: torch.Tensor, splits: Sequence[int], size: int) -> list[int]:
    """Elements for each rank. ValueError for splits that don't fit the first dimension."""
    rows = tensor.shape[0] if tensor.ndim else 0
    if not len(splits):
        if rows % size:
            raise ValueError(f"all_to_all_single: {rows} rows can't be divided among {size} ranks")
        splits = [rows // size] * size
    if len(splits) != size or any(n < 0 for n in splits) or sum(splits) != rows:
        raise ValueError(
            f"all_to_all_single: splits {list(splits)} for {rows} rows and {size} ranks"
        )
    row = tensor.numel() // rows if rows else 0
    return [int(n) * row for n in splits]


Side = tuple[int, Any, list[int]]  # Address, its owner, elements for each rank.


def _start(
    group: RingdProcessGroup,
    source: Side,
    target: Side,
    dtype: torch.dtype,
    outputs: Any,
    finish: Callable[[], None] | None,
    options: Any,
) -> RingdWork:
    channel, size = group._channel, group.size()
    code, width = _memory.code_to_move(dtype)
    sent = array.array("q", [n * width for n in source[2]])
    wanted = [n * width for n in target[2]]
    if size == 1:
        if sent[0] != wanted[0]:
            raise ValueError(f"all_to_all: {source[2][0]} elements for {target[2][0]}")
        channel.submit(Operation.ALLTOALL, code, source[0], sent[0], target[0], wanted[0])
        return group._work([], [finish], None, outputs, options)
    matrix = array.array("q", bytes(8 * size * size))
    with channel.order:
        first = channel.submit(
            Operation.ALLGATHER,
            INT64,
            sent.buffer_info()[0],
            size,
            matrix.buffer_info()[0],
            size * size,
        )
        work = StagedWork(
            first,
            channel.finish_stages,
            [finish] if finish is not None else [],
            (source[1], target[1], sent, matrix),
            outputs,
            group._limit_us(options),
            group._completer,
            True,
        )

        def second_stage() -> None:
            try:
                _core.wait(first, -1, False)
                work.set_handles([_exchange(channel, code, source[0], target[0], wanted, matrix)])
            except RingdError as error:
                work.fail(error)

        channel.set_second_stage(second_stage)
    return group._hold(work)


def _exchange(
    channel: Any, code: int, source: int, target: int, wanted: list[int], matrix: array.array
) -> int:
    """Submits the exchange. MismatchError where a rank sends another length than is waited for."""
    size, rank = channel.size, channel.rank
    incoming = [matrix[sender * size + rank] for sender in range(size)]
    outgoing = matrix[rank * size : (rank + 1) * size]
    wrong = next((r for r in range(size) if incoming[r] != wanted[r]), None)
    spare = None
    if wrong is not None:  # The others' exchange goes on.
        spare = array.array("q", bytes(8 * (sum(incoming) + 1)))
        target = spare.buffer_info()[0]
    handle = channel.submit(
        Operation.ALLTOALL,
        code,
        source,
        sum(outgoing),
        target,
        sum(incoming),
        counts=matrix.tobytes(),
    )
    if wrong is None:
        return handle
    _core.wait(handle, -1, True)
    raise MismatchError(
        f"all_to_all: rank {wrong} sends {incoming[wrong]} elements to rank {rank}, which waits "
        f"for {wanted[wrong]}",
        (),
        (wrong, rank),
        (str(incoming[wrong]), str(wanted[wrong])),
    )
