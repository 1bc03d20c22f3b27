"""Named order and join over two nodes of two ranks."""

import sys
from pathlib import Path

import pytest

from tests.support.jobs import RINGCTL

pytestmark = pytest.mark.skipif(RINGCTL is None, reason="no ringctl: run deploy/setup.sh")

SCRIPT = Path(__file__).resolve().parents[1] / "python/join_ops.py"


@pytest.mark.parametrize("ranks", [2, 4])
def test_everything_agrees_with_numpy(home, cluster, ranks):
    options = ["--ranks-per-node", ranks // 2]
    result = home.ringctl("run", "-n", ranks, *options, "--", sys.executable, SCRIPT, timeout=110)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("checks passed") == ranks


# Rank 3 dies while the others of both nodes have joined.
DEATH = """
import os, signal, time
import ringd

ringd.init()
ringd.barrier()
if ringd.rank() == 3:
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)
try:
    ringd.join()
except ringd.PeerFailedError as error:
    print(f"rank {ringd.rank()} was told: {error}")
"""


def test_a_rank_dies_those_that_have_joined_are_told(home, cluster):
    result = home.ringctl("run", "-n", 4, "--", sys.executable, "-c", DEATH, timeout=60)
    assert result.returncode != 0
    for rank in range(3):
        assert f"rank {rank} was told: rank 3 (node" in result.stdout, result.stdout + result.stderr
    assert result.stdout.count("was killed by SIGKILL") == 3, result.stdout + result.stderr
