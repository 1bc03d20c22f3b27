"""Operations on memory: what every framework package stands on. No framework is named here.

Tensors are `Buffer`s: an address, a shape and a dtype's number, C-contiguous. Functions submit and
return a `Handle`; `finish` makes its result once the operation is over.
"""

from __future__ import annotations

import array
import math
import os
import sys
from collections.abc import Callable, Sequence
from types import CodeType, FrameType
from typing import Any, NamedTuple

from . import _core, _timeline
from ._errors import MismatchError
from ._handles import (
    Handle,
    check_sequence,
    handle_of_all,
    in_parts,
    reap_abandoned,
    submit_in_parts,
)
from ._process_sets import Group, global_process_set, group_of
from ._types import BOOL, DTYPE_BYTES, INT64, UINT8, Operation, ReduceOp, signature, wire_code

_MAX_DIMS = 32
_MAX_NAME_BYTES = 4096
_NAMED = 1  # Flag of an operation: ranks may call it in any order among the named ones.
_KNOWN_DIMS = 8  # Dimensions that ranks tell one another ahead of an uneven operation.

_EVERYONE = 0  # The group of all ranks.
_ALLREDUCE = int(Operation.ALLREDUCE)
_SITE_DEPTH = 3  # Of `pack`, which two of our functions at least stand above.

_core_submit = _core.submit
_core_run = _core.run


class Buffer(NamedTuple):
    """C-contiguous memory of a tensor; `owner` keeps it alive."""

    pointer: int
    shape: tuple[int, ...]
    dtype: int
    owner: Any

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Length in bytes."""
        return self.count * DTYPE_BYTES[self.dtype]


Allocate = Callable[[tuple[int, ...]], Buffer]
Finish = Callable[[], Any]

_MAX_SITES = 10_000
_OURS = ("ringd", "horovod.", "torch.")
# By the caller's code and instruction; the code object is kept, so that its id stays its own.
_sites: dict[tuple[int, int], tuple[CodeType, str]] = {}


def call_site(depth: int = 1) -> str | None:
    """`train.py:41`: the user's line that called us, PyTorch between or not. For messages only.

    depth: of the first frame that may be the user's.
    """
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None:
        code, instruction = frame.f_code, frame.f_lasti
        known = _sites.get((id(code), instruction))
        if known is not None:
            return known[1]
        if not frame.f_globals.get("__name__", "").startswith(_OURS):
            if len(_sites) > _MAX_SITES:
                _sites.clear()
            site = f"{os.path.basename(code.co_filename)}:{frame.f_lineno}".replace("\0", "")
            _sites[id(code), instruction] = code, site
            return site
        frame = frame.f_back
    return None


_checked: set[tuple[int, int]] = set()  # Reductions of dtypes that have passed.


def check_reduction(op: int, dtype: int) -> int:
    """The reduction's number. ValueError for one that does not exist, or not for this dtype."""
    try:
        reduction = ReduceOp(op)
    except ValueError:
        names = ", ".join(member.name for member in ReduceOp)
        raise ValueError(f"op {op!r} is not one of {names}") from None
    if reduction is ReduceOp.Adasum:
        raise ValueError("Adasum is a reduction of allreduce only")
    if reduction is ReduceOp.Average and dtype == BOOL:
        raise ValueError("bool has no average; use Sum (or) or Product (and)")
    _checked.add((reduction, dtype))
    return int(reduction)


def check_plain(wire: str | None, weight: float | None, op: int) -> None:
    """ValueError for a type between nodes where the allreduce is made of other operations."""
    if wire is not None and (weight is not None or op == ReduceOp.Adasum):
        raise ValueError("wire is not for weighted averages and Adasum")


def everyone() -> Group:
    """The group of all ranks."""
    return group_of(global_process_set)


def check_name(name: str | None) -> str | None:
    """ValueError for a name that is too long."""
    if name is not None and len(name.encode()) > _MAX_NAME_BYTES:
        raise ValueError(f"the name is longer than {_MAX_NAME_BYTES} bytes")
    return name


def check_first_dim(what: str, source: Buffer) -> None:
    if not source.shape:
        raise ValueError(f"{what} needs a tensor of at least one dimension")


def pack(
    operation: Operation,
    source: Buffer,
    target: Buffer,
    *,
    op: int = 0,
    root: int = 0,
    counts: bytes | None = None,
    name: str | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
    tag: int = 0,
    group: int = 0,
    wire: int = 0,
) -> tuple[Any, ...]:
    if len(source.shape) > _MAX_DIMS:
        raise ValueError(f"a tensor of {len(source.shape)} dimensions; {_MAX_DIMS} are the limit")
    return (
        operation,
        source.dtype,
        op,
        root,
        source.pointer,
        source.count,
        target.pointer,
        target.count,
        source.shape,
        counts,
        name,
        call_site(_SITE_DEPTH),
        prescale,
        postscale,
        tag,
        _NAMED if name else 0,
        group,
        wire,
    )


def _sequence_of(packed: tuple[Any, ...]) -> int | None:
    """The group whose order an operation keeps; None for named ones and messages."""
    unnamed = not packed[10] and packed[0] not in (Operation.SEND, Operation.RECV)
    return packed[16] if unnamed else None


def _start(packed: tuple[Any, ...], source: Buffer, target: Buffer, finish: Finish) -> Handle:
    sequence = _sequence_of(packed)
    if sequence is not None:
        check_sequence(None, sequence)
    reap_abandoned()
    raw = _core_submit(*packed)
    handle = Handle([raw], finish, (source, target), target.nbytes, sequence)
    if _timeline.active is not None:
        _timeline.active.watch(handle, [packed])
    return handle


class Request(NamedTuple):
    """An operation that is ready to be submitted alone or in a group."""

    packed: tuple[Any, ...]
    source: Buffer
    target: Buffer
    finish: Finish


class Uneven(NamedTuple):
    """An operation whose sizes the ranks tell one another first."""

    name: str | None
    tell: Request
    then: Callable[[], Request]


def start(request: Request | Uneven) -> Handle:
    """Submits one operation. COLLECTIVE for an uneven one without a name: blocks until all ranks
    have told their sizes."""
    if isinstance(request, Request):
        key = (request.packed[16], request.packed[10])
        if in_parts and key in in_parts:
            return submit_in_parts(key, [lambda: _start(*request)])
        return _start(*request)
    if not request.name:
        return _start(*_told(request))
    tell, then = request.tell, request.then
    key = (tell.packed[16], request.name)
    return submit_in_parts(key, [lambda: _start(*tell), lambda: _start(*then())])


def _told(request: Request | Uneven) -> Request:
    if isinstance(request, Request):
        return request
    run(request.tell)
    return request.then()


def run(request: Request | Uneven) -> Any:
    """COLLECTIVE: submits one operation and waits for it; the result. Faster than `start`."""
    if _timeline.active is not None or in_parts:
        return start(request).wait()
    if isinstance(request, Uneven):
        return run(_told(request))
    packed, source, target, finish = request
    sequence = _sequence_of(packed)
    if sequence is not None:
        check_sequence(None, sequence)
    reap_abandoned()
    raw = _core_run(*packed)
    if raw == 0:
        return finish()
    return Handle([raw], finish, (source, target), target.nbytes, sequence).wait()


# (name, weight, process_set, prescale_factor, postscale_factor, wire) of an allreduce by the short
# way.
NO_OPTIONS = (None, None, global_process_set, 1.0, 1.0, None)


def run_allreduce(
    source: int, target: int, count: int, shape: tuple[int, ...], dtype: int, op: int, keep: Any
) -> bool:
    """COLLECTIVE: an allreduce of all ranks without options, the short way: three times as fast.

    False, and nothing done, for what has to take the long one; that tells errors, too.

    Args:
        source: address of `count` elements of `shape`, C-contiguous.
        target: address for the result; may be `source`.
        keep: what the memory belongs to.
    """
    if op.__class__ is not ReduceOp or (op, dtype) not in _checked:
        return False
    if len(shape) > _MAX_DIMS or _timeline.active is not None or in_parts:
        return False
    check_sequence(None, _EVERYONE)
    reap_abandoned()
    site = call_site(2)
    raw = _core_run(
        _ALLREDUCE, dtype, op, 0, source, count, target, count, shape, None, None, site,
        1.0, 1.0, 0, 0, _EVERYONE,
    )  # fmt: skip
    if raw != 0:
        nbytes = count * DTYPE_BYTES[dtype]
        Handle([raw], _nothing, keep, nbytes, _EVERYONE).wait()
    return True


def _nothing() -> None:
    pass


def start_group(parts: Sequence[Request | Uneven]) -> Handle:
    """Submits operations that become visible together; the result is the list of results."""
    if in_parts or any(isinstance(part, Uneven) and part.name for part in parts):
        return handle_of_all([start(part) for part in parts])
    requests = [_told(part) for part in parts]
    sequences = [_sequence_of(request.packed) for request in requests]
    sequence = next((number for number in sequences if number is not None), None)
    if sequence is not None:
        check_sequence(None, sequence)
    reap_abandoned()
    raw = _core.submit_batch([request.packed for request in requests])
    handle = Handle(
        raw,
        lambda: [request.finish() for request in requests],
        list(requests),
        max((request.target.nbytes for request in requests), default=0),
        sequence,
    )
    if _timeline.active is not None:
        _timeline.active.watch(handle, [request.packed for request in requests])
    return handle


def allreduce(
    source: Buffer,
    target: Buffer,
    finish: Finish,
    op: int,
    name: str | None,
    prescale: float,
    postscale: float,
    group: Group | None = None,
    wire: str | None = None,
) -> Request:
    """Reduces all ranks' `source` into every rank's `target`, of the same shape and dtype."""
    packed = pack(
        Operation.ALLREDUCE,
        source,
        target,
        op=check_reduction(op, source.dtype),
        name=check_name(name),
        prescale=float(prescale),
        postscale=float(postscale),
        group=(group or everyone()).number,
        wire=wire_code(wire, source.dtype),
    )
    return Request(packed, source, target, finish)


def broadcast(
    source: Buffer,
    target: Buffer,
    finish: Finish,
    root: int,
    name: str | None,
    group: Group | None = None,
) -> Request:
    """Copies the root's `source` to every rank's `target`, of the same shape and dtype.

    root: a rank of the job.
    """
    group = group or everyone()
    packed = pack(
        Operation.BROADCAST,
        source,
        target,
        root=group.rank_of(root),
        name=check_name(name),
        group=group.number,
    )
    return Request(packed, source, target, finish)


def reducescatter(
    source: Buffer,
    allocate: Allocate,
    finish: Callable[[Buffer], Any],
    op: int,
    name: str | None,
    prescale: float,
    postscale: float,
    group: Group | None = None,
) -> Request:
    """Reduces all ranks' `source`; each rank gets its rows of the first dimension.

    The first `rows % size` ranks get one row more than the others.
    """
    check_first_dim("reducescatter", source)
    group = group or everyone()
    shares = split_evenly(source.shape[0], group.size)
    row = math.prod(source.shape[1:])
    target = allocate((shares[group.rank], *source.shape[1:]))
    packed = pack(
        Operation.REDUCESCATTER,
        source,
        target,
        op=check_reduction(op, source.dtype),
        counts=int64s([share * row for share in shares]),
        name=check_name(name),
        prescale=float(prescale),
        postscale=float(postscale),
        group=group.number,
    )
    return Request(packed, source, target, lambda: finish(target))


def split_evenly(rows: int, size: int) -> list[int]:
    """Rows of each rank: the first ones get one more where it doesn't divide."""
    share, extra = divmod(rows, size)
    return [share + (rank < extra) for rank in range(size)]


def allgather(
    source: Buffer,
    allocate: Allocate,
    finish: Callable[[Buffer, list[int]], Any],
    name: str | None,
    group: Group | None = None,
) -> Uneven:
    """Concatenates all ranks' `source` along the first dimension, in rank order.

    `finish` also gets how many rows came from each rank.
    """
    check_first_dim("allgather", source)
    group = group or everyone()
    first, read = tell("allgather", source, [source.shape[0]], name, group)

    def then() -> Request:
        rows = [told[0] for told in read()]
        row = math.prod(source.shape[1:])
        target = allocate((sum(rows), *source.shape[1:]))
        packed = pack(
            Operation.ALLGATHER,
            source,
            target,
            counts=int64s([n * row for n in rows]),
            name=name,
            group=group.number,
        )
        return Request(packed, source, target, lambda: finish(target, rows))

    return Uneven(name, first, then)


def allgather_alike(
    source: Buffer,
    target: Buffer,
    finish: Finish,
    name: str | None,
    group: Group | None = None,
) -> Request:
    """Concatenates all ranks' `source`, of the same shape on all of them: no message ahead."""
    number = (group or everyone()).number
    packed = pack(Operation.ALLGATHER, source, target, name=check_name(name), group=number)
    return Request(packed, source, target, finish)


def alltoall(
    source: Buffer,
    splits: Sequence[int] | None,
    allocate: Allocate,
    finish: Callable[[Buffer, list[int]], Any],
    name: str | None,
    group: Group | None = None,
) -> Uneven:
    """Sends `splits[r]` rows of `source` to rank r; what is received, in rank order.

    `finish` also gets how many rows came from each rank.
    """
    check_first_dim("alltoall", source)
    group = group or everyone()
    rows = _check_splits(splits, source.shape[0], group.size)
    first, read = tell("alltoall", source, rows, name, group)

    def then() -> Request:
        matrix = read()
        row = math.prod(source.shape[1:])
        received = [told[group.rank] for told in matrix]
        target = allocate((sum(received), *source.shape[1:]))
        sent = source._replace(shape=(sum(rows), *source.shape[1:]))  # Rows beyond are not sent.
        packed = pack(
            Operation.ALLTOALL,
            sent,
            target,
            counts=int64s([n * row for told in matrix for n in told]),
            name=name,
            group=group.number,
        )
        return Request(packed, sent, target, lambda: finish(target, received))

    return Uneven(name, first, then)


def _check_splits(splits: Sequence[int] | None, rows: int, size: int) -> list[int]:
    if splits is None:
        if rows % size != 0:
            raise ValueError(
                f"alltoall without splits: the first dimension is {rows}, which can't be divided "
                f"among {size} ranks"
            )
        return [rows // size] * size
    checked = [int(n) for n in splits]
    if len(checked) != size:
        raise ValueError(f"splits has {len(checked)} numbers for {size} ranks")
    if any(n < 0 for n in checked):
        raise ValueError("splits has a negative number")
    if sum(checked) > rows:
        raise ValueError(f"splits add up to {sum(checked)}, but the first dimension is {rows}")
    return checked


def barrier_request(group: Group | None = None) -> Request:
    """Nothing, on all ranks."""
    nothing = Buffer(0, (0,), UINT8, None)
    packed = pack(Operation.BARRIER, nothing, nothing, group=(group or everyone()).number)
    return Request(packed, nothing, nothing, lambda: None)


def int64s(numbers: list[int]) -> bytes:
    return array.array("q", numbers).tobytes()


def _fold(dims: tuple[int, ...]) -> int:
    """A number for dimensions that have no place of their own; the same on all ranks."""
    folded = 0
    for dim in dims:
        folded = (folded * 1_000_003 + dim + 1) % (1 << 62)
    return folded


def tell(
    what: str, source: Buffer, numbers: list[int], name: str | None, group: Group
) -> tuple[Request, Callable[[], list[list[int]]]]:
    """The operation by which ranks tell one another `numbers`, and what gives all of them after it.

    The second raises MismatchError where dtypes or other dimensions differ.
    """
    size = group.size
    tail = source.shape[1:]
    known = [*tail[:_KNOWN_DIMS], *[0] * (_KNOWN_DIMS - len(tail))]
    head = [source.dtype, len(source.shape), _fold(tail[_KNOWN_DIMS:]), *known]
    mine = array.array("q", [*head, source.shape[0], *numbers])
    width = len(mine)
    theirs = array.array("q", bytes(8 * width * size))
    into = Buffer(theirs.buffer_info()[0], (size * width,), INT64, theirs)
    outof = Buffer(mine.buffer_info()[0], (width,), INT64, mine)

    def read() -> list[list[int]]:
        told = [theirs[rank * width : (rank + 1) * width] for rank in range(size)]
        _check_alike(what, told, len(head), name, group)
        return [list(row[len(head) + 1 :]) for row in told]

    return allgather_alike(outof, into, lambda: None, name, group), read


def _check_alike(what: str, told: list[Any], width: int, name: str | None, group: Group) -> None:
    present = [rank for rank, row in enumerate(told) if row[0] != 0]  # The others have joined.
    first = present[0]
    for rank in present:
        row = told[rank]
        if row[:width] == told[first][:width]:
            continue
        values = tuple(_shown(other, width) for other in (told[first], row))
        label = f"{what} '{name}'" if name is not None else what
        raise MismatchError(
            f"{label} is not the same on all ranks: rank {group.job_rank(first)} has {values[0]}, "
            f"rank {group.job_rank(rank)} has {values[1]}; only the first dimension may differ",
            (name,) if name is not None else (),
            (group.job_rank(first), group.job_rank(rank)),
            values,
        )


def _shown(row: Any, width: int) -> str:
    dtype, ndim = row[0], row[1]
    tail = tuple(row[3 : 3 + min(ndim - 1, _KNOWN_DIMS)])
    return signature(dtype, (row[width], *tail))
