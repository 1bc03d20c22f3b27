"""Process sets as scripts of Horovod use them: even and odd ranks, again and again."""

import horovod.torch as hvd
import torch
from horovod.common.process_sets import ProcessSet, global_process_set

from tests.torch.checks import Checks


def check_static(checks, rank, size, first):
    checks.true((first.process_set_id, first.ranks) == (1, [0]), "of init()")
    checks.true(first.included() is (rank == 0), "member")
    if rank == 0:
        alone = hvd.allreduce(torch.ones(2) * 7, op=hvd.Sum, process_set=first)
        checks.equal(alone, torch.ones(2) * 7, "one rank's set")
    else:
        checks.raises(ValueError, lambda: hvd.allreduce(torch.ones(2), process_set=first))


def check_sets(checks, rank, size):
    evens = hvd.add_process_set(range(0, size, 2))
    odds = hvd.add_process_set(ProcessSet(list(range(1, size, 2))))
    checks.true((evens.process_set_id, odds.process_set_id) == (2, 3), "ids")
    mine = odds if rank % 2 else evens
    other = evens if rank % 2 else odds
    members = list(range(rank % 2, size, 2))
    checks.true(mine.size() == len(members) and mine.rank() == members.index(rank), "place")
    checks.true(not other.included(), "not a member of the other one")

    given = torch.full((3,), float(rank))
    total = torch.full((3,), float(sum(members)))
    checks.equal(hvd.allreduce(given, op=hvd.Sum, process_set=mine), total, "Sum")
    mean = hvd.allreduce(given, name="x", process_set=mine)
    checks.close(mean, total / len(members), "Average over the set")
    own = torch.zeros(size)
    own[rank] = 1
    adasum = hvd.allreduce(own, op=hvd.Adasum, process_set=mine)
    checks.close(adasum, torch.eye(size)[members].sum(0), "Adasum of orthogonal tensors")
    gathered = hvd.allgather(given[:1], process_set=mine)
    checks.equal(gathered, torch.tensor(members, dtype=torch.float32), "in order of ranks")
    root = members[-1]
    sent = hvd.broadcast(given, root, process_set=mine)
    checks.equal(sent, torch.full((3,), float(root)), "the root is a rank of the job")
    checks.raises(ValueError, lambda: hvd.broadcast(given, 1 - rank % 2, process_set=mine))
    checks.raises(ValueError, lambda: hvd.allreduce(given, process_set=other))
    rows = torch.arange(len(members)) + 10 * rank
    received, counts = hvd.synchronize(hvd.alltoall_async(rows, process_set=mine))
    place = members.index(rank)
    checks.equal(received, torch.tensor([10 * r + place for r in members]), "alltoall")
    checks.equal(counts, torch.ones(len(members), dtype=torch.int32), "received splits")
    told = hvd.broadcast_object(rank, root_rank=members[0], process_set=mine)
    checks.true(told == members[0], "objects")
    hvd.barrier(process_set=mine)
    # The same name in two sets at once.
    both = [
        hvd.allreduce_async(given, name="same", op=hvd.Sum, process_set=mine),
        hvd.allreduce_async(given, name="same", op=hvd.Sum, process_set=global_process_set),
    ]
    checks.equal(hvd.synchronize(both[0]), total, "the set's")
    checks.equal(hvd.synchronize(both[1]), torch.full((3,), float(sum(range(size)))), "the job's")
    checks.raises(ValueError, lambda: hvd.add_process_set(list(range(size))))
    checks.raises(ValueError, lambda: hvd.add_process_set([0, size]))
    checks.true(hvd.remove_process_set(odds) is True, "removed")
    checks.true(hvd.remove_process_set(evens) is True, "removed")
    checks.true(odds.process_set_id is None, "no longer valid")
    hvd.add_process_set(odds)  # Ids come back in the order in which they were freed.
    hvd.add_process_set(evens)
    checks.true((odds.process_set_id, evens.process_set_id) == (3, 2), "ids come back")
    for each in (evens, odds):
        hvd.remove_process_set(each)


def check_optimizer(checks, rank, size):
    """Ranks of the set train on their mean; the others each on their own."""
    some = hvd.add_process_set([0, 1])
    model = torch.nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(1.0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), process_set=some
    )
    (model(torch.ones(1, 2)) * (rank + 1)).sum().backward()
    optimizer.step()
    step = 1.5 if rank < 2 else rank + 1.0
    checks.close(model.weight.detach(), torch.full((1, 2), 1 - step), "step")
    hvd.remove_process_set(some)


def main():
    checks = Checks()
    first = ProcessSet([0])
    checks.true(first.size() is None and first.process_set_id is None, "not registered")
    hvd.init(process_sets=[first])
    torch.set_num_threads(1)
    rank, size = hvd.rank(), hvd.size()
    check_static(checks, rank, size, first)
    for _ in range(3):
        check_sets(checks, rank, size)
    check_optimizer(checks, rank, size)
    print(f"rank {rank} of {size}: {checks.passed} checks passed")


if __name__ == "__main__":
    main()
