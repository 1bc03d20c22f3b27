"""What the scripts here share. They import PyTorch alone: ringd is the backend's name, no more."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.checks import Checks


def run(*tests, init_method=None):
    """Runs tests on this rank of a job and prints the last line."""
    torch.set_num_threads(1)
    dist.init_process_group("ringd", init_method=init_method)
    checks = Checks()
    rank, size = dist.get_rank(), dist.get_world_size()
    for test in tests:
        test(checks, rank, size)
    dist.destroy_process_group()
    print(f"rank {rank} of {size}: {checks.passed} checks passed")
