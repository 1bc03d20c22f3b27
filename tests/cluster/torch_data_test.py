"""ringd.torch.data in jobs of several ranks."""

import json
import re
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(300)
SCRIPT = Path(__file__).resolve().parents[1] / "torch/data_job.py"
SAMPLES = 50  # As there.


def run(home, ranks, *options):
    words = [sys.executable, SCRIPT, home.path, *options]
    return home.ringctl("run", "-n", ranks, "--", *words, timeout=200)


def used(home):
    return Counter(map(int, (home.path / "used").read_text().split()))


def passed(result):
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_an_epoch_gives_all_samples_on_any_number_of_ranks(home, ranks):
    output = passed(run(home, ranks))
    counts = used(home)
    assert set(counts) == set(range(SAMPLES))
    # Padded up to a multiple of the ranks.
    assert counts.total() == -(-SAMPLES // ranks) * ranks
    assert len(set(re.findall(r": (\d+) samples", output))) == 1


def test_drop_gives_no_sample_twice(home):
    passed(run(home, 3, "--uneven", "drop"))
    assert set(used(home).values()) == {1} and used(home).total() == 48


def test_an_epoch_goes_on_with_another_number_of_ranks(home):
    passed(run(home, 2, "--stop-after", 3))
    assert json.loads((home.path / "state.json").read_text())["position"] == 2 * 3 * 4
    passed(run(home, 1, "--stop-after", 2))
    assert used(home).total() == 32
    passed(run(home, 3))
    # 18 are left for three ranks: nothing is padded.
    assert used(home) == Counter(range(SAMPLES))
    assert json.loads((home.path / "state.json").read_text())["epoch"] == 1


@pytest.mark.parametrize(
    ("trouble", "text"),
    [
        (
            "hang",
            r"rank 1: worker 1 of the .* \(pid \d+\) has been loading sample \d+ for",
        ),
        # PyTorch's words where the rank was busy elsewhere when its worker died.
        (
            "kill",
            r"worker 1 of the data loader \(pid \d+\) died while it was loading sample"
            r"|DataLoader worker \(pid \d+\) is killed",
        ),
    ],
)
def test_a_worker_in_trouble_ends_the_job_by_its_rank_and_name(home, trouble, text):
    begin = time.monotonic()
    result = run(home, 2, "--trouble", trouble)
    assert time.monotonic() - begin < 60
    assert result.returncode == 1
    report = result.stderr[result.stderr.index("ringctl: rank") :]
    assert "ringctl: rank 1 (node" in report
    assert re.search(text, result.stderr), result.stderr
    home.assert_clean()
