"""horovod.torch's operations, as a script of Horovod calls them, against closed forms.

Each rank of a job runs it, with an empty folder as argument; the last line says how many checks
it passed.
"""

import json
import pickle
import sys
import time
import warnings
from pathlib import Path

import horovod.torch as hvd
import ringd
import torch
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.common.process_sets import ProcessSet, global_process_set

from tests.torch.checks import Checks


def of(rank, rows=4):
    """What rank `rank` gives."""
    return torch.arange(rows, dtype=torch.float32) + 10 * rank


def total(size, rows=4):
    return torch.arange(rows, dtype=torch.float32) * size + 10 * sum(range(size))


def check_defaults(checks, rank, size):
    mean = total(size) / size
    checks.close(hvd.allreduce(of(rank)), mean, "the default is Average")
    checks.close(hvd.allreduce(of(rank), name="a"), mean, "named")
    checks.close(hvd.allreduce(of(rank), op=hvd.Sum), total(size), "op=Sum")
    checks.close(hvd.allreduce(of(rank), op=hvd.Max), of(size - 1), "op=Max")
    checks.true([int(op) for op in (hvd.Average, hvd.Sum, hvd.Adasum)] == [0, 1, 2], "numbers")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        checks.close(hvd.allreduce(of(rank), average=False), total(size), "average=False")
        checks.close(hvd.allreduce(of(rank), True, "b"), mean, "average by position")
    checks.true([w.category for w in caught] == [DeprecationWarning] * 2, "average is deprecated")
    checks.true(caught[0].filename == __file__, "the warning names the script")
    scaled = hvd.allreduce(of(rank), op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
    checks.close(scaled, 2 * total(size), "factors")
    ones = torch.full((3,), -1, dtype=torch.int32) if rank == 0 else torch.zeros(3).int()
    truncated = torch.full((3,), -1 if size == 1 else 0, dtype=torch.int32)
    checks.equal(hvd.allreduce(ones), truncated, "integers: toward zero")
    checks.raises(ValueError, lambda: hvd.allreduce(of(rank), average=True, op=hvd.Sum), "both")
    checks.raises(ValueError, lambda: hvd.allreduce(of(rank), hvd.Sum), "op=Sum")
    checks.raises(HorovodInternalError, lambda: hvd.allreduce(of(rank), op=77), "77")


def check_compression(checks, rank, size):
    exact = hvd.allreduce(of(rank), op=hvd.Sum, compression=hvd.Compression.fp16)
    checks.equal(exact, total(size), "fp16 of small integers")
    whole = torch.full((2,), rank)
    summed = hvd.allreduce(whole, op=hvd.Sum, compression=hvd.Compression.fp16)
    checks.equal(summed, torch.full((2,), sum(range(size))), "fp16 leaves integers")

    class Halves(hvd.Compressor):
        @staticmethod
        def compress(tensor):
            return tensor / 2, 2

        @staticmethod
        def decompress(tensor, ctx):
            return tensor * ctx

    result = hvd.allreduce(of(rank), op=hvd.Sum, compression=Halves)
    checks.equal(result, total(size), "a compressor of the user's own")
    results = hvd.grouped_allreduce([of(rank), of(rank, 2)], op=hvd.Sum, compression=Halves)
    checks.equal(results[1], total(size, 2), "grouped")


def check_gradients(checks, rank, size):
    x = of(rank).requires_grad_()
    (hvd.allreduce(x, op=hvd.Sum) * (rank + 1)).sum().backward()
    checks.close(x.grad, torch.full((4,), float(sum(range(1, size + 1)))), "of Sum")
    x = of(rank).requires_grad_()
    hvd.allreduce(x, compression=hvd.Compression.fp16).sum().backward()
    checks.close(x.grad, torch.ones(4), "of Average; D15: of an expanded view")


def check_handles(checks, rank, size):
    handles = {hvd.allreduce_async(of(rank) + i, name=f"h{i}", op=hvd.Sum): i for i in range(5)}
    checks.true(all(isinstance(handle, int) for handle in handles), "handles are integers")
    for handle, i in handles.items():
        checks.close(hvd.synchronize(handle), total(size) + i * size, "synchronize")
    handle = hvd.allreduce_async(of(rank))
    while not hvd.poll(handle):
        pass
    hvd.synchronize(handle)
    checks.true(hvd.synchronize(handle) is None, "a second time")
    checks.raises(ValueError, lambda: hvd.poll(handle), "synchronized already")
    checks.raises(ValueError, lambda: hvd.synchronize("x"), "no handle")
    tensor = of(rank)
    checks.true(hvd.synchronize(hvd.allreduce_async_(tensor, op=hvd.Sum)) is tensor, "in place")
    checks.equal(tensor, total(size), "in place")
    checks.true(hvd.broadcast_(tensor, 0) is tensor, "in place")


def check_names(checks, rank, size):
    """The other ranks hold back until rank 0 has tried, so that its first one is in flight."""
    if size > 1:
        tried = Path(sys.argv[1]) / "tried"
        deadline = time.monotonic() + 30
        while rank > 0 and not tried.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        first = hvd.allreduce_async(of(rank), name="twice", op=hvd.Sum)
        if rank == 0:
            again = lambda: hvd.allreduce_async(of(rank), name="twice")  # noqa: E731
            checks.raises(ValueError, again, "twice", "same name", "currently being processed")
            tried.touch()
        checks.equal(hvd.synchronize(first), total(size), "the first one is not disturbed")
    again = hvd.allreduce(of(rank), name="twice", op=hvd.Sum)
    checks.equal(again, total(size), "the name is free again")


def check_movements(checks, rank, size):
    gathered = hvd.allgather(torch.full((rank, 2), rank))
    rows = [torch.full((r, 2), r) for r in range(size)]
    checks.equal(gathered, torch.cat(rows), "allgather of different lengths")
    checks.equal(hvd.broadcast(of(rank), size - 1), of(size - 1), "broadcast")
    checks.equal(hvd.broadcast(of(rank), root_rank=0, name="r"), of(0), "broadcast")
    sent = torch.arange(size * 2).reshape(size * 2, 1) + 100 * rank
    expected = torch.cat([sent[2 * rank : 2 * rank + 2] + 100 * (r - rank) for r in range(size)])
    checks.equal(hvd.alltoall(sent), expected, "alltoall")
    two = torch.full((size,), 2, dtype=torch.int32)
    received, counts = hvd.alltoall(sent, splits=two)
    checks.equal(received, expected, "alltoall with splits")
    checks.equal(counts, two, "received splits")
    received, counts = hvd.synchronize(hvd.alltoall_async(sent))
    checks.equal(received, expected, "asynchronous: always the pair")
    checks.equal(counts, two, "received splits")
    part = hvd.reducescatter(of(rank, 2 * size + 1), op=hvd.Sum)
    share = [3] + [2] * (size - 1)
    begin = sum(share[:rank])
    checks.equal(part, total(size, 2 * size + 1)[begin : begin + share[rank]], "reducescatter")
    pair = hvd.grouped_allgather([of(rank, 1), of(rank, 2)])
    checks.equal(pair[0], torch.arange(size, dtype=torch.float32) * 10, "grouped_allgather")
    checks.true(hvd.barrier() is None, "barrier")
    checks.raises(ValueError, lambda: hvd.grouped_allreduce([]), "one tensor at least")
    checks.raises(ValueError, lambda: hvd.broadcast(of(rank), size), "root")


def check_objects(checks, rank, size):
    given = {"lr": 0.5} if rank == 0 else None
    checks.true(hvd.broadcast_object(given) == {"lr": 0.5}, "no name needed")
    double = hvd.broadcast_object((lambda x: x * factor) if (factor := size) else None, size - 1)
    checks.true(double(3) == 3 * size, "functions travel")
    checks.true(hvd.allgather_object((rank, "x")) == [(r, "x") for r in range(size)], "gathered")


def check_disagreement(checks, rank, size):
    if size == 1:
        return
    wrong = torch.ones(2 + (rank == 1))
    error = checks.raises(HorovodInternalError, lambda: hvd.allreduce(wrong, name="w"), "'w'")
    checks.true(isinstance(error, ringd.MismatchError), "ringd's error as well")
    copy = pickle.loads(pickle.dumps(error))
    checks.true((type(copy), str(copy)) == (HorovodInternalError, str(error)), "it travels")
    checks.true("ops.py" in str(error), "it names the script's line")
    error = checks.raises(
        HorovodInternalError, lambda: hvd.allreduce(of(rank), prescale_factor=1.0 + (rank == 0))
    )
    pair = [wrong, torch.ones(1)]
    checks.raises(HorovodInternalError, lambda: hvd.grouped_allreduce(pair, name="g"), "rank 1")
    checks.equal(hvd.allreduce(of(rank), name="w", op=hvd.Sum), total(size), "goes on")


def check_sparse(checks, rank, size):
    sparse = torch.eye(3)[:, :2].to_sparse() * (rank + 1)
    handle = hvd.sparse_allreduce_async(sparse, name="sparse", op=hvd.Sum)
    dense = torch.eye(3)[:, :2] * sum(range(1, size + 1))
    checks.close(hvd.synchronize(handle).to_dense(), dense, "by synchronize")
    handle = hvd.sparse_allreduce_async(sparse, name="sparse", op=hvd.Average)
    checks.close(handle().to_dense(), dense / size, "a handle is a function")


def check_adasum(checks, rank, size):
    own = torch.zeros(size)
    own[rank] = rank + 1
    added = torch.arange(1, size + 1, dtype=torch.float32)
    checks.close(hvd.allreduce(own, op=hvd.Adasum), added, "orthogonal: they add up")
    same = torch.tensor([1.0, -2.0, 3.0])
    checks.close(hvd.allreduce(same, op=hvd.Adasum), same, "equal: their mean")
    handle = hvd.allreduce_async_(own, name="adasum", op=hvd.Adasum)
    checks.close(hvd.synchronize(handle), added, "in place")
    weight = torch.nn.Parameter(torch.ones(size))
    plain = torch.optim.SGD([weight], lr=0.5)
    optimizer = hvd.DistributedOptimizer(plain, [("w", weight)], op=hvd.Adasum)
    (weight[rank] * 2).backward()
    optimizer.step()
    checks.close(weight.detach(), torch.zeros(size), "of steps of 1, each on a weight of its own")


def check_batch_norm(checks, rank, size):
    torch.manual_seed(0)
    whole = torch.randn(5 * size, 3)
    result = hvd.SyncBatchNorm(3)(whole[5 * rank : 5 * rank + 5])
    expected = torch.nn.BatchNorm1d(3)(whole)[5 * rank : 5 * rank + 5]
    checks.close(result, expected, "of the joined batch")


def check_optimizer(checks, rank, size):
    """One weight, gradients 1, 2, ...: the mean is (size + 1) / 2, whatever the options."""
    for options in (
        {},
        {"groups": 1, "gradient_predivide_factor": 2.0},
        {"compression": hvd.Compression.fp16},
        {"op": hvd.Sum},
    ):
        weight = torch.nn.Parameter(torch.zeros(1))
        plain = torch.optim.SGD([weight], lr=1.0, momentum=0.5)
        weight.grad = torch.ones(1)
        plain.step()  # Leaves -1 and a momentum of 1.
        optimizer = hvd.DistributedOptimizer(plain, [("w", weight)], **options)
        checks.true(isinstance(optimizer, torch.optim.SGD), "of the user's class")
        checks.true(type(optimizer).__name__ == "SGD", "and its name")
        optimizer.zero_grad(set_to_none=True)
        (weight * (rank + 1)).sum().backward()
        optimizer.step()
        mean = (size + 1) / 2 * (size if options.get("op") == hvd.Sum else 1)
        checks.close(weight.detach(), torch.tensor([-1 - (0.5 + mean)]), f"state kept, {options}")
    twice = [("w", weight), ("w", weight)]
    plain = torch.optim.SGD([weight], lr=1.0)
    checks.raises(ValueError, lambda: hvd.DistributedOptimizer(plain, twice), "w")


def check_process_sets(checks, rank, size):
    checks.true(global_process_set.process_set_id == 0, "the global set")
    checks.true(global_process_set.size() == size, "its size")
    checks.true(global_process_set.rank() == rank, "its rank")
    checks.true(hvd.remove_process_set(global_process_set) is False, "it stays")
    checks.raises(ValueError, lambda: ProcessSet([0, 0]), "twice")
    everyone = hvd.allreduce(of(rank), op=hvd.Sum, process_set=global_process_set)
    checks.equal(everyone, total(size), "the global set, named")


def check_timeline(checks, rank, size):
    mine = Path(sys.argv[1]) / ("timeline" if rank == 0 else f"timeline.rank{rank}")
    for name in ("first", "second"):
        hvd.start_timeline(str(Path(sys.argv[1]) / "timeline"), mark_cycles=True)
        checks.raises(ValueError, lambda: hvd.start_timeline("x"), "stop_timeline")
        hvd.allreduce(of(rank), name=name)
        hvd.stop_timeline()
        checks.true(name in str(json.loads(mine.read_text())), "a file of its own")
    checks.true("first" not in mine.read_text(), "written anew")


def check_elastic_sampler(checks, rank, size):
    sampler = hvd.elastic.ElasticSampler(range(24), seed=3)
    first = list(sampler)
    checks.true(sorted(sum(hvd.allgather_object(first), [])) == list(range(24)), "shares")  # noqa: RUF017
    checks.true(list(sampler) == first, "the same order again")
    sampler.record_batch(0, 2)
    sampler.record_batch(1, 1)
    checks.true(sampler.processed_num == 3 * size, "batches of all ranks")
    other = hvd.elastic.ElasticSampler(range(24), seed=3)
    other.load_state_dict(sampler.state_dict())
    rest = hvd.allgather_object(list(other))
    done = {i for share in hvd.allgather_object(first) for i in share[:3]}
    left = {i for share in rest for i in share}
    checks.true(done | left == set(range(24)) and not done & left, "the rest")
    checks.true({len(share) for share in rest} == {len(other)}, "as many each")
    sampler.set_epoch(1)
    checks.true(sampler.processed_num == 0 and list(sampler) != first, "another epoch")


def check_queries(checks, rank, size):
    checks.true(hvd.is_initialized(), "initialized")
    same = len(set(hvd.allgather_object(hvd.local_size()))) == 1
    checks.true(hvd.is_homogeneous() is same, "homogeneous")
    checks.true(hvd.local_rank() < hvd.local_size() <= size, "local")
    checks.true(hvd.gloo_built() and not hvd.mpi_built() and not hvd.mpi_enabled(), "built")
    checks.true(hvd.nccl_built() in (0, False) or hvd.cuda_built(), "NCCL goes with CUDA")
    checks.true(HostsUpdatedInterrupt(skip_sync=True).skip_sync is True, "skip_sync")
    checks.true(issubclass(HostsUpdatedInterrupt, RuntimeError), "HostsUpdatedInterrupt")


TESTS = [
    check_defaults,
    check_compression,
    check_gradients,
    check_handles,
    check_names,
    check_movements,
    check_objects,
    check_disagreement,
    check_sparse,
    check_optimizer,
    check_batch_norm,
    check_adasum,
    check_process_sets,
    check_timeline,
    check_elastic_sampler,
    check_queries,
]


def main():
    checks = Checks()
    checks.raises(ValueError, hvd.rank, "not been initialized")
    checks.raises(HorovodInternalError, lambda: hvd.allreduce(torch.ones(1)), "init")
    checks.raises(ValueError, lambda: hvd.start_timeline("x"), "not been initialized")
    hvd.init()
    hvd.init()
    torch.set_num_threads(1)
    for test in TESTS:
        test(checks, hvd.rank(), hvd.size())
    print(f"rank {hvd.rank()} of {hvd.size()}: {checks.passed} checks passed")
    hvd.shutdown()
    checks.raises(ValueError, hvd.size, "not been initialized")


if __name__ == "__main__":
    main()
