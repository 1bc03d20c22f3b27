"""Parts of ringd.torch that need no other rank; tests/torch has the rest."""

import gc
import inspect
import subprocess
import sys
import warnings

import numpy as np
import pytest
import ringd

torch = pytest.importorskip("torch")

import ringd.torch as rt  # noqa: E402
from ringd.torch import _agreement, _buckets  # noqa: E402

MB = 1 << 20


@pytest.fixture
def job():
    ringd.init(standalone=True)
    yield
    ringd.shutdown()


def test_ringd_does_not_import_torch():
    code = "import sys, ringd; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_ringd_torch_has_every_name_of_ringd():
    # `rt._ops` and the like are not names for users.
    assert set(ringd.__all__) <= set(rt.__all__)
    assert all(hasattr(rt, name) for name in rt.__all__)


def parameters_of(function):
    return [(p.name, p.default) for p in inspect.signature(function).parameters.values()]


# Written out twice, so that editors show them; they may not drift apart.
@pytest.mark.parametrize("name", sorted(set(ringd.__all__) & set(rt.__all__)))
def test_signatures_are_those_of_ringd_and_of_the_synchronous_form(name):
    other = getattr(rt, name)
    if not inspect.isfunction(other) or name in ("empty", "recv", "recv_async"):  # dtype=
        return
    assert [p for p in parameters_of(other) if p[0] != "compression"] == parameters_of(
        getattr(ringd, name)
    )
    for suffix in ["_async", "_async_"]:
        base = name.removesuffix(suffix) + suffix[6:]
        if name.endswith(suffix) and hasattr(rt, base):
            assert parameters_of(getattr(ringd, base)) == parameters_of(getattr(ringd, name))


def test_buckets_are_filled_from_the_last_parameter_on():
    sizes = [10, 20, 30, 40, 50]
    assert _buckets.plan_buckets(sizes, ["f"] * 5, 70, 50) == [[4], [3, 2], [1, 0]]


def test_first_bucket_is_no_longer_than_others():
    assert _buckets.plan_buckets([5, 5, 5], ["f"] * 3, 5, 1000) == [[2], [1], [0]]


def test_long_parameter_has_a_bucket_of_its_own():
    assert _buckets.plan_buckets([1, 100, 1], ["f"] * 3, 10, 10) == [[2], [1], [0]]


def test_buckets_have_one_dtype_and_start_in_the_order_of_their_last_parameters():
    dtypes = ["f", "h", "f", "h"]
    assert _buckets.plan_buckets([1, 1, 1, 1], dtypes, 10, 10) == [[3, 1], [2, 0]]


def test_every_parameter_is_in_one_bucket():
    rng = np.random.default_rng(1)
    for _ in range(50):
        n = int(rng.integers(1, 60))
        sizes = rng.integers(0, 8 * MB, n).tolist()
        dtypes = rng.choice(["f", "h", "d"], n).tolist()
        buckets = _buckets.plan_buckets(sizes, dtypes, 25 * MB, MB)
        assert sorted(i for members in buckets for i in members) == list(range(n))
        for members in buckets:
            assert len({dtypes[i] for i in members}) == 1
            assert len(members) == 1 or sum(sizes[i] for i in members) <= 25 * MB


def test_small_models_have_several_buckets_and_large_ones_not_too_many():
    assert _buckets.default_bucket_bytes([MB] * 12) == 2 * MB
    assert _buckets.default_bucket_bytes([10 * MB] * 64) == 10 * MB
    assert _buckets.default_bucket_bytes([100 * MB] * 100) == 25 * MB


A, B = ("a", "float32[2]"), ("b", "float32[3]")


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ([A], "what: rank 2 has no 'b', which is float32[3] on rank 0"),
        ([A, B, ("c", "int8[]")], "what: rank 0 has no 'c', which is int8[] on rank 2"),
        ([A, ("b", "int8[3]")], "what: 'b' is float32[3] on rank 0 and int8[3] on rank 2"),
        (
            [B, A],
            "what: the order differs: where rank 0 has 'a' (float32[2]), rank 2 has 'b' "
            "(float32[3])",
        ),
    ],
)
def test_difference_names_rank_tensor_and_values(other, text):
    error = _agreement.find_difference("what", [[A, B], [A, B], other, [A]])
    assert str(error) == text
    assert error.ranks == (0, 2)


def test_operations_need_init():
    with pytest.raises(ringd.NotInitializedError):
        rt.DistributedOptimizer(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1))
    with pytest.raises(ringd.NotInitializedError):
        rt.allreduce(torch.ones(1))


def test_arena_memory_outlives_the_job():
    ringd.init(standalone=True)
    tensor = rt.empty((3, 2), torch.bfloat16)
    view = tensor.fill_(7)[1:]
    ringd.shutdown()
    del tensor
    gc.collect()
    assert view.tolist() == [[7, 7], [7, 7]]


def test_arena_memory_is_given_back(job):
    for _ in range(50):
        rt.empty(4 * MB).zero_()
    assert ringd.stats()["arena_bytes"] < 200 * MB


def test_arena_tensor_can_be_a_parameter(job):
    weight = torch.nn.Parameter(rt.empty((2, 2)).fill_(1))
    (weight * 3).sum().backward()
    assert weight.is_leaf and weight.grad.tolist() == [[3, 3], [3, 3]]
    assert rt.empty(()).shape == () and rt.empty((0, 3)).shape == (0, 3)


def test_write_behind_autograd_is_an_error_of_backward(job):
    x = torch.ones(3, requires_grad=True)
    for change in [rt.allreduce_, rt.allreduce_, lambda y: rt.allreduce(y.detach(), out=y)]:
        y = x * 2
        z = (y * y).sum()
        change(y)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            z.backward()


def test_inference_tensors_are_taken(job):
    with torch.inference_mode():
        tensor = torch.ones(2)
        assert rt.allreduce_(tensor, op=rt.Sum).tolist() == [1, 1]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested")
def test_tensors_of_every_kind_are_told_apart_every_time(job):
    x = torch.arange(6.0).reshape(2, 3)
    for _ in range(3):  # The first call of a kind takes another way than later ones.
        for given in [
            x,
            x.T,
            x[:, 1:],
            torch.nn.Parameter(x),
            x[:0],
            x[0, 1],
            torch.complex(x, x).conj().imag,
        ]:
            result = rt.allreduce(given.detach(), rt.Sum)
            assert result.is_contiguous() and torch.equal(result, given)
        for call, text in [
            (lambda: rt.allreduce_(x.T, rt.Sum), "not contiguous"),
            (lambda: rt.allreduce(x, rt.Sum, out=x[0]), "but the result is"),
            (lambda: rt.allreduce(x.to_sparse(), rt.Sum), "layout torch.sparse"),
            (lambda: rt.allreduce(x.to("meta"), rt.Sum), "on meta"),
            (lambda: rt.allreduce(torch.complex(x, x), rt.Sum), "complex64 is not supported"),
            (lambda: rt.allreduce(torch.nested.nested_tensor([x]), rt.Sum), "nested tensor"),
        ]:
            with pytest.raises(ValueError, match=text):
                call()


@pytest.mark.filterwarnings("ignore:Using backward")
def test_second_derivatives_do_not_enter_the_arena(job):
    x = torch.nn.Parameter(torch.tensor([2.0]))
    optimizer = rt.DistributedOptimizer(torch.optim.SGD([x], lr=0.0))
    (x**3).sum().backward(create_graph=True)
    optimizer.step()
    assert x.grad.tolist() == [12.0] and not x.grad.requires_grad


def test_hooks_go_with_the_optimizer(job):
    x = torch.nn.Parameter(torch.ones(2))
    optimizer = rt.DistributedOptimizer(torch.optim.SGD([x], lr=0.1))
    x.sum().backward()
    optimizer.step()
    del optimizer
    gc.collect()
    for _ in range(3):
        x.grad = None
        x.sum().backward()
    assert x.grad.tolist() == [1, 1]


def test_copy_of_an_optimizer_says_that_it_is_none(job):
    import copy

    x = torch.nn.Parameter(torch.ones(2))
    optimizer = rt.DistributedOptimizer(torch.optim.SGD([x], lr=0.1))
    with pytest.raises(ringd.RingdError, match="copy"):
        copy.deepcopy(optimizer).step()


def test_second_init_starts_afresh():
    for _ in range(3):
        ringd.init(standalone=True)
        model = torch.nn.Linear(3, 2)
        optimizer = rt.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        model(torch.ones(1, 3)).sum().backward()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            optimizer.step()
        ringd.shutdown()
