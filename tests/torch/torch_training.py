"""What scripts do with `ringd.torch.DistributedOptimizer` besides steps, against one process.

    ringctl run -n 4 -- python tests/torch/torch_training.py

Each rank of the job runs both and compares.
"""

import json
import shutil
import tempfile
import time
import warnings
from pathlib import Path

import checks as support
import ringd.torch as ringd
import torch
from models import OPTIMIZERS, batch, close_models, loss_of, make_model, mine, same_bits
from torch import nn


def compare(checks, rank, size, what, options, rtol=1e-4, atol=1e-5, make=OPTIMIZERS["sgd"]):
    model, reference = make_model(), make_model()
    plain = make(reference.parameters())
    given = options(model) if callable(options) else options
    optimizer = ringd.DistributedOptimizer(
        make(model.parameters()), model.named_parameters(), **given
    )
    for step in range(4):
        x, y = batch(step, size)
        plain.zero_grad()
        loss_of(reference, x, y).backward()
        plain.step()
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        loss_of(model, mine(x, rank), mine(y, rank)).backward()
        optimizer.step()
    for result, right in zip(model.parameters(), reference.parameters(), strict=True):
        checks.close(result.data, right.data, what, rtol=rtol, atol=atol)
    same_bits(checks, model, what)
    return optimizer


def check_overlap(checks, rank, size):
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    params = [*first.parameters(), *second.parameters()]
    optimizer = ringd.DistributedOptimizer(torch.optim.SGD(params, lr=0.1), bucket_bytes=1)
    hidden = first(torch.ones(1, 4))
    seen = []
    before = ringd.stats()["operations"]

    def look(grad):  # Backward is at the first layer: the second one's are on their way.
        limit = time.monotonic() + 20
        while ringd.stats()["operations"] < before + 2 and size > 1 and time.monotonic() < limit:
            time.sleep(0.001)
        seen.append(ringd.stats()["operations"])

    hidden.register_hook(look)
    second(hidden).sum().backward()
    optimizer.step()
    after = ringd.stats()["operations"]
    wanted = (before + 2, before + 4) if size > 1 else (before, before)
    checks.true((*seen, after) == wanted, "buckets start while backward goes on")


def check_groups(checks, rank, size):
    def lists(model):
        return {"groups": [list(model[0].parameters()), [model[4].weight, model[2].bias]]}

    compare(checks, rank, size, "groups of parameters", lists)
    for number in (1, 2, 5, 100):
        compare(checks, rank, size, f"{number} groups", {"groups": number})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compare(checks, rank, size, "num_groups", {"num_groups": 2})
    checks.true(any("num_groups" in str(each.message) for each in caught), "deprecated")
    model = make_model()
    before = ringd.stats()["operations"]
    optimizer = ringd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), groups=3)
    registered = ringd.stats()["operations"]
    loss_of(model, *batch(0, 1)).backward()
    optimizer.step()
    wanted = registered + (3 if size > 1 else 0)  # One rank has nothing to reduce.
    checks.true(ringd.stats()["operations"] == wanted, "an operation for each group")
    checks.true(registered >= before, "counters")
    weight = model[0].weight
    fresh = torch.optim.SGD(model.parameters(), lr=0.1)
    for groups in (0, -1, [[weight], [weight]], [["a"]]):
        checks.raises(
            ValueError,
            lambda groups=groups: ringd.DistributedOptimizer(fresh, groups=groups),
            "groups",
        )
    mixed = [nn.Parameter(torch.zeros(3, dtype=d)) for d in (torch.float32, torch.float64)]
    optimizer = ringd.DistributedOptimizer(
        torch.optim.SGD(mixed, lr=1.0), groups=[mixed], op=ringd.Sum
    )
    sum(p.sum().double() for p in mixed).backward()
    optimizer.step()
    for param in mixed:
        checks.equal(param.data, torch.full_like(param.data, -size), "a group of two dtypes")


def check_compression(checks, rank, size):
    for compression, tolerance in ((ringd.Compression.fp16, 2e-3), (ringd.Compression.bf16, 2e-2)):
        for options in ({}, {"bucket_bytes": 2000}, {"groups": 2}):
            optimizer = compare(
                checks,
                rank,
                size,
                f"{compression.__name__} {options}",
                {"compression": compression, **options},
                rtol=tolerance,
                atol=tolerance,
            )
            for group in optimizer.param_groups:
                for param in group["params"]:
                    checks.true(param.grad.dtype == torch.float32, "the dtype is restored")
                    wire = compression.compress(param.grad)[0]
                    checks.true(len(wire) == len(param.grad), "same shape")
    param = nn.Parameter(torch.zeros(4))
    optimizer = ringd.DistributedOptimizer(
        torch.optim.SGD([param], lr=1.0),
        compression=ringd.Compression.fp16,
        backward_passes_per_step=2,
        op=ringd.Sum,
    )
    for step in range(2):
        optimizer.zero_grad(set_to_none=step == 0)
        for _ in range(2):
            (param * (rank + 1)).sum().backward()
        optimizer.step()
    total = size * (size + 1)
    checks.equal(param.grad, torch.full((4,), float(total)), "passes add up before they travel")
    checks.equal(param.data, torch.full((4,), -2.0 * total), "two steps")
    optimizer.zero_grad()
    if rank == 0:
        param.sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimizer.step()
    checks.equal(param.grad, torch.ones(4), "a rank without gradients, and early")

    class Changing(ringd.Compressor):
        @staticmethod
        def compress(tensor):
            return tensor[tensor != 0], tensor

        @staticmethod
        def decompress(tensor, ctx):
            return ctx

    fresh = ringd.DistributedOptimizer(torch.optim.SGD([param], lr=1.0), compression=Changing)
    checks.raises(ringd.RingdError, lambda: param.sum().backward(), "shape and dtype only")
    checks.raises(ringd.RingdError, fresh.synchronize, "shape and dtype only")
    param.grad = None
    fresh.synchronize()


class Words(nn.Module):
    """An embedding with sparse gradients before dense layers."""

    def __init__(self, sparse, seed=1):
        super().__init__()
        torch.manual_seed(seed)
        self.table = nn.Embedding(11, 4, sparse=sparse)
        self.head = nn.Linear(4, 2)

    def forward(self, words):
        return self.head(self.table(words)).tanh()


def words_of(step, size):
    generator = torch.Generator().manual_seed(step)
    return torch.randint(0, 11, (6 * size,), generator=generator)


def check_sparse(checks, rank, size):
    for options in (
        {"sparse_as_dense": True}, {}, {"compression": ringd.Compression.none, "groups": 1},
        {"sparse_as_dense": True, "compression": ringd.Compression.bf16},
        {"compression": ringd.Compression.bf16},
    ):  # fmt: skip
        model, reference = Words(True), Words(False)
        plain = torch.optim.SGD(reference.parameters(), lr=0.5)
        optimizer = ringd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.5), model.named_parameters(), **options
        )
        for step in range(4):
            words = words_of(step, size)
            plain.zero_grad()
            reference(words).square().mean().backward()
            plain.step()
            optimizer.zero_grad()
            model(mine(words, rank)).square().mean().backward()
            optimizer.step()
            sparse = "sparse_as_dense" not in options
            checks.true(model.table.weight.grad.is_sparse == sparse, f"{options}: layout")
        tolerance = 2e-2 if options.get("compression") is ringd.Compression.bf16 else 1e-5
        for result, right in zip(model.parameters(), reference.parameters(), strict=True):
            checks.close(result.data, right.data, f"sparse {options}", tolerance, tolerance)
        same_bits(checks, model, f"sparse {options}")


def check_sparse_on_some_ranks(checks, rank, size):
    """Rank 0's gradient is sparse, rank 1's dense, others have none; then only rank 0 has one."""
    table, other = nn.Parameter(torch.zeros(5, 2)), nn.Parameter(torch.zeros(3))
    optimizer = ringd.DistributedOptimizer(torch.optim.SGD([table, other], lr=1.0), op=ringd.Sum)
    right = torch.zeros(5, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in range(3):
            optimizer.zero_grad()
            words = torch.tensor([1, 4, 4])
            loss = other.sum() * (rank + 1)
            if rank == 0:
                loss = loss + nn.functional.embedding(words, table, sparse=True).sum()
            elif rank == 1 and step == 0:
                loss = loss + (table * 3).sum()
            loss.backward()
            optimizer.step()
            right[1] -= 1
            right[4] -= 2
            right -= 3 if step == 0 and size > 1 else 0
            checks.equal(table.data, right, f"sparse on some ranks, step {step}")
            done = (step + 1) * size * (size + 1) / 2
            checks.equal(other.data, torch.full((3,), -done), "the dense neighbour")
        optimizer.zero_grad()
        other.sum().backward()
        optimizer.step()
    checks.true(table.grad is None, "used by no rank")


def check_only_sparse(checks, rank, size):
    for make in (torch.optim.SparseAdam, torch.optim.Adagrad):
        model, reference = nn.Embedding(7, 3, sparse=True), nn.Embedding(7, 3, sparse=True)
        for table in (model, reference):
            nn.init.ones_(table.weight)
        plain = make(reference.parameters(), lr=0.1)
        optimizer = ringd.DistributedOptimizer(
            make(model.parameters(), lr=0.1), backward_passes_per_step=2
        )
        for step in range(3):
            words = words_of(step, size) % 7
            for each in (plain, optimizer):
                each.zero_grad()
            for _ in range(2):
                reference(words).square().mean().backward()
                model(mine(words, rank)).square().mean().backward()
            plain.step()
            optimizer.step()
        checks.close(model.weight.data, reference.weight.data, f"only sparse {make.__name__}")
        model(mine(words, rank)).sum().backward()
        model(mine(words, rank)).sum().backward()
        checks.raises(
            AssertionError, lambda m=model: m(torch.tensor([0])).sum().backward(), "more than 2"
        )
        optimizer.synchronize()
    table = nn.Embedding(3, 2, sparse=True)
    optimizer = ringd.DistributedOptimizer(torch.optim.SGD(table.parameters(), 0.1), op=ringd.Max)
    checks.raises(
        ringd.RingdError, lambda: table(torch.tensor([1])).sum().backward(), "sparse_as_dense"
    )
    checks.raises(ringd.RingdError, optimizer.step, "sparse_as_dense")
    optimizer.zero_grad()
    table.weight.square().sum().backward()
    optimizer.step()


def check_sparse_allreduce(checks, rank, size):
    dense = [torch.zeros(5, 2, 3) for _ in range(size)]
    for r, tensor in enumerate(dense):
        tensor[r % 5] = r + 1
        tensor[4] = 2
    parts = [tensor.to_sparse(1) for tensor in dense]
    for op, right in ((ringd.Sum, sum(dense)), (ringd.Average, sum(dense) / size)):
        handle = ringd.sparse_allreduce_async(parts[rank], f"sparse {op.name}", op)
        while not ringd.poll(handle):
            pass
        result = ringd.synchronize(handle)
        checks.true(result.is_sparse and result.shape == (5, 2, 3), "a sparse tensor")
        checks.close(result.to_dense(), right, f"sparse {op.name}")
        called = ringd.sparse_allreduce_async(dense[rank].to_sparse(), name=None, op=op)()
        checks.close(called.to_dense(), right, f"all dimensions sparse, {op.name}")
    twice = torch.sparse_coo_tensor([[0, 0]], torch.tensor([1.0, 2.0]), (4,))
    nothing = torch.sparse_coo_tensor(torch.empty(1, 0), torch.empty(0), (4,))
    own = twice if rank == 0 else nothing
    result = ringd.sparse_allreduce_async(own, "s", ringd.Sum).wait()
    checks.equal(result.to_dense(), torch.tensor([3.0, 0, 0, 0]), "doubled and missing indices")
    checks.raises(ValueError, lambda: ringd.sparse_allreduce_async(dense[0], "d", ringd.Sum))
    checks.raises(ValueError, lambda: ringd.sparse_allreduce_async(twice, "d", ringd.Max))
    checks.raises(TypeError, lambda: ringd.sparse_allreduce_async([1], "d", ringd.Sum))
    if size > 1:
        wrong = torch.sparse_coo_tensor([[0]], torch.ones(1), (4 + (rank == 1),))
        checks.raises(
            ringd.MismatchError,
            lambda: ringd.sparse_allreduce_async(wrong, "w", ringd.Sum).wait(),
            "float32[4]",
            "float32[5]",
        )


def check_changed_gradients(checks, rank, size):
    """Clipping before the reductions are over is an error, not a race."""
    for compression in (ringd.Compression.none, ringd.Compression.bf16):
        model = make_model()
        optimizer = ringd.DistributedOptimizer(
            OPTIMIZERS["sgd"](model.parameters()), compression=compression
        )
        for step in range(2):
            x, y = batch(step, size)
            optimizer.zero_grad()
            loss_of(model, mine(x, rank), mine(y, rank)).backward()
            if step == 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
                checks.raises(ringd.StepOrderError, optimizer.step, "synchronize()")
            else:
                optimizer.step()
        same_bits(checks, model, "the step after")


def check_mixed_precision(checks, rank, size):
    """Loss scaling, with an overflow on one rank: all ranks skip that step."""
    model, reference = make_model(), make_model()
    plain = OPTIMIZERS["sgd"](reference.parameters())
    optimizer = ringd.DistributedOptimizer(OPTIMIZERS["sgd"](model.parameters()))
    scalers = [torch.amp.GradScaler("cpu", init_scale=1024.0) for _ in range(2)]
    for step in range(5):
        x, y = batch(step, size)
        x[0] = float("inf") if step == 2 else x[0]
        plain.zero_grad()
        scalers[0].scale(loss_of(reference, x, y)).backward()
        scalers[0].unscale_(plain)
        torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.5)
        scalers[0].step(plain)
        scalers[0].update()
        optimizer.zero_grad()
        scalers[1].scale(loss_of(model, mine(x, rank), mine(y, rank))).backward()
        optimizer.synchronize()
        scalers[1].unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        with optimizer.skip_synchronize():
            scalers[1].step(optimizer)
        scalers[1].update()
        checks.true(scalers[0].get_scale() == scalers[1].get_scale(), "same scale")
    checks.true(scalers[1].get_scale() < 1024, "a step was skipped")
    close_models(checks, model, reference, "GradScaler")
    model, reference = make_model(), make_model()
    plain = OPTIMIZERS["sgd"](reference.parameters())
    optimizer = ringd.DistributedOptimizer(OPTIMIZERS["sgd"](model.parameters()))
    for step in range(3):
        x, y = batch(step, size)
        for each in (plain, optimizer):
            each.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss_of(reference, x, y).backward()
            loss_of(model, mine(x, rank), mine(y, rank)).backward()
        plain.step()
        optimizer.step()
    for result, right in zip(model.parameters(), reference.parameters(), strict=True):
        checks.close(result.data, right.data, "autocast", rtol=2e-2, atol=2e-2)
    same_bits(checks, model, "autocast")


def check_checkpoint(checks, rank, size):
    """Saved after two steps, loaded into fresh objects: as without a stop."""

    def train(model, optimizer, scheduler, steps):
        for step in steps:
            x, y = batch(step, size)
            optimizer.zero_grad()
            loss_of(model, mine(x, rank), mine(y, rank)).backward()
            optimizer.step()
            scheduler.step()

    def fresh():
        model = make_model()
        optimizer = ringd.DistributedOptimizer(
            torch.optim.AdamW(model.parameters(), lr=0.01), model.named_parameters()
        )
        return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6)

    whole = fresh()
    train(*whole, range(4))
    first = fresh()
    train(*first, range(2))
    saved = [part.state_dict() for part in first]
    second = fresh()
    for part, state in zip(second, saved, strict=True):
        part.load_state_dict(state)
    train(*second, range(2, 4))
    close_models(checks, second[0], whole[0], "checkpoint")
    checks.true(second[2].get_last_lr() == whole[2].get_last_lr(), "scheduler")


def check_alternating(checks, rank, size):
    """Two optimizers in turn, the other's parameters frozen meanwhile, as GANs do."""
    made, judge = make_model(1), nn.Linear(2, 1)
    models = [made, judge]
    ringd.broadcast_parameters(judge.state_dict())
    optimizers = [
        ringd.DistributedOptimizer(torch.optim.SGD(m.parameters(), lr=0.1)) for m in models
    ]
    copies = [make_model(1), nn.Linear(2, 1)]
    copies[1].load_state_dict(judge.state_dict())
    plain = [torch.optim.SGD(m.parameters(), lr=0.1) for m in copies]
    for step in range(4):
        x, _ = batch(step, size)
        turn = step % 2
        for k in range(2):
            for each in (models[k], copies[k]):
                each.requires_grad_(k == turn)
        for optimizer in (optimizers[turn], plain[turn]):
            optimizer.zero_grad()
        judge(made(mine(x, rank))).square().mean().backward()
        copies[1](copies[0](x)).square().mean().backward()
        optimizers[turn].step()
        plain[turn].step()
    for k in range(2):
        close_models(checks, models[k], copies[k], f"alternating {k}")


def check_arguments_of_horovod(checks, rank, size):
    """By position, in Horovod's order."""
    model = make_model()
    optimizer = ringd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        model.named_parameters(),
        ringd.Compression.none,
        2,
        ringd.Average,
        2.0,
        0,
        None,
        True,
        ringd.global_process_set,
    )
    x, y = batch(0, size)
    loss_of(model, mine(x, rank), mine(y, rank)).backward()
    checks.raises(AssertionError, optimizer.zero_grad, "between backward() and step()")
    loss_of(model, mine(x, rank), mine(y, rank)).backward()
    optimizer.step()
    reference = make_model()
    (loss_of(reference, x, y) * 2).backward()
    for result, right in zip(model.parameters(), reference.parameters(), strict=True):
        checks.close(result.grad, right.grad, "two passes, summed")


def combine_by_hand(vectors):
    """Adasum in float64, in pairs, then pairs of pairs; one without a partner waits."""
    while len(vectors) > 1:
        pairs = []
        for a, b in zip(vectors[::2], vectors[1::2], strict=False):
            dot, aa, bb = (a * b).sum(), (a * a).sum(), (b * b).sum()
            pairs.append(a * (1 - dot / (2 * aa)) + b * (1 - dot / (2 * bb)))
        vectors = pairs + (vectors[-1:] if len(vectors) % 2 else [])
    return vectors[0]


def check_adasum(checks, rank, size):
    """Ranks' own steps, combined; every rank works out all of them."""
    for make in (OPTIMIZERS["sgd"], OPTIMIZERS["adam"]):
        model = make_model().double()
        optimizer = ringd.DistributedOptimizer(make(model.parameters()), op=ringd.Adasum)
        copies = [make_model().double() for _ in range(size)]
        plain = [make(copied.parameters()) for copied in copies]
        for step in range(3):
            x, y = (each.double() for each in batch(step, size))
            optimizer.zero_grad()
            loss_of(model, mine(x, rank), mine(y, rank)).backward()
            optimizer.step()
            old = [param.detach().clone() for param in copies[0].parameters()]
            for r in range(size):
                plain[r].zero_grad()
                loss_of(copies[r], mine(x, r), mine(y, r)).backward()
                plain[r].step()
            for k, start in enumerate(old):
                each = [list(copied.parameters())[k] for copied in copies]
                total = combine_by_hand([param.detach() - start for param in each])
                for param in each:
                    param.data.copy_(start + total)
        for result, right in zip(model.parameters(), copies[0].parameters(), strict=True):
            checks.close(result.data, right.data, "Adasum", rtol=1e-9, atol=1e-12)
        same_bits(checks, model, "Adasum")

    def skip():
        with optimizer.skip_synchronize():
            pass

    checks.raises(AssertionError, skip, "Adasum")
    checks.raises(ValueError, lambda: ringd.DistributedOptimizer(optimizer), "already")
    optimizer.synchronize()


def check_timeline(checks, rank, size):
    """Each rank writes its own file."""
    folder = ringd.broadcast_object(tempfile.mkdtemp() if rank == 0 else None)
    path = Path(folder, "timeline.json")
    ringd.start_timeline(str(path))
    model = make_model()
    optimizer = ringd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    loss_of(model, *batch(0, 1)).backward()
    optimizer.step()
    ringd.allreduce(torch.ones(2, 3), name="mine")
    ringd.stop_timeline()
    events = json.loads((path if rank == 0 else Path(f"{path}.rank{rank}")).read_text())
    checks.true({event["pid"] for event in events} == {rank}, "a rank's own events")
    for name in ("allreduce 'mine'", "wait for gradients"):
        phases = [event["ph"] for event in events if event["name"] == name]
        checks.true(phases == ["b", "e"], f"{name} once")
    ringd.barrier()
    if rank == 0:
        shutil.rmtree(folder)


if __name__ == "__main__":
    support.run(
        ringd,
        check_overlap,
        check_groups,
        check_compression,
        check_sparse,
        check_sparse_on_some_ranks,
        check_only_sparse,
        check_sparse_allreduce,
        check_changed_gradients,
        check_mixed_precision,
        check_checkpoint,
        check_alternating,
        check_arguments_of_horovod,
        check_adasum,
        check_timeline,
    )
