"""Who may join and who may listen: nodes and schedulers over TCP with the wrong papers, or none."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent

pytestmark = [
    pytest.mark.skipif(not (BIN / "ringctl").exists(), reason="no ringctl: run deploy/setup.sh"),
    pytest.mark.timeout(60),
]


@pytest.fixture(scope="module")
def folder():
    path = Path(tempfile.mkdtemp(prefix="rl-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


def environment(folder):
    return {"PATH": os.environ["PATH"], "HOME": str(folder), "TMPDIR": str(folder)}


def ringctl(folder, *words):
    result = subprocess.run(
        [BIN / "ringctl", *map(str, words)],
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def clusters(folder):
    """Folders of two clusters with an authority each."""
    directories = [folder / "x", folder / "y"]
    for directory in directories:
        ringctl(folder, "local", "up", "--nodes", 1, "--slots", 1, "--dir", directory)
    yield directories
    for directory in directories:
        ringctl(folder, "local", "down", "--dir", directory)


def tcp_address(directory):
    lines = (directory / "scheduler/scheduler.address").read_text().split()
    return next(line for line in lines if not line.startswith("unix:"))


class Program:
    """A scheduler or daemon of this test's own."""

    def __init__(self, folder, *words):
        self._log = Path(tempfile.mkstemp(dir=folder, suffix=".log")[1])
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [BIN / words[0], *map(str, words[1:])],
                env=environment(folder),
                stdout=log,
                stderr=log,
            )

    def log(self):
        return self._log.read_text()

    def wait_for(self, pattern, seconds=20):
        end = time.monotonic() + seconds
        while not (match := re.search(pattern, self.log())):
            assert time.monotonic() < end and self._process.poll() is None, self.log()
            time.sleep(0.05)
        return match

    def exit_code(self, seconds=10):
        return self._process.wait(seconds)

    def end(self):
        self._process.terminate()
        self._process.wait(10)


@pytest.fixture
def start(folder):
    programs = []

    def call(*words):
        programs.append(Program(folder, *words))
        return programs[-1]

    yield call
    for program in programs:
        program.end()


@pytest.fixture
def start_daemon(start, folder):
    def call(name, scheduler, certificate, authority):
        """certificate: without .pem and .key."""
        home = Path(tempfile.mkdtemp(dir=folder))
        return start(
            *["ringd", "--name", name, "--slots", 1, "--scheduler", scheduler],
            *["--run-directory", home / "r", "--state-directory", home / "s"],
            *["--log-directory", home / "l", "--tls-certificate", f"{certificate}.pem"],
            *["--tls-key", f"{certificate}.key", "--tls-authority", authority],
        )

    return call


def nodes(folder, directory):
    return ringctl(folder, "--scheduler", f"unix:{directory}/s.sock", "nodes")


def test_daemon_with_a_certificate_of_another_authority_does_not_start(clusters, start_daemon):
    x, y = clusters
    daemon = start_daemon("a", tcp_address(x), y / "tls/a", x / "tls/ca.pem")
    assert daemon.exit_code() == 2
    assert "tls_authority" in daemon.log() and f"{x}/tls/ca.pem" in daemon.log()


def test_daemon_of_another_authority_is_refused_and_says_so(clusters, folder, start_daemon):
    x, y = clusters
    # Both authorities are its own: it trusts the scheduler, but the scheduler does not trust it.
    both = folder / "both.pem"
    both.write_text((y / "tls/ca.pem").read_text() + (x / "tls/ca.pem").read_text())
    daemon = start_daemon("a", tcp_address(x), y / "tls/a", both)
    line = daemon.wait_for(r"(?m)^.*(warn|error).*scheduler.*$").group(0)
    assert re.search("TLS.*tls_authority", line), daemon.log()
    assert "scheduler connected" not in daemon.log()
    assert " up " in nodes(folder, x)


def test_daemon_that_does_not_trust_the_scheduler_says_so(clusters, start_daemon):
    x, y = clusters
    daemon = start_daemon("a", tcp_address(x), y / "tls/a", y / "tls/ca.pem")
    line = daemon.wait_for(r"(?m)^.*(warn|error).*scheduler.*$").group(0)
    assert re.search("TLS|certificate|authority", line), daemon.log()
    assert "scheduler connected" not in daemon.log()


def test_daemon_with_another_nodes_certificate_does_not_start(clusters, start_daemon):
    x, _ = clusters
    daemon = start_daemon("b", tcp_address(x), x / "tls/a", x / "tls/ca.pem")
    assert daemon.exit_code() == 2
    assert "is not node b's" in daemon.log() and "ringd://node/b" in daemon.log()


def test_daemon_without_certificate_is_refused_and_says_so(clusters, start, folder):
    x, _ = clusters
    home = Path(tempfile.mkdtemp(dir=folder))
    daemon = start(
        *["ringd", "--name", "a", "--slots", 1, "--scheduler", tcp_address(x)],
        *["--run-directory", home / "r", "--state-directory", home / "s"],
    )
    line = daemon.wait_for(r"(?m)^.*(warn|error).*scheduler.*$").group(0)
    assert "tls_certificate" in line, line
    assert "scheduler connected" not in daemon.log()


def test_ringctl_that_does_not_know_the_authority_says_what_to_set(clusters, folder):
    x, _ = clusters
    result = subprocess.run(
        [BIN / "ringctl", "--scheduler", tcp_address(x), "list"],
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert result.returncode == 2
    assert "tls_authority" in result.stderr, result.stderr


def test_scheduler_without_tls_serves_no_network(start, folder):
    words = ["ringd-scheduler", "--listen", "0.0.0.0:0", "--state-directory"]
    refused = start(*words, folder / "refused")
    assert refused.exit_code() == 2
    assert "TLS" in refused.log() and "insecure" in refused.log()
    asked_for = start(*words, folder / "insecure", "--insecure")
    asked_for.wait_for("scheduler serves address=0.0.0.0:")
    assert re.search(r"warn.*without TLS", asked_for.log())
    loopback = start(
        "ringd-scheduler", "--listen", "127.0.0.1:0", "--state-directory", folder / "l"
    )
    loopback.wait_for("scheduler serves address=127.0.0.1:")


def test_half_of_the_tls_files_is_refused(start, folder):
    scheduler = start("ringd-scheduler", "--listen", "127.0.0.1:0", "--tls-key", "/dev/null")
    assert scheduler.exit_code() == 2
    assert "tls_authority" in scheduler.log()
