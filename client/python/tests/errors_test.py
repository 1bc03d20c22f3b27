"""What is refused, and how; and what a forked child can do."""

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
import ringd
from ringd import _errors


@pytest.fixture
def job():
    ringd.init(standalone=True)
    yield
    ringd.shutdown()


X = np.ones((4, 2), np.float32)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: ringd.allreduce(X, op=17), "op 17"),
        (lambda: ringd.allreduce(X, op=0), "op 0"),
        (lambda: ringd.allreduce(X > 0), "bool has no average"),
        (lambda: ringd.allreduce(X.astype(np.complex64)), "complex64"),
        (lambda: ringd.allreduce(np.array(["a"])), "dtype str"),
        (lambda: ringd.allreduce(np.array([None])), "object"),
        (lambda: ringd.allreduce(X.astype(">f4")), "byte order"),
        (lambda: ringd.allreduce(X, out=np.ones((4, 3), np.float32)), "out is"),
        (lambda: ringd.allreduce(X, out=np.ones((4, 2))), "out is"),
        (lambda: ringd.allreduce_(np.broadcast_to(X, (3, 4, 2))), "read-only"),
        (lambda: ringd.allreduce(X, name="a\0b"), "zero byte"),
        (lambda: ringd.allreduce(X, name="n" * 5000), "4096"),
        (lambda: ringd.broadcast(X, 1), "root_rank 1"),
        (lambda: ringd.broadcast(X, -1), "root_rank -1"),
        (lambda: ringd.allgather(np.float32(1)), "dimension"),
        (lambda: ringd.reducescatter(np.float32(1)), "dimension"),
        (lambda: ringd.alltoall(np.float32(1)), "dimension"),
        (lambda: ringd.alltoall(X, splits=[1, 2]), "for 1 ranks"),
        (lambda: ringd.alltoall(X, splits=[5]), "add up to 5"),
        (lambda: ringd.alltoall(X, splits=[-1]), "negative"),
        (lambda: ringd.alltoall(X, splits=[[1]]), "splits"),
        (lambda: ringd.alltoall(X, splits=[1.5]), "splits"),
        (lambda: ringd.empty((-1,)), "negative"),
        (lambda: ringd.empty(3, np.complex128), "complex128"),
        (lambda: ringd.allreduce(X, weight=-1.0), "weight -1.0"),
        (lambda: ringd.allreduce(X, weight=float("nan")), "weight nan"),
        (lambda: ringd.allreduce(X, weight=0.0), "weights of all ranks are 0"),
        (lambda: ringd.allreduce(X, op=ringd.Sum, weight=1.0), "op=Average"),
        (lambda: ringd.allreduce(X.astype(int), op=ringd.Adasum), "floating-point"),
        (lambda: ringd.reducescatter(X, op=ringd.Adasum), "allreduce only"),
        (lambda: ringd.reduce(X, 1), "root_rank 1"),
        (lambda: ringd.gather(X, -1), "root_rank -1"),
        (lambda: ringd.gather(np.float32(1), 0), "dimension"),
        (lambda: ringd.scatter([X, X], 0), "2 arrays at the root for 1 ranks"),
        (lambda: ringd.scatter([np.float32(1)], 0), "dimension"),
        (lambda: ringd.send(X, 0), "this rank"),
        (lambda: ringd.recv((2,), 1), "rank 1"),
        (lambda: ringd.recv((-1,), 0), "negative"),
        (lambda: ringd.init(process_sets="static"), "dynamic"),
        (lambda: ringd.ProcessSet([0, 0]), "twice"),
        (lambda: ringd.ProcessSet([-1]), "non-negative"),
    ],
)
def test_wrong_arguments_are_value_errors(job, call, match):
    with pytest.raises(ValueError, match=match):
        call()
    ringd.barrier()


def test_process_sets_of_a_job_of_one_rank(job):
    with pytest.raises(ValueError, match="global_process_set"):
        ringd.add_process_set([0])
    with pytest.raises(TypeError, match="add_process_set"):
        ringd.allreduce(X, process_set=ringd.ProcessSet([0]))
    with pytest.raises(TypeError, match="ProcessSet"):
        ringd.allreduce(X, process_set=3)
    assert ringd.global_process_set.size() == 1
    assert ringd.global_process_set.included()


def test_calls_without_init_say_so():
    for call in [ringd.rank, ringd.size, ringd.stats, ringd.barrier, lambda: ringd.empty(3)]:
        with pytest.raises(ringd.NotInitializedError, match="init"):
            call()
    assert not ringd.is_initialized()
    ringd.shutdown()


def test_init_without_a_worker_says_what_to_do(monkeypatch):
    monkeypatch.delenv("RINGD_SOCKET", raising=False)
    monkeypatch.delenv("RINGD_STANDALONE", raising=False)
    with pytest.raises(ringd.RingdError, match=r"ringctl run.*standalone=True"):
        ringd.init()


def test_init_standalone_by_environment_only_without_a_worker():
    script = "import ringd; ringd.init(timeout=0.2); print(ringd.size())"

    def run(**variables):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("RINGD_")}
        return subprocess.run(
            [sys.executable, "-c", script],
            env=environment | variables,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    assert run(RINGD_STANDALONE="1").stdout == "1\n"
    both = run(RINGD_STANDALONE="1", RINGD_SOCKET="/nowhere/w.sock")
    assert both.returncode == 1
    assert "/nowhere/w.sock" in both.stderr


def test_forked_child_reads_but_cannot_call(job):
    x = ringd.empty(3)
    x[:] = 5
    child = os.fork()
    if child == 0:
        good = False
        try:
            ringd.allreduce(x)
        except ringd.RingdError as error:
            good = "fork" in str(error) and not ringd.is_initialized()
        good = good and x.sum() == 15
        x[:] = 6
        del x
        os._exit(0 if good else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert x.sum() == 15
    np.testing.assert_array_equal(ringd.allreduce(x), x)


def test_import_needs_no_job_and_no_framework():
    script = "import ringd, sys; assert not {'torch', 'tensorflow', 'jax'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], timeout=60, check=True)


def test_failures_of_peers_carry_their_fields():
    error = _errors.make_error(3, "rank 2 (node b) was killed", 2, "b", -1, 9, "Killed")
    assert isinstance(error, ringd.PeerFailedError)
    assert (error.rank, error.node, error.exit_code, error.signal) == (2, "b", -1, 9)
    assert error.stderr_tail == "Killed"
    assert isinstance(error, RuntimeError)


def test_mismatches_carry_names_ranks_and_values():
    text = (
        "operation s.5 is not the same on all ranks: rank 0 called allreduce float32[10] sum named "
        "'w', rank 1 called allreduce bfloat16[10, 2] sum named 'w'"
    )
    error = _errors.make_error(2, text, 1, "", -1, 0, "")
    assert isinstance(error, ringd.MismatchError)
    assert error.names == ("w",)
    assert error.ranks == (0, 1)
    assert error.values == ("float32[10]", "bfloat16[10, 2]")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (1, ringd.InvalidArgumentError),
        (4, ringd.GenerationChanged),
        (5, ringd.DeadlineExceeded),
        (6, ringd.NotInitializedError),
        (7, ringd.RingdError),
        (10, ringd.RingdError),
        (99, ringd.RingdError),
    ],
)
def test_codes_have_their_classes(code, kind):
    error = _errors.make_error(code, "text", -1, "", -1, 0, "")
    assert type(error) is kind
    assert error.code == code
    assert str(pickle.loads(pickle.dumps(error))) == "text"
