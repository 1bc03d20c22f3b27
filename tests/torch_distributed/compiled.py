"""torch.compile around and inside DistributedDataParallel on the backend "ringd".

    ringctl run -n 2 -- python tests/torch_distributed/compiled.py

The compiler's backend is "aot_eager": all of the tracing, without a C++ compiler.
"""

import support
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from ddp import Net, alone, rows_of, same, sgd, train
from torch.nn.parallel import DistributedDataParallel

COMPILER = "aot_eager"


def check_compiled_ddp(checks, rank, size):
    right = alone(size)
    model = DistributedDataParallel(Net())
    compiled = torch.compile(model, backend=COMPILER)
    train(compiled, sgd(model), rows_of(rank, size))
    same(checks, model.module, right, "compile(DDP(model))")
    model = DistributedDataParallel(torch.compile(Net(), backend=COMPILER))
    train(model, sgd(model), rows_of(rank, size))
    same(checks, model.module, right, "DDP(compile(model))")


def check_collectives_in_graphs(checks, rank, size):
    @torch.compile(backend=COMPILER, fullgraph=True)
    def mean(tensor):
        return functional.all_reduce(tensor * 2, "sum", dist.group.WORLD) / size

    result = mean(torch.full((4,), float(rank)))
    checks.close(result, torch.full((4,), float(size - 1)), "all_reduce in a graph")

    @torch.compile(backend=COMPILER)
    def in_place(tensor):
        tensor = tensor + 1
        dist.all_reduce(tensor)
        return tensor * 2

    result = in_place(torch.full((4,), float(rank)))
    right = torch.full((4,), 2.0 * sum(r + 1 for r in range(size)))
    checks.close(result, right, "dist.all_reduce in a compiled function")


if __name__ == "__main__":
    support.run(check_compiled_ddp, check_collectives_in_graphs)
