"""The NumPy API in a job of one rank without a daemon, against NumPy."""

import gc
import json
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import ringd

DTYPES = [
    "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64",
    "float16", "float32", "float64", "bool",
]  # fmt: skip
SHAPES = [(), (0,), (1,), (7,), (3, 4), (0, 3), (2, 1, 2, 1, 2)]


@pytest.fixture(autouse=True)
def job():
    ringd.init(standalone=True)
    yield
    ringd.shutdown()


def sample(shape, dtype):
    return (np.arange(np.prod(shape, dtype=int)).reshape(shape) % 5).astype(dtype)


def test_rank_queries_are_those_of_one_rank():
    assert (ringd.rank(), ringd.size()) == (0, 1)
    assert (ringd.local_rank(), ringd.local_size()) == (0, 1)
    assert (ringd.cross_rank(), ringd.cross_size()) == (0, 1)
    assert ringd.generation() == 1
    assert ringd.is_initialized()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_allreduce_of_one_rank_is_its_input(shape, dtype):
    x = sample(shape, dtype)
    for op in [ringd.Sum, ringd.Min, ringd.Max, ringd.Product]:
        result = ringd.allreduce(x, op=op)
        assert result.dtype == x.dtype
        assert result.shape == x.shape
        np.testing.assert_array_equal(result, x)
        assert result is not x


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != "bool"])
def test_average_is_the_default(dtype):
    np.testing.assert_array_equal(ringd.allreduce(sample((5,), dtype)), sample((5,), dtype))


@pytest.mark.parametrize("wire", ["bf16", "fp16", "fp8_e4m3", "fp8_e5m2"])
def test_wire_says_nothing_without_other_nodes(wire):
    x = np.array([1.01, 3e-9], np.float32)
    np.testing.assert_array_equal(ringd.allreduce(x, wire=wire), x)
    y = x.copy()
    ringd.allreduce_(y, wire=wire)
    ringd.synchronize(ringd.allreduce_async_(y, wire=wire))
    np.testing.assert_array_equal(y, x)
    mixed = ringd.grouped_allreduce([x, np.arange(3)], wire=wire)
    np.testing.assert_array_equal(mixed[0], x)
    np.testing.assert_array_equal(mixed[1], np.arange(3))


@pytest.mark.parametrize(
    ("array", "options", "text"),
    [
        (np.ones(2, "f"), {"wire": "int8"}, "not one of bf16, fp16, fp8_e4m3, fp8_e5m2"),
        (np.ones(2, "d"), {"wire": "bf16"}, "float64 can't travel as bf16"),
        (np.ones(2, "e"), {"wire": "fp16"}, "float16 can't travel as fp16"),
        (np.ones(2, "i"), {"wire": "fp8_e5m2"}, "int32 can't travel as fp8_e5m2"),
        (np.ones(2, "f"), {"wire": "bf16", "weight": 1.0}, "not for weighted averages"),
        (np.ones(2, "f"), {"wire": "bf16", "op": ringd.Adasum}, "and Adasum"),
    ],
)
def test_wire_that_makes_no_sense_is_refused(array, options, text):
    with pytest.raises(ValueError, match=text):
        ringd.allreduce(array, **options)


def test_scale_factors_multiply_before_and_after():
    x = np.array([1.0, 2.0], np.float64)
    result = ringd.allreduce(x, op=ringd.Sum, prescale_factor=0.5, postscale_factor=6.0)
    np.testing.assert_array_equal(result, [3.0, 6.0])
    truncated = ringd.allreduce(np.array([3, -3]), op=ringd.Sum, prescale_factor=0.5)
    np.testing.assert_array_equal(truncated, [1, -1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_operations_that_move_rows(dtype):
    x = sample((4, 3), dtype)
    np.testing.assert_array_equal(ringd.broadcast(x, 0), x)
    np.testing.assert_array_equal(ringd.allgather(x), x)
    np.testing.assert_array_equal(ringd.reducescatter(x, op=ringd.Sum), x)
    np.testing.assert_array_equal(ringd.alltoall(x), x)
    rows, received = ringd.alltoall(x, splits=[3])
    np.testing.assert_array_equal(rows, x[:3])
    np.testing.assert_array_equal(received, [3])


def test_inputs_of_any_layout_are_taken():
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    for view in [x.T, x[::2], x[:, 1:3], x[::-1], np.broadcast_to(x[0], (3, 6))]:
        np.testing.assert_array_equal(ringd.allreduce(view), view)
    misaligned = np.frombuffer(b"\0" + x.tobytes(), np.float32, offset=1)
    np.testing.assert_array_equal(ringd.allreduce(misaligned), x.ravel())
    np.testing.assert_array_equal(ringd.allreduce([1.0, 2.0]), [1.0, 2.0])
    assert ringd.allreduce(3.5) == 3.5


def test_in_place_and_out_return_the_given_array():
    x = np.ones((3, 4), np.float32)
    assert ringd.allreduce_(x, op=ringd.Sum, prescale_factor=2.0) is x
    np.testing.assert_array_equal(x, np.full((3, 4), 2.0))
    assert ringd.broadcast_(x, 0) is x
    wide = np.zeros((3, 8), np.float32)
    view = wide[:, ::2]
    assert ringd.allreduce(x, out=view) is view
    np.testing.assert_array_equal(wide[:, ::2], x)
    np.testing.assert_array_equal(wide[:, 1::2], 0)
    assert ringd.allreduce_(view, op=ringd.Sum, prescale_factor=2.0) is view
    np.testing.assert_array_equal(wide[:, ::2], 2 * x)
    assert ringd.allreduce(x, out=x) is x
    gathered = np.empty((3, 4), np.float32)
    assert ringd.allgather(x, out=gathered) is gathered


def test_errors_are_the_same_every_time():
    bools, floats = np.ones(2, bool), np.ones(2, np.float32)
    frozen = floats.copy()
    frozen.flags.writeable = False
    swapped = floats.astype(floats.dtype.newbyteorder())
    for _ in range(3):  # The first call of a kind takes another way than later ones.
        for op in [ringd.Sum, ringd.Average]:
            assert ringd.allreduce(floats, op).tolist() == [1, 1]
        assert ringd.allreduce_(bools, ringd.Sum) is bools
        for call, text in [
            (lambda: ringd.allreduce(bools, ringd.Average), "bool has no average"),
            (lambda: ringd.allreduce(floats, 99), "op 99 is not one of"),
            (lambda: ringd.allreduce(floats, []), r"op \[\] is not one of"),
            (lambda: ringd.allreduce_(frozen, ringd.Sum), "read-only"),
            (lambda: ringd.allreduce(floats, ringd.Sum, out=frozen), "read-only"),
            (lambda: ringd.allreduce(floats, ringd.Sum, out=np.ones(3)), "but the result is"),
            (lambda: ringd.allreduce(swapped, ringd.Sum), "foreign byte order"),
            (lambda: ringd.allreduce(floats + 0j, ringd.Sum), "dtype complex64 is not supported"),
        ]:
            with pytest.raises(ValueError, match=text):
                call()


def test_handles_are_polled_and_synchronized_once():
    x = np.ones(3)
    handle = ringd.allreduce_async(x, op=ringd.Sum)
    assert ringd.poll(handle)
    np.testing.assert_array_equal(ringd.synchronize(handle), x)
    with pytest.raises(ValueError, match="already"):
        ringd.synchronize(handle)
    with pytest.raises(ValueError, match="already"):
        ringd.poll(handle)


def test_dropped_handles_give_everything_back():
    for _ in range(70_000):  # More than there are slots.
        ringd.allreduce_async(np.ones(1))
    ringd.barrier()


def test_grouped_operations_return_lists():
    xs = [sample((2, 3), d) for d in ["float32", "int64", "uint8"]]
    for results in [
        ringd.grouped_allreduce(xs, op=ringd.Max, name="g"),
        ringd.grouped_allgather(xs),
        ringd.grouped_reducescatter(xs, op=ringd.Sum),
    ]:
        assert len(results) == 3
        for result, x in zip(results, xs, strict=True):
            np.testing.assert_array_equal(result, x)
    assert ringd.grouped_allreduce([]) == []


def test_rooted_operations_return_the_input():
    for dtype in ["float32", "int64", "bool", "float16"]:
        x = sample((3, 2), dtype)
        for result in [
            ringd.reduce(x, 0, op=ringd.Sum),
            ringd.gather(x, 0),
            ringd.scatter([x], 0),
        ]:
            assert result.dtype == x.dtype
            np.testing.assert_array_equal(result, x)


def test_a_weight_of_one_rank_changes_nothing():
    for dtype in ["float32", "float16", "int64"]:
        x = sample((3, 2), dtype)
        result = ringd.allreduce(x, weight=0.25)
        assert result.dtype == x.dtype
        np.testing.assert_array_equal(result, x)
        np.testing.assert_array_equal(ringd.allreduce_(x.copy(), weight=4.0), x)


def test_adasum_of_one_rank_changes_nothing():
    x = sample((3, 2), "float32")
    np.testing.assert_array_equal(ringd.allreduce(x, op=ringd.Adasum), x)


def test_objects_travel_pickled():
    thing = {"a": [1, 2.5, None], "b": "text"}
    assert ringd.broadcast_object(thing) == thing
    assert ringd.allgather_object(thing) == [thing]


def test_arena_arrays_are_not_copied():
    x = ringd.empty((256, 256), np.float32)
    assert x.shape == (256, 256)
    assert x.dtype == np.float32
    assert x.ctypes.data % 128 == 0
    x[...] = 2
    before = ringd.stats()["bytes_copied"]
    ringd.allreduce_(x, op=ringd.Sum, prescale_factor=2.0)
    assert (x == 4).all()
    assert ringd.stats()["bytes_copied"] == before
    assert ringd.empty((0, 3)).shape == (0, 3)
    assert ringd.empty(()).shape == ()
    assert ringd.empty(5, "int16").dtype == np.int16


def test_arena_memory_is_given_back_when_collected():
    for _ in range(200):
        x = ringd.empty(1 << 20, np.uint8)
        view = x[10:]
        del x
        gc.collect()
        view[0] = 1
        del view
    assert ringd.stats()["arena_bytes"] <= 32 << 20


def test_arrays_stay_readable_after_shutdown():
    x = ringd.empty(1000, np.float64)
    x[:] = 7
    ringd.shutdown()
    assert x.sum() == 7000
    del x
    ringd.init(standalone=True)


def test_stats_count_this_rank():
    before = ringd.stats()
    ringd.allreduce(np.ones(10, np.float32), op=ringd.Sum)
    after = ringd.stats()
    wanted = {"operations", "bytes_reduced", "bytes_copied", "negotiation_messages"}
    assert wanted | {"arena_bytes", "stalls", "generation"} <= set(after)
    assert after["operations"] - before["operations"] == 1
    assert after["bytes_reduced"] - before["bytes_reduced"] == 40
    assert after["bytes_copied"] - before["bytes_copied"] == 80


def test_configure_takes_what_needs_no_tuning():
    assert ringd.configure(fusion_threshold=64 << 20, cycle_time_ms=2.5) is None
    with pytest.raises(ValueError, match="number of bytes"):
        ringd.configure(fusion_threshold=-1)
    with pytest.raises(ValueError, match="milliseconds"):
        ringd.configure(cycle_time_ms=0)


def test_an_operation_of_two_parts_fails_where_it_is_waited_for():
    handle = ringd.allgather_async(np.zeros((2, 3)), name="rows", out=np.zeros((5, 3)))
    assert ringd.allreduce(np.ones(2), op=ringd.Sum).tolist() == [1.0, 1.0]
    assert handle.done()
    with pytest.raises(ValueError, match="out"):
        handle.wait()
    assert ringd.allgather(np.ones((1, 2)), name="rows").tolist() == [[1.0, 1.0]]


def test_threads_may_use_names_side_by_side():
    def work(thread):
        for i in range(200):
            x = np.full(100, thread * 1000 + i, np.int64)
            if not (ringd.allreduce(x, op=ringd.Sum, name=f"{thread}.{i}") == x).all():
                wrong.append((thread, i))

    wrong: list[tuple[int, int]] = []
    threads = [threading.Thread(target=work, args=(t,)) for t in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_unnamed_operations_of_two_threads_are_refused():
    handle = ringd.allreduce_async(np.ones(1))
    errors = []

    def work():
        try:
            ringd.allreduce(np.ones(1))
        except ringd.RingdError as error:
            errors.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    ringd.synchronize(handle)
    assert "thread" in errors[0]
    ringd.allreduce(np.ones(1))


@pytest.mark.parametrize("code", [0, 3])
def test_exit_code_is_the_scripts(code):
    script = f"import ringd, sys; ringd.init(standalone=True); ringd.barrier(); sys.exit({code})"
    assert (
        subprocess.run([sys.executable, "-c", script], timeout=60, check=False).returncode == code
    )


def test_bfloat16_of_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.arange(5).astype(ml_dtypes.bfloat16)
    result = ringd.allreduce(x, op=ringd.Sum, prescale_factor=2.0)
    assert result.dtype == x.dtype
    np.testing.assert_array_equal(result.astype(np.float32), [0, 2, 4, 6, 8])


def test_timeline_is_json_at_all_times_and_has_each_operation(tmp_path):
    path = tmp_path / "timeline.json"
    ringd.start_timeline(path)
    first = json.loads(path.read_text())
    assert [event["args"] for event in first] == [{"name": "rank 0 (node 0)"}]
    with pytest.raises(ringd.RingdError, match="stop_timeline"):
        ringd.start_timeline(path)
    for i in range(200):
        ringd.allreduce(np.ones((2, 3), np.float32), op=ringd.Sum, name=f"n{i}")
    assert len(json.loads(path.read_text())) > 200
    ringd.synchronize(ringd.grouped_allreduce_async([np.ones(1), np.ones(2)]))
    ringd.stop_timeline()
    events = json.loads(path.read_text())[1:]
    begun = [event for event in events if event["ph"] == "b"]
    over = {event["id"]: event for event in events if event["ph"] == "e"}
    assert len(begun) == len(over) == 202
    assert begun[7]["name"] == "allreduce 'n7'" and begun[7]["cat"] == "allreduce"
    assert begun[7]["args"]["shape"] == [2, 3] and begun[7]["args"]["bytes"] == 24
    assert begun[7]["args"]["line"].startswith("standalone_test.py:")
    assert all(over[event["id"]]["ts"] >= event["ts"] for event in begun)
    assert abs(begun[0]["ts"] / 1e6 - time.time()) < 600
    ringd.start_timeline(path)
    ringd.barrier()
    ringd.shutdown()
    assert [event["ph"] for event in json.loads(path.read_text())] == ["M", "b", "e"]
    ringd.stop_timeline()
    ringd.init(standalone=True)
