"""Trains a model that writes like a novel, on as many ranks as there are.

ringctl run -n 2 -- python examples/text/with_ringd.py
"""

import ringd.torch as ringd
import torch
from novel import Model, Windows, loss_of, parse_options, report
from ringd.torch.data import DataLoader


def main() -> None:
    ringd.init()
    options = parse_options(__doc__)
    windows = Windows()
    loader = DataLoader(windows, options.batch // ringd.size(), shuffle=True, drop_last=True)
    model = Model(windows.alphabet)
    ringd.broadcast_parameters(model.state_dict())
    optimizer = torch.optim.Adam(model.parameters(), options.lr)
    optimizer = ringd.DistributedOptimizer(optimizer, model.named_parameters())
    for epoch in range(options.epochs):
        total = torch.zeros(())
        for characters, following in loader:
            optimizer.zero_grad()
            loss = loss_of(model, characters, following)
            loss.backward()
            optimizer.step()
            total += loss.detach()
        total = ringd.allreduce(total)
        if ringd.rank() == 0:
            print(f"epoch {epoch}: loss {total / len(loader):.4f}")
    report(model, ringd.rank())
    ringd.shutdown()


main()
