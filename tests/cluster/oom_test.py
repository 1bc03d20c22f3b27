"""A rank that the kernel's OOM killer ends is said to have been.

The whole embedded run is put into a memory cgroup of this test's own; the daemon makes those of the
ranks below it.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

RINGCTL = shutil.which("ringctl", path=Path(sys.executable).parent)
NODE = socket.gethostname().split(".")[0]
LIMIT_MB = 400

pytestmark = [
    pytest.mark.skipif(RINGCTL is None, reason="no ringctl: run deploy/setup.sh"),
    pytest.mark.timeout(60),
]


def own_directory():
    """(our directory in the hierarchy with the memory controller, its file of the limit)."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return Path("/sys/fs/cgroup/memory" + path), "memory.limit_in_bytes"
        enabled = Path("/sys/fs/cgroup" + path) / "cgroup.controllers"
        if number == "0" and enabled.exists() and "memory" in enabled.read_text().split():
            return enabled.parent, "memory.max"
    return None, ""


@pytest.fixture
def limited():
    """Runs a command below the limit."""
    parent, limit_file = own_directory()
    if parent is None:
        pytest.skip("no memory cgroup here")
    # Version 2 gives a group with members no children with controllers: beside ours, then.
    home = parent if limit_file == "memory.limit_in_bytes" else parent.parent
    group = home / f"ringd-oom-test-{uuid.uuid4().hex[:8]}"
    try:
        group.mkdir()
        (group / limit_file).write_text(str(LIMIT_MB << 20))
    except OSError as error:
        if group.exists():
            group.rmdir()
        pytest.skip(f"can't make a memory cgroup: {error}")

    def run(*words, ranks=2):
        join = f'echo 0 > "{group}/cgroup.procs" && exec "$@"'
        return subprocess.run(
            ["sh", "-c", join, "sh", RINGCTL, "run", "-n", str(ranks), "--", *words],
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    yield run
    for directory, _, _ in os.walk(group, topdown=False):
        os.rmdir(directory)


GREEDY = """
import os, time
if os.environ["RINGD_RANK"] == "1":
    kept = []
    while True:
        kept.append(bytearray(b"x" * (8 << 20)))
time.sleep(60)
"""


def test_rank_above_the_memory_limit_is_said_to_be_oom_killed(limited):
    result = limited("/usr/bin/python3", "-c", GREEDY)
    assert result.returncode == 137, result.stdout + result.stderr
    line = next(line for line in result.stderr.splitlines() if "rank 1" in line)
    found = re.search(rf"OOM-killed, peak (\d+)(\.\d)? MB of {LIMIT_MB} MB", line)
    assert found, result.stderr
    assert LIMIT_MB / 2 < int(found.group(1)) <= LIMIT_MB
    assert "rank 0" not in line


def test_child_of_a_rank_that_is_oom_killed_is_said_with_the_rank(limited):
    script = "head -c 2000000000 /dev/zero | tail >/dev/null; exit 3"
    result = limited("sh", "-c", script, ranks=1)
    assert result.returncode == 3, result.stdout + result.stderr
    assert "OOM-killed" in result.stderr


def test_failure_below_the_limit_is_no_oom(limited):
    result = limited("sh", "-c", "exit 5", ranks=1)
    assert result.returncode == 5
    assert "OOM" not in result.stderr


def test_kill_from_outside_is_called_by_its_name():
    result = subprocess.run(
        [RINGCTL, "run", "--", "sh", "-c", "kill -KILL $$"],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert result.returncode == 137
    assert f"rank 0 (node {NODE}) was killed by SIGKILL" in result.stderr
    assert "OOM-killed" not in result.stderr
