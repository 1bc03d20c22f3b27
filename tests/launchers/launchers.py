"""Jobs as torchrun and mpirun start them, in a home that knows what they leave behind."""

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import horovod
from tests.support.jobs import Home

TORCHRUN = str(Path(sys.executable).with_name("torchrun"))
LAUNCHERS = {
    "torchrun": lambda n: [TORCHRUN, "--no-python", "--nproc-per-node", n],
    "mpirun": lambda n: ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", n],
    "mpich": lambda n: ["mpiexec.hydra", "-n", n],
}


class LaunchHome(Home):
    def __init__(self, path):
        super().__init__(path)
        self.env["PYTHONPATH"] = horovod.environment()["PYTHONPATH"]
        self.env["OMP_NUM_THREADS"] = "1"  # Else torchrun warns.
        self.sockets = set(self.attach_sockets())
        self.expected = set()  # Processes that a job of the test may leave: a cluster's.

    @staticmethod
    def attach_sockets():
        lines = Path("/proc/net/unix").read_text().splitlines()
        return [line.split()[-1] for line in lines if "@ringd/attach/" in line]

    def leftovers(self):
        expected = {what for pid, what in self.processes().items() if pid in self.expected}
        left = super().leftovers() + self.attach_sockets()
        return [what for what in left if what not in expected | self.sockets]

    def run(self, *command, expect=0, timeout=100):
        """Its output, both kinds together."""
        result = subprocess.run(
            list(map(str, command)),
            env=self.env,
            cwd=self.path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert (result.returncode == 0) == (expect == 0), result.stdout
        return result.stdout

    def command(self, launcher, ranks, *command):
        """How `launcher` starts a command; skips where there is no such launcher."""
        words = [*map(str, LAUNCHERS[launcher](ranks))]
        if not shutil.which(words[0]):
            pytest.skip(f"no {words[0]} here")
        return [*words, *map(str, command)]

    def launch(self, launcher, ranks, text, **options):
        """Runs a Python program in each rank, whatever becomes of the others."""
        script = self.path / "program.py"
        script.write_text(text)
        # A launcher that sees a rank fail kills the others, and what they have to say.
        shell = [sys.executable, "-c", _OUTLIVE, sys.executable, script]
        command = [sys.executable, script] if not options.pop("outlive", False) else shell
        return self.run(*self.command(launcher, ranks, *command), **options)

    def kill_all(self):
        super().kill_all()
        for pid in list(self.processes()):
            with contextlib.suppress(OSError):
                os.kill(pid, 9)


_OUTLIVE = "import subprocess, sys; subprocess.run(sys.argv[1:])"


def failing_init(timeout, late="False"):
    """A program that tells why init() fails. late: of which ranks (Python) it never comes."""
    return f"""
import os, time, ringd
if {late}:
    time.sleep({3 * timeout})
else:
    try:
        ringd.init(timeout={timeout})
    except ringd.RingdError as error:
        print(f"told: {{error}}\\n", end="")
"""
