"""Trains a small CNN on scikit-learn's scans of handwritten digits, on as many ranks as there are.

    ringctl run -n 2 -- python examples/torch_digits.py
    python examples/torch_digits.py --standalone            # one process, no daemon

What makes a single-process script distributed is marked by [1] to [5]. The batch is the global one:
each step has the same gradient on any number of ranks, so all of them train the same model.
"""

from __future__ import annotations

import argparse
import hashlib

import ringd.torch as ringd
import torch
import torch.nn.functional as F  # noqa: N812
from sklearn.datasets import load_digits
from torch import nn
from tqdm import tqdm

SEED = 1
TEST_IMAGES = 360


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch", type=int, default=32, help="images a step, of all ranks")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--plot", default="digits.png", help="file for the curves; '' for none")
    parser.add_argument("--save-parameters", metavar="FILE", help="for torch.load")
    parser.add_argument("--standalone", action="store_true", help="without `ringctl run`")
    options = parser.parse_args()
    if options.epochs < 1 or options.batch < 1:
        parser.error("--epochs and --batch must be at least 1")
    return options


def load_data() -> tuple[torch.Tensor, ...]:
    """(training images, their labels, test images, their labels): the same split on all ranks."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SEED))
    test, train = order[:TEST_IMAGES], order[TEST_IMAGES:]
    return images[train], labels[train], images[test], labels[test]


def make_model() -> nn.Module:
    # Smooth functions: rounding, which depends on how a batch is shared out, stays rounding.
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.SiLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.SiLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64),
        nn.SiLU(),
        nn.Linear(64, 10),
    )


def shard(indices: torch.Tensor) -> torch.Tensor:
    """[1] This rank's part of a batch. Ranks' parts may differ in length, and be empty."""
    return indices.tensor_split(ringd.size())[ringd.rank()]


def evaluate(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> tuple[float, float]:
    """Mean loss and accuracy over all images, each rank on its part."""
    mine = shard(torch.arange(len(labels)))
    with torch.no_grad():
        output = model(images[mine])
        loss = F.cross_entropy(output, labels[mine], reduction="sum")
        correct = (output.argmax(dim=1) == labels[mine]).sum()
    sums = torch.tensor([loss.item(), correct.item()], dtype=torch.float64)
    ringd.allreduce_(sums, op=ringd.Sum)  # [2]
    return sums[0].item() / len(labels), sums[1].item() / len(labels)


def train(
    model: nn.Module, data: tuple[torch.Tensor, ...], options: argparse.Namespace
) -> list[tuple[float, float, float]]:
    """Curves: (training loss, test loss, test accuracy) of each epoch."""
    images, labels, test_images, test_labels = data
    ringd.broadcast_parameters(model.state_dict(), root_rank=0)  # [3]
    optimizer = ringd.DistributedOptimizer(  # [4]
        torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9, weight_decay=1e-3),
        named_parameters=model.named_parameters(),
        op=ringd.Sum,
    )
    steps = options.epochs * -(-len(labels) // options.batch)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    shuffle = torch.Generator().manual_seed(SEED)
    curves = []
    progress = tqdm(total=steps, desc="training", unit="step", disable=ringd.rank() != 0)
    for _ in range(options.epochs):
        for batch in torch.randperm(len(labels), generator=shuffle).split(options.batch):
            mine = shard(batch)
            optimizer.zero_grad()
            # Summed over ranks, these losses are the mean over the batch, however it is shared out.
            loss = F.cross_entropy(model(images[mine]), labels[mine], reduction="sum") / len(batch)
            loss.backward()
            optimizer.step()
            scheduler.step()
            progress.update()
        train_loss, _ = evaluate(model, images, labels)
        test_loss, accuracy = evaluate(model, test_images, test_labels)
        curves.append((train_loss, test_loss, accuracy))
        progress.set_postfix(loss=f"{train_loss:.4f}", accuracy=f"{accuracy:.2%}")
    progress.close()
    return curves


def write_plot(path: str, curves: list[tuple[float, float, float]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    epochs = range(1, len(curves) + 1)
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    left.plot(epochs, [c[0] for c in curves], label="training")
    left.plot(epochs, [c[1] for c in curves], label="test")
    left.set(title="loss", xlabel="epoch", yscale="log")
    left.legend()
    right.plot(epochs, [100 * c[2] for c in curves], color="tab:green")
    right.set(title="test accuracy, %", xlabel="epoch")
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.suptitle(f"handwritten digits, {ringd.size()} ranks")
    figure.savefig(path, dpi=120)


def digest_of(model: nn.Module) -> str:
    """A hash of the bits of all parameters."""
    digest = hashlib.sha256()
    for parameter in model.state_dict().values():
        digest.update(parameter.numpy().tobytes())
    return digest.hexdigest()[:16]


def main() -> None:
    options = parse_options()
    ringd.init(standalone=options.standalone)  # [5]
    torch.manual_seed(SEED)
    torch.set_num_threads(1)  # The model is too small to gain from more.
    model = make_model()
    curves = train(model, load_data(), options)

    digests = ringd.allgather_object(digest_of(model))
    if len(set(digests)) != 1:
        raise SystemExit(f"the ranks have different parameters: {digests}")
    if ringd.rank() == 0:
        train_loss, test_loss, accuracy = curves[-1]
        print(f"loss {train_loss:.4f}, test loss {test_loss:.4f}, test accuracy {accuracy:.2%}")
        print(f"parameters {digests[0]}: the same bits on all {ringd.size()} ranks")
        if options.plot:
            write_plot(options.plot, curves)
            print(f"curves in {options.plot}")
        if options.save_parameters:
            torch.save(model.state_dict(), options.save_parameters)
    ringd.shutdown()


if __name__ == "__main__":
    main()
