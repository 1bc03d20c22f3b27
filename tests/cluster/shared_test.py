"""A shared scheduler and daemon: what users may do, and what they may not see of each other.

Needs root. The scheduler runs as a user of its own, as its systemd unit has it; jobs come from
`nobody` and from a uid without a name, both in the group that may open the scheduler's socket.
"""

import base64
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent
NOBODY = 65534
OTHER = 61234  # In no passwd file.
SCHEDULER_USER = 61235
GROUP = 61236  # May open the scheduler's socket.
SECRET = "hush-4711-do-not-tell"


def as_user(uid):
    return {"user": uid, "group": uid, "extra_groups": [GROUP]}


def why_not():
    if os.geteuid() != 0:
        return "needs root: runs jobs of several users"
    if not (BIN / "ringctl").exists():
        return "no ringctl: run deploy/setup.sh"
    reach = subprocess.run(
        ["/usr/bin/test", "-r", BIN / "ringctl"], **as_user(NOBODY), cwd="/", check=False
    )
    return "other users can't reach this checkout" if reach.returncode else ""


REASON = why_not()
pytestmark = [pytest.mark.skipif(bool(REASON), reason=REASON), pytest.mark.timeout(60)]


def wait_until(condition, seconds=15):
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "it did not come in time"
        time.sleep(0.05)
    return value


class Cluster:
    """One shared node below one folder."""

    def __init__(self):
        self.path = Path(tempfile.mkdtemp(prefix="rs-", dir="/tmp"))
        self.path.chmod(0o755)
        for name in ("s", "store"):
            folder = self.path / name
            folder.mkdir(mode=0o750)
            os.chown(folder, SCHEDULER_USER, GROUP)
        self.address = f"unix:{self.path}/s/s.sock"
        self.processes = []
        self._start(
            ["ringd-scheduler", "--shared", "--listen", self.address]
            + ["--state-directory", self.path / "store"],
            user=SCHEDULER_USER,
            group=GROUP,
            extra_groups=[],
        )
        self._start(
            ["ringd", "--shared", "--name", "a", "--slots", "4", "--scheduler", self.address]
            + ["--run-directory", self.path / "run", "--state-directory", self.path / "state"]
            + ["--log-directory", self.path / "log", "--data-address", "127.0.0.1:0"],
            extra_groups=[0, 4, 27],  # As a root shell has: no rank may keep them.
        )
        wait_until(lambda: "node joined" in self.log("ringd-scheduler"))

    def _start(self, words, **options):
        with open(self.path / f"{words[0]}.log", "wb") as log:
            self.processes.append(
                subprocess.Popen(
                    [BIN / words[0], *words[1:]],
                    env={"PATH": "/usr/bin:/bin"},
                    stdout=log,
                    stderr=log,
                    cwd="/",
                    umask=0o22,
                    **options,
                )
            )

    def log(self, program):
        return (self.path / f"{program}.log").read_text()

    def __call__(self, *words, uid=NOBODY, env=None, code=0, **options):
        result = subprocess.run(
            [BIN / "ringctl", *map(str, words)],
            env={"PATH": "/usr/bin:/bin", "RINGD_SCHEDULER": self.address, **(env or {})},
            capture_output=True,
            text=True,
            timeout=40,
            check=False,
            **{"cwd": "/tmp", **as_user(uid), **options},
        )
        if code is not None:
            assert result.returncode == code, result.stdout + result.stderr
        return result

    def submit(self, *words, **options):
        return self("submit", *words, **options).stdout.split()[0]

    def describe(self, job):
        return json.loads(self("describe", job, "--output", "json").stdout)

    def await_running(self, job):
        def attached():
            described = self.describe(job)
            return described["state"] == "running" and described["ranks"][0]["pid"]

        return wait_until(attached)

    def end(self):
        jobs = json.loads(self("list", "--output", "json", uid=0, code=None).stdout or "[]")
        for row in jobs:
            self("cancel", row["id"], uid=0, code=None)
            self("wait", row["id"], uid=0, code=None)
        for process in reversed(self.processes):
            process.terminate()
            process.wait(10)
        shutil.rmtree(self.path)


@pytest.fixture(scope="module")
def cluster():
    cluster = Cluster()
    yield cluster
    cluster.end()


@pytest.fixture
def sleeping(cluster):
    """A running job of nobody, with a secret in its environment."""
    job = cluster.submit(
        *["-n", 2, "--env", "KEY", "--", "sh", "-c", "echo up; exec sleep 60"], env={"KEY": SECRET}
    )
    cluster.await_running(job)
    yield job
    cluster("cancel", job, code=None)
    cluster("wait", job, code=143)


# ---- Ranks are their user


def facts(cluster, script, **options):
    return cluster("run", "--", "sh", "-c", script, **options).stdout.splitlines()


def test_rank_is_the_submitting_user_and_no_more(cluster):
    status = "grep -E '^(Uid|Gid|Groups|CapEff|CapPrm|SigBlk|SigIgn):' /proc/self/status"
    lines = dict(line.split(":\t") for line in facts(cluster, status))
    assert lines["Uid"].split() == lines["Gid"].split() == ["65534"] * 4
    assert lines["Groups"].split() == list(map(str, os.getgrouplist("nobody", NOBODY)))
    assert {lines["CapEff"], lines["CapPrm"]} == {"0" * 16}
    own = 1 << 31 | 1 << 32  # Of the C library, which lets nobody set them.
    assert [int(lines[name], 16) & ~own for name in ("SigBlk", "SigIgn")] == [0, 0]


def test_user_without_a_name_is_served(cluster):
    assert facts(cluster, "id -u; id -g; id -G", uid=OTHER) == [str(OTHER)] * 3


def test_home_and_user_are_the_submitters(cluster):
    script = "echo $HOME $USER $LOGNAME"
    assert facts(cluster, script, env={"HOME": "/tmp/h"}) == ["/tmp/h nobody nobody"]
    assert facts(cluster, script) == ["/nonexistent nobody nobody"]


def test_directory_and_umask_are_the_submitters(cluster):
    (cluster.path / "w").mkdir()
    os.chown(cluster.path / "w", NOBODY, NOBODY)
    lines = facts(cluster, "pwd; umask; echo x > f", cwd=cluster.path / "w", umask=0o27)
    assert lines == [f"{cluster.path}/w", "0027"]
    made = (cluster.path / "w/f").stat()
    assert (made.st_uid, stat.S_IMODE(made.st_mode)) == (NOBODY, 0o640)


REGAIN = """
import ctypes, os
libc = ctypes.CDLL(None)
for call in (libc.setuid, libc.seteuid, libc.setgid, libc.setegid):
    assert call(0) == -1
assert libc.setresuid(0, 0, 0) == -1
for fd in os.listdir("/proc/self/fd"):
    try:
        target = os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        continue  # That of listdir.
    assert int(fd) <= 2, target
print("stayed", os.getppid() != 1)
"""


def test_rank_can_not_regain_root_nor_inherits_descriptors(cluster):
    output = cluster("run", "--", "/usr/bin/python3", "-c", REGAIN).stdout
    assert output == "stayed True\n"


def test_collectives_work_for_an_ordinary_user(cluster):
    script = (
        "import numpy, os, ringd; ringd.init();"
        "print(os.getuid(), ringd.allreduce(numpy.ones(1 << 20), op=ringd.Sum)[-1])"
    )
    result = cluster("run", "-n", 2, "--", sys.executable, "-c", script)
    assert sorted(result.stdout.splitlines()) == ["[0] 65534 2.0", "[1] 65534 2.0"]


def test_program_that_only_the_user_may_not_run_is_named(cluster):
    result = cluster("run", "--", "/usr/sbin/no-such-program", code=2)
    assert "/usr/sbin/no-such-program" in result.stderr
    closed = cluster.path / "closed"
    closed.mkdir(mode=0o700)
    result = cluster("run", "--cwd", closed, "--", "true", code=2)
    assert str(closed) in result.stderr


def test_root_is_refused_with_words(cluster):
    result = cluster("run", "--", "true", uid=0, code=2)
    assert "root" in result.stderr and "another user" in result.stderr
    job = cluster.submit("--", "true", uid=0)
    described = cluster.describe(job)
    assert described["state"] == "queued" and "root" in described["reason"]
    cluster("cancel", job, uid=0)


def test_uid_below_min_uid_is_refused_with_words(cluster):
    result = cluster("run", "--", "true", uid=999, code=2)
    assert "999" in result.stderr and "min_uid" in result.stderr + cluster.log("ringd")


# ---- Users are kept apart


@pytest.mark.parametrize("verb", [["cancel"], ["signal", "KILL"], ["logs"]], ids=lambda v: v[0])
def test_another_user_may_not_touch_a_job(cluster, sleeping, verb):
    result = cluster(verb[0], sleeping, *verb[1:], uid=OTHER, code=2)
    assert f"{sleeping} belongs to nobody" in result.stderr
    assert cluster.describe(sleeping)["state"] == "running"


def test_root_may_cancel_any_job(cluster):
    job = cluster.submit("--", "sleep", 60)
    cluster.await_running(job)
    cluster("cancel", job, uid=0)
    cluster("wait", job, code=143)


ATTACH = """
import os, ringd
os.environ.update(RINGD_RANK="0", RINGD_SIZE="1", RINGD_SOCKET={path!r}, RINGD_JOB={job!r})
try:
    ringd.init(timeout=3)
except Exception as error:
    print(type(error).__name__, error)
else:
    print("attached")
"""


def test_another_user_can_not_attach_as_a_rank(cluster, sleeping):
    path = f"{cluster.path}/run/w/{sleeping}/0.sock"
    assert os.stat(path).st_uid == NOBODY
    result = subprocess.run(
        [sys.executable, "-c", ATTACH.format(path=path, job=sleeping)],
        **as_user(OTHER),
        cwd="/",
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert "attached" not in result.stdout
    assert "ermission denied" in result.stdout, result.stdout + result.stderr
    assert os.path.dirname(path) in result.stdout


CONNECT = """
import socket, sys
kind = socket.SOCK_SEQPACKET if sys.argv[1].endswith("arena.sock") else socket.SOCK_STREAM
with socket.socket(socket.AF_UNIX, kind) as line:
    line.settimeout(5)
    try:
        line.connect(sys.argv[1])
        # An offer of an arena with a session that nobody has: ArenaOffer of proto/attach.h.
        line.send(b"\\1\\0\\0\\0\\2\\0\\0\\0" + b"s" * 32 + b"\\1" + b"\\0" * 23)
        print("answer", line.recv(4096))
    except OSError as error:
        print("refused", error)
"""


def connect(path, uid):
    result = subprocess.run(
        ["/usr/bin/python3", "-c", CONNECT, path],
        **as_user(uid),
        cwd="/",
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    return result.stdout


@pytest.mark.parametrize("name", ["ringd.sock", "attach.sock", "arena.sock"])
def test_user_without_a_job_gets_no_word_from_the_daemons_sockets(cluster, sleeping, name):
    answer = connect(f"{cluster.path}/run/{name}", OTHER)
    assert answer.startswith("refused") or answer == "answer b''\n"


def test_user_with_a_job_needs_its_session_for_the_arena_socket(cluster, sleeping):
    answer = connect(f"{cluster.path}/run/arena.sock", NOBODY)
    assert "refused" in answer or "no such session" in answer
    assert cluster.describe(sleeping)["state"] == "running"


def test_logs_and_records_of_a_job_are_its_users_alone(cluster, sleeping):
    log = cluster.path / "log" / sleeping / "rank-0.log"
    assert wait_until(log.read_text) == "up\n"
    command = f"cat {log} {cluster.path}/run/jobs/{sleeping} {cluster.path}/store/*"
    result = subprocess.run(
        ["sh", "-c", command], **as_user(OTHER), cwd="/", capture_output=True, check=False
    )
    assert result.stdout == b""
    for folder in (log.parent, log.parent.parent.parent / "run/w" / sleeping):
        info = folder.stat()
        assert (info.st_uid, stat.S_IMODE(info.st_mode)) == (NOBODY, 0o700)


def test_sockets_and_state_have_closed_modes(cluster, sleeping):
    for path in cluster.path.rglob("*"):
        mode = stat.S_IMODE(path.lstat().st_mode)
        if path.is_socket():
            assert mode in (0o660, 0o600), f"{path} {mode:o}"
        elif "run/jobs/" in str(path) or path.name == "lock" or "store/" in str(path):
            assert mode & 0o077 == 0, f"{path} {mode:o}"


# ---- Secrets


def fields(message):
    """(number, bytes) of the length-delimited fields of a protobuf message."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        key = varint()
        if key & 7 == 2:
            size = varint()
            yield key >> 3, message[at : at + size]
            at += size
        elif key & 7 == 0:
            varint()
        else:
            at += 8 if key & 7 == 1 else 4


def test_token_and_key_of_a_job_are_in_no_command_line_or_environment(cluster, sleeping):
    record = (cluster.path / "run/jobs" / sleeping).read_bytes()
    order = dict(fields(dict(fields(record))[1]))  # JobRecord.order: Prepare.
    secrets = {"key": order[5], "token": order[6]}
    for name, value in secrets.items():
        assert len(value) >= 16, name
        forms = [value, value.hex().encode(), base64.b64encode(value).rstrip(b"=")]
        for process in Path("/proc").iterdir():
            if not process.name.isdigit():
                continue
            try:
                text = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
            except OSError:
                continue
            assert not any(form in text for form in forms), f"{name} in {process}"
        for program in ("ringd", "ringd-scheduler"):
            text = cluster.log(program).encode()
            assert not any(form in text for form in forms), f"{name} in the log of {program}"


def test_environment_of_a_job_shows_nowhere_but_in_its_ranks(cluster, sleeping):
    holders = []
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            assert SECRET.encode() not in (process / "cmdline").read_bytes()
            if SECRET.encode() in (process / "environ").read_bytes():
                holders.append(process.stat().st_uid)
        except OSError:
            continue
    assert holders == [NOBODY, NOBODY]  # The ranks: their environment is for their user's eyes.
    for words in (
        ["describe", sleeping],
        ["list", "--all"],
        ["logs", sleeping],
        ["nodes"],
        ["describe", sleeping, "--output", "json"],
        ["list", "--output", "json"],
    ):
        result = cluster("-v", *words)
        assert SECRET not in result.stdout + result.stderr, words
    for program in ("ringd", "ringd-scheduler"):
        assert SECRET not in cluster.log(program)
    search = ["grep", "-r", "-s", "-l", SECRET, cluster.path]
    found = subprocess.run(search, **as_user(OTHER), cwd="/", capture_output=True, check=False)
    assert found.stdout == b""


def test_socket_of_the_scheduler_is_for_its_group(cluster):
    info = os.stat(f"{cluster.path}/s/s.sock")
    assert (info.st_uid, info.st_gid) == (SCHEDULER_USER, GROUP)
    result = cluster("list", extra_groups=[], code=None)
    assert result.returncode == 2
    assert cluster.address in result.stderr
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(f"{cluster.path}/s/s.sock")  # Root may.
