"""Horovodrun's flags: what each of them means here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

NO_SSH = "ringd's daemons start the ranks, without ssh"
NO_MPI = "ringd needs no MPI"
NO_CYCLE = "ringd has no cycle, cache or fusion buffer to set"
NO_CHOICE = "ringd chooses its algorithm by the message and the nodes"
NO_TUNING = "there is nothing to tune"
NO_CYCLES = "there are no cycles"
STALLS = "ringd names ranks that don't come after 10 s"
NODES = "nodes join the scheduler by themselves: `ringctl nodes` lists them"
ADDRESSES = "each node's ringd.toml says which address its daemon uses"
PREFIX = "ringctl begins each line with [rank]"
LOG = "the daemons' configuration sets their logging"
AT_ONCE = "a job starts at once or is refused; `ringctl submit` waits for slots"
DETECTION = "ringd sees the death of a rank or node by itself"
AFFINITY = "the system's scheduler places ringd's threads"


@dataclass(frozen=True)
class Flag:
    """A flag of horovodrun.

    `variable` is what it sets for the ranks, `scale` multiplies the value there. `why`: it has no
    effect on ringd itself, for this reason; None: `horovod.runner.launch` maps it.
    """

    names: tuple[str, ...]
    help: str
    kind: Callable[[str], Any] | None = None  # None: a switch.
    why: str | None = None
    variable: str = ""
    scale: int = 1
    config: tuple[str, ...] = ()  # Its place in a configuration file.
    value: Any = True  # Of a switch.
    off: tuple[str, ...] = ()  # Names that set it to False.
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Its attribute among the parsed options."""
        long = [name for name in self.names if name.startswith("--")]
        return (long or self.names)[-1].lstrip("-").replace("-", "_")


def _switch(name: str, help: str, **options: Any) -> Flag:
    return Flag((f"--{name}",), help, off=(f"--no-{name}",), **options)


def _value(name: str, kind: Callable[[str], Any], help: str, **options: Any) -> Flag:
    return Flag((f"--{name}",), help, kind=kind, **options)


_JOB = [
    Flag(("-np", "--num-proc"), "number of ranks", kind=int),
    Flag(("-H", "--hosts"), "nodes and their slots: a:2,b:2", kind=str),
    Flag(("-hostfile", "--hostfile"), "the same from a file, a node a line: a slots=2", kind=str),
    _value("output-filename", str, "keep each rank's output in this directory"),
    Flag(("--verbose",), "say each change of the job's state"),
    _value("config-file", str, "YAML file with values for flags that are not given"),
    Flag(("-v", "--version"), "print the version and exit"),
    Flag(("-cb", "--check-build"), "print what is there and exit"),
]
_ELASTIC = [
    Flag(("--min-np", "--min-num-proc"), "go on with as few ranks as this", kind=int),
    Flag(("--max-np", "--max-num-proc"), "grow to as many ranks as this", kind=int),
    _value("reset-limit", int, "how often ranks may be started anew"),
    _value("host-discovery-script", str, "refused", why=NODES),
    _value("slots-per-host", int, "slots of hosts that are named without a number"),
    _value("elastic-timeout", int, "no effect", why=AT_ONCE, variable="HOROVOD_ELASTIC_TIMEOUT"),
    _value("blacklist-cooldown-range", int, "no effect", why=NODES, options={"nargs": 2}),
]
_CONNECTION = [
    Flag(("-p", "--ssh-port"), "no effect", kind=int, why=NO_SSH),
    Flag(("-i", "--ssh-identity-file"), "no effect", kind=str, why=NO_SSH),
    Flag(("--disable-cache",), "no effect", why=NO_SSH),
    _value("start-timeout", int, "no effect", why=AT_ONCE),
    _value("network-interfaces", str, "for NCCL; ringd knows its own", why=ADDRESSES),
    _value("network-interface", str, "as --network-interfaces", why=ADDRESSES),
    Flag(("--gloo",), "no effect: there is no MPI anyway"),
    Flag(("--mpi",), "no effect", why=NO_MPI),
    Flag(("--jsrun",), "refused"),
    _value("mpi-args", str, "no effect", why=NO_MPI),
    _value("binding-args", str, "no effect", why=NO_MPI),
    Flag(("--tcp",), "NCCL without InfiniBand", variable="NCCL_IB_DISABLE"),
]
_PARAMETERS = [
    _value(
        "fusion-threshold-mb",
        int,
        "no effect",
        why=NO_CYCLE,
        variable="HOROVOD_FUSION_THRESHOLD",
        scale=1 << 20,
        config=("params", "fusion_threshold_mb"),
    ),
    _value(
        "cycle-time-ms",
        float,
        "no effect",
        why=NO_CYCLE,
        variable="HOROVOD_CYCLE_TIME",
        config=("params", "cycle_time_ms"),
    ),
    _value(
        "cache-capacity",
        int,
        "no effect",
        why=NO_CYCLE,
        variable="HOROVOD_CACHE_CAPACITY",
        config=("params", "cache_capacity"),
    ),
    *(
        _switch(
            name,
            "no effect",
            why=NO_CHOICE,
            variable="HOROVOD_" + name.upper().replace("-", "_"),
            config=("params", name.replace("-", "_")),
        )
        for name in ("hierarchical-allreduce", "hierarchical-allgather", "torus-allreduce")
    ),
]
_AUTOTUNE = [
    _switch(
        "autotune",
        "no effect",
        why=NO_TUNING,
        variable="HOROVOD_AUTOTUNE",
        config=("autotune", "enabled"),
    ),
    *(
        _value(
            f"autotune-{name}",
            kind,
            "no effect",
            why=NO_TUNING,
            config=("autotune", name.replace("-", "_")),
        )
        for name, kind in (
            ("log-file", str),
            ("warmup-samples", int),
            ("steps-per-sample", int),
            ("bayes-opt-max-samples", int),
            ("gaussian-process-noise", float),
        )
    ),
]
_WATCHING = [
    _value(
        "timeline-filename",
        str,
        "write operations to this file (rank 0's; others' are FILE.rankN)",
        variable="HOROVOD_TIMELINE",
        config=("timeline", "filename"),
    ),
    _switch(
        "timeline-mark-cycles",
        "no effect",
        why=NO_CYCLES,
        config=("timeline", "mark_cycles"),
    ),
    Flag(
        ("--stall-check",),
        "no effect",
        why=STALLS,
        off=("--no-stall-check",),
        config=("stall_check", "enabled"),
    ),
    _value(
        "stall-check-warning-time-seconds",
        int,
        "no effect",
        why=STALLS,
        config=("stall_check", "warning_time_seconds"),
    ),
    _value(
        "stall-check-shutdown-time-seconds",
        int,
        "end the job when it stalls for so long; 0: never",
        config=("stall_check", "shutdown_time_seconds"),
    ),
    _value(
        "log-level",
        str.upper,
        "no effect",
        why=LOG,
        variable="HOROVOD_LOG_LEVEL",
        config=("logging", "level"),
        options={"choices": ["TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL"]},
    ),
    Flag(
        ("--log-with-timestamp", "--no-log-hide-timestamp"),
        "no effect",
        why=LOG,
        off=("--log-without-timestamp", "--log-hide-timestamp"),
        config=("logging", "with_timestamp"),
    ),
    Flag(("-prefix-timestamp", "--prefix-output-with-timestamp"), "no effect", why=PREFIX),
]
_LIBRARY = [
    _switch(
        "mpi-threads-disable",
        "no effect",
        why=NO_MPI,
        config=("library_options", "mpi_threads_disable"),
    ),
    _value(
        "num-nccl-streams",
        int,
        "no effect",
        why=NO_CHOICE,
        variable="HOROVOD_NUM_NCCL_STREAMS",
        config=("library_options", "num_nccl_streams"),
    ),
    _value(
        "thread-affinity",
        str,
        "no effect",
        why=AFFINITY,
        variable="HOROVOD_THREAD_AFFINITY",
        config=("library_options", "thread_affinity"),
    ),
    _value(
        "gloo-timeout-seconds",
        int,
        "no effect",
        why=DETECTION,
        variable="HOROVOD_GLOO_TIMEOUT_SECONDS",
        config=("library_options", "gloo_timeout_seconds"),
    ),
]
GROUPS: dict[str, list[Flag]] = {
    "job": _JOB,
    "elastic": _ELASTIC,
    "connection": _CONNECTION,
    "parameters": _PARAMETERS,
    "autotune": _AUTOTUNE,
    "watching": _WATCHING,
    "library": _LIBRARY,
}
FLAGS: list[Flag] = [flag for flags in GROUPS.values() for flag in flags]
