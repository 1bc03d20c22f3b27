"""Accelerate, Lightning and the Trainer of Transformers on a torch.distributed backend.

    ringctl run -n 2 -- python tests/torch_distributed/trainers.py accelerate ringd
    torchrun --nproc-per-node 2 tests/torch_distributed/trainers.py accelerate gloo

The last line of a rank is "parameters: SUM", of what it has trained.
"""

import argparse
import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset


def rows():
    x = torch.arange(64.0).reshape(16, 4) / 64
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4)


def by_accelerate(backend):
    from accelerate import Accelerator

    dist.init_process_group(backend)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    accelerator = Accelerator(cpu=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, rows())
    for _ in range(10):
        for x, y in loader:
            optimizer.zero_grad()
            accelerator.backward(((model(x) - y) ** 2).mean())
            optimizer.step()
    ranks = accelerator.gather(torch.tensor([accelerator.process_index]))
    assert ranks.tolist() == list(range(dist.get_world_size())), ranks
    return model


def by_lightning(backend):
    import lightning
    from lightning.pytorch.strategies import DDPStrategy

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def training_step(self, batch, _):
            x, y = batch
            return ((self.layer(x) - y) ** 2).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    module = Module()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy=DDPStrategy(process_group_backend=backend),
        max_epochs=5,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, rows())
    return module


class Sentences(Dataset):
    """Random words; the first one tells the label."""

    def __len__(self):
        return 64

    def __getitem__(self, i):
        words = torch.randint(5, 50, (8,), generator=torch.Generator().manual_seed(i))
        words[0] = i % 2 + 1
        return {
            "input_ids": words,
            "attention_mask": torch.ones(8, dtype=torch.long),
            "labels": torch.tensor(i % 2),
        }


def by_transformers(backend):
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    dist.init_process_group(backend)
    config = BertConfig(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=16,
        num_labels=2,
    )
    model = BertForSequenceClassification(config)
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        num_train_epochs=4,
        per_device_train_batch_size=4,
        learning_rate=5e-3,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    trainer = Trainer(model, arguments, train_dataset=Sentences(), eval_dataset=Sentences())
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < 0.1
    return model


WAYS = {"accelerate": by_accelerate, "lightning": by_lightning, "transformers": by_transformers}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("backend")
    options = parser.parse_args()
    torch.manual_seed(0)
    model = WAYS[options.way](options.backend)
    assert dist.get_backend() == options.backend, dist.get_backend()
    total = sum(float(p.detach().double().sum()) for p in model.parameters())
    print(f"parameters: {total:.9f}", flush=True)


if __name__ == "__main__":
    main()
