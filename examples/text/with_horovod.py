"""Trains a model that writes like a novel, with Horovod or ringd's drop-in for it.

horovodrun -np 2 python examples/text/with_horovod.py
"""

import horovod.torch as hvd
import torch
from novel import Model, Windows, loss_of, parse_options, report
from torch.utils.data import DataLoader, DistributedSampler


def main() -> None:
    hvd.init()
    options = parse_options(__doc__)
    windows = Windows()
    sampler = DistributedSampler(windows, hvd.size(), hvd.rank())
    loader = DataLoader(windows, options.batch // hvd.size(), sampler=sampler, drop_last=True)
    model = Model(windows.alphabet)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = torch.optim.Adam(model.parameters(), options.lr)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(())
        for characters, following in loader:
            optimizer.zero_grad()
            loss = loss_of(model, characters, following)
            loss.backward()
            optimizer.step()
            total += loss.detach()
        total = hvd.allreduce(total)
        if hvd.rank() == 0:
            print(f"epoch {epoch}: loss {total / len(loader):.4f}")
    report(model, hvd.rank())
    hvd.shutdown()


main()
