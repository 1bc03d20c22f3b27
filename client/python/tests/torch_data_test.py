"""ringd.torch.data on one rank: samplers of any number of ranks, and workers that fail."""

import itertools
import os
import pickle
import signal
import threading
import time

import pytest
import ringd

torch = pytest.importorskip("torch")

from ringd.torch.data import DataLoader, DistributedSampler, WorkerFailedError  # noqa: E402
from torch.utils.data import IterableDataset, get_worker_info  # noqa: E402


@pytest.fixture(autouse=True)
def job():
    ringd.init(standalone=True)
    yield
    ringd.shutdown()


class Numbers:
    """The numbers below `length`; what a worker does at `bad` is up to `act`."""

    def __init__(self, length, bad=-1, act=None):
        self.length = length
        self.bad = bad
        self.act = act

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if index == self.bad and get_worker_info() is not None:
            self.act()
        return index


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def leave():
    os._exit(0)


def stop():
    os.kill(os.getpid(), signal.SIGSTOP)


def hang():
    threading.Event().wait()


def fail():
    raise KeyError("no such picture")


def reduce():
    ringd.allreduce(1.0)


def joined(lists):
    return list(itertools.chain.from_iterable(lists))


def samplers(size, length=23, **options):
    return [DistributedSampler(range(length), rank=r, size=size, **options) for r in range(size)]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 30])
def test_join_gives_every_sample_once(size):
    for sampler in (every := samplers(size, uneven="join")):
        sampler.set_epoch(5)
    shares = [list(sampler) for sampler in every]
    assert sorted(joined(shares)) == list(range(23))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert [len(share) for share in shares] == every[0].counts()


@pytest.mark.parametrize(("uneven", "share"), [("pad", 6), ("drop", 5)])
def test_pad_and_drop_give_all_ranks_as_many(uneven, share):
    shares = [list(sampler) for sampler in samplers(4, uneven=uneven)]
    assert [len(s) for s in shares] == [share] * 4
    seen = joined(shares)
    if uneven == "pad":
        assert set(seen) == set(range(23)) and len(seen) == 24
    else:
        assert len(set(seen)) == len(seen) == 20


def test_order_changes_with_epoch_and_seed_only():
    (one,) = samplers(1)
    orders = []
    for epoch in (0, 1, 0):
        one.set_epoch(epoch)
        orders.append(list(one))
    assert orders[0] == orders[2] != orders[1]
    assert list(samplers(1, seed=1)[0]) not in orders
    assert list(samplers(1, shuffle=False)[0]) == list(range(23))


@pytest.mark.parametrize(("before", "after"), [(2, 3), (4, 1), (3, 3), (1, 4)])
def test_position_goes_on_with_another_number_of_ranks(before, after):
    first = samplers(before, uneven="join")
    taken = []
    for sampler in first:
        sampler.set_epoch(2)
        taken += [index for index, _ in zip(sampler, range(4), strict=False)]
        sampler.advance(4)
    states = [sampler.state_dict() for sampler in first]
    assert all(state == states[0] for state in states)
    state = pickle.loads(pickle.dumps(states[0]))
    rest = []
    for sampler in samplers(after, uneven="join", seed=99):
        sampler.load_state_dict(state)
        sampler.set_epoch(2)
        assert len(sampler) == sampler.counts()[sampler.rank]
        rest += list(sampler)
    assert sorted(taken + rest) == list(range(23))


def test_state_of_another_dataset_is_refused():
    (one,), (other,) = samplers(1), samplers(1, length=24)
    with pytest.raises(ValueError, match="23 samples, this one has 24"):
        other.load_state_dict(one.state_dict())


@pytest.mark.parametrize("workers", [0, 2])
def test_loader_gives_an_epoch_and_then_the_next(workers):
    loader = DataLoader(range(10), 4, shuffle=True, num_workers=workers)
    epochs = [[batch.tolist() for batch in loader] for _ in range(2)]
    assert [len(batch) for batch in epochs[0]] == [4, 4, 2]
    assert sorted(joined(epochs[0])) == list(range(10)) and epochs[0] != epochs[1]
    assert loader.state_dict()["epoch"] == 2
    loader.set_epoch(0)
    assert [batch.tolist() for batch in loader] == epochs[0]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("given", [0, 1, 3])
def test_state_counts_what_was_given_not_what_was_prefetched(workers, given):
    loader = DataLoader(range(20), 4, shuffle=True, num_workers=workers)
    batches = iter(loader)
    seen = [next(batches).tolist() for _ in range(given)]
    state = loader.state_dict()
    assert state["position"] == 4 * given
    resumed = DataLoader(range(20), 3, num_workers=workers)
    resumed.load_state_dict(state)
    resumed.set_epoch(0)
    assert sorted(joined([*seen, *(b.tolist() for b in resumed)])) == list(range(20))
    assert resumed.state_dict() == {**state, "epoch": 1, "position": 0}


def test_end_of_an_epoch_is_its_end_however_often_it_is_asked_for():
    loader = DataLoader(range(2))
    batches = iter(loader)
    assert [b.item() for b in batches] == [0, 1]
    assert next(batches, None) is None and next(batches, None) is None
    assert loader.state_dict()["epoch"] == 1


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_every_kind(method):
    options = {"num_workers": 2, "multiprocessing_context": method}
    loader = DataLoader(Numbers(9), 2, **options, persistent_workers=True)
    for _ in range(2):
        assert sorted(joined(b.tolist() for b in loader)) == list(range(9))
    assert ringd.allreduce(2.0, op=ringd.Sum) == 2.0


def test_a_worker_sees_the_users_dataset_and_functions():
    class Several(Numbers):
        def __getitems__(self, indices):
            return [index * self.factor for index in indices]

    def begin(worker):
        get_worker_info().dataset.factor = 10 + worker

    loader = DataLoader(
        Several(4), 2, num_workers=2, worker_init_fn=begin, collate_fn=lambda rows: ("c", rows)
    )
    assert list(loader) == [("c", [0, 10]), ("c", [22, 33])]


def failure_of(loader, within):
    begin = time.monotonic()
    with pytest.raises(WorkerFailedError) as caught:
        list(loader)
    assert time.monotonic() - begin < within, caught.value
    error = caught.value
    assert f"worker {error.worker} of the data loader (pid {error.pid})" in str(error)
    assert str(error).startswith("rank 0: ")
    return error


def assert_gone(pid):
    deadline = time.monotonic() + 5
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not os.path.exists(f"/proc/{pid}")


@pytest.mark.parametrize("act", [die, leave], ids=["SIGKILL", "exit 0"])
def test_a_dead_worker_is_named(act):
    error = failure_of(DataLoader(Numbers(20, 7, act), 2, num_workers=2), 15)
    assert "died while it was loading sample 7" in str(error)
    # Sample 7 is in batch 3: worker 1 of 2.
    assert (error.worker, error.doing, error.seconds) == (1, "loading sample 7", 0)
    assert_gone(error.pid)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_hung_worker_is_named_with_what_it_does(method):
    loader = DataLoader(
        Numbers(20, 7, hang), 2, num_workers=2, worker_timeout=1, multiprocessing_context=method
    )
    error = failure_of(loader, 40)
    assert error.worker == 1 and error.seconds > 1
    assert "has been loading sample 7 for " in str(error) and "worker_timeout=1" in str(error)
    assert "in wait, called at " in str(error)
    assert " in hang, called at torch_data_test.py:" in str(error)
    assert " in __getitem__" in str(error) and "_worker_loop" not in str(error)
    assert_gone(error.pid)


def test_a_stopped_worker_is_named():
    error = failure_of(DataLoader(Numbers(20, 7, stop), 2, num_workers=2, worker_timeout=1), 15)
    assert "loading sample 7" in str(error) and "SIGSTOP" in str(error)
    assert_gone(error.pid)


@pytest.mark.parametrize(
    ("option", "doing"), [("worker_init_fn", "worker_init_fn"), ("collate_fn", "collate_fn")]
)
def test_functions_of_the_user_that_hang_are_named(option, doing):
    loader = DataLoader(range(4), num_workers=1, worker_timeout=1, **{option: lambda _: hang()})
    assert f"running {doing}" in failure_of(loader, 15).doing


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # As many as there are cores.
def test_many_hung_workers_end_together():
    begin = time.monotonic()
    with pytest.raises(WorkerFailedError):
        list(DataLoader(range(4), collate_fn=lambda _: stop(), num_workers=4, worker_timeout=1))
    assert time.monotonic() - begin < 15


def test_slow_is_not_hung():
    def slow(index):
        time.sleep(0.3)
        return index

    class Slow(Numbers):
        def __getitem__(self, index):
            return slow(index)

    # A batch takes longer than the limit, no sample does.
    loader = DataLoader(Slow(10), 5, num_workers=1, worker_timeout=1.2)
    assert [len(batch) for batch in loader] == [5, 5]


def test_a_busy_parent_is_no_hung_worker():
    loader = DataLoader(range(8), 2, num_workers=2, worker_timeout=0.5)
    seen = []
    for batch in loader:
        time.sleep(0.8)
        seen += batch.tolist()
    assert seen == list(range(8))


def test_errors_of_the_dataset_come_as_they_are():
    with pytest.raises(KeyError, match="no such picture"):
        list(DataLoader(Numbers(20, 7, fail), 2, num_workers=2))


def test_a_worker_that_calls_ringd_is_told_so():
    with pytest.raises(ringd.RingdError, match="fork"):
        list(DataLoader(Numbers(4, 2, reduce), num_workers=1))
    assert ringd.allreduce(2.0, op=ringd.Sum) == 2.0


def test_a_loader_works_again_after_a_failure():
    dataset = Numbers(8, 3, die)
    loader = DataLoader(dataset, 2, num_workers=2, persistent_workers=True)
    failure_of(loader, 15)
    dataset.bad = -1
    assert len(list(loader)) == 4


def test_leaving_an_iteration_leaves_no_thread():
    loader = DataLoader(range(100), num_workers=1)
    for _ in loader:
        break
    deadline = time.monotonic() + 10
    while any(t.name == "ringd-loader" for t in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"uneven": "ignore"}, "'pad', 'drop' or 'join'"),
        ({"timeout": 3}, "timeout"),
        ({"sampler": [1]}, "sampler"),
        ({"worker_timeout": 0}, "worker_timeout"),
        ({"no_such": 1}, "no_such"),
    ],
)
def test_bad_options_are_refused(options, text):
    with pytest.raises((ValueError, TypeError), match=text):
        DataLoader(range(4), **options)


def test_datasets_without_positions_are_refused():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter([1])

    with pytest.raises(ValueError, match="IterableDataset"):
        DataLoader(Stream())
    with pytest.raises(ValueError, match="no length"):
        DataLoader(iter([1]))


def test_join_is_refused_with_words_where_ringd_has_none():
    if hasattr(ringd.torch, "join"):
        assert len(list(DataLoader(range(3), uneven="join"))) == 3
        return
    with pytest.raises(ringd.RingdError, match="'pad' or 'drop'"):
        DataLoader(range(3), uneven="join")
