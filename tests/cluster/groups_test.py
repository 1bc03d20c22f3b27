"""Process sets, rooted operations and messages over two nodes of two ranks."""

import sys
from pathlib import Path

import pytest

from tests.support.jobs import RINGCTL

pytestmark = pytest.mark.skipif(RINGCTL is None, reason="no ringctl: run deploy/setup.sh")

SCRIPT = Path(__file__).resolve().parents[1] / "python/group_ops.py"


def test_everything_agrees_with_numpy(home, cluster):
    result = home.ringctl("run", "-n", 4, "--", sys.executable, SCRIPT, timeout=110)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("checks passed") == 4


# Rank 3 dies. Ranks 0 and 3 are a set over both nodes; rank 1 waits for a message, rank 2 for one
# in its own node.
DEATH = """
import os, signal
import numpy as np
import ringd

pair = ringd.ProcessSet([0, 3])
ringd.init(process_sets=[pair])
rank = ringd.rank()
ringd.barrier()
calls = {
    0: lambda: ringd.allreduce(np.ones(3), process_set=pair),
    1: lambda: ringd.recv((3,), 3),
    2: lambda: ringd.send(np.ones(3), 3),
}
if rank == 3:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    calls[rank]()
except ringd.PeerFailedError as error:
    assert (error.rank, error.signal) == (3, 9), error
    print("learned", rank, flush=True)
    raise
"""


def test_a_death_ends_groups_and_messages_on_both_nodes(home, cluster):
    result = home.ringctl("run", "-n", 4, "--grace", "5s", *home.script(DEATH), timeout=60)
    assert result.returncode == 137, result.stdout + result.stderr
    for rank in range(3):
        assert f"learned {rank}" in result.stdout, result.stdout + result.stderr
