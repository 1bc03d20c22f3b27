"""What ringd raises, and how the library's codes become exceptions."""

from __future__ import annotations

import re

_SIGNATURE = re.compile(r"\b(?:bool|bfloat16|u?int\d+|float\d+)\[[^\]]*\]")
_RANK = re.compile(r"\brank (\d+)")
_NAME = re.compile(r"(?:named|tensor) ['\"]([^'\"]+)['\"]")


class RingdError(RuntimeError):
    """Base of all errors of ringd. `code` is the number that ringd.h gives it."""

    code: int = 11


class NotInitializedError(RingdError):
    """`ringd.init()` has not been called in this process, or `ringd.shutdown()` has."""


class InvalidArgumentError(RingdError, ValueError):
    """An argument that can't be right whatever the other ranks pass."""


class MismatchError(RingdError):
    """Ranks called different things. The job goes on: later operations work.

    Also raised by all ranks when each of them waits, without a time limit, in an operation that
    others have not called: what they wait for has been withdrawn.

    Attributes:
        names: the operations or tensors concerned, where they have names.
        ranks: the two ranks that differ.
        values: what each of them has, such as ``float32[10]``.
    """

    def __init__(
        self,
        message: str,
        names: tuple[str, ...] = (),
        ranks: tuple[int, ...] = (),
        values: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message)
        self.names = names
        self.ranks = ranks
        self.values = values


class PeerFailedError(RingdError):
    """A rank has died or left, so what waits for it can't complete.

    Attributes:
        rank: the rank at fault, -1 if unknown.
        node: the node that it ran on.
        exit_code: of its process, -1 if a signal ended it.
        signal: that ended its process, 0 if none.
        stderr_tail: the last lines that it wrote to stderr.
    """

    def __init__(
        self,
        message: str,
        rank: int = -1,
        node: str = "",
        exit_code: int = -1,
        signal: int = 0,
        stderr_tail: str = "",
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.node = node
        self.exit_code = exit_code
        self.signal = signal
        self.stderr_tail = stderr_tail


class GenerationChanged(RingdError):
    """The job's membership changed: restore the last committed state and go on."""


class DeadlineExceeded(RingdError):
    """Not done within the given time; whether it will be is unknown."""


class StepOrderError(RingdError, AssertionError):
    """backward(), step() and zero_grad() came in an order that loses gradients."""


_INVALID_ARGUMENT = 1
_MISMATCH = 2
_PEER_FAILED = 3
_CLASSES: dict[int, type[RingdError]] = {
    _INVALID_ARGUMENT: InvalidArgumentError,
    4: GenerationChanged,
    5: DeadlineExceeded,
    6: NotInitializedError,
}


def _unique(items: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(items))


def make_error(
    code: int,
    message: str,
    rank: int,
    node: str,
    exit_code: int,
    signal: int,
    stderr_tail: str,
) -> RingdError:
    """The exception for a failed call of the C library. Called by ringd._core."""
    error: RingdError
    if code == _MISMATCH:
        ranks = tuple(int(r) for r in _unique(_RANK.findall(message)))
        names = _unique(_NAME.findall(message))
        error = MismatchError(message, names, ranks, tuple(_SIGNATURE.findall(message)))
    elif code == _PEER_FAILED:
        error = PeerFailedError(message, rank, node, exit_code, signal, stderr_tail)
    else:
        error = _CLASSES.get(code, RingdError)(message)
    error.code = code
    return error


# Tracebacks name them as users import them.
for _error in (RingdError, *RingdError.__subclasses__()):
    _error.__module__ = "ringd"
