"""What is wrong on purpose: an error or the right result, and the next operation works.

ringctl run -n 4 -- python tests/torch/torch_bad_input.py

what is wrong                        checked by
dtype, layout, device                check_kinds_of_tensors; of parameters: check_parameters
not contiguous                       check_layouts
other packages' arrays, read-only    check_dlpack
arguments                            check_arguments
freed, swapped in flight; waited     check_handles
for twice
other shape, dtype, op, kind, order  check_differences
on one rank
a name that is in flight             check_names
a forked child                       check_fork
several threads                      check_threads; backward in one: check_backward_in_a_thread
before init, after shutdown          check_before_init, check_life
"""

import gc
import os
import threading
import warnings

import checks as support
import numpy as np
import ringd.torch as ringd
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode


def goes_on(checks, size, what):
    result = ringd.allreduce(torch.ones(3), op=ringd.Sum)
    checks.equal(result, torch.full((3,), float(size)), f"the operation after {what}")


def forms(tensor):
    """Every operation of a tensor."""
    return [
        lambda: ringd.allreduce(tensor),
        lambda: ringd.allreduce_(tensor),
        lambda: ringd.allreduce_async(tensor),
        lambda: ringd.grouped_allreduce([torch.ones(1), tensor]),
        lambda: ringd.grouped_allreduce_([torch.ones(1), tensor]),
        lambda: ringd.broadcast(tensor, 0),
        lambda: ringd.broadcast_(tensor, 0),
        lambda: ringd.allgather(tensor),
        lambda: ringd.grouped_allgather([tensor]),
        lambda: ringd.reducescatter(tensor),
        lambda: ringd.grouped_reducescatter([tensor]),
        lambda: ringd.alltoall(tensor),
        lambda: ringd.broadcast_parameters({"a": tensor}),
    ]


def check_kinds_of_tensors(checks, rank, size):
    warnings.simplefilter("ignore")
    with FakeTensorMode():
        fake = torch.ones(4)
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    quantized = torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8)
    for what, tensor, text in (
        ("complex", torch.ones(4, dtype=torch.complex64), "complex64"),
        ("float8", torch.ones(4).to(torch.float8_e4m3fn), "float8_e4m3fn"),
        ("quantized", quantized, "qint8"),
        ("meta", torch.ones(4, device="meta"), "meta"),
        ("sparse", torch.ones(4).to_sparse(), "sparse"),
        ("sparse rows", torch.ones(4, 4).to_sparse_csr(), "sparse"),
        ("mkldnn", torch.ones(4).to_mkldnn(), "mkldnn"),
        ("fake", fake, "memory"),
        ("nested", nested, "nested"),
    ):
        for call in forms(tensor):
            checks.raises(ValueError, call, text)
        goes_on(checks, size, what)
    for value in (None, 1.0, [1.0], "a", object()):
        for call in forms(value)[:-1]:
            checks.raises(TypeError, call, "torch.Tensor")
    goes_on(checks, size, "values that are no tensors")


def check_parameters(checks, rank, size):
    for what, tensor in (
        ("complex64", torch.ones(4, dtype=torch.complex64)),
        ("float8_e4m3fn", torch.ones(4).to(torch.float8_e4m3fn)),
        ("meta", torch.ones(4, device="meta")),
    ):
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2)), nn.Parameter(tensor)], lr=0.1)
        checks.raises(
            ValueError,
            lambda optimizer=optimizer: ringd.DistributedOptimizer(optimizer),
            "parameter 'param_group.0.1'",
            what,
        )
        goes_on(checks, size, f"a parameter of {what}")


def check_layouts(checks, rank, size):
    whole = torch.arange(24.0).reshape(4, 6)
    for what, view in (
        ("transposed", whole.t()),
        ("strided", whole[:, ::2]),
        ("expanded", whole[:1].expand(5, 6)),
        ("negated", torch.complex(whole, whole).conj().imag),
    ):
        checks.equal(ringd.allreduce(view, op=ringd.Sum), (view * size).contiguous(), what)
        checks.equal(ringd.broadcast(view, 0), view.contiguous(), what)
        checks.raises(ValueError, lambda view=view: ringd.allreduce_(view), "contiguous")
        checks.raises(ValueError, lambda view=view: ringd.broadcast_(view, 0), "contiguous")
        out = torch.empty(view.shape).t() if what == "transposed" else torch.empty(1).expand(9)
        checks.raises(ValueError, lambda v=view, out=out: ringd.allreduce(v, out=out), "out")
    goes_on(checks, size, "layouts")


def check_dlpack(checks, rank, size):
    array = np.arange(4.0) + rank
    right = torch.arange(4.0, dtype=torch.float64) * size + size * (size - 1) / 2
    checks.equal(ringd.allreduce(array, op=ringd.Sum), right, "a NumPy array")
    checks.equal(ringd.broadcast(array, 0), torch.arange(4.0, dtype=torch.float64), "broadcast")
    checks.true(ringd.allgather(array).shape == (4 * size,), "allgather")
    checks.true(ringd.allreduce_(array, op=ringd.Sum) is array, "the same object in place")
    checks.equal(torch.from_numpy(array), right, "in place")
    frozen = np.ones(2)
    frozen.flags.writeable = False
    checks.raises(ValueError, lambda: ringd.allreduce_(frozen), "read-only")
    checks.equal(ringd.allreduce(frozen), torch.ones(2, dtype=torch.float64), "read-only input")
    checks.raises(ValueError, lambda: ringd.allreduce_(np.ones((4, 4))[:, ::2]), "contiguous")
    goes_on(checks, size, "DLPack")


def check_arguments(checks, rank, size):
    one = torch.ones(2 * size)
    for call in (
        lambda: ringd.allreduce(one, op=0),
        lambda: ringd.allreduce(one, op="Sum"),
        lambda: ringd.broadcast(one, -1),
        lambda: ringd.broadcast(one, size),
        lambda: ringd.alltoall(one, splits=[1] * (size + 1)),
        lambda: ringd.alltoall(one, splits=[-1] * size),
        lambda: ringd.alltoall(one, splits=[9] * size),
        lambda: ringd.alltoall(one, splits=[0.5] * size),
        lambda: ringd.alltoall(one, splits=torch.ones(size, 1, dtype=torch.int32)),
        lambda: ringd.allreduce(one, out=torch.empty(3)),
        lambda: ringd.allreduce(one, out=torch.empty(2 * size, dtype=torch.float64)),
        lambda: ringd.allreduce(one, name="n" * 5000),
        lambda: ringd.allreduce(torch.ones([1] * 40)),
        lambda: ringd.allreduce(torch.ones(1, dtype=torch.bool)),
        lambda: ringd.allgather(torch.tensor(1.0)),
        lambda: ringd.reducescatter(torch.tensor(1.0)),
        lambda: ringd.alltoall(torch.tensor(1.0)),
    ):
        checks.raises(ValueError, call)
    for call in (
        lambda: ringd.allreduce(one, process_set=3),
        lambda: ringd.allreduce(one, prescale_factor="a"),
        lambda: ringd.allreduce(one, name=7),
        lambda: ringd.broadcast(one, "0"),
        lambda: ringd.DistributedOptimizer(None),
    ):
        checks.raises((TypeError, ValueError, AttributeError), call)
    goes_on(checks, size, "arguments")


def check_handles(checks, rank, size):
    over = ringd.allreduce_async(torch.ones(2))
    ringd.synchronize(over)
    checks.raises(ValueError, lambda: ringd.synchronize(over), "already")
    checks.raises(ValueError, lambda: ringd.poll(over), "already")
    for i in range(30):
        tensor = torch.full((1000,), float(i))
        handle = ringd.allreduce_async_(tensor, op=ringd.Sum)
        held = handle if i % 2 else None
        del tensor, handle
        gc.collect()
        torch.full((1000,), -1.0)
        if held is not None:
            checks.equal(held.wait(), torch.full((1000,), float(i * size)), "freed in flight")
    for i in range(10):
        tensor = ringd.empty(50_000).fill_(i)
        handle = ringd.allreduce_async_(tensor, op=ringd.Sum)
        del tensor
        ringd.empty(50_000).fill_(-1)  # Would be the same memory, were it free.
        checks.equal(handle.wait(), torch.full((50_000,), float(i * size)), "arena memory freed")
    swapped = torch.ones(100_000)
    handle = ringd.allreduce_async_(swapped, op=ringd.Sum)
    swapped.data = torch.zeros(5)
    checks.true(ringd.synchronize(handle) is swapped, "the same object")
    checks.equal(swapped, torch.zeros(5), "what was put in its place in flight")
    goes_on(checks, size, "tensors freed in flight")


def check_differences(checks, rank, size):
    """One rank calls something else: the same error on all of them."""
    if size == 1:
        return
    odd = rank == size - 1
    calls = (
        lambda: ringd.allreduce(torch.ones(3 + odd)),
        lambda: ringd.allreduce(torch.ones(2, 3) if odd else torch.ones(3, 2)),
        lambda: ringd.allreduce(torch.ones(3, dtype=torch.float64 if odd else torch.float32)),
        lambda: ringd.allreduce(torch.ones(3), op=ringd.Max if odd else ringd.Sum),
        lambda: ringd.allreduce(torch.ones(3), prescale_factor=2.0 if odd else 1.0),
        lambda: ringd.broadcast(torch.ones(3), int(odd)),
        lambda: ringd.broadcast(torch.ones(3 + odd), 0),
        lambda: ringd.allgather(torch.ones(2, 3 + odd)),
        lambda: ringd.alltoall(torch.ones(size, 3 + odd)),
        lambda: ringd.reducescatter(torch.ones(size + odd)),
        lambda: ringd.grouped_allreduce([torch.ones(2), torch.ones(3 + odd)]),
        lambda: ringd.allreduce(torch.ones(3)) if odd else ringd.broadcast(torch.ones(3), 0),
        lambda: ringd.allreduce_(ringd.empty((3 + odd,)).fill_(1)),
        lambda: ringd.DistributedOptimizer(
            torch.optim.SGD([nn.Parameter(torch.ones(3 + odd))], lr=0.1)
        ),
    )
    for i, call in enumerate(calls):
        checks.raises(ringd.MismatchError, call, "rank")
        goes_on(checks, size, f"difference {i}")
    # All of a group or nothing, wherever the tensors lie.
    for name in (None, "group"):
        same = ringd.empty((3,)).fill_(rank + 1)
        other = torch.ones(3 + odd)
        error = checks.raises(
            ringd.MismatchError,
            lambda same=same, other=other, name=name: ringd.grouped_allreduce_(
                [same, other], op=ringd.Sum, name=name
            ),
            "float32[3]",
        )
        checks.true("float32[4]" in str(error), f"what differs is named: {error}")
        checks.equal(same, torch.full((3,), rank + 1.0), "what does not differ is as it was")
        goes_on(checks, size, "a group with a difference")


def check_names(checks, rank, size):
    """The same name again, in flight or not."""
    handles = [ringd.allreduce_async(torch.full((2,), float(i)), name="same") for i in range(5)]
    for i, handle in enumerate(handles):
        checks.equal(handle.wait(), torch.full((2,), float(i)), "a name in flight, in order")
    handles = [ringd.allreduce_async(torch.full((n,), 1.0), name="same") for n in (2, 5, 3)]
    for n, handle in zip((2, 5, 3), handles, strict=True):
        checks.equal(handle.wait(), torch.ones(n), "a name in flight, other shapes")
    checks.equal(ringd.broadcast(torch.ones(2), 0, name="same"), torch.ones(2), "another kind")
    checks.equal(ringd.allreduce(torch.ones(5), name="same"), torch.ones(5), "another shape")
    goes_on(checks, size, "names")


def check_fork(checks, rank, size):
    model = nn.Linear(2, 2)
    optimizer = ringd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    before = torch.ones(2)
    handle = ringd.allreduce_async(before, op=ringd.Sum)
    calls = [
        lambda: ringd.allreduce_(before),
        lambda: ringd.allreduce_async(before, name="child"),
        lambda: ringd.broadcast(before, 0),
        lambda: ringd.broadcast_parameters(model.state_dict()),
        lambda: ringd.empty(3),
        ringd.barrier,
        handle.wait,
        optimizer.step,
    ]
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = []
        try:
            for call in calls:
                try:
                    call()
                    said.append("nothing")
                except RuntimeError as error:
                    said.append(str(error).replace("\n", " "))
        finally:
            os.write(writing, "\n".join(said).encode())
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        said = told.read().split("\n")
    os.waitpid(child, 0)
    checks.true(len(said) == len(calls), said)
    for i, text in enumerate(said):
        checks.true("fork" in text, f"call {i} of a forked child is told so, not {text!r}")
    checks.equal(handle.wait(), torch.full((2,), float(size)), "in flight over a fork")
    goes_on(checks, size, "a fork")


def check_threads(checks, rank, size):
    """Ranks match operations by their order: threads that change it are told which names differ.

    Unnamed ones are refused while another thread's fly.
    """
    results, differences = {}, []

    def work(k):
        for i in range(20):
            tensor = torch.full((64,), float(k + i))
            try:
                results[k, i] = ringd.allreduce(tensor, op=ringd.Sum, name=f"thread {k}, {i}")
            except ringd.MismatchError as error:
                differences.append(str(error))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for (k, i), result in results.items():
        checks.equal(result, torch.full((64,), float((k + i) * size)), "threads with names")
    checks.true(len(results) + len(differences) == 80, "a result or an error each")
    checks.true(all("named 'thread" in text for text in differences), "errors name both")
    goes_on(checks, size, "threads without an order")

    def in_turn(k):
        for i in range(20):
            results[k, i] = ringd.allreduce(torch.full((64,), float(i)), op=ringd.Sum)

    results.clear()
    for k in range(4):
        thread = threading.Thread(target=in_turn, args=(k,))
        thread.start()
        thread.join()
    for (_, i), result in results.items():
        checks.equal(result, torch.full((64,), float(i * size)), "threads in turn")
    said = []

    def refuse():
        try:
            ringd.allreduce(torch.ones(1))
        except ringd.RingdError as error:
            said.append(str(error))

    handle = ringd.allreduce_async(torch.ones(2))
    thread = threading.Thread(target=refuse)
    thread.start()
    thread.join()
    handle.wait()
    checks.true(len(said) == 1 and "thread" in said[0], "unnamed from two threads")
    goes_on(checks, size, "threads")


def check_backward_in_a_thread(checks, rank, size):
    param = nn.Parameter(torch.zeros(3))
    optimizer = ringd.DistributedOptimizer(torch.optim.SGD([param], lr=1.0), op=ringd.Sum)
    for _ in range(3):
        optimizer.zero_grad()
        loss = (param * (rank + 1)).sum()
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()
        optimizer.step()
    right = torch.full((3,), -3.0 * size * (size + 1) / 2)
    checks.equal(param.detach(), right, "backward in a thread of its own")


def refused_before_init():
    """How many calls there are, and how many are refused."""
    calls = [*forms(torch.ones(2)), ringd.rank, ringd.barrier, lambda: ringd.empty(3)]
    calls.append(
        lambda: ringd.DistributedOptimizer(torch.optim.SGD([nn.Parameter(torch.ones(1))], 0.1))
    )
    refused = 0
    for call in calls:
        try:
            call()
        except ringd.NotInitializedError as error:
            refused += "init" in str(error)
    return len(calls), refused


def check_before_init(checks, rank, size):
    checks.true(BEFORE_INIT[0] == BEFORE_INIT[1], f"refused before init: {BEFORE_INIT}")


def check_life(checks, rank, size):
    """After shutdown."""
    model = nn.Linear(2, 2)
    optimizer = ringd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    layer = ringd.SyncBatchNorm(2)
    handle = ringd.allreduce_async(torch.ones(2))
    handle.wait()
    late = ringd.allreduce_async(torch.ones(2), op=ringd.Sum)
    arena = ringd.empty(4).fill_(rank)
    ringd.barrier()
    ringd.shutdown()
    checks.true(arena.tolist() == [float(rank)] * 4, "arena memory stays readable")
    calls = [
        *forms(torch.ones(2))[:-1], ringd.rank, ringd.size, ringd.barrier, optimizer.step,
        lambda: ringd.sparse_allreduce_async(torch.ones(2).to_sparse(), "s", ringd.Sum),
        lambda: layer(torch.ones(3, 2)), ringd.is_homogeneous, ringd.mpi_threads_supported,
        lambda: ringd.broadcast_object(1), lambda: ringd.allgather_object(1),
        lambda: ringd.broadcast_parameters(model.state_dict()),
        lambda: ringd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1)),
        lambda: ringd.empty(3), late.wait,
    ]  # fmt: skip
    for i, call in enumerate(calls):
        try:
            call()
        except ringd.RingdError:
            checks.passed += 1
            continue
        raise AssertionError(f"call {i} after shutdown went through")
    ringd.init(standalone="RINGD_SOCKET" not in os.environ)
    checks.true((ringd.rank(), ringd.size()) == (rank, size), "init again")


if __name__ == "__main__":
    BEFORE_INIT = refused_before_init()
    support.run(
        ringd,
        check_before_init,
        check_kinds_of_tensors,
        check_parameters,
        check_layouts,
        check_dlpack,
        check_arguments,
        check_handles,
        check_differences,
        check_names,
        check_fork,
        check_threads,
        check_backward_in_a_thread,
        check_life,
    )
