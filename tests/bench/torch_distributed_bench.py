"""Cost of a call of torch.distributed: the backend "ringd" beside Gloo, in one run.

    ringctl run -n 2 -- python tests/bench/torch_distributed_bench.py [--sizes 4B,1KB,1MB]

Every size is measured in rounds; in each round each backend runs once. Prints the median over
rounds of one dist.all_reduce on the slowest rank, and what a call costs without any other rank: a
group of this rank alone.
"""

import argparse
import statistics
import time

import torch
import torch.distributed as dist

UNITS = {"KB": 1 << 10, "MB": 1 << 20, "B": 1}


def parse_size(text):
    unit = next(unit for unit in UNITS if text.endswith(unit))
    return int(text.removesuffix(unit)) * UNITS[unit]


def repetitions(size):
    """Operations in one measurement: long enough for the clock, short enough for a large size."""
    return max(1, min(200, (8 << 20) // max(size, 1)))


def seconds_per_call(tensor, group, count):
    dist.barrier(group)
    start = time.perf_counter()
    for _ in range(count):
        dist.all_reduce(tensor, group=group)
    return (time.perf_counter() - start) / count


def slowest(seconds):
    tensor = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return float(tensor)


def gloo_group(rank, size):
    """Gloo beside ringd: a group of its own over the same store."""
    backend = dist.ProcessGroupGloo(
        dist.PrefixStore("gloo", dist.group.WORLD.get_group_store()), rank, size
    )
    group = dist.ProcessGroup(rank, size)
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, backend)
    group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    return group


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="4B,1KB,64KB,1MB,16MB")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()

    dist.init_process_group("ringd")
    torch.set_num_threads(1)
    rank, size = dist.get_rank(), dist.get_world_size()
    alone = [dist.new_group([r]) for r in range(size)][rank]
    groups = {"ringd": dist.group.WORLD, "gloo": gloo_group(rank, size), "alone": alone}
    calls = {
        name: lambda tensor, count, group=group: _time(tensor, group, count)
        for name, group in groups.items()
    }
    if rank == 0:
        print(f"{size} ranks, medians of {arguments.rounds} rounds, microseconds a call")
        print(f"{'bytes':>10} {'ringd':>10} {'gloo':>10} {'gloo/ringd':>10} {'alone':>10}")
    for text in arguments.sizes.split(","):
        nbytes = max(4, parse_size(text) // 4 * 4)
        tensor = torch.zeros(nbytes // 4)
        times = {name: [] for name in calls}
        for _ in range(arguments.rounds):
            for name, call in calls.items():
                times[name].append(slowest(call(tensor, repetitions(nbytes))) * 1e6)
        medians = {name: statistics.median(values) for name, values in times.items()}
        if rank == 0:
            ratio = medians["gloo"] / medians["ringd"]
            print(
                f"{nbytes:10d} {medians['ringd']:10.1f} {medians['gloo']:10.1f} {ratio:10.2f} "
                f"{medians['alone']:10.1f}",
                flush=True,
            )
    dist.destroy_process_group()


def _time(tensor, group, count):
    """Calls the group as dist.all_reduce does; Gloo's group is not registered with `dist`."""
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.SUM
    if hasattr(options, "asyncOp"):
        options.asyncOp = False
    dist.barrier()
    start = time.perf_counter()
    for _ in range(count):
        group.allreduce([tensor], options).wait()
    return (time.perf_counter() - start) / count


if __name__ == "__main__":
    main()
