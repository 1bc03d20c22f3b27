"""A job that trains on `ringd.torch.data` and notes which samples it used.

    ringctl run -n 2 -- python tests/torch/data_job.py FOLDER [--stop-after N] [--trouble hang|kill]

Each rank appends its samples to FOLDER/used; rank 0 leaves the loader's state in FOLDER/state.json,
from which the next run, with any number of ranks, goes on.
"""

import argparse
import json
import os
import signal
import threading
from pathlib import Path

import ringd.torch as ringd
import torch
from ringd.torch.data import DataLoader
from torch import nn
from torch.utils.data import Dataset, get_worker_info

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("--stop-after", type=int, default=10**9, help="batches")
parser.add_argument("--trouble", choices=["hang", "kill"])
parser.add_argument("--uneven", default="pad")
SAMPLES = 50
BATCH = 4


class Line(Dataset):
    """Points of y = 3 x + 1."""

    def __init__(self, trouble):
        self.trouble = trouble

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        if self.trouble and get_worker_info().id == 1:
            threading.Event().wait() if self.trouble == "hang" else os.kill(
                os.getpid(), signal.SIGKILL
            )
        x = index / SAMPLES
        return index, torch.tensor([x]), torch.tensor([3 * x + 1])


def main():
    options = parser.parse_args()
    ringd.init()
    torch.set_num_threads(1)
    loader = DataLoader(
        Line(options.trouble if ringd.rank() == ringd.size() - 1 else None),
        batch_size=BATCH,
        shuffle=True,
        seed=7,
        uneven=options.uneven,
        num_workers=2,
        worker_timeout=2,
    )
    state = options.folder / "state.json"
    if state.exists():
        loader.load_state_dict(json.loads(state.read_text()))
    model = nn.Linear(1, 1)
    ringd.broadcast_parameters(model.state_dict())
    optimizer = ringd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
    )
    used = []
    for number, (indices, x, y) in enumerate(loader, 1):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        used += indices.tolist()
        if number == options.stop_after:
            break
    with (options.folder / "used").open("a") as file:
        file.write("".join(f"{index}\n" for index in used))
    states = ringd.allgather_object(loader.state_dict())
    assert all(other == states[0] for other in states), states
    if ringd.rank() == 0:
        state.write_text(json.dumps(states[0]))
    print(f"rank {ringd.rank()}: {len(used)} samples, then {states[0]}")


if __name__ == "__main__":
    main()
