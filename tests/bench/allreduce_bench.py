"""Allreduce of ringd beside Gloo and the in-process kernel, in one run.

    ringctl run -n 2 -- python tests/bench/allreduce_bench.py [--sizes 1KB,64MB] [--kernel PATH]

Every size is measured in rounds; in each round every implementation runs once, so that a machine
that drifts drifts for all of them. Prints medians over rounds (slowest rank), algorithm bandwidth
(bytes / time), and what the limit would be: the kernel's time on one node (2 * ranks * bytes of
memory traffic), the link's rate over several (`--link-gbit`).

ringd runs on arena buffers, in place. Gloo is torch.distributed's, as it comes.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import time
from collections.abc import Callable

import numpy as np
import ringd
import torch
import torch.distributed as dist

HEADING = "       bytes     name           us  algbw GB/s  of limit  vs gloo"
SMALLEST_FOR_KERNEL = 1 << 20  # Below, threads of one process don't say what ranks could do.
UNITS = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}


def parse_size(text: str) -> int:
    for unit in ("KB", "MB", "GB", "B"):
        if text.upper().endswith(unit):
            return int(float(text[: -len(unit)]) * UNITS[unit])
    return int(text)


def repetitions(size: int) -> int:
    """Operations in one measurement: long enough for the clock, short enough for a large size."""
    return max(1, min(200, (8 << 20) // max(size, 1)))


def seconds_per_call(call: Callable[[], object], count: int) -> float:
    ringd.barrier()
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def slowest(seconds: float) -> float:
    return float(ringd.allreduce(np.array([seconds]), op=ringd.Max)[0])


def kernel_seconds(path: str, ranks: int, size: int, rounds: int) -> float:
    """Runs on rank 0 while the others wait in a barrier."""
    micros = 0.0
    if ringd.rank() == 0:
        threads = len(os.sched_getaffinity(0))
        words = [path, ranks, size, threads, rounds]
        run = subprocess.run([str(w) for w in words], capture_output=True, text=True, check=True)
        micros = float(run.stdout)
    return slowest(micros * 1e-6)


def choose_interface() -> None:
    """Gloo guesses its interface from the host's name; between nodes name a real one."""
    real = [name for _, name in socket.if_nameindex() if name != "lo"]
    if ringd.cross_size() > 1 and real:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", real[0])


def measure(size: int, rounds: int, kernel: str | None) -> dict[str, float]:
    buffer = ringd.empty(size // 4, np.float32)
    tensor = torch.zeros(size // 4)
    calls: dict[str, Callable[[], object]] = {
        "ringd": lambda: ringd.allreduce_(buffer, op=ringd.Sum),
        "gloo": lambda: dist.all_reduce(tensor),
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    kernel_times = []
    for _ in range(rounds):
        for name, call in calls.items():
            buffer[:] = 1
            tensor.fill_(1)
            times[name].append(slowest(seconds_per_call(call, repetitions(size))))
        if kernel is not None and size >= SMALLEST_FOR_KERNEL:
            kernel_times.append(kernel_seconds(kernel, ringd.local_size(), size, 5))
    medians = {name: statistics.median(values) for name, values in times.items()}
    if kernel_times:
        medians["kernel"] = statistics.median(kernel_times)
    return medians


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="8B,1KB,64KB,1MB,16MB,64MB")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--kernel", help="path of kernel_bench (one node only)")
    parser.add_argument("--link-gbit", type=float, help="rate of the links between nodes")
    parser.add_argument("--json", action="store_true", help="one JSON row a line")
    arguments = parser.parse_args()

    ringd.init()
    torch.set_num_threads(1)
    choose_interface()
    dist.init_process_group("gloo")
    nodes = ringd.cross_size()
    if ringd.rank() == 0 and not arguments.json:
        print(f"{ringd.size()} ranks, {nodes} nodes, medians of {arguments.rounds} rounds")
        print(HEADING)
    for text in arguments.sizes.split(","):
        size = max(4, parse_size(text) // 4 * 4)
        medians = measure(size, arguments.rounds, arguments.kernel if nodes == 1 else None)
        limit = medians.get("kernel")
        if nodes > 1 and arguments.link_gbit:
            limit = 2 * (nodes - 1) / nodes * size * 8 / (arguments.link_gbit * 1e9)
        for name, seconds in medians.items():
            row = {
                "operation": "allreduce",
                "bytes": size,
                "ranks": ringd.size(),
                "nodes": nodes,
                "implementation": name,
                "median_us": round(seconds * 1e6, 2),
                "algbw_gbps": round(size / seconds / 1e9, 3),
                "of_limit": round(limit / seconds, 3) if limit else None,
                "vs_gloo": round(medians["gloo"] / seconds, 2),
            }
            if ringd.rank() != 0:
                continue
            if arguments.json:
                print(json.dumps(row), flush=True)
            else:
                share = f"{row['of_limit']:9.2f}" if limit else "        -"
                figures = f"{row['median_us']:12.2f} {row['algbw_gbps']:11.3f}"
                print(f"{size:12d} {name:>8} {figures} {share} {row['vs_gloo']:8.2f}", flush=True)
    dist.destroy_process_group()
    ringd.shutdown()


if __name__ == "__main__":
    main()
