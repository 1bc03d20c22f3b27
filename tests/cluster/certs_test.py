"""`ringctl certs init` and `add`: what they write is what OpenSSL, scheduler and daemons take."""

import json
import re
import shutil
import socket
import stat
import subprocess
from pathlib import Path

import pytest

from tests.support.jobs import RINGCTL, wait_until

pytestmark = pytest.mark.timeout(90)


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def openssl(*words):
    if not shutil.which("openssl"):
        pytest.skip("no openssl here")
    command = ["openssl", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def certs(home):
    folder = home.path / "tls"
    words = ["--scheduler-host", "127.0.0.1,head.example.org", "--nodes", "a,b"]
    made = home.ringctl("certs", "init", "--dir", folder, *words)
    assert made.returncode == 0, made.stderr
    return folder


def test_files_are_made_with_keys_for_their_owner_alone(certs):
    pairs = [f"{name}.{kind}" for name in ["a", "b", "ca", "scheduler"] for kind in ("key", "pem")]
    assert files(certs) == pairs
    for path in certs.iterdir():
        mode = 0o600 if path.suffix == ".key" else 0o644
        assert stat.S_IMODE(path.stat().st_mode) == mode, path


def test_openssl_verifies_them_and_sees_their_names(certs):
    for name, names in {
        "scheduler": ["IP Address:127.0.0.1", "DNS:head.example.org", "DNS:localhost"],
        "a": ["DNS:a", "URI:ringd://node/a"],
        "b": ["DNS:b", "URI:ringd://node/b"],
    }.items():
        for purpose in ("sslserver", "sslclient"):
            pem = certs / f"{name}.pem"
            result = openssl("verify", "-CAfile", certs / "ca.pem", "-purpose", purpose, pem)
            assert result.returncode == 0, result.stdout + result.stderr
        shown = openssl("x509", "-in", pem, "-noout", "-ext", "subjectAltName").stdout
        assert [wanted for wanted in names if wanted not in shown] == []
        key = openssl("pkey", "-in", certs / f"{name}.key", "-pubout").stdout
        assert key == openssl("x509", "-in", pem, "-noout", "-pubkey").stdout


def test_nothing_is_replaced_without_force(home, certs):
    before = {path.name: path.read_text() for path in certs.iterdir()}
    again = home.ringctl("certs", "init", "--dir", certs)
    assert again.returncode == 2
    assert "ca.pem is there already" in again.stderr and "--force" in again.stderr
    assert {path.name: path.read_text() for path in certs.iterdir()} == before
    assert home.ringctl("certs", "init", "--dir", certs, "--force").returncode == 0
    assert (certs / "ca.key").read_text() != before["ca.key"]


def test_add_makes_further_nodes_of_the_same_authority(home, certs):
    authority = (certs / "ca.pem").read_text()
    assert home.ringctl("certs", "add", "--dir", certs, "--nodes", "c").returncode == 0
    assert (certs / "ca.pem").read_text() == authority
    assert openssl("verify", "-CAfile", certs / "ca.pem", certs / "c.pem").returncode == 0
    assert home.ringctl("certs", "add", "--dir", certs, "--nodes", "c").returncode == 2
    none = home.ringctl("certs", "add", "--dir", home.path / "none", "--nodes", "c")
    assert none.returncode == 2 and "ringctl certs init" in none.stderr


@pytest.mark.parametrize("name", ["../x", "a b", "scheduler", "ca", ".a"])
def test_names_that_cannot_be_are_refused(home, name):
    result = home.ringctl("certs", "init", "--dir", home.path / "tls", "--nodes", name)
    assert result.returncode == 2 and f"'{name}' can't be a node's name" in result.stderr
    assert not (home.path / "tls").exists()


class Services:
    """A scheduler and daemons on loopback, started from the files."""

    def __init__(self, home, certs):
        self.home, self.certs, self.started = home, certs, []
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.address = f"127.0.0.1:{listener.getsockname()[1]}"
        self.start("ringd-scheduler", "scheduler", "--listen", self.address)

    def start(self, program, name, *words, certificate=None):
        pair = self.certs / (certificate or name)
        command = [Path(RINGCTL).with_name(program), *words]
        command += ["--state-directory", self.home.path / f"{name}-state"]
        command += ["--tls-certificate", f"{pair}.pem", "--tls-key", f"{pair}.key"]
        command += ["--tls-authority", self.certs / "ca.pem"]
        log = self.home.path / f"{name}.log"
        with log.open("wb") as output:
            self.started.append(
                subprocess.Popen(
                    list(map(str, command)),
                    env=self.home.env,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            )
        return log

    def start_daemon(self, name, **options):
        words = ["--name", name, "--slots", 2, "--scheduler", self.address]
        words += ["--run-directory", self.home.path / f"r-{name}", "--data-address", "127.0.0.1:0"]
        words += ["--log-directory", self.home.path / f"{name}-log"]
        return self.start("ringd", name, *words, **options)

    def stop(self):
        for process in reversed(self.started):
            process.terminate()
        for process in self.started:
            process.wait(20)


@pytest.fixture
def services(home, certs):
    services = Services(home, certs)
    home.env["RINGD_SCHEDULER"] = services.address
    home.env["RINGD_TLS_AUTHORITY"] = str(certs / "ca.pem")
    home.env["RINGD_DAEMON_SOCKET"] = str(home.path / "r-a" / "ringd.sock")
    yield services
    services.stop()


SUM = """
import numpy as np, ringd
ringd.init()
print("sum", ringd.allreduce(np.ones(1), op=ringd.Sum))
"""


def node_states(home):
    result = home.ringctl("nodes", "--output", "json")
    if result.returncode != 0:
        return {}
    return {node["name"]: node["state"] for node in json.loads(result.stdout)}


def test_scheduler_daemons_and_ringctl_work_with_them(home, services):
    for name in "ab":
        services.start_daemon(name)
    wait_until(lambda: node_states(home) == {"a": "up", "b": "up"}, 20, "both nodes are up")
    script = home.script(SUM)
    result = home.ringctl("run", "-n", 4, *script, timeout=60)
    assert result.returncode == 0, result.stderr
    assert len(re.findall(r"sum \[4\.\]", result.stdout)) == 4, result.stdout


def test_other_authority_or_another_nodes_certificate_is_refused(home, services, certs):
    log = services.start_daemon("b", certificate="a")
    wait_until(lambda: "is not node b's" in log.read_text(), 10, log)
    folder = certs / "folder.key"
    folder.mkdir()
    (certs / "folder.pem").write_text((certs / "a.pem").read_text())
    log = services.start_daemon("a", certificate="folder")
    wait_until(lambda: "tls_key: can't read" in log.read_text(), 10, log)
    other = home.path / "other"
    assert home.ringctl("certs", "init", "--dir", other, "--nodes", "a").returncode == 0
    home.env["RINGD_TLS_AUTHORITY"] = str(other / "ca.pem")
    result = home.ringctl("version")
    assert "no scheduler answers at" in result.stdout
