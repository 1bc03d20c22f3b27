"""Trains on scikit-learn's digits as a user of Horovod writes it: nothing of ringd is named."""

import argparse
import os

import horovod.torch as hvd
import torch
import torch.nn.functional as F  # noqa: N812
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--warmup-epochs", type=float, default=1)
parser.add_argument("--base-lr", type=float, default=0.05)
parser.add_argument("--batches-per-allreduce", type=int, default=1)
parser.add_argument("--clip", type=float, default=0, help="norm of gradients")
parser.add_argument("--fp16-allreduce", action="store_true")
parser.add_argument("--checkpoint", default="")
parser.add_argument("--workers", type=int, default=1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, kernel_size=3, padding=1)
        self.fc1 = nn.Linear(8 * 16, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv(x), 2)).flatten(1)
        return F.log_softmax(self.fc2(F.relu(self.fc1(x))), dim=1)


def load(args):
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    dataset = TensorDataset(images, torch.tensor(digits.target))
    train, test = dataset[:1440], dataset[1440:]
    loaders = []
    for part in (train, test):
        data = TensorDataset(*part)
        sampler = DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.rank())
        loader = DataLoader(
            data, batch_size=args.batch_size, sampler=sampler, num_workers=args.workers
        )
        loaders.append((loader, sampler))
    return loaders


class Metric:
    """A mean over all ranks."""

    def __init__(self, name):
        self.name = name
        self.sum = torch.tensor(0.0)
        self.n = torch.tensor(0.0)

    def update(self, value):
        self.sum += hvd.allreduce(value.detach().cpu(), name=self.name)
        self.n += 1

    @property
    def avg(self):
        return (self.sum / self.n).item()


def adjust_learning_rate(optimizer, args, epoch, batch, batches):
    """From the rate of one rank to that of all of them."""
    progress = epoch + (batch + 1) / batches
    factor = hvd.size() * args.batches_per_allreduce
    if progress < args.warmup_epochs:
        factor = 1 + progress * (factor - 1) / args.warmup_epochs
    for group in optimizer.param_groups:
        group["lr"] = args.base_lr * factor


def train(model, optimizer, loader, sampler, epoch, args):
    model.train()
    sampler.set_epoch(epoch)
    loss_metric = Metric("train_loss")
    for i, (data, target) in enumerate(loader):
        adjust_learning_rate(optimizer, args, epoch, i, len(loader))
        optimizer.zero_grad()
        pieces = list(
            zip(
                data.chunk(args.batches_per_allreduce),
                target.chunk(args.batches_per_allreduce),
                strict=True,
            )
        )
        for piece, labels in pieces:
            loss = F.nll_loss(model(piece), labels) / len(pieces)
            loss.backward()
        if args.clip:
            optimizer.synchronize()
            nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
        loss_metric.update(loss)
    return loss_metric.avg


def test(model, loader):
    model.eval()
    accuracy = Metric("accuracy")
    with torch.no_grad():
        for data, target in loader:
            accuracy.update((model(data).argmax(1) == target).float().mean())
    return accuracy.avg


def main():
    args = parser.parse_args()
    hvd.init()
    torch.manual_seed(42 + hvd.rank())  # Ranks differ before the broadcast.
    torch.set_num_threads(1)
    (train_loader, train_sampler), (test_loader, _) = load(args)

    model = Net()
    optimizer = optim.SGD(model.parameters(), lr=args.base_lr, momentum=0.9, weight_decay=5e-5)
    start = 0
    if args.checkpoint and hvd.rank() == 0 and os.path.exists(args.checkpoint):
        saved = torch.load(args.checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        start = saved["epoch"] + 1
    start = hvd.broadcast(torch.tensor(start), root_rank=0, name="start").item()
    options = {"compression": hvd.Compression.fp16} if args.fp16_allreduce else {}
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        backward_passes_per_step=args.batches_per_allreduce,
        op=hvd.Average,
        **options,
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    for epoch in range(start, args.epochs):
        loss = train(model, optimizer, train_loader, train_sampler, epoch, args)
        accuracy = test(model, test_loader)
        if hvd.rank() == 0:
            print(f"epoch {epoch}: loss {loss:.4f} accuracy {accuracy:.2%}", flush=True)
            if args.checkpoint:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save({**state, "epoch": epoch}, args.checkpoint)

    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    spread = hvd.allreduce(weights, op=hvd.Max) - hvd.allreduce(weights, op=hvd.Min)
    print(f"rank {hvd.rank()}: spread {spread.abs().max().item()}")


if __name__ == "__main__":
    main()
