"""Narrower types between nodes: over two nodes of two ranks, and on one node."""

import sys
from pathlib import Path

import pytest

from tests.support.jobs import RINGCTL, LocalCluster

pytest.importorskip("torch")

pytestmark = pytest.mark.skipif(RINGCTL is None, reason="no ringctl: run deploy/setup.sh")

SCRIPT = Path(__file__).resolve().parents[1] / "python/wire_ops.py"


def run(home, ranks):
    result = home.ringctl("run", "-n", ranks, "--", sys.executable, SCRIPT, timeout=110)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("checks passed") == ranks


def test_two_nodes_round_alike(home):
    cluster = LocalCluster(home)
    run(home, 4)
    cluster.down()


def test_one_node_rounds_nothing(home):
    run(home, 2)
