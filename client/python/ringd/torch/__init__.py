"""ringd for PyTorch: collective operations on tensors, and a distributed optimizer.

    import ringd.torch as ringd

    ringd.init()
    ringd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = ringd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

Everything else is as in a single process, on this rank's part of the data.
"""

from __future__ import annotations

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError("ringd.torch needs PyTorch: pip install torch") from error

from .. import (
    Adasum,
    Average,
    DeadlineExceeded,
    GenerationChanged,
    Handle,
    InvalidArgumentError,
    Max,
    Min,
    MismatchError,
    NotInitializedError,
    PeerFailedError,
    ProcessSet,
    Product,
    ReduceOp,
    RingdError,
    Sum,
    __version__,
    add_process_set,
    allgather_object,
    barrier,
    broadcast_object,
    cross_rank,
    cross_size,
    generation,
    global_process_set,
    init,
    is_initialized,
    local_rank,
    local_size,
    poll,
    rank,
    remove_process_set,
    shutdown,
    size,
    stats,
    synchronize,
)
from ._collectives import (
    allgather_async,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    alltoall_async,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather_async,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter_async,
    reducescatter_async,
)
from ._compression import Compression, Compressor
from ._differentiable import (
    allgather,
    allreduce,
    alltoall,
    broadcast,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    reducescatter,
)
from ._optimizer import DistributedOptimizer
from ._parameters import broadcast_optimizer_state, broadcast_parameters
from ._tensors import empty

__all__ = [
    "init",
    "shutdown",
    "is_initialized",
    "rank",
    "size",
    "local_rank",
    "local_size",
    "cross_rank",
    "cross_size",
    "generation",
    "stats",
    "ReduceOp",
    "Average",
    "Sum",
    "Min",
    "Max",
    "Product",
    "Adasum",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "allgather",
    "allgather_async",
    "grouped_allgather",
    "grouped_allgather_async",
    "reducescatter",
    "reducescatter_async",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "alltoall",
    "alltoall_async",
    "barrier",
    "Compression",
    "Compressor",
    "broadcast_object",
    "allgather_object",
    "broadcast_parameters",
    "broadcast_optimizer_state",
    "DistributedOptimizer",
    "poll",
    "synchronize",
    "Handle",
    "empty",
    "ProcessSet",
    "add_process_set",
    "remove_process_set",
    "global_process_set",
    "RingdError",
    "InvalidArgumentError",
    "NotInitializedError",
    "MismatchError",
    "PeerFailedError",
    "GenerationChanged",
    "DeadlineExceeded",
    "__version__",
]
