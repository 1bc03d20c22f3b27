"""ringd in one process with PyTorch, TensorFlow, JAX and gRPC, in whatever order they came.

Each job has two ranks with an order of their own. With all of them installed three jobs are six
orders, in which each package is once the first and once the last.
"""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

JOB = Path(__file__).parent / "coexistence_job.py"
RINGCTL = shutil.which("ringctl", path=Path(sys.executable).parent)
FRAMEWORKS = ["torch", "tensorflow", "jax", "grpc"]

pytestmark = [
    pytest.mark.skipif(RINGCTL is None, reason="no ringctl: run deploy/setup.sh"),
    pytest.mark.timeout(240),
]


def run(*orders):
    words = [",".join(order) for order in orders]
    result = subprocess.run(
        [RINGCTL, "run", "-n", "2", "--", sys.executable, JOB, *words],
        capture_output=True,
        text=True,
        timeout=230,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("all at peace") == 2


def rotated(names, by):
    by %= len(names)
    return names[by:] + names[:by]


INSTALLED = [name for name in FRAMEWORKS if importlib.util.find_spec(name) is not None]
NAMES = ["ringd", *INSTALLED, *(["ringd.torch"] if "torch" in INSTALLED else [])]


@pytest.mark.skipif(not INSTALLED, reason="no framework here: RINGD_SETUP=full deploy/setup.sh")
@pytest.mark.parametrize("by", range(0, len(NAMES), 2))
def test_all_in_one_process_in_any_order(by):
    run(rotated(NAMES, by), rotated(NAMES, by + 1))
