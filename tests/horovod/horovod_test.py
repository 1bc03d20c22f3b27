"""Scripts and programs of Horovod's users on ringd: horovodrun, horovod.run and `ringctl run`."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import horovod
from tests.support.jobs import RINGCTL, Home, LocalCluster, wait_until

HERE = Path(__file__).resolve().parent
pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def home(tmp_path):
    home = Home(tmp_path)
    home.env["PYTHONPATH"] = horovod.environment()["PYTHONPATH"]
    yield home
    home.kill_all()


def run(home, *command, timeout=200):
    return subprocess.run(
        list(map(str, command)),
        env=home.env,
        cwd=home.path,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def horovodrun(home, *arguments, **options):
    return run(home, horovod.horovodrun(), *arguments, **options)


def passed(result):
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_operations_are_horovods(home, tmp_path, ranks):
    command = [sys.executable, HERE / "ops.py", tmp_path]
    output = passed(horovodrun(home, "-np", ranks, "-H", f"localhost:{ranks}", *command))
    assert output.count("checks passed") == ranks


def test_without_a_launcher_a_script_is_alone_and_says_so(home, tmp_path):
    result = run(home, sys.executable, HERE / "ops.py", tmp_path)
    assert passed(result).startswith("rank 0 of 1")
    assert result.stderr.count("trains alone (size 1)") == 1
    assert len(result.stderr.splitlines()) == 1


def test_another_launchers_variable_never_means_size_1(home, tmp_path):
    home.env.update(OMPI_COMM_WORLD_RANK="1", OMPI_COMM_WORLD_SIZE="2")
    result = run(home, sys.executable, "-c", "import horovod.torch as hvd; hvd.init()")
    assert result.returncode == 1
    assert "ringctl run" in result.stderr and "trains alone" not in result.stderr


@pytest.mark.parametrize(
    "variables", [("OMPI_COMM_WORLD", "RANK", "SIZE"), ("SLURM", "PROCID", "NTASKS")]
)
def test_a_launcher_that_starts_one_process_is_none(home, variables):
    prefix, rank, size = variables
    home.env.update({f"{prefix}_{rank}": "0", f"{prefix}_{size}": "1"})
    script = "import horovod.torch as hvd; hvd.init(); print(hvd.size())"
    result = run(home, sys.executable, "-c", script)
    assert passed(result) == "1\n" and "trains alone" in result.stderr


LAUNCHERS = {
    "horovodrun": lambda ranks: [horovod.horovodrun(), "-np", ranks, "-H", f"localhost:{ranks}"],
    "ringctl": lambda ranks: [RINGCTL, "run", "-n", ranks, "--"],
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_training_script_runs_unmodified(home, launcher):
    command = [*LAUNCHERS[launcher](2), sys.executable, HERE / "digits.py"]
    output = passed(run(home, *command, "--epochs", 5, "--checkpoint", home.path / "c.pt"))
    accuracies = re.findall(r"\[0\] epoch \d: loss \S+ accuracy ([\d.]+)%", output)
    assert len(accuracies) == 5 and float(accuracies[-1]) > 85
    assert output.count("spread 0.0") == 2
    # Of a checkpoint another number of ranks goes on.
    command = [*LAUNCHERS[launcher](3), sys.executable, HERE / "digits.py"]
    output = passed(run(home, *command, "--epochs", 6, "--checkpoint", home.path / "c.pt"))
    assert re.findall(r"epoch (\d)", output) == ["5"]
    assert output.count("spread 0.0") == 3


def test_clipping_and_several_passes(home):
    options = ["--clip", 5, "--batches-per-allreduce", 2, "--base-lr", 0.02, "--epochs", 2]
    output = passed(horovodrun(home, "-np", 2, sys.executable, HERE / "digits.py", *options))
    assert output.count("spread 0.0") == 2


def test_elastic_script_runs_once(home):
    output = passed(horovodrun(home, "-np", 2, sys.executable, HERE / "elastic_digits.py"))
    assert output.count("spread 0.0 epoch 1") == 2


@pytest.mark.parametrize("where", ["operation", "hook", "step"])
def test_a_peers_death_is_horovods_error_everywhere(home, where):
    result = horovodrun(home, "-np", 2, sys.executable, HERE / "peer_dies.py", where)
    assert result.returncode == 137
    assert re.search(r"\[0\] caught at step 3: rank 1 .*(SIGKILL|signal 9)", result.stdout), (
        result.stdout + result.stderr
    )


def test_ctrl_c_ends_a_wait_at_once(home):
    output = passed(horovodrun(home, "-np", 2, sys.executable, HERE / "interrupt.py"))
    waited, used = map(float, re.search(r"waited (\S+) used (\S+)", output).groups())
    assert 1.5 < waited < 5 and used < waited / 4
    assert "[0] goes on: 2.0" in output


@pytest.mark.parametrize("ranks", [3, 4])
def test_process_sets(home, ranks):
    output = passed(horovodrun(home, "-np", ranks, sys.executable, HERE / "process_sets.py"))
    assert output.count("checks passed") == ranks


def test_timeline_by_flag(home):
    file = home.path / "t.json"
    command = [sys.executable, HERE / "peer_dies.py", "operation"]
    passed(horovodrun(home, "-np", 1, "--timeline-filename", file, *command))
    assert "step.9" in str(json.loads(file.read_text()))


@pytest.fixture
def cluster(home):
    cluster = LocalCluster(home, nodes=2, slots=2)
    yield cluster
    cluster.down()


def test_nodes_of_a_cluster(home, cluster):
    hosts = home.path / "hosts"
    hosts.write_text("a slots=2\nb slots=2\n")
    script = "import os; print(os.environ['RINGD_NODE_RANK'], os.environ['OF_THE_USER'])"
    home.env["OF_THE_USER"] = "x"
    result = horovodrun(home, "-np", 3, "--hostfile", hosts, sys.executable, "-c", script)
    assert sorted(passed(result).splitlines()) == ["[0] 0 x", "[1] 0 x", "[2] 1 x"]
    command = [sys.executable, HERE / "ops.py", home.path]
    output = passed(horovodrun(home, "-np", 3, "-H", "a:1,b:2", *command))
    assert output.count("checks passed") == 3
    result = python(home, "print(horovod.run(functions.total, (1,), num_proc=2, hosts='a:1,b:1'))")
    assert passed(result).splitlines()[-1] == "[(0, 3, None), (1, 3, None)]"
    result = horovodrun(home, "-np", 1, "-H", "c:1", "true")
    assert result.returncode == 2 and "unknown node c" in result.stderr


CALL = """
import os, sys
import horovod
from tests.horovod import functions
{body}
"""


def python(home, body):
    return run(home, sys.executable, "-c", CALL.format(body=body))


def test_run_returns_what_each_rank_returned(home):
    body = "print(horovod.run(functions.total, (10,), {'second': 5}, num_proc=2))"
    # (10 + 5 + 0) + (10 + 5 + 1); no variable is set to rubbish.
    assert passed(python(home, body)).splitlines()[-1] == "[(0, 31, None), (1, 31, None)]"
    home.assert_clean()


def test_run_takes_functions_of_the_script_itself(home):
    script = home.path / "main.py"
    script.write_text("import horovod\nprint(horovod.run(lambda x: x * 2, args=('ab',)))\n")
    assert passed(run(home, sys.executable, script)).endswith("['abab']\n")


def test_run_names_the_rank_that_failed(home):
    result = python(home, "horovod.run(functions.fail_on_one, num_proc=2)")
    assert result.returncode == 1
    last = result.stderr[result.stderr.index("RuntimeError: horovod.run() failed on rank 1") :]
    assert 'KeyError: "a rank\'s own trouble"' in last
    home.assert_clean()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("None", "can't be called"),
        ("print, hosts='a:1', hostfile='b'", "both name nodes"),
        ("print, hostfile='/nowhere'", "no such file"),
        ("print, num_proc=2, host_discovery_script='x'", "RINGD_SCHEDULER"),
    ],
)
def test_run_refuses(home, arguments, text):
    result = python(home, f"horovod.run({arguments})")
    assert "ValueError" in result.stderr and text in result.stderr


def test_exit_codes_are_ringctls(home):
    assert horovodrun(home, "-np", 2, sys.executable, "-c", "exit(7)").returncode == 7
    kill = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert horovodrun(home, "-np", 2, sys.executable, "-c", kill).returncode == 137
    assert horovodrun(home, "-np", 2, "/nowhere/x").returncode == 2
    home.assert_clean()


def test_fewer_ranks_than_slots(home):
    output = passed(
        horovodrun(home, "-np", 2, "-H", "localhost:4", sys.executable, "-c", "print(1)")
    )
    assert sorted(output.splitlines()) == ["[0] 1", "[1] 1"]
    result = horovodrun(home, "-np", 3, "-H", "localhost:2", "true")
    assert result.returncode == 2 and "slots" in result.stderr


SPEAK = """
import os, sys
rank = os.environ["RINGD_RANK"]
print("out", rank); print("err", rank, file=sys.stderr); print("[1] odd"); sys.stdout.write("end")
sys.exit(int(rank) * 3)
"""


@pytest.mark.parametrize("ranks", [1, 2, 11])
def test_output_of_each_rank_is_kept(home, ranks):
    arguments = ["-np", ranks, "--output-filename", "out", sys.executable, "-c", SPEAK]
    result = horovodrun(home, *arguments)
    width = len(str(ranks - 1))
    prefix = (lambda rank: f"[{rank}] ") if ranks > 1 else (lambda rank: "")
    for rank in range(ranks):
        folder = home.path / f"out/rank.{rank:0{width}}"
        assert (folder / "stdout").read_text().rstrip("\n") == f"out {rank}\n[1] odd\nend"
        assert (folder / "stderr").read_text() == f"err {rank}\n"
        assert f"{prefix(rank)}out {rank}\n" in result.stdout
    assert result.returncode % 3 == 0 and (result.returncode > 0) == (ranks > 1)


def test_folder_that_cannot_be_written(home):
    (home.path / "file").touch()
    result = horovodrun(home, "-np", 1, "--output-filename", "file", "true")
    assert result.returncode == 2 and "--output-filename file: " in result.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_the_job_and_its_code_is_ringctls(home, number):
    command = [horovod.horovodrun(), "-np", "2", "--output-filename", "out", "sleep", "1000"]
    process = subprocess.Popen(command, env=home.env, cwd=home.path, start_new_session=True)
    wait_until(lambda: sum("sleep" in p for p in home.processes().values()) >= 2, 60, "ranks")
    os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
    assert process.wait(60) == 128 + number
    home.assert_clean()


def test_variables_reach_the_ranks(home):
    home.env["OF_THE_USER"] = "here"
    script = "import os; print(os.environ['OF_THE_USER'], os.environ['HOROVOD_FUSION_THRESHOLD'])"
    arguments = ["-np", 1, "--fusion-threshold-mb", 2, "--cycle-time-ms", 5, sys.executable]
    result = horovodrun(home, *arguments, "-c", script)
    assert passed(result) == "here 2097152\n"
    assert "no effect: --fusion-threshold-mb, --cycle-time-ms (" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["-np", 2], "no command"),
        (["true"], "-np is missing"),
        (["-np", 2, "--jsrun", "true"], "leave out --jsrun"),
        (["-np", 2, "--cache-capacity", "-1", "true"], "--cache-capacity must be >= 0"),
        (["-np", 2, "-H", "localhost:x", "true"], "'x' is no number of slots"),
        (["-np", 2, "-H", "elsewhere:2", "true"], "elsewhere"),
        (["-np", 2, "--hostfile", "/nowhere", "true"], "/nowhere"),
        (["-np", "two", "true"], "two"),
    ],
)
def test_bad_input_is_refused_with_words(home, arguments, text):
    result = horovodrun(home, *arguments)
    assert result.returncode == 2 and text in result.stderr
    assert "Traceback" not in result.stderr


def test_version_and_check_build(home):
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", passed(horovodrun(home, "--version")))
    for flag in ("--check-build", "-cb"):
        text = passed(horovodrun(home, flag))
        assert "[X] PyTorch" in text and "[ ] MPI" in text


def test_module_is_the_same_program(home):
    command = [sys.executable, "-m", "horovod.runner.launch", "-np", 1, "echo", "hello"]
    assert passed(run(home, *command)) == "hello\n"


def test_nothing_imports_torch_before_it_is_asked_for(home):
    script = "import horovod, horovod.common.exceptions, sys; print('torch' in sys.modules)"
    assert passed(run(home, sys.executable, "-c", script)) == "False\n"
