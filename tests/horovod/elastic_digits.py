"""An elastic script of Horovod's shape: state, commits, a sampler that knows what was processed."""

import horovod.torch as hvd
import torch
import torch.nn.functional as F  # noqa: N812
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 2
BATCH = 16

hvd.init()
torch.manual_seed(hvd.rank())
torch.set_num_threads(1)
digits = load_digits()
dataset = TensorDataset(torch.tensor(digits.data).float() / 16, torch.tensor(digits.target))
sampler = hvd.elastic.ElasticSampler(dataset)
loader = DataLoader(dataset, batch_size=BATCH, sampler=sampler)
model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
)
calls = []


@hvd.elastic.run
def train(state, *, message):
    calls.append(message)
    for state.epoch in range(state.epoch, EPOCHS):  # noqa: B020
        for state.batch, (data, target) in enumerate(loader, state.batch):  # noqa: B020
            optimizer.zero_grad()
            loss = F.cross_entropy(model(data), target)
            loss.backward()
            optimizer.step()
            state.sampler.record_batch(state.batch, BATCH)
            if state.batch % 20 == 0:
                state.commit()
        state.batch = 0
        state.sampler.set_epoch(state.epoch + 1)
        state.commit()
    return loss.item()


state = hvd.elastic.TorchState(
    model=model, optimizer=optimizer, sampler=sampler, epoch=0, batch=0, history=[hvd.rank()]
)
state.register_reset_callbacks([lambda: None])
loss = train(state, message="hello")
assert calls == ["hello"]
assert state.history == [0], "rank 0's, by state.sync()"

weight = model[0].weight.detach().clone()
state.history.append("lost")
with torch.no_grad():
    model[0].weight.zero_()
optimizer.param_groups[0]["lr"] = 77
state.restore()
assert state.history == [0] and torch.equal(model[0].weight, weight)
assert optimizer.param_groups[0]["lr"] == 0.1
spread = hvd.allreduce(weight, op=hvd.Max) - hvd.allreduce(weight, op=hvd.Min)
print(f"rank {hvd.rank()}: spread {spread.abs().max().item()} epoch {state.epoch} loss {loss:.3f}")
