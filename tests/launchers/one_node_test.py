"""Ranks that torchrun and mpirun start on one node: real launchers, nothing left behind."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import ringd

from tests.launchers.launchers import LAUNCHERS, TORCHRUN, LaunchHome, failing_init
from tests.support.jobs import RINGCTL

pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(180)
every_launcher = pytest.mark.parametrize("launcher", LAUNCHERS)


@pytest.fixture
def home(tmp_path):
    home = LaunchHome(tmp_path)
    yield home
    home.kill_all()


SUM = """
import numpy as np, ringd
ringd.init()
size = ringd.size()
total = ringd.allreduce(np.arange(3.0) + ringd.rank(), op=ringd.Sum)
assert total.tolist() == [size * i + size * (size - 1) / 2 for i in range(3)], total
assert (ringd.local_rank(), ringd.local_size()) == (ringd.rank(), size)
assert (ringd.cross_rank(), ringd.cross_size()) == (0, 1)
print(f"rank {ringd.rank()} of {size} is right\\n", end="")
"""


def assert_right(output, ranks):
    told = sorted(re.findall(r"rank \d+ of \d+ is right", output))
    assert told == [f"rank {i} of {ranks} is right" for i in range(ranks)], output


@every_launcher
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_init_finds_the_launchers_ranks_and_leaves_nothing(home, launcher, ranks):
    assert_right(home.launch(launcher, ranks, SUM), ranks)
    home.assert_clean()


@every_launcher
def test_hvd_init_finds_the_launchers_ranks(home, launcher):
    script = """
import horovod.torch as hvd, torch
hvd.init()
mean = hvd.allreduce(torch.full((2,), float(hvd.rank())))
assert mean.tolist() == [0.5, 0.5]
print(f"rank {hvd.rank()} of {hvd.size()} is right\\n", end="")
"""
    output = home.launch(launcher, 2, script)
    assert_right(output, 2)
    assert "trains alone" not in output


BACKEND = """
import torch, torch.distributed as dist
dist.init_process_group("ringd", **ARGUMENTS)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1, bias=False))
with torch.no_grad():
    model.module.weight.fill_(0.0)
model(torch.tensor([[1.0, 2.0 * dist.get_rank()]])).sum().backward()
size = dist.get_world_size()
assert model.module.weight.grad.tolist() == [[1.0, size - 1.0]], model.module.weight.grad
print(f"rank {dist.get_rank()} of {size} is right\\n", end="")
dist.destroy_process_group()
"""


@pytest.mark.parametrize("ranks", [2, 4])
def test_init_process_group_under_torchrun(home, ranks):
    assert_right(home.launch("torchrun", ranks, BACKEND.replace("ARGUMENTS", "{}")), ranks)
    home.assert_clean()


def test_init_process_group_under_mpirun_needs_no_address(home):
    script = BACKEND.replace("ARGUMENTS", "{'init_method': 'ringd://'}")
    assert_right(home.launch("mpirun", 2, script), 2)


FAILING = """
import os, sys, time, numpy as np, ringd
ringd.init()
ringd.barrier()
if ringd.rank() == 1:
    WHAT_HAPPENS
try:
    if ringd.rank() == 0:
        time.sleep(1)  # An error that came before the call is its error, too.
    while True:
        ringd.allreduce(np.ones(4))
except ringd.PeerFailedError as error:
    print(f"told: {error.rank} {error.exit_code} {error.signal} {error}\\n", end="")
"""


@pytest.mark.parametrize("launcher", ["torchrun", "mpirun"])
@pytest.mark.parametrize(
    "what, told",
    [
        ("os.kill(os.getpid(), 9)", r"1 -1 9 rank 1 .*SIGKILL"),
        ("os._exit(3)", r"1 3 0 rank 1"),
    ],
)
def test_rank_that_dies_is_named_by_the_others_and_nothing_stays(home, launcher, what, told):
    script = FAILING.replace("WHAT_HAPPENS", what)
    output = home.launch(launcher, 4, script, outlive=True)
    assert len(re.findall(f"told: {told}", output)) == 3, output
    home.assert_clean()


@pytest.mark.parametrize("launcher", ["torchrun", "mpirun"])
def test_launcher_that_ends_the_others_leaves_nothing(home, launcher):
    home.launch(launcher, 4, FAILING.replace("WHAT_HAPPENS", "os.kill(os.getpid(), 9)"), expect=1)
    home.assert_clean()


def test_torchrun_starts_the_job_again(home):
    script = f"""
import os, sys, time, ringd
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    ringd.init()
    ringd.barrier()
    if ringd.rank() == 1:
        sys.exit(5)
    time.sleep(30)
{SUM}
"""
    program = home.path / "program.py"
    program.write_text(script)
    output = home.run(TORCHRUN, "--nproc-per-node", 2, "--max-restarts", 1, program)
    assert_right(output, 2)
    home.assert_clean()


def test_shutdown_and_init_again(home):
    script = "import ringd; ringd.init(); ringd.barrier(); ringd.shutdown()\n" + SUM
    assert_right(home.launch("mpirun", 2, script), 2)


def test_rank_that_does_not_call_init_is_named(home):
    script = failing_init(2, late='os.environ["OMPI_COMM_WORLD_RANK"] in "13"')
    output = home.launch("mpirun", 4, script)
    assert output.count("told: no call of init() within 2s by ranks 1, 3 of 4") == 2, output
    home.assert_clean()


def test_local_rank_0_that_does_not_call_init_is_named(home):
    script = """
import os, ringd
if os.environ["RANK"] == "1":
    try:
        ringd.init(timeout=1)
    except ringd.DeadlineExceeded as error:
        print(f"told: {error}\\n", end="")
"""
    assert "told: local rank 0 of this node has not called" in home.launch("torchrun", 2, script)


def test_rank_that_ends_before_the_others_call_init_is_named(home):
    script = """
import os, sys, time, ringd
if os.environ["OMPI_COMM_WORLD_RANK"] == "2":
    time.sleep(20)
if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    import threading
    threading.Timer(1, os._exit, [6]).start()
try:
    ringd.init(timeout=15)
except ringd.RingdError as error:
    print(f"told: {error}\\n", end="")
"""
    output = home.launch("mpirun", 3, script, outlive=True)
    assert re.search(r"told: rank 1 \(process \d+\) exited with code 6 while others", output), (
        output
    )
    home.assert_clean()


def test_sizes_that_differ_are_shown(home):
    script = """
import os, time, ringd
if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    os.environ["OMPI_COMM_WORLD_SIZE"] = os.environ["OMPI_COMM_WORLD_LOCAL_SIZE"] = "3"
    time.sleep(0.5)
try:
    ringd.init(timeout=3)
except ringd.RingdError as error:
    print(f"told: {error}\\n", end="")
"""
    output = home.launch("mpirun", 2, script)
    assert "rank 1 of 3 (local rank 1 of 3) has joined a job of 2 ranks" in output, output


def test_incomplete_variables_are_named(home):
    home.env["OMPI_COMM_WORLD_RANK"] = "0"
    output = home.run(sys.executable, "-c", "import ringd; ringd.init()", expect=1)
    assert "OMPI_COMM_WORLD_SIZE is not set" in output and "ringctl run" in output


def test_without_its_program_init_says_where_it_looked(home):
    installed = Path(ringd.__file__).parent
    copy = home.path / "copy" / "ringd"
    shutil.copytree(installed, copy, ignore=shutil.ignore_patterns("bin"))
    home.env["PYTHONPATH"] = str(copy.parent)
    output = home.launch("mpirun", 1, "import ringd; ringd.init()", expect=1)
    assert "there is no ringd-worker in" in output and "install ringd's wheel" in output


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a second user")
def test_another_users_process_is_not_trusted(home):
    program = home.path / "squatter.py"
    program.write_text("""
import os, socket, sys, time
os.setuid(65534)
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind(sys.argv[1].replace("@", chr(0)).ljust(108, chr(0)))
listener.listen()
print("listens", flush=True)
time.sleep(60)
""")
    squatter = subprocess.Popen(
        [sys.executable, program, "@ringd/attach/0/0/mpirun-squatted"],
        stdout=subprocess.PIPE,
        env=home.env,
    )
    try:
        assert squatter.stdout.readline() == b"listens\n"
        script = """
import os, ringd
os.environ["PMIX_NAMESPACE"] = "squatted"
ringd.init()
"""
        output = home.launch("mpirun", 1, script, expect=1)
        assert f"process {squatter.pid} of user 65534 listens" in output, output
    finally:
        squatter.kill()
        squatter.wait()


def test_two_jobs_at_once_are_kept_apart(home):
    script = home.path / "program.py"
    script.write_text(SUM)
    command = home.command("mpirun", 2, sys.executable, script)
    jobs = [
        subprocess.Popen(command, env=home.env, cwd=home.path, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for job in jobs:
        assert_right(job.communicate(timeout=60)[0], 2)
    home.assert_clean()


def test_innermost_launchers_ranks_win(home):
    script = home.path / "program.py"
    script.write_text(SUM)
    inside_ringctl = home.ringctl(
        "run", "-n", 1, "--", TORCHRUN, "--nproc-per-node", 2, script, timeout=60
    )
    assert_right(inside_ringctl.stdout, 2)
    inside_torchrun = home.command(
        "torchrun", 1, RINGCTL, "run", "-n", 3, "--", sys.executable, script
    )
    assert_right(home.run(*inside_torchrun), 3)
    home.assert_clean()


def test_scheduler_that_the_user_has_named_is_left_alone(home):
    home.env["RINGD_SCHEDULER"] = "192.0.2.1:7470"
    config = home.path / ".config/ringd/ringd.toml"
    config.parent.mkdir(parents=True)
    config.write_text('[ringctl]\nscheduler = "192.0.2.1:7470"\n')
    assert_right(home.launch("mpirun", 2, SUM), 2)


def test_without_any_launcher_init_asks_for_one(home):
    output = home.run(sys.executable, "-c", "import ringd; ringd.init()", expect=1)
    assert "no launcher has started this process" in output and "standalone=True" in output
    program = "import ringd; ringd.init(standalone=True); print(ringd.size())"
    assert home.run(sys.executable, "-c", program) == "1\n"
