"""The scripts of examples/text under `ringctl run`, and the page that compares them."""

import difflib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import horovod
from tests.support.jobs import RINGCTL

pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
TEXT = ROOT / "examples/text"
PAGE = ROOT / "docs/examples.md"

pytestmark = [
    pytest.mark.skipif(RINGCTL is None, reason="no ringctl: run deploy/setup.sh"),
    pytest.mark.timeout(300),
]


def train(script, ranks, epochs=2):
    """(losses of the epochs, hashes of the ranks' parameters); 0 ranks: without a launcher."""
    command = [sys.executable, TEXT / script, "--epochs", epochs]  # Or a script elsewhere.
    if ranks > 0:
        command = [RINGCTL, "run", "-n", ranks, "--", *command]
    path = os.pathsep.join([str(horovod.folder()), str(TEXT)])
    result = subprocess.run(
        list(map(str, command)),
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("Mr. Darcy ") == 1
    losses = [float(loss) for loss in re.findall(r"epoch \d+: loss ([\d.]+)", result.stdout)]
    hashes = dict(re.findall(r"rank (\d+): parameters (\w+)", result.stdout))
    assert len(losses) == epochs and len(hashes) == max(ranks, 1)
    return losses, hashes


def test_ranks_train_one_model_as_one_process_does(tmp_path):
    changed = tmp_path / "train.py"
    changed.write_text((TEXT / "with_ddp.py").read_text().replace('"gloo"', '"ringd"'))
    alone, _ = train("one_process.py", 0)
    ringd, hashes = train("with_ringd.py", 2)
    ddp, hashes_of_ddp = train("with_ddp.py", 2)
    drop_in, hashes_of_drop_in = train("with_horovod.py", 2)
    backend, hashes_of_backend = train(changed, 2)
    # 72 characters: guessing at random costs log(72) = 4.28.
    assert alone[0] < 3 and alone[1] < alone[0] - 0.3
    assert ringd == pytest.approx(alone, rel=0.03)  # The windows come in another order.
    for losses, ranks in [
        (ringd, hashes),
        (ddp, hashes_of_ddp),
        (drop_in, hashes_of_drop_in),
        (backend, hashes_of_backend),
    ]:
        assert losses == pytest.approx(ringd, abs=2e-4)  # The same order for these three.
        assert len(set(ranks.values())) == 1


def test_text_is_learned_on_three_ranks_which_do_not_divide_it():
    losses, hashes = train("with_ringd.py", 3)
    assert losses[1] < losses[0] - 0.3
    assert len(set(hashes.values())) == 1


def body_of(script):
    """What follows the docstring."""
    return (TEXT / script).read_text().split('"""\n\n', 1)[1].splitlines()


@pytest.mark.parametrize("before", ["one_process.py", "with_ddp.py", "with_horovod.py"])
def test_page_shows_what_changes(before):
    changes = difflib.unified_diff(body_of(before), body_of("with_ringd.py"), n=1, lineterm="")
    shown = [line for line in changes if not line.startswith(("---", "+++", "@@"))]
    assert "\n".join(["```diff", *shown, "```"]) in PAGE.read_text(), "\n".join(shown)
