"""Trains a model that writes like a novel, with DistributedDataParallel.

torchrun --nproc-per-node 2 examples/text/with_ddp.py
"""

import torch
import torch.distributed as dist
from novel import Model, Windows, loss_of, parse_options, report
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def main() -> None:
    dist.init_process_group("gloo")
    options = parse_options(__doc__)
    windows = Windows()
    sampler = DistributedSampler(windows)
    batch = options.batch // dist.get_world_size()
    loader = DataLoader(windows, batch, sampler=sampler, drop_last=True)
    model = DistributedDataParallel(Model(windows.alphabet))
    optimizer = torch.optim.Adam(model.parameters(), options.lr)
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(())
        for characters, following in loader:
            optimizer.zero_grad()
            loss = loss_of(model, characters, following)
            loss.backward()
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)
        total /= dist.get_world_size()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {total / len(loader):.4f}")
    report(model.module, dist.get_rank())
    dist.destroy_process_group()


main()
