"""`ringctl bench`: its table, its JSON and its errors. How fast anything is, is not tested."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.jobs import LocalCluster

KEYS = [
    "operation",
    "bytes",
    "ranks",
    "nodes",
    "median_us",
    "p99_us",
    "algbw_gbps",
    "busbw_gbps",
    "limit_gbps",
    "implementation",
]
# busbw / algbw of nccl-tests, for 2 and for 3 ranks.
BUSBW = {
    "allreduce": {2: 1, 3: 4 / 3},
    "latency": {2: 1, 3: 4 / 3},
    "many": {2: 1, 3: 4 / 3},
    "allgather": {2: 1 / 2, 3: 2 / 3},
    "reducescatter": {2: 1 / 2, 3: 2 / 3},
    "alltoall": {2: 1 / 2, 3: 2 / 3},
    "broadcast": {2: 1, 3: 1},
}


def bench(home, *words, **options):
    result = home.ringctl("bench", *words, "--output", "json", timeout=100, **options)
    assert result.returncode == 0, result.stderr
    rows = json.loads(result.stdout)
    for row in rows:
        assert list(row) == KEYS
        check_values(row)
    return rows


def check_values(row):
    assert 0 < row["median_us"] <= row["p99_us"]
    if row["operation"] in ("barrier", "path"):
        assert (row["bytes"], row["algbw_gbps"], row["limit_gbps"]) == (0, 0, None)
        return
    algbw = row["bytes"] / (row["median_us"] * 1e-6) / 1e9
    assert row["algbw_gbps"] == pytest.approx(algbw, rel=1e-2, abs=1e-6)
    busbw = algbw * BUSBW[row["operation"]][row["ranks"]]
    assert row["busbw_gbps"] == pytest.approx(busbw, rel=1e-2, abs=1e-6)


@pytest.mark.timeout(200)
def test_all_operations_on_this_machine(home):
    rows = bench(home, "-n", 2, "--sizes", "8B,1MB", "--rounds", 2)
    sizes = [8, 1 << 20]
    names = ["allreduce", "allgather", "broadcast", "reducescatter", "alltoall"]
    assert [(row["operation"], row["bytes"]) for row in rows] == [
        *((name, size) for name in names for size in sizes),
        ("barrier", 0),
    ]
    assert {(row["ranks"], row["nodes"], row["implementation"]) for row in rows} == {
        (2, 1, "ringd")
    }
    for row in rows:  # Threads of one process say nothing about small operations.
        assert (row["limit_gbps"] is not None) == (row["bytes"] == 1 << 20)
    home.assert_clean()


def test_sizes_that_ranks_do_not_divide_are_rounded(home):
    (row,) = bench(home, "allgather", "-n", 3, "--sizes", "100B", "--rounds", 1)
    assert row["bytes"] == 96  # 24 float32, 8 a rank.
    (row,) = bench(home, "alltoall", "-n", 3, "--sizes", "4B", "--rounds", 1, "--dtype", "float64")
    assert row["bytes"] == 24  # An element for each.


def test_ordinary_memory_and_other_dtypes(home):
    words = ["--outside", "--dtype", "int16", "--sizes", "1KB", "--rounds", 1]
    (row,) = bench(home, "allreduce", "-n", 2, *words)
    assert row["bytes"] == 1024


def test_latency_is_allreduce_of_small_sizes_from_python_and_c(home):
    rows = bench(home, "latency", "-n", 2, "--rounds", 1)
    assert [(row["bytes"], row["implementation"]) for row in rows] == [
        (size, name) for size in [8, 64, 512, 1024, 4096] for name in ["ringd", "ringd-c"]
    ]


def test_path_is_to_the_daemon_and_back_busy_and_after_quiet(home):
    rows = bench(home, "path", "-n", 2, "--rounds", 1)
    assert [(row["bytes"], row["implementation"]) for row in rows] == [
        (0, "ringd-c"),
        (0, "ringd-c-quiet"),
        (0, "wake-quiet"),
    ]


def test_many_are_200_tensors_at_once(home):
    (row,) = bench(home, "many", "-n", 2, "--sizes", "4KB", "--rounds", 1)
    assert row["bytes"] == 200 * 4096
    assert row["limit_gbps"] > 0


@pytest.mark.timeout(200)
def test_peers_are_measured_in_the_same_run(home):
    rows = bench(home, "reducescatter", "-n", 2, "--sizes", "1KB", "--rounds", 2, "--peers")
    assert [row["implementation"] for row in rows][:2] == ["ringd", "gloo"]


def hide_peers(home, folder):
    """No PyTorch, and on PATH only what the test puts there."""
    (folder / "torch.py").write_text("raise ImportError('no torch here')\n")
    home.env["PYTHONPATH"] = str(folder)
    home.env["PATH"] = str(folder)


def install_mpi(folder, *names):
    source = Path(__file__).parents[1] / "support" / "fake_mpi.py"
    for name in names:
        (folder / name).write_text(f"#!{sys.executable}\n{source.read_text()}")
        (folder / name).chmod(0o755)


def notes_without_peers(home):
    words = ["barrier", "-n", 2, "--rounds", 1, "--peers"]
    result = home.ringctl("bench", *words, timeout=60)
    assert result.returncode == 0, result.stderr
    assert "barrier" in result.stdout
    return result.stderr


def test_missing_peers_are_named(home, tmp_path):
    hide_peers(home, tmp_path)
    notes = notes_without_peers(home)
    assert "no gloo: no torch here" in notes
    assert "no mpi: mpirun is not on PATH" in notes


def test_mpi_is_measured_by_ranks_of_its_own(home, tmp_path):
    hide_peers(home, tmp_path)
    install_mpi(tmp_path, "mpirun", "mpicc")
    words = ["-n", 2, "--sizes", "1KB", "--rounds", 2, "--peers"]
    ours, theirs = bench(home, "allreduce", *words)
    assert (ours["implementation"], theirs["implementation"]) == ("ringd", "openmpi")
    assert (theirs["median_us"], theirs["p99_us"], theirs["algbw_gbps"]) == (2.0, 2.0, 0.512)
    home.assert_clean()


def test_mpi_without_a_compiler_that_works_is_named(home, tmp_path):
    hide_peers(home, tmp_path)
    install_mpi(tmp_path, "mpirun")
    assert "no mpi: mpicc is not on PATH" in notes_without_peers(home)
    (tmp_path / "mpicc").write_text("#!/bin/sh\necho no mpi.h here >&2; exit 1\n")
    (tmp_path / "mpicc").chmod(0o755)
    assert "no mpi.h here" in notes_without_peers(home)


def test_table_has_notes_beside_it_not_in_it(home):
    words = ["broadcast", "-n", 2, "--sizes", "64B", "--rounds", 1]
    result = home.ringctl("bench", *words, timeout=60)
    assert result.returncode == 0, result.stderr
    header, line = result.stdout.splitlines()
    assert header.split()[:3] == ["OPERATION", "BYTES", "IMPLEMENTATION"]
    assert line.split()[:3] == ["broadcast", "64", "ringd"]
    assert "2 ranks, 1 node, float32 in the arena" in result.stderr


@pytest.mark.timeout(200)
def test_a_cluster_is_measured_against_its_links(home):
    cluster = LocalCluster(home, nodes=2, slots=1)
    try:
        rows = bench(home, "allreduce", "--sizes", "8B,64KB", "--rounds", 2)
        assert [(row["ranks"], row["nodes"]) for row in rows] == [(2, 2), (2, 2)]
        assert rows[0]["limit_gbps"] is None
        assert rows[1]["limit_gbps"] > 0
        (row,) = bench(home, "allgather", "--sizes", "1KB", "--rounds", 1, "--link-gbit", 8)
        assert row["limit_gbps"] == 2.0  # Each link carries half of it, at 1 GB/s.
        one = home.ringctl("bench", "--nodes", 1)
        assert one.returncode == 2
    finally:
        cluster.down()


def test_too_few_slots_are_refused_by_number(home):
    cluster = LocalCluster(home, nodes=1, slots=1)
    try:
        result = home.ringctl("bench", "barrier")
        assert result.returncode == 2
        assert "1 free slot" in result.stderr
    finally:
        cluster.down()


def test_plot_draws_a_picture(home):
    bench(home, "allreduce", "-n", 2, "--sizes", "8B,1KB", "--rounds", 1, "--plot", "picture.png")
    assert (home.path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_plot_without_matplotlib_is_refused_at_once(home, tmp_path):
    (tmp_path / "matplotlib.py").write_text("raise ImportError('no matplotlib here')\n")
    home.env["PYTHONPATH"] = str(tmp_path)
    result = home.ringctl("bench", "--plot", "picture.png")
    assert result.returncode == 2
    assert "pip install matplotlib" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["alreduce"], "did you mean 'allreduce'?"),
        (["--sizes", "1KB,huge"], "'huge' is no size"),
        (["--sizes", ""], "sizes"),
        (["--sizes", "0"], "'0' is no size"),
        (["--dtype", "complex64"], "unknown dtype 'complex64'"),
        (["-n", "1"], "give -n 2 or more"),
        (["--rounds", "0"], "--rounds"),
        (["--link-gbit", "0"], "--link-gbit"),
        (["--hosts", "localhost:2"], "give -n"),
        (["--plot", "picture.xyz"], ".png"),
        (["--plot", "missing/picture.png"], "missing is no folder"),
        (["--python", "/missing/python"], "/missing/python"),
    ],
)
def test_bad_input_exits_with_2_and_says_what_is_right(home, words, said):
    result = home.ringctl("bench", *words)
    assert result.returncode == 2, result.stdout + result.stderr
    assert said in result.stderr
    assert result.stdout == ""
    home.assert_clean()


def test_ranks_need_ringctl_around_them():
    command = [sys.executable, "-m", "ringd.bench", "--operations", "barrier", "--sizes", "1"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=Path("/"))
    assert result.returncode != 0
    assert "ringctl run" in result.stderr
