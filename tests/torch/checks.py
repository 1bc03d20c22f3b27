"""What the scripts here share: a rank's life, and its last line."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.checks import Checks


def run(ringd, *tests):
    """Runs tests on this rank of a job (or in a standalone one) and prints the last line."""
    ringd.init(standalone="RINGD_SOCKET" not in os.environ)
    torch.set_num_threads(1)
    checks = Checks()
    for test in tests:
        test(checks, ringd.rank(), ringd.size())
    print(f"rank {ringd.rank()} of {ringd.size()}: {checks.passed} checks passed")
    ringd.shutdown()
