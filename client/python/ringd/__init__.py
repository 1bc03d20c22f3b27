"""ringd: collective operations on NumPy arrays, over ranks that `ringctl run` starts.

    import numpy as np
    import ringd

    ringd.init()
    total = ringd.allreduce(np.ones(3), op=ringd.Sum)   # [size, size, size] on every rank

`ringd.torch` has the same for PyTorch.
"""

from __future__ import annotations

from . import _core
from ._builds import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
)
from ._errors import (
    DeadlineExceeded,
    GenerationChanged,
    InvalidArgumentError,
    MismatchError,
    NotInitializedError,
    PeerFailedError,
    RingdError,
    StepOrderError,
)
from ._handles import Handle
from ._join import join
from ._lifecycle import (
    configure,
    cross_rank,
    cross_size,
    generation,
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
    stats,
)
from ._numpy import (
    allgather,
    allgather_async,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    alltoall,
    alltoall_async,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    empty,
    grouped_allgather,
    grouped_allgather_async,
    grouped_allreduce,
    grouped_allreduce_async,
    grouped_reducescatter,
    grouped_reducescatter_async,
    poll,
    reducescatter,
    reducescatter_async,
    synchronize,
)
from ._numpy_rooted import (
    gather,
    gather_async,
    recv,
    recv_async,
    reduce,
    reduce_async,
    scatter,
    scatter_async,
    send,
    send_async,
)
from ._objects import allgather_object, broadcast_object, is_homogeneous
from ._process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from ._timeline import start_timeline, stop_timeline
from ._types import ReduceOp

Average = ReduceOp.Average
Sum = ReduceOp.Sum
Min = ReduceOp.Min
Max = ReduceOp.Max
Product = ReduceOp.Product
Adasum = ReduceOp.Adasum

__version__: str = _core.version()

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
    "is_homogeneous",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "gloo_built",
    "gloo_enabled",
    "nccl_built",
    "ddl_built",
    "ccl_built",
    "cuda_built",
    "rocm_built",
    "stats",
    "configure",
    "start_timeline",
    "stop_timeline",
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
    "grouped_allreduce_async",
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
    "reduce",
    "reduce_async",
    "gather",
    "gather_async",
    "scatter",
    "scatter_async",
    "send",
    "send_async",
    "recv",
    "recv_async",
    "barrier",
    "join",
    "broadcast_object",
    "allgather_object",
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
    "StepOrderError",
    "__version__",
]
