"""Random operations against NumPy, on one node and on two.

RINGD_TEST_SEED and RINGD_TEST_ROUNDS choose others; a failure names the seed of its round.
"""

import os
import sys
from pathlib import Path

import pytest

from tests.support.jobs import RINGCTL, LocalCluster

pytestmark = pytest.mark.skipif(RINGCTL is None, reason="no ringctl: run deploy/setup.sh")

SCRIPT = Path(__file__).resolve().parents[1] / "python/random_ops.py"


def check(home, ranks):
    chosen = [
        f"--env={name}={os.environ[name]}"
        for name in ("RINGD_TEST_SEED", "RINGD_TEST_ROUNDS")
        if name in os.environ
    ]
    result = home.ringctl("run", "-n", ranks, *chosen, "--", sys.executable, SCRIPT, timeout=110)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("checks passed") == ranks


@pytest.mark.parametrize("ranks", [2, 3])
def test_random_operations_on_one_node(home, ranks):
    check(home, ranks)


def test_random_operations_on_two_nodes(home):
    cluster = LocalCluster(home)
    try:
        check(home, 4)
    finally:
        cluster.down()
