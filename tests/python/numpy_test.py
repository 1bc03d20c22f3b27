"""`ringd` for NumPy under `ringctl run`: real daemon, real ranks."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
RINGCTL = shutil.which("ringctl", path=f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}")

pytestmark = pytest.mark.skipif(RINGCTL is None, reason="no ringctl: run deploy/setup.sh")


def run(ranks, *command, timeout=100):
    """Runs Python in a job; its result, with the output of all ranks."""
    return subprocess.run(
        [RINGCTL, "run", "-n", str(ranks), "--", sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_operations_agree_with_numpy(ranks):
    result = run(ranks, HERE / "numpy_ops.py")
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("checks passed") == ranks


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_process_sets_and_messages_agree_with_numpy(ranks):
    result = run(ranks, HERE / "group_ops.py")
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("checks passed") == ranks


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_named_order_and_join_agree_with_numpy(ranks):
    result = run(ranks, HERE / "join_ops.py")
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("checks passed") == ranks


@pytest.mark.parametrize("ranks", [1, 3])
def test_plans_agree_with_numpy(ranks):
    result = run(ranks, HERE / "plan_ops.py")
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("steps passed") == ranks


PEER = """
import os, signal, sys
import numpy as np
import ringd

ringd.init()
ringd.barrier()
if ringd.rank() == 1:
    {end}
try:
    ringd.allreduce(np.ones(2))
except ringd.PeerFailedError as error:
    print("caught", error.rank, error.exit_code, error.signal, flush=True)
    raise
"""


@pytest.mark.parametrize(
    ("end", "code", "caught"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "caught 1 -1 9"),
        ("sys.exit(3)", 3, "caught 1 3 0"),
        ("raise SystemError('boom')", 1, "caught 1 1 0"),
    ],
)
def test_survivors_learn_who_died(end, code, caught):
    result = run(2, "-c", PEER.format(end=end))
    assert result.returncode == code, result.stdout + result.stderr
    assert caught in result.stdout


def test_exit_codes_of_scripts_are_kept():
    assert run(2, "-c", "import ringd, sys; ringd.init(); sys.exit(0)").returncode == 0
    assert run(1, "-c", "import ringd, sys; ringd.init(); sys.exit(7)").returncode == 7


def test_a_second_process_of_a_rank_is_told_who_holds_it():
    script = (
        "import os, subprocess, sys, ringd; ringd.init();"
        "child = 'import ringd; ringd.init(timeout=5)';"
        "r = subprocess.run([sys.executable, '-c', child], capture_output=True, text=True);"
        "assert r.returncode == 1 and str(os.getpid()) in r.stderr, r.stderr"
    )
    result = run(1, "-c", script)
    assert result.returncode == 0, result.stdout + result.stderr


def test_init_and_shutdown_again_and_again():
    script = (
        "import numpy as np, ringd\n"
        "for i in range(20):\n"
        "    ringd.init()\n"
        "    assert ringd.allreduce(np.full(3, i), op=ringd.Sum)[0] == 2 * i\n"
        "    ringd.shutdown()\n"
    )
    result = run(2, "-c", script)
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_busy_thread_does_not_stop_interrupts():
    script = (
        "import os, signal, threading, time, numpy as np, ringd\n"
        "ringd.init()\n"
        "if ringd.rank() == 0:\n"
        "    def stop(*_): raise SystemExit(5)\n"
        "    signal.signal(signal.SIGALRM, stop)\n"
        "    signal.setitimer(signal.ITIMER_REAL, 0.3)\n"
        "    ringd.allreduce(np.ones(1))\n"
        "time.sleep(30)\n"
    )
    result = run(2, "-c", script, timeout=25)
    assert result.returncode == 5, result.stdout + result.stderr
