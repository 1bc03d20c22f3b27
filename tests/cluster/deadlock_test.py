"""Deadlocks that the daemons prove, on one node and over two."""

import sys
from pathlib import Path

import pytest

from tests.support.jobs import RINGCTL

pytestmark = pytest.mark.skipif(RINGCTL is None, reason="no ringctl: run deploy/setup.sh")

SCRIPT = Path(__file__).resolve().parents[1] / "python/deadlock_ops.py"


def run(home, ranks, *options):
    command = ["run", "-n", ranks, *options, "--", sys.executable, SCRIPT]
    result = home.ringctl(*command, timeout=110)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("checks passed") == ranks


def test_one_node(home):
    run(home, 4)


def test_two_nodes(home, cluster):
    run(home, 4, "--ranks-per-node", 2)


# Rank 1 calls in a group of two, the others in that of all.
TORCH = """
import torch, torch.distributed as dist

dist.init_process_group("ringd")
rank = dist.get_rank()
other = dist.new_group([0, 1])
tensor = torch.ones(3)
try:
    dist.all_reduce(tensor, group=other if rank == 1 else None)
except RuntimeError as error:
    print(f"rank {rank} was told: {error}", flush=True)
tensor = torch.ones(3)
dist.all_reduce(tensor)
if rank < 2:
    dist.all_reduce(tensor, group=other)
print(f"rank {rank} has {tensor.tolist()}")
"""


def test_torch_distributed(home):
    pytest.importorskip("torch")
    result = home.ringctl("run", "-n", 3, "--", sys.executable, "-c", TORCH, timeout=60)
    assert result.returncode == 0, result.stdout + result.stderr
    for rank in range(3):
        assert f"rank {rank} was told: deadlock: " in result.stdout, result.stdout
        total = 3.0 if rank == 2 else 6.0
        assert f"rank {rank} has {[total] * 3}" in result.stdout, result.stdout
