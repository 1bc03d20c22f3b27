"""horovodrun: Horovod's command line, carried out by `ringctl run`."""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ringd

from . import config, output
from .flags import FLAGS, GROUPS, Flag
from .hosts import fill, parse_hosts, read_hostfile


@dataclass
class Plan:
    """What a horovodrun comes to."""

    ranks: int
    arguments: list[str]  # Of ringctl.
    output: str | None = None  # Folder for the ranks' output.
    environment: dict[str, str] = field(default_factory=dict)  # Added for the ranks.
    notes: list[str] = field(default_factory=list)  # Lines for stderr.


def make_parser() -> argparse.ArgumentParser:
    """The command line of horovodrun. Only what is given becomes an attribute."""
    parser = argparse.ArgumentParser(
        prog="horovodrun",
        description="Runs a Horovod script on ringd, by `ringctl run`.",
        argument_default=argparse.SUPPRESS,
    )
    for title, flags in GROUPS.items():
        group = parser.add_argument_group(title)
        for flag in flags:
            _add(group, flag)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the program, with arguments")
    return parser


def _add(group: Any, flag: Flag) -> None:
    words = flag.help if flag.why is None else f"{flag.help}: {flag.why}"
    if flag.kind is not None:
        group.add_argument(*flag.names, dest=flag.key, type=flag.kind, help=words, **flag.options)
        return
    group.add_argument(
        *flag.names, dest=flag.key, action="store_const", const=flag.value, help=words
    )
    if flag.off:
        group.add_argument(*flag.off, dest=flag.key, action="store_const", const=False, help=words)


def parse(arguments: Sequence[str]) -> dict[str, Any]:
    """What is given, by `Flag.key`; `command` is a list.

    Raises:
        ValueError: a value out of range, or a configuration file that can't be used.
    """
    given = vars(make_parser().parse_args(list(arguments)))
    if "config_file" in given:
        given = {**config.read(given["config_file"]), **given}
    for flag in FLAGS:
        _check(flag, given.get(flag.key))
    return given


def _check(flag: Flag, value: Any) -> None:
    numbers = value if isinstance(value, list) else [value]
    for number in numbers:
        if isinstance(number, int | float) and not isinstance(number, bool) and number < 0:
            raise ValueError(f"{flag.names[-1]} must be >= 0, not {number}")
    if flag.key == "autotune_gaussian_process_noise" and value is not None and value > 1:
        raise ValueError(f"{flag.names[-1]} must be between 0 and 1, not {value}")


def plan(
    given: Mapping[str, Any], surroundings: Mapping[str, str], here: str | None = None
) -> Plan:
    """What ringctl is to run. A pure function, but for reading a host file.

    Args:
        given: as `parse` returns it.
        surroundings: environment variables of the caller.
        here: the name of this machine among a cluster's nodes.

    Raises:
        ValueError: a flag is missing, or makes no sense on ringd.
    """
    _refuse(given)
    command = list(given.get("command", []))
    if command[:1] == ["--"]:
        command = command[1:]
    if not command:
        raise ValueError("no command; write it last, as in: horovodrun -np 2 python train.py")
    ranks = given.get("num_proc")
    if not ranks:
        raise ValueError("-np is missing: say how many ranks, as in: horovodrun -np 2 ...")
    made = Plan(ranks, ["run", "-n", str(ranks)], given.get("output_filename"))
    if given.get("verbose"):
        made.arguments.append("-v")
    made.arguments += _placement(given, here if "RINGD_SCHEDULER" in surroundings else None)
    ending = _ending(given)
    made.arguments += ending
    if ending:
        made.notes.append(f"for ringctl: {' '.join(ending)}")
    made.environment = _environment(given)
    made.arguments += ["--env-all", "--", *command]
    made.notes += _notes(given)
    return made


def _refuse(given: Mapping[str, Any]) -> None:
    if "hosts" in given and "hostfile" in given:
        raise ValueError("--hosts and --hostfile both name nodes: give one of them")
    if given.get("jsrun"):
        raise ValueError(
            "--jsrun: ringd's daemons start the ranks; run a daemon on each node of the allocation "
            "and leave out --jsrun"
        )
    if "host_discovery_script" in given:
        raise ValueError(
            "--host-discovery-script: nodes join the scheduler by themselves (`ringctl nodes` "
            "lists them); leave it out and name the scheduler by RINGD_SCHEDULER"
        )


def _placement(given: Mapping[str, Any], here: str | None) -> list[str]:
    default = given.get("slots_per_host")
    if "hostfile" in given:
        hosts = read_hostfile(given["hostfile"], default)
    elif "hosts" in given:
        hosts = parse_hosts(given["hosts"], default)
    else:
        return []
    return ["--hosts", fill(hosts, given["num_proc"], here)]


def _ending(given: Mapping[str, Any]) -> list[str]:
    words = []
    for key, option in (
        ("min_num_proc", "--min"),
        ("max_num_proc", "--max"),
        ("reset_limit", "--max-restarts"),
    ):
        if key in given:
            words += [option, str(given[key])]
    if given.get("stall_check_shutdown_time_seconds"):
        words += ["--stall-timeout", f"{given['stall_check_shutdown_time_seconds']}s"]
    return words


def _environment(given: Mapping[str, Any]) -> dict[str, str]:
    variables = {}
    for flag in FLAGS:
        value = given.get(flag.key)
        if not flag.variable or value is None:
            continue
        if isinstance(value, bool):
            value = int(value)
        elif flag.scale != 1:
            value *= flag.scale
        variables[flag.variable] = str(value)
    interfaces = given.get("network_interfaces") or given.get("network_interface")
    if interfaces:
        variables["NCCL_SOCKET_IFNAME"] = interfaces
    return variables


def _notes(given: Mapping[str, Any]) -> list[str]:
    """A line for each reason why flags that were given have no effect."""
    by_reason: dict[str, list[str]] = {}
    for flag in FLAGS:
        if flag.why is not None and flag.key in given:
            by_reason.setdefault(flag.why, []).append(flag.names[-1 if flag.kind else 0])
    return [f"no effect: {', '.join(names)} ({why})" for why, names in by_reason.items()]


def execute(made: Plan) -> int:
    """Runs ringctl as planned and waits for it. Its exit code.

    Raises:
        ValueError: the folder for output can't be written.
    """
    environment = {**os.environ, **made.environment}
    if made.output is None:
        return subprocess.run(
            [find_ringctl(), *made.arguments], env=environment, check=False
        ).returncode
    try:
        return output.run(find_ringctl(), made.arguments, environment, made.output, made.ranks)
    except OSError as error:
        raise ValueError(f"--output-filename {made.output}: {error}") from None


def find_ringctl() -> str:
    """The path of ringctl: of ringd's package, else on PATH."""
    packaged = Path(ringd.__file__).parent / "bin/ringctl"
    if os.access(packaged, os.X_OK):
        return str(packaged)
    found = shutil.which("ringctl")
    if found is None:
        raise ValueError("ringctl is not there: install the wheel of ringd")
    return found


def check_build() -> str:
    """What horovodrun --check-build prints."""
    import importlib.util

    def mark(there: bool) -> str:
        return "[X]" if there else "[ ]"

    frameworks = [
        (title, importlib.util.find_spec(f"horovod.{package}") is not None)
        for title, package in (
            ("TensorFlow", "tensorflow"),
            ("PyTorch", "torch"),
            ("MXNet", "mxnet"),
        )
    ]
    lines = [f"Horovod's names on ringd {ringd.__version__}:", "", "Available Frameworks:"]
    lines += [f"    {mark(there)} {title}" for title, there in frameworks]
    lines += ["", "Available Controllers:", "    [ ] MPI", "    [ ] Gloo", "    [X] ringd"]
    lines += ["", "Available Tensor Operations:"]
    lines += [f"    [ ] {name}" for name in ("NCCL", "DDL", "CCL", "MPI", "Gloo")]
    return "\n".join([*lines, "    [X] ringd"])


def run_commandline(arguments: Sequence[str] | None = None) -> None:
    """The program horovodrun. Exit codes are those of `ringctl run`; 2: bad input."""
    from .. import __version__

    try:
        given = parse(sys.argv[1:] if arguments is None else arguments)
        if given.get("version"):
            print(__version__)
            return
        if given.get("check_build"):
            print(check_build())
            return
        made = plan(given, os.environ, socket.gethostname())
        for note in made.notes:
            print(f"horovodrun: {note}", file=sys.stderr)
        sys.stderr.flush()
        if made.output is not None:
            sys.exit(execute(made))
        ringctl = find_ringctl()
    except ValueError as error:
        print(f"horovodrun: {error}", file=sys.stderr)
        sys.exit(2)
    os.execve(ringctl, ["ringctl", *made.arguments], {**os.environ, **made.environment})


if __name__ == "__main__":
    run_commandline()
