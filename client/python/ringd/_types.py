"""Numbers and names that the C library and all framework packages share."""

from __future__ import annotations

import enum


class ReduceOp(enum.IntEnum):
    """How the ranks' tensors become one."""

    __hash__ = int.__hash__  # Enum's is Python, and slow.

    Average = 1
    Sum = 2
    Min = 3
    Max = 4
    Product = 5
    Adasum = 6


class Operation(enum.IntEnum):
    """Operations by their numbers in the C library."""

    NOOP = 1
    ALLREDUCE = 2
    ALLGATHER = 3
    BROADCAST = 4
    REDUCESCATTER = 5
    ALLTOALL = 6
    BARRIER = 7
    REDUCE = 11
    GATHER = 12
    SCATTER = 13
    SEND = 14
    RECV = 15


# Element types by name, as NumPy and (after "torch.") PyTorch spell them.
DTYPES: dict[str, int] = {
    "uint8": 1,
    "int8": 2,
    "uint16": 3,
    "int16": 4,
    "uint32": 5,
    "int32": 6,
    "uint64": 7,
    "int64": 8,
    "float16": 9,
    "bfloat16": 10,
    "float32": 11,
    "float64": 12,
    "bool": 13,
}
DTYPE_NAMES: dict[int, str] = {code: name for name, code in DTYPES.items()}
DTYPE_BYTES: dict[int, int] = dict(
    zip(range(1, 14), (1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 1), strict=True)
)
INT64 = DTYPES["int64"]
UINT8 = DTYPES["uint8"]
BOOL = DTYPES["bool"]


# Narrower types of floats between nodes, and what can become them.
WIRES: dict[str, int] = {"bf16": 1, "fp16": 2, "fp8_e4m3": 3, "fp8_e5m2": 4}
_FLOAT8 = (3, 4)
_NARROWING = {DTYPES["float32"]: (1, 2, 3, 4), DTYPES["float16"]: _FLOAT8}
_NARROWING[DTYPES["bfloat16"]] = _FLOAT8


def wire_code(wire: str | None, dtype: int) -> int:
    """The number of a type between nodes; None: 0. ValueError: unknown, or not for this dtype."""
    if wire is None:
        return 0
    if fitting_wire(wire, dtype) is None:
        raise ValueError(f"{DTYPE_NAMES.get(dtype, 'invalid')} can't travel as {wire}")
    return WIRES[wire]


def fitting_wire(wire: str | None, dtype: int) -> str | None:
    """`wire` where the dtype can become it, else None. ValueError: unknown."""
    if wire is None:
        return None
    if wire not in WIRES:
        raise ValueError(f"wire {wire!r} is not one of {', '.join(WIRES)}")
    return wire if WIRES[wire] in _NARROWING.get(dtype, ()) else None


def dtype_code(name: str) -> int:
    """The number of an element type. ValueError names one that ringd does not have."""
    code = DTYPES.get(name)
    if code is None:
        raise ValueError(f"dtype {name} is not supported; supported are {', '.join(DTYPES)}")
    return code


def signature(dtype: int, shape: tuple[int, ...]) -> str:
    """`float32[10, 3]`: how messages show a tensor."""
    return f"{DTYPE_NAMES.get(dtype, 'invalid')}[{', '.join(map(str, shape))}]"
