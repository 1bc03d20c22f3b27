"""Trains a model that writes like a novel, in one process.

python examples/text/one_process.py
"""

import torch
from novel import Model, Windows, loss_of, parse_options, report
from torch.utils.data import DataLoader


def main() -> None:
    options = parse_options(__doc__)
    windows = Windows()
    loader = DataLoader(windows, options.batch, shuffle=True, drop_last=True)
    model = Model(windows.alphabet)
    optimizer = torch.optim.Adam(model.parameters(), options.lr)
    for epoch in range(options.epochs):
        total = torch.zeros(())
        for characters, following in loader:
            optimizer.zero_grad()
            loss = loss_of(model, characters, following)
            loss.backward()
            optimizer.step()
            total += loss.detach()
        print(f"epoch {epoch}: loss {total / len(loader):.4f}")
    report(model, 0)


main()
