"""What systemd hears from the programs that it starts."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent
WATCHDOG_SECONDS = 0.6

pytestmark = [
    pytest.mark.skipif(not (BIN / "ringctl").exists(), reason="no ringctl: run deploy/setup.sh"),
    pytest.mark.timeout(60),
]


@pytest.fixture
def folder():
    path = Path(tempfile.mkdtemp(prefix="rw-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


class Service:
    """A program with the environment that systemd gives a service of Type=notify."""

    def __init__(self, folder, *words, abstract=False):
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        name = f"{folder}/notify-{words[0]}"
        self._socket.bind("\0" + name[1:] if abstract else name)
        self._socket.settimeout(15)
        self.process = subprocess.Popen(
            [BIN / words[0], *map(str, words[1:])],
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(folder),
                "TMPDIR": str(folder),
                "NOTIFY_SOCKET": "@" + name[1:] if abstract else name,
                "WATCHDOG_USEC": str(int(WATCHDOG_SECONDS * 1e6)),
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def next(self):
        return self._socket.recv(4096).decode().splitlines()

    def await_word(self, word):
        while word not in self.next():
            pass

    def end(self):
        self.process.kill()
        self.process.wait()
        self._socket.close()


@pytest.fixture(params=[False, True], ids=["path", "abstract"])
def services(folder, request):
    """Scheduler and daemon, ready."""
    listen = f"unix:{folder}/s.sock"
    scheduler = Service(
        *[folder, "ringd-scheduler", "--listen", listen, "--state-directory", folder / "ss"],
        abstract=request.param,
    )
    started = [scheduler]
    try:
        assert scheduler.next() == ["READY=1"]
        daemon = Service(
            *[folder, "ringd", "--scheduler", listen, "--run-directory", folder / "r"],
            *["--state-directory", folder / "s", "--slots", 1],
            abstract=request.param,
        )
        started.append(daemon)
        assert daemon.next() == ["READY=1"]
        yield started
    finally:
        for service in started:
            service.end()


def test_ready_watchdog_and_stopping_are_told(services, folder):
    for service in services:
        for _ in range(3):
            began = time.monotonic()
            service.await_word("WATCHDOG=1")
            assert time.monotonic() - began < WATCHDOG_SECONDS
    for service in reversed(services):
        service.process.send_signal(signal.SIGTERM)
        service.await_word("STOPPING=1")
        assert service.process.wait(10) == 0


def test_ranks_are_not_told_of_the_notify_socket(services, folder):
    result = subprocess.run(
        [BIN / "ringctl", "--scheduler", f"unix:{folder}/s.sock", "run", "--", "env"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "NOTIFY_SOCKET" not in result.stdout and "WATCHDOG" not in result.stdout


def test_watchdog_is_told_while_the_daemon_is_busy(services, folder):
    """Signals and jobs wake the thread that tells: it must tell all the same."""
    daemon = services[1]
    end = time.monotonic() + 4 * WATCHDOG_SECONDS
    told = []
    daemon._socket.settimeout(0.05)
    while time.monotonic() < end:
        daemon.process.send_signal(signal.SIGHUP)
        try:
            told += [time.monotonic() for word in daemon.next() if word == "WATCHDOG=1"]
        except TimeoutError:
            continue
    assert len(told) >= 3
