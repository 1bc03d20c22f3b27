"""Keeps torch.compile out of the backend's own functions: they run as they are."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any


def _functions(owner: Any, module: str) -> Iterator[types.FunctionType]:
    for value in vars(owner).values():
        if isinstance(value, property):
            value = value.fget
        if isinstance(value, type) and value.__module__ == module:
            yield from _functions(value, module)
        elif isinstance(value, types.FunctionType) and value.__module__ == module:
            yield value


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def keep_out(*modules: types.ModuleType) -> None:
    """Has torch.compile skip the functions of these modules.

    Its tracer follows DistributedDataParallel into its process group otherwise, and fails there.
    Private names of PyTorch; where there are none, nothing is done and torch.compile may fail.
    """
    try:
        from torch._C._dynamo import eval_frame

        skip = eval_frame._FrameExecStrategy(
            eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP
        )
        set_strategy = eval_frame.set_code_exec_strategy
    except (ImportError, AttributeError):
        return
    for module in modules:
        for function in _functions(module, module.__name__):
            for code in _codes(function.__code__):
                set_strategy(code, skip)
