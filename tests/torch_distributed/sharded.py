"""FSDP, DeviceMesh, DTensor and checkpoints on the backend "ringd", against one process.

ringctl run -n 2 -- python tests/torch_distributed/sharded.py
"""

import pathlib
import tempfile

import support
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from ddp import Net, alone, rows_of, same, sgd, train
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.tensor import (
    DTensor,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
)


def check_fsdp1(checks, rank, size):
    right = alone(size)
    for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP,
                     ShardingStrategy.NO_SHARD):  # fmt: skip
        model = FullyShardedDataParallel(
            Net(), sharding_strategy=strategy, device_id=torch.device("cpu"), use_orig_params=True
        )
        train(model, sgd(model), rows_of(rank, size))
        with FullyShardedDataParallel.summon_full_params(model):
            same(checks, model.module, right, f"FSDP1 {strategy}")


def make_sharded(mesh):
    model = Net()
    for layer in (model.left, model.right):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def same_shards(checks, model, right, what):
    for (name, shard), expected in zip(model.named_parameters(), right.parameters(), strict=True):
        checks.close(shard.full_tensor().detach(), expected.detach(), f"{what}: {name}", 1e-4, 1e-5)


def check_fsdp2(checks, rank, size):
    mesh = init_device_mesh("cpu", (size,))
    model = make_sharded(mesh)
    checks.true(isinstance(model.left.weight, DTensor), "parameters are DTensors")
    train(model, sgd(model), rows_of(rank, size))
    same_shards(checks, model, alone(size), "FSDP2")


def check_two_dimensions(checks, rank, size):
    if size != 4 or not hasattr(dist.group.WORLD, "new_group"):
        return
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    model = make_sharded(mesh)
    train(model, sgd(model), rows_of(rank, size))
    same_shards(checks, model, alone(size), "hybrid sharding")


def check_dtensor(checks, rank, size):
    mesh = init_device_mesh("cpu", (size,))
    whole = torch.arange(float(6 * size * 4)).reshape(6 * size, 4)
    split = distribute_tensor(whole, mesh, [Shard(0)])
    checks.equal(split.to_local(), whole.chunk(size)[rank], "Shard(0)")
    checks.equal(split.full_tensor(), whole, "full_tensor")
    other = distribute_tensor(whole.t().contiguous(), mesh, [Shard(1)])
    checks.equal(other.redistribute(mesh, [Shard(0)]).full_tensor(), whole.t(), "redistribute")
    checks.equal(split.redistribute(mesh, [Replicate()]).to_local(), whole, "Replicate")
    checks.close(split.sum().full_tensor(), whole.sum(), "sum")
    weight = distribute_tensor(torch.ones(4, 2 * size), mesh, [Shard(1)])
    product = split.redistribute(mesh, [Replicate()]) @ weight
    checks.close(product.full_tensor(), whole @ torch.ones(4, 2 * size), "matmul")
    uneven = distribute_tensor(torch.arange(7.0), mesh, [Shard(0)])
    checks.equal(uneven.full_tensor(), torch.arange(7.0), "uneven shards")


def check_tensor_parallel(checks, rank, size):
    mesh = init_device_mesh("cpu", (size,))
    right = nn.Linear(8, 4 * size)
    dist.broadcast(right.weight.data, 0)
    dist.broadcast(right.bias.data, 0)

    def split(name, module, mesh):
        for key, parameter in module.named_parameters():
            shard = distribute_tensor(parameter.data, mesh, [Shard(0)])
            module.register_parameter(key, nn.Parameter(shard))

    x = torch.ones(2, 8)
    expected = right(x).detach()
    model = distribute_module(right, mesh, split)
    output = model(distribute_tensor(x, mesh, [Replicate()]))
    checks.close(output.full_tensor().detach(), expected, "tensor parallel")


def check_checkpoint(checks, rank, size):
    told = [tempfile.mkdtemp(prefix="ringd-test-") if rank == 0 else None]
    dist.broadcast_object_list(told, 0)
    folder = pathlib.Path(told[0])
    mesh = init_device_mesh("cpu", (size,))
    model = make_sharded(mesh)
    train(model, sgd(model), rows_of(rank, size))
    checkpoint.save({"model": get_model_state_dict(model)}, checkpoint_id=folder)
    fresh = make_sharded(mesh)
    state = {"model": get_model_state_dict(fresh)}
    checkpoint.load(state, checkpoint_id=folder)
    set_model_state_dict(fresh, state["model"])
    same_shards(checks, fresh, alone(size), "checkpoint")


CHECKS = [
    check_fsdp1,
    check_fsdp2,
    check_two_dimensions,
    check_dtensor,
    check_tensor_parallel,
    check_checkpoint,
]

if __name__ == "__main__":
    support.run(*CHECKS)
