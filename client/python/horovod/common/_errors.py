"""Ringd's errors as Horovod's: what ranks can cause each other is a HorovodInternalError."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from ringd import (
    DeadlineExceeded,
    GenerationChanged,
    MismatchError,
    NotInitializedError,
    PeerFailedError,
    RingdError,
    _core,
)
from ringd._errors import make_error

from .exceptions import HorovodInternalError

_Function = TypeVar("_Function", bound=Callable[..., Any])
_OF_RANKS = (
    MismatchError,
    PeerFailedError,
    GenerationChanged,
    DeadlineExceeded,
    NotInitializedError,
)
_both: dict[type[RingdError], type[RingdError]] = {}


def both(kind: type[RingdError]) -> type[RingdError]:
    """The class that is ringd's and HorovodInternalError: users can catch either."""
    if kind not in _both:
        _both[kind] = type(
            "HorovodInternalError",
            (kind, HorovodInternalError),
            {
                "__module__": HorovodInternalError.__module__,
                "__doc__": kind.__doc__,
                "__reduce__": lambda error: (HorovodInternalError, (str(error),)),
            },
        )
    return _both[kind]


def as_horovod(error: RingdError) -> RingdError:
    """The same error, which is a HorovodInternalError too, unless this rank's call is at fault."""
    from_library = "code" in vars(error)  # Others are ringd's words on this rank's arguments.
    mine = isinstance(error, ValueError | NotImplementedError | HorovodInternalError)
    if not mine and (from_library or isinstance(error, _OF_RANKS)):
        error.__class__ = both(type(error))
    return error


@contextlib.contextmanager
def horovod_errors():
    """Ringd's errors leave it as `as_horovod` makes them."""
    try:
        yield
    except RingdError as error:
        as_horovod(error)
        raise


def raises_horovod_errors(function: _Function) -> _Function:
    """`horovod_errors` around a function."""

    @wraps(function)
    def wrapper(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except RingdError as error:
            as_horovod(error)
            raise

    return wrapper  # type: ignore[return-value]


def install() -> None:
    """Errors of the library are Horovod's wherever they come up, also in hooks of backward."""
    _core.set_error_factory(lambda *details: as_horovod(make_error(*details)))
