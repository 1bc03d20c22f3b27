"""The text, the model and the command line of the examples here. Nothing of it is distributed."""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.data import Dataset

LENGTH = 64  # Characters of a window.
BEGINNING = "Mr. Darcy "


class Windows(Dataset):
    """The novel, cut into pieces: (characters, the ones that follow) as numbers."""

    def __init__(self) -> None:
        text = (Path(__file__).parent / "pride_and_prejudice.txt").read_text(encoding="ascii")
        self.alphabet = "".join(sorted(set(text)))
        self._numbers = torch.tensor([self.alphabet.index(character) for character in text])

    def __len__(self) -> int:
        return (len(self._numbers) - 1) // LENGTH

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        window = self._numbers[i * LENGTH : (i + 1) * LENGTH + 1]
        return window[:-1], window[1:]


class Model(nn.Module):
    """Guesses each next character: a GRU of one layer."""

    def __init__(self, alphabet: str, width: int = 128) -> None:
        super().__init__()
        self.alphabet = alphabet
        self.embedding = nn.Embedding(len(alphabet), 32)
        self.recurrent = nn.GRU(32, width, batch_first=True)
        self.output = nn.Linear(width, len(alphabet))

    def forward(
        self, characters: torch.Tensor, state: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        hidden, state = self.recurrent(self.embedding(characters), state)
        return self.output(hidden), state

    @torch.no_grad()
    def write(self, count: int = 160) -> str:
        """Goes on from BEGINNING."""
        chance = torch.Generator().manual_seed(1)
        text, state = BEGINNING, None
        todo = torch.tensor([[self.alphabet.index(character) for character in text]])
        for _ in range(count):
            guesses, state = self(todo, state)
            todo = torch.multinomial(guesses[:, -1].softmax(1), 1, generator=chance)
            text += self.alphabet[todo.item()]
        return text


def loss_of(model: nn.Module, characters: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    guesses, _ = model(characters)
    return F.cross_entropy(guesses.flatten(0, 1), following.flatten())


def parse_options(description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=32, help="windows a step, of all ranks")
    parser.add_argument("--lr", type=float, default=0.005)
    torch.set_num_threads(1)  # The model is too small to gain from more.
    torch.manual_seed(1)
    return parser.parse_args()


def report(model: Model, rank: int) -> None:
    """What the model has learned, and a hash of its bits."""
    digest = hashlib.sha256()
    for parameter in model.state_dict().values():
        digest.update(parameter.numpy().tobytes())
    print(f"rank {rank}: parameters {digest.hexdigest()[:16]}")
    if rank == 0:
        print(model.write())
