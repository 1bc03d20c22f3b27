"""Runs ringctl as a user does, in a home of its own, and says what it left behind.

A `Home` marks everything it starts with an environment variable, so that `Home.leftovers()` finds
a rank's grandchild in a session of its own as well as a daemon whose parent has gone.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

RINGCTL = shutil.which("ringctl", path=f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}")
INSTALLED = f"{sys.prefix}/lib"  # Where the programs behind the wrappers in bin/ are.
MARK = "RINGD_TEST_MARK"


def processes():
    """(pid, name, parent, arguments) of each process that is alive."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            stat = (entry / "stat").read_text()
            name = stat[stat.index("(") + 1 : stat.rindex(")")]
            state, parent = stat[stat.rindex(")") + 2 :].split()[:2]
            if state not in "ZX":
                arguments = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("latin-1")
                yield int(entry.name), name, int(parent), arguments


def environment_of(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes()
    return b""


def program_of(pid):
    """The path of the file it executes; empty: unknown."""
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/exe")
    return ""


def workers():
    """Workers of this installation: they carry no mark, their environment is clean."""
    return {
        pid
        for pid, name, *_ in processes()
        if name == "ringd-worker" and program_of(pid).startswith(INSTALLED)
    }


def descendants(pid):
    """{pid: (name, arguments)} of all processes below one."""
    found = {pid}
    named = {}
    everyone = list(processes())
    while True:
        new = {p for p, _, parent, _ in everyone if parent in found} - found
        if not new:
            return named
        found |= new
        named.update({p: (name, args) for p, name, _, args in everyone if p in new})


def memory_of(pid):
    """Resident bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descriptors_of(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def wait_until(condition, seconds, what):
    """Polls; the condition's first true value."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.05)


class Foreground:
    """A ringctl that runs beside the test, its output in files."""

    def __init__(self, home, arguments, stdout=None):
        self.out = home.path / f"out-{time.monotonic_ns()}"
        self.err = self.out.with_suffix(".err")
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [RINGCTL, *home.marked(arguments)],
                stdin=subprocess.DEVNULL,
                stdout=stdout or out,
                stderr=err,
                env=home.env,
                cwd=home.path,
                start_new_session=True,
            )

    @property
    def pid(self):
        return self.process.pid

    @property
    def stdout(self):
        return self.out.read_text(errors="replace")

    @property
    def stderr(self):
        return self.err.read_text(errors="replace")

    def await_text(self, text, seconds=15, times=1):
        def seen():
            assert self.process.poll() is None or self.stdout.count(text) >= times, (
                f"ended {self.process.returncode} before {text!r}:\n{self.stdout}{self.stderr}"
            )
            return self.stdout.count(text) >= times

        wait_until(seen, seconds, text)

    def end(self, seconds):
        """The exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"hangs:\n{self.stdout}{self.stderr}") from None

    def program(self, name, order=0):
        """The pid of one of its programs, by start."""

        def find():
            found = sorted(p for p, (n, _) in descendants(self.pid).items() if n == name)
            return found[order] if len(found) > order else 0

        return wait_until(find, 5, f"{name} below ringctl")


class Home:
    """Where one test's jobs live."""

    def __init__(self, path):
        self.path = path
        self.mark = f"{MARK}={os.getpid()}-{time.monotonic_ns()}"
        self.env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("RINGD_") and name != "XDG_RUNTIME_DIR"
        }
        name, value = self.mark.split("=")
        self.env.update({name: value, "HOME": str(path), "TMPDIR": str(path / "t")})
        (path / "t").mkdir()
        self._shared_memory = set(os.listdir("/dev/shm"))
        self._workers = workers()

    def marked(self, arguments):
        """A cluster passes on only what it is told to."""
        words = list(map(str, arguments))
        if words and words[0] in ("run", "submit", "bench"):
            words[1:1] = ["--env", f"{MARK}={self.env[MARK]}"]
        return words

    def ringctl(self, *arguments, timeout=30, text=True, stdin=subprocess.DEVNULL, mark=True):
        """Runs it to its end."""
        return subprocess.run(
            [RINGCTL, *(self.marked(arguments) if mark else map(str, arguments))],
            env=self.env,
            cwd=self.path,
            stdin=stdin,
            capture_output=True,
            text=text,
            errors="replace" if text else None,
            timeout=timeout,
            check=False,
        )

    def start(self, *arguments, **options):
        return Foreground(self, arguments, **options)

    def script(self, text, name="script.py"):
        """`COMMAND...` of a Python program."""
        path = self.path / name
        path.write_text(text)
        return ["--", sys.executable, str(path)]

    def processes(self):
        """{pid: what} of everything this home has started and that still lives."""
        mark = self.mark.encode()
        ours = workers() - self._workers
        found = {}
        for pid, name, _, arguments in processes():
            marked = mark in environment_of(pid).split(b"\0") or str(self.path) in arguments
            if marked or pid in ours:
                found[pid] = f"{pid} {name} {arguments[:80]}"
        return found

    def leftovers(self):
        """What a job should not leave: processes (an arena lives in one), directories, memory."""
        left = list(self.processes().values())
        left += [str(p) for p in (self.path / "t").rglob("*") if p.name.startswith("ringd")]
        left += [
            f"/dev/shm/{n}"
            for n in set(os.listdir("/dev/shm")) - self._shared_memory
            if "ringd" in n
        ]
        return left

    def assert_clean(self, seconds=10):
        deadline = time.monotonic() + seconds
        while left := self.leftovers():
            assert time.monotonic() < deadline, left
            time.sleep(0.1)

    def kill_all(self):
        for pid in self.processes():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


class LocalCluster:
    """`ringctl local up`, with RINGD_SCHEDULER set in its home."""

    def __init__(self, home, nodes=2, slots=2, options=()):
        self.home = home
        self.dir = home.path / "c"
        size = ["--nodes", nodes, "--slots", slots]
        up = home.ringctl("local", "up", *size, "--dir", self.dir, *options)
        assert up.returncode == 0, up.stdout + up.stderr
        home.env["RINGD_SCHEDULER"] = re.search(r"RINGD_SCHEDULER=(\S+)", up.stdout).group(1)

    def nodes(self):
        result = self.home.ringctl("local", "nodes", "--dir", self.dir, "--output", "json")
        return {node["name"]: node for node in json.loads(result.stdout)}

    def local(self, *arguments, timeout=30):
        result = self.home.ringctl("local", *arguments, "--dir", self.dir, timeout=timeout)
        assert result.returncode == 0, result.stdout + result.stderr
        return result

    def submit(self, *arguments):
        result = self.home.ringctl("submit", *arguments)
        assert result.returncode == 0, result.stderr
        return result.stdout.split()[0]

    def describe(self, job):
        result = self.home.ringctl("describe", job, "--output", "json")
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    def await_state(self, job, states, seconds=20):
        wait_until(lambda: self.describe(job)["state"] in states, seconds, f"{job} {states}")

    def down(self):
        self.home.ringctl("local", "down", "--dir", self.dir)
