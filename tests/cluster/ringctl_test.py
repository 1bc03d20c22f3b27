"""ringctl with real schedulers, daemons and workers: embedded runs and clusters on this machine.

RINGD_BIN names the folder of the programs; without it they are those beside this Python.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

BIN = Path(os.environ.get("RINGD_BIN") or Path(sys.executable).parent)
RINGCTL = BIN / "ringctl"
NODE = socket.gethostname().split(".")[0]

pytestmark = pytest.mark.skipif(not RINGCTL.exists(), reason="no ringctl: run deploy/setup.sh")


def program_file(name):
    """The program itself: beside a Python there is only a launcher of what the wheel holds."""
    installed = next(BIN.parent.glob(f"lib/python3*/site-packages/ringd/bin/{name}"), None)
    return installed or (BIN / name).resolve()


@pytest.fixture
def folder():
    """A folder with a short path: sockets are made in it. TMPDIR of every ringctl below."""
    path = Path(tempfile.mkdtemp(prefix="rt-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def environment(folder):
    left_out = ("RINGD_", "XDG_RUNTIME_DIR")
    values = {k: v for k, v in os.environ.items() if not k.startswith(left_out)}
    return {**values, "TMPDIR": str(folder), "HOME": str(folder)}


@pytest.fixture
def ringctl(environment):
    def call(*words, env=None, timeout=60, **options):
        return subprocess.run(
            [RINGCTL, *map(str, words)],
            env={**environment, **(env or {})},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            **options,
        )

    return call


@pytest.fixture
def start(environment):
    """Starts ringctl and leaves it running."""
    processes = []

    def call(*words, **options):
        process = subprocess.Popen(
            [RINGCTL, *map(str, words)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )
        processes.append(process)
        return process

    yield call
    for process in processes:
        process.kill()
        process.communicate()


def wait_until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "it did not come in time"
        time.sleep(0.02)
    return value


def stat_fields(pid):
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text[text.rindex(")") + 2 :].split()


def is_running(pid):
    fields = stat_fields(pid)
    return fields is not None and fields[0] not in "ZX"


def descendants(pid):
    children = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := stat_fields(entry.name)):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, todo = [], [pid]
    while todo:
        inner = children.get(todo.pop(), [])
        found += inner
        todo += inner
    return found


# ---- Embedded runs


def test_run_passes_one_ranks_output_through(ringctl, folder):
    result = ringctl("run", "--", "sh", "-c", "printf 'a\\r50%%'; printf 'e' >&2")
    assert (result.returncode, result.stderr) == (0, "e")
    assert result.stdout.encode() == b"a\r50%" or result.stdout == "a\n50%"
    assert not list(folder.glob("ringd-*"))


def test_run_without_dashes_takes_the_first_word_as_command(ringctl):
    result = ringctl("run", "-n", 1, "echo", "-n", "x")
    assert (result.returncode, result.stdout) == (0, "x")


def test_run_prefixes_the_lines_of_several_ranks(ringctl):
    script = "echo out $RINGD_RANK of $RINGD_SIZE; echo err >&2; printf unfinished"
    result = ringctl("run", "-n", 2, "--", "sh", "-c", script)
    assert result.returncode == 0
    assert sorted(result.stdout.splitlines()) == [
        "[0] out 0 of 2",
        "[0] unfinished",
        "[1] out 1 of 2",
        "[1] unfinished",
    ]
    lines = result.stderr.splitlines()
    assert sorted(line for line in lines if line.startswith("[")) == ["[0] err", "[1] err"]


def test_lines_of_ranks_never_mix(ringctl):
    script = f"for i in range(200): print('{'x' * 300}', end='', flush=True); print(flush=True)"
    result = ringctl("run", "-n", 3, "--", sys.executable, "-c", script)
    assert result.returncode == 0
    lines = result.stdout.splitlines()
    assert len(lines) == 600
    assert all(re.fullmatch(r"\[[012]\] x{300}", line) for line in lines)


def test_run_inherits_environment_and_directory(ringctl, folder):
    (folder / "w").mkdir()
    script = "echo $MARK; pwd; umask"
    result = ringctl(
        "run", "--", "sh", "-c", script, env={"MARK": "m 1"}, cwd=folder / "w", umask=0o27
    )
    assert result.stdout.splitlines() == ["m 1", str(folder / "w"), "0027"]


@pytest.mark.parametrize(
    ("script", "code", "first_line"),
    [
        ("exit 0", 0, ""),
        ("echo bad >&2; exit 3", 3, r"rank 0 \(node {node}\) exited with code 3: bad"),
        ("kill -SEGV $$", 139, r"rank 0 \(node {node}\) was killed by SIGSEGV"),
        ("kill -KILL $$", 137, r"rank 0 \(node {node}\) was killed by SIGKILL.*"),
    ],
)
def test_exit_code_and_report_are_the_ranks(ringctl, script, code, first_line):
    result = ringctl("run", "--", "sh", "-c", script)
    assert result.returncode == code
    if first_line:
        pattern = "ringctl: " + first_line.format(node=NODE)
        assert any(re.fullmatch(pattern, line) for line in result.stderr.splitlines())


def test_first_failing_rank_ends_the_others_and_is_reported(ringctl):
    script = "if [ $RINGD_RANK = 1 ]; then echo boom >&2; exit 4; fi; sleep 60"
    began = time.monotonic()
    result = ringctl("run", "-n", 3, "--", "sh", "-c", script)
    assert result.returncode == 4
    assert time.monotonic() - began < 20
    assert f"ringctl: rank 1 (node {NODE}) exited with code 4: boom" in result.stderr
    assert re.search(r"followed: ranks 0, 2", result.stderr)


LATE = """
import sys, time, numpy, ringd
ringd.init()
if ringd.rank() == 1: time.sleep(float(sys.argv[1]))
ringd.allreduce(numpy.zeros(4), name=sys.argv[2] if len(sys.argv) > 2 else None)
time.sleep(3)  # Stalls are looked for every second.
"""


# An operation with a name has no number before it is ordered.
@pytest.mark.parametrize(
    ("names", "said"),
    [
        ([], r"operation s\.1 \(allreduce float64\[4\] average at "),
        (["late"], r"operation \(allreduce float64\[4\] average named 'late' at "),
    ],
)
def test_stall_is_said_and_its_end_too(ringctl, names, said):
    script = [sys.executable, "-c", LATE, 12.5, *names]
    run = ringctl("run", "-n", "2", "--stall-timeout", "20s", "--", *script)
    assert run.returncode == 0, run.stderr
    lines = [line for line in run.stderr.splitlines() if line.startswith("ringctl: ")]
    assert re.fullmatch(
        rf"ringctl: stalled: {said}.*\) "
        rf"has waited 1\d s: rank 1 \(node {NODE}\) alive, has not called",
        lines[0],
    )
    assert lines[1:] == ["ringctl: the stall is over"]


def test_stall_timeout_ends_the_job(ringctl):
    began = time.monotonic()
    run = ringctl("run", "-n", "2", "--stall-timeout", "2s", "--", sys.executable, "-c", LATE, 60)
    assert run.returncode == 124
    assert time.monotonic() - began < 30
    assert "it has stalled for its --stall-timeout of 2s: operation s.1 (allreduce" in run.stderr
    assert f"rank 1 (node {NODE}) alive, has not called" in run.stderr


def test_output_dir_keeps_the_ranks_logs(ringctl, folder):
    result = ringctl("run", "-n", 2, "--output-dir", folder / "o", "--", "sh", "-c", "echo hi")
    assert result.returncode == 0, result.stderr
    assert (folder / "o/rank-0.log").read_text() == "hi\n"
    assert (folder / "o/rank-1.log").exists()


@pytest.mark.parametrize(
    ("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_interrupt_ends_the_job_and_leaves_nothing(start, folder, sent, code):
    process = start("run", "-n", 2, "--", "sh", "-c", "echo up; sleep 60")
    assert process.stdout.readline().endswith("up\n")
    processes = descendants(process.pid)
    assert len(processes) >= 5
    process.send_signal(sent)
    assert process.wait(30) == code
    assert not [pid for pid in processes if is_running(pid)]
    assert not list(folder.glob("ringd-*"))


def test_second_interrupt_kills_ranks_that_ignore_the_first(start):
    script = "trap '' TERM; echo up; while :; do sleep 0.1; done"
    process = start("run", "--", "sh", "-c", script)
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGINT)
    assert "once more" in process.stderr.readline()
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130


def test_killed_ringctl_leaves_nothing(start, folder):
    process = start("run", "-n", 2, "--", "sh", "-c", "echo up; sleep 60 & sleep 60")
    assert process.stdout.readline().endswith("up\n")
    wait_until(lambda: len(descendants(process.pid)) >= 9)
    processes = descendants(process.pid)
    process.kill()
    wait_until(lambda: not [pid for pid in processes if is_running(pid)])
    wait_until(lambda: not list(folder.glob("ringd-*")))


def test_reader_that_goes_ends_the_job(start):
    process = start("run", "--", "sh", "-c", "while :; do echo y; done")
    assert process.stdout.readline() == "y\n"
    process.stdout.close()
    assert process.wait(30) == 141


# ---- Bad input

BAD_INPUT = [
    (["rnu"], "did you mean 'run'?"),
    (["run"], "no COMMAND"),
    (["run", "-n", "0", "--", "true"], "-n: '0'"),
    (["run", "-n", "x", "--", "true"], "-n: 'x'"),
    (["run", "--nmae", "x", "--", "true"], "did you mean '--name'?"),
    (["run", "-n", "3", "--nodes", "2", "--ranks-per-node", "2", "--", "true"], "--nodes 2 x"),
    (["run", "--hosts", "a:x", "--", "true"], "'x' is no count"),
    (["run", "--hosts", "a,a", "--", "true"], "node a is there twice"),
    (["run", "--hosts", "nowhere:1", "--", "true"], "unknown node nowhere"),
    (["run", "--hostfile", "/nonexistent", "--", "true"], "/nonexistent"),
    (["run", "--hostfile", "/dev/null", "--", "true"], "names no node"),
    (["run", "--nodes", "2", "--", "true"], "needs a cluster"),
    (["run", "--env", "NO_SUCH_VARIABLE", "--", "true"], "NO_SUCH_VARIABLE"),
    (["run", "--", "no-such-program"], f"node {NODE}: no-such-program"),
    (["run", "-n", "2", "--", sys.executable, "no_such.py"], "no_such.py"),
    (["submit", "--", "true"], "'submit' needs a scheduler"),
    (["list"], "ringctl local up"),
    (["signal", "j-1", "NOPE"], "'NOPE' is no signal"),
    (["--scheduler", "unix:/tmp/no-such.sock", "list"], "unix:/tmp/no-such.sock"),
    (["--scheduler", "127.0.0.1:1", "list"], "127.0.0.1:1"),
    (["local", "nodes", "--dir", "/nonexistent"], "no cluster in /nonexistent"),
    (["local", "up", "--nodes", "0"], "--nodes: '0'"),
    (["local", "up", "--rate", "1gbit"], "--netns"),
]


@pytest.mark.parametrize(("words", "message"), BAD_INPUT, ids=lambda value: str(value)[:40])
def test_bad_input_exits_two_and_says_what(ringctl, words, message):
    result = ringctl(*words)
    assert result.returncode == 2
    assert message in result.stderr
    assert result.stdout == ""


def test_wrong_configuration_key_is_named_with_its_file(ringctl, folder):
    (folder / "c.toml").write_text('[ringctl]\nschedular = "x:1"\n')
    result = ringctl("--config", folder / "c.toml", "list")
    assert result.returncode == 2
    assert f"{folder}/c.toml" in result.stderr
    assert "did you mean 'scheduler'?" in result.stderr


def test_config_dump_says_where_values_come_from(ringctl):
    result = ringctl("config", "dump", env={"RINGD_OUTPUT": "json"})
    assert 'output = "json"  # RINGD_OUTPUT' in result.stdout


def test_completion_is_bash(ringctl):
    script = ringctl("completion", "bash").stdout
    check = 'COMP_WORDS=(ringctl loc); COMP_CWORD=1; _ringctl; echo "${COMPREPLY[@]}"'
    result = subprocess.run(["bash", "-c", script + check], capture_output=True, text=True)
    assert result.stdout == "local\n", result.stderr


# ---- A cluster on this machine


class Cluster:
    def __init__(self, ringctl, folder):
        self.directory = folder
        self._ringctl = ringctl
        self.env = {}

    def up(self, *options):
        result = self._ringctl("local", "up", "--dir", self.directory, *options)
        assert result.returncode == 0, result.stderr
        last = result.stdout.splitlines()[-1]
        assert last == f"export RINGD_SCHEDULER=unix:{self.directory}/s.sock"
        self.env = {"RINGD_SCHEDULER": f"unix:{self.directory}/s.sock"}

    def __call__(self, *words, code=0, **options):
        result = self._ringctl(*words, env=self.env, **options)
        if code is not None:
            assert result.returncode == code, result.stdout + result.stderr
        return result

    def local(self, *words, code=0):
        return self("local", words[0], "--dir", self.directory, *words[1:], code=code)

    def json(self, *words):
        return json.loads(self("--output", "json", *words).stdout)

    def nodes(self):
        return json.loads(self.local("nodes", "--output", "json").stdout)

    def submit(self, *words):
        return self("submit", *words).stdout.split()[0]

    def state(self, job):
        return self.json("describe", job)["state"]


@pytest.fixture
def cluster(ringctl, folder):
    cluster = Cluster(ringctl, folder / "c")
    cluster.up("--nodes", 2, "--slots", 2)
    yield cluster
    if cluster.directory.exists():
        cluster.local("down")


def test_submitted_job_is_listed_described_waited_for_and_read(cluster):
    script = "echo rank $RINGD_RANK; echo e >&2; exit 5"
    job = cluster.submit("--name", "five", "-n", 2, "--", "sh", "-c", script)
    assert job == "j-1"
    result = cluster("wait", job, code=5)
    assert "exited with code 5: e" in result.stderr
    rows = cluster.json("list", "--all")
    assert [(row["id"], row["name"], row["state"], row["ranks"]) for row in rows] == [
        ("j-1", "five", "failed", 2)
    ]
    assert cluster.json("list") == []
    described = cluster.json("describe", job)
    assert described["generation"] == 1 and described["restarts"] == 0
    ranks = described["ranks"]
    assert [rank["rank"] for rank in ranks] == [0, 1]
    assert {rank["exit_code"] for rank in ranks} == {5}
    assert ranks[0]["pid"] > 0 and ranks[0]["node"] in "ab"
    logs = cluster("logs", job)
    assert sorted(logs.stdout.splitlines()) == ["[0] rank 0", "[1] rank 1"]
    assert cluster("logs", "-r", 1, job).stdout == "rank 1\n"
    assert cluster("logs", "--tail", 1, "-r", 0, job).stderr == "e\n"
    assert "ranks are 0 to 1" in cluster("logs", "-r", 2, job, code=2).stderr


def test_job_that_does_not_fit_waits_or_is_refused(cluster):
    refused = cluster("run", "-n", 5, "--", "true", code=2)
    assert "needs 5 slots, cluster has 4" in refused.stderr
    job = cluster.submit("-n", 5, "--", "true")
    (row,) = cluster.json("list")
    assert (row["state"], row["reason"]) == ("queued", "queued: needs 5 slots, cluster has 4")
    cluster("cancel", job)
    cluster("wait", job, code=143)
    assert "unknown node zz" in cluster("run", "--hosts", "zz:1", "--", "true", code=2).stderr


def test_cancel_and_signal_reach_the_ranks(cluster):
    script = "trap 'echo usr; exit 0' USR1; echo up; while :; do sleep 0.05; done"
    job = cluster.submit("--", "sh", "-c", script)
    wait_until(lambda: cluster("logs", job).stdout == "up\n")
    cluster("signal", job, "USR1")
    cluster("wait", job)
    assert cluster("logs", job).stdout == "up\nusr\n"
    job = cluster.submit("--name", "sleeper", "--", "sleep", 60)
    wait_until(lambda: cluster.state(job) == "running")
    cluster("cancel", "sleeper")
    cluster("wait", job, code=143)
    assert "no job nope" in cluster("wait", "nope", code=2).stderr


def test_logs_follow_until_the_end(cluster):
    job = cluster.submit("--", "sh", "-c", "for i in 1 2 3; do echo $i; sleep 0.2; done")
    assert cluster("logs", "-f", job).stdout == "1\n2\n3\n"


def test_run_on_a_cluster_passes_the_listed_environment_only(cluster):
    script = "echo ${SECRET:-none} ${OMP_X:-none} ${MINE:-none}"
    cluster.env.update(SECRET="s", OMP_X="o")
    result = cluster("run", "--env", "MINE=m", "--", "sh", "-c", script)
    assert result.stdout == "none o m\n"
    assert re.search(r"not passed to the ranks.*\bSECRET\b", result.stderr)
    assert cluster("run", "--env-all", "--", "sh", "-c", script).stdout == "s o none\n"
    job = cluster.submit("--env", "SECRET", "--", "true")
    cluster("wait", job)
    everything = cluster("describe", job).stdout + json.dumps(cluster.json("describe", job))
    assert "SECRET" not in everything


def test_death_of_runs_ringctl_cancels_its_job(cluster, environment):
    process = subprocess.Popen(
        [RINGCTL, "run", "--", "sh", "-c", "echo up; sleep 120"],
        env={**environment, **cluster.env},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout.readline() == "up\n"
    process.kill()
    process.communicate()
    wait_until(lambda: cluster.state("j-1") == "cancelled", 30)


def test_killed_daemon_and_scheduler_come_back(cluster):
    job = cluster.submit("-n", 1, "--hosts", "a:1", "--", "sleep", 4)
    wait_until(lambda: cluster.state(job) == "running")
    node = wait_until(lambda: next((n for n in cluster.nodes() if n["worker_pids"]), None))
    assert (node["name"], node["netns"], len(node["worker_pids"])) == ("a", "", 1)
    os.kill(node["daemon_pid"], signal.SIGKILL)
    wait_until(lambda: cluster.nodes()[0]["daemon_pid"] is None)
    cluster.local("start", "a")
    pid = int(cluster.directory.joinpath("scheduler.pid").read_text().split()[0])
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_running(pid))
    cluster.local("start", "scheduler")
    states = {node["name"]: node["state"] for node in cluster.json("nodes")}
    assert states == {"a": "up", "b": "up"}
    cluster.local("restart", "b")
    cluster("wait", job)
    cluster.local("stop", "b")
    assert cluster.nodes()[1]["daemon_pid"] is None
    assert "its nodes are a, b" in cluster.local("start", "zz", code=2).stderr


def test_down_ends_everything_also_when_half_of_it_is_gone(cluster):
    cluster.submit("-n", 2, "--", "sh", "-c", "sleep 100 & sleep 100")
    pids = [node["daemon_pid"] for node in cluster.nodes()]

    def workers_with_ranks():
        workers = [pid for node in cluster.nodes() for pid in node["worker_pids"]]
        return len(workers) == 2 and all(len(descendants(pid)) == 3 for pid in workers) and workers

    workers = wait_until(workers_with_ranks)
    ranks = [pid for worker in workers for pid in descendants(worker)]
    os.kill(pids[0], signal.SIGKILL)
    cluster.directory.joinpath("scheduler.pid").unlink()
    os.kill(scheduler_pid(cluster), signal.SIGKILL)
    cluster.local("down")
    assert not [pid for pid in pids + workers + ranks if is_running(pid)]
    assert not cluster.directory.exists()
    assert cluster.local("down", code=2)


def scheduler_pid(cluster):
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"unix:{cluster.directory}/s.sock".encode() in words:
            return int(entry.name)
    raise AssertionError("the scheduler is not there")


def test_two_clusters_stand_side_by_side(cluster, ringctl, folder):
    other = Cluster(ringctl, folder / "other")
    other.up("--nodes", 1, "--slots", 1)
    assert [node["name"] for node in other.json("nodes")] == ["a"]
    assert len(cluster.json("nodes")) == 2
    again = ringctl("local", "up", "--dir", other.directory)
    assert again.returncode == 2 and "there is a cluster" in again.stderr
    other.local("down")
    assert cluster("run", "--", "echo", "x").stdout == "x\n"


def test_failing_up_leaves_nothing(ringctl, folder):
    programs = folder / "bin"
    programs.mkdir()
    for name in ["ringctl", "ringd-scheduler", "ringd-worker"]:
        shutil.copy(program_file(name), programs / name)
    (programs / "ringd").write_text("#!/bin/sh\necho cannot >&2\nexit 3\n")
    (programs / "ringd").chmod(0o755)
    libraries = str(program_file("ringctl").parent.parent / "lib")
    result = subprocess.run(
        [programs / "ringctl", "local", "up", "--dir", folder / "c"],
        env={**os.environ, "LD_LIBRARY_PATH": libraries},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 1
    assert "cannot" in result.stderr
    assert not (folder / "c").exists()


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="needs root and iproute2")
def test_namespaces_have_links_of_their_own(ringctl, folder):
    cluster = Cluster(ringctl, folder / "n")
    cluster.up("--nodes", 2, "--slots", 1, "--netns", "--rate", "100mbit")
    try:
        nodes = cluster.nodes()
        for node in nodes:
            addresses = cluster.local("exec", node["name"], "--", "ip", "-br", "address").stdout
            assert node["address"] in addresses
            qdiscs = cluster.local("exec", node["name"], "--", "tc", "qdisc").stdout
            assert "rate 100Mbit" in qdiscs
        assert cluster.local("exec", "a", "--", "sh", "-c", "exit 9", code=9)
        inside = cluster("run", "--hosts", "b:1", "--", "ip", "-br", "address").stdout
        assert nodes[1]["address"] in inside
    finally:
        cluster.local("down")
    left = subprocess.run(["ip", "netns"], capture_output=True, text=True).stdout
    assert not [node for node in nodes if node["netns"] in left]
    links = subprocess.run(["ip", "link"], capture_output=True, text=True).stdout
    assert nodes[0]["netns"].split("-")[1] not in links
