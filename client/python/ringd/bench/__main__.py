"""One rank of `ringctl bench`; rank 0 prints a JSON object a line.

    {"note": TEXT}      for people: what was measured, what is missing
    {"row": {...}}      one result; its keys are those of `ringctl bench --output json`

Every line is measured in rounds. In each round every implementation runs for about as long, then
the limit, so that a machine that drifts drifts for all of them. Each call is timed; a rank's median
and 99th percentile are taken over its calls of all rounds, and the slowest rank's are shown.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import socket
import time
from typing import Any

import numpy as np

import ringd
from ringd.bench._limits import Limits, NoLimit, memory_bandwidth
from ringd.bench._operations import (
    BARRIER,
    LATENCY,
    PATH,
    SMALLEST_TO_REFILL,
    Call,
    Prepared,
    busbw_factor,
    elements,
    prepare,
    prepare_loop,
    prepare_path,
)
from ringd.bench._peers import Peer, find_peers

ROUND_SECONDS = 0.05  # Of one implementation.
MAX_CALLS = 500  # In a round.
FAST_LINK = 1.25e9  # Bytes a second: above, a loop over sockets may be the limit.


def say(**what: Any) -> None:
    """One line of output, of rank 0's."""
    if ringd.rank() == 0:
        print(json.dumps(what), flush=True)


def slowest(*values: float) -> list[float]:
    """COLLECTIVE: the largest of all ranks."""
    return [float(value) for value in ringd.allreduce(np.array(values), op=ringd.Max)]


def time_small(call: Call, calls: int) -> list[int]:
    """Nanoseconds of each of a number of calls in a row."""
    clock = time.perf_counter_ns
    stamps = [0] * (calls + 1)
    ringd.barrier()
    stamps[0] = clock()
    for i in range(1, calls + 1):
        call()
        stamps[i] = clock()
    return [later - earlier for earlier, later in itertools.pairwise(stamps)]


def time_large(prepared: Prepared, calls: int) -> list[int]:
    """The same for calls that each find their input just written."""
    times = []
    for _ in range(calls):
        prepared.fill()
        ringd.barrier()
        start = time.perf_counter_ns()
        prepared.call()
        times.append(time.perf_counter_ns() - start)
        ringd.barrier()  # A rank that fills already would take the core of one that isn't done.
    return times


def run(prepared: Prepared, nbytes: int, calls: int) -> list[int]:
    """Nanoseconds of each call of a round."""
    if prepared.run is not None:
        return prepared.run(calls)
    if nbytes >= SMALLEST_TO_REFILL:
        return time_large(prepared, calls)
    return time_small(prepared.call, calls)


def calls_a_round(prepared: Prepared, nbytes: int) -> int:
    """COLLECTIVE: as many as take about ROUND_SECONDS."""
    run(prepared, nbytes, 2)
    (seconds,) = slowest(float(np.mean(run(prepared, nbytes, 3))) * 1e-9)
    return int(min(max(ROUND_SECONDS / seconds, 1), MAX_CALLS))


def prepare_peer(peer: Peer, operation: str, count: int, dtype: np.dtype[Any]) -> Prepared | None:
    """COLLECTIVE: None, with a word, where the peer can't do it."""
    try:
        prepared = peer.prepare(operation, count, dtype)
        prepared.call()
        reason = ""
    except (RuntimeError, ValueError, AttributeError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0]
    reasons = [told for told in ringd.allgather_object(reason) if told]
    if not reasons:
        return prepared
    say(note=f"{peer.name} has no {operation} of {dtype.name}: {reasons[0]}")
    return None


def measure(
    implementations: dict[str, Prepared], nbytes: int, rounds: int, limit: NoLimit
) -> dict[str, tuple[float, float]]:
    """COLLECTIVE: median and 99th percentile of each, in microseconds."""
    calls = {name: calls_a_round(each, nbytes) for name, each in implementations.items()}
    times: dict[str, list[int]] = {name: [] for name in implementations}
    for _ in range(rounds):
        for name, each in implementations.items():
            times[name] += run(each, nbytes, calls[name])
        limit.sample()
    found = {}
    for name, samples in times.items():
        median, p99 = np.percentile(np.array(samples) * 1e-3, [50, 99])
        found[name] = tuple(slowest(median, p99))
    return found


def report(
    operation: str, nbytes: int, measured: dict[str, tuple[float, float]], limit: NoLimit
) -> None:
    """Says a row for each implementation."""
    best = limit.algbw(nbytes)
    for name, (median, p99) in measured.items():
        algbw = nbytes / median / 1e3
        row = {
            "operation": operation,
            "bytes": nbytes,
            "ranks": ringd.size(),
            "nodes": ringd.cross_size(),
            "median_us": round(median, 3),
            "p99_us": round(p99, 3),
            "algbw_gbps": round(algbw, 6),
            "busbw_gbps": round(algbw * busbw_factor(operation, ringd.size()), 6),
            "limit_gbps": None if best is None else round(best / 1e9, 6),
            "implementation": name,
        }
        say(row=row)


def bench_line(
    operation: str, size: int, options: argparse.Namespace, limits: Limits, peers: list[Peer]
) -> None:
    """COLLECTIVE: measures one operation of one size."""
    dtype = np.dtype(options.dtype)
    count = elements(operation, size, dtype.itemsize, ringd.size())
    if operation == PATH:
        report(operation, 0, measure(prepare_path(), 0, options.rounds, NoLimit()), NoLimit())
        return
    implementations = {"ringd": prepare(operation, count, dtype, options.outside, options.wire)}
    has_loop = operation == LATENCY and options.wire is None
    loop = prepare_loop(count, dtype, options.outside) if has_loop else None
    if loop is not None:
        implementations["ringd-c"] = loop
    if implementations["ringd"].note:
        say(note=implementations["ringd"].note)
    for peer in peers:
        prepared = prepare_peer(peer, operation, count, dtype)
        if prepared is not None:
            implementations[peer.name] = prepared
    limit = limits.of(operation, count, dtype, options.outside)
    try:
        nbytes = count * dtype.itemsize
        report(operation, nbytes, measure(implementations, nbytes, options.rounds, limit), limit)
    finally:
        limit.close()


def say_load() -> None:
    """COLLECTIVE: a warning where others use the nodes."""
    load = os.getloadavg()[0] if ringd.local_rank() == 0 else 0.0
    cores = os.cpu_count() or 1
    mine = f"{socket.gethostname()} (load {load:.1f}, {cores} cores)" if load > cores / 2 else ""
    busy = sorted(set(filter(None, ringd.allgather_object(mine))))
    if busy:
        say(note=f"warning: busy: {', '.join(busy)}: figures say little")


def say_limits(options: argparse.Namespace, limits: Limits) -> None:
    """COLLECTIVE: what was measured of the cluster itself."""
    nodes = len(limits.ranks_by_node)
    place = "outside of the arena" if options.outside else "in the arena"
    job = f"{ringd.size()} ranks, {nodes} {'node' if nodes == 1 else 'nodes'}"
    travels = "" if options.wire is None else f", as {options.wire} between nodes (limit: without)"
    say(note=f"{job}, {options.dtype} {place}, {options.rounds} rounds{travels}")
    if limits.wire is not None:
        rate = limits.wire.rate(limits.wire.sample())
        loop = " (of the socket loop, perhaps: --link-gbit)" if rate > FAST_LINK else ""
        say(note=f"limit: the links, {rate / 1e9:.3f} GB/s in both directions at once{loop}")
    elif limits.reason:
        say(note=f"no limit: {limits.reason}; --link-gbit names the links' rate")
    elif nodes > 1:
        say(note=f"limit: links of {options.link_gbit:g} Gbit/s")
    elif limits.has_kernel:
        rate = memory_bandwidth()
        copies = "" if rate is None else f"; memory copies {rate / 1e9:.1f} GB/s"
        say(note=f"limit: the same work by threads of one process{copies}")
    else:
        say(note="no limit: ringd-limits is missing in the folder of ringd's programs")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="ringd.bench", description="One rank of `ringctl bench`.")
    parser.add_argument("--operations", required=True, help="names, comma-separated")
    parser.add_argument("--sizes", required=True, help="bytes, comma-separated")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--wire")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--outside", action="store_true")
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--link-gbit", type=float)
    return parser.parse_args()


def main() -> None:
    options = parse()
    ringd.init()
    say_load()
    limits = Limits(options.link_gbit)
    say_limits(options, limits)
    peers: list[Peer] = []
    if options.peers:
        peers, missing = find_peers()
        for line in missing:
            say(note=line)
    for operation in options.operations.split(","):
        sizes = [0] if operation in (BARRIER, PATH) else map(int, options.sizes.split(","))
        for size in sizes:
            bench_line(operation, size, options, limits, peers)
    for peer in peers:
        peer.close()
    limits.close()
    ringd.shutdown()


if __name__ == "__main__":
    main()
