"""Training libraries on the backend "ringd": the parameters that they train with Gloo."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.jobs import RINGCTL

pytestmark = pytest.mark.skipif(RINGCTL is None, reason="no ringctl: run deploy/setup.sh")

SCRIPT = Path(__file__).resolve().parents[1] / "torch_distributed/trainers.py"
RANKS = 2


def parameters_of(output):
    found = re.findall(r"parameters: ([-.0-9]+)", output)
    assert len(found) == RANKS, output
    return [float(each) for each in found]


@pytest.mark.parametrize("way", ["accelerate", "lightning", "transformers"])
def test_trains_as_with_gloo(home, way):
    pytest.importorskip(way)
    ours = home.ringctl("run", "-n", RANKS, "--", sys.executable, SCRIPT, way, "ringd", timeout=110)
    assert ours.returncode == 0, ours.stdout + ours.stderr
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS)]
    gloo = subprocess.run(
        [*launcher, "--standalone", str(SCRIPT), way, "gloo"],
        env=home.env,
        cwd=home.path,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert gloo.returncode == 0, gloo.stdout + gloo.stderr
    right = parameters_of(gloo.stdout)
    assert parameters_of(ours.stdout) == pytest.approx(right, rel=1e-5)
