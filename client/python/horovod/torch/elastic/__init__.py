"""Elastic training: the names, and what works in a job that keeps its ranks.

A function that `run` decorates is called once, with its state synchronised. When a rank fails the
job ends, so HorovodInternalError leaves the function; starting the job again is up to the caller.
"""

from __future__ import annotations

from ...common.elastic import ObjectState, State, run_fn
from .sampler import ElasticSampler
from .state import (
    ModelStateHandler,
    OptimizerStateHandler,
    SamplerStateHandler,
    StateHandler,
    TorchState,
    get_handler_registry,
    set_handler_registry,
)

run = run_fn

__all__ = [
    "ElasticSampler",
    "ModelStateHandler",
    "ObjectState",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "State",
    "StateHandler",
    "TorchState",
    "get_handler_registry",
    "run",
    "set_handler_registry",
]
