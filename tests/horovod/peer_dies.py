"""A rank dies in training; the others get HorovodInternalError wherever they are."""

import os
import signal
import sys
import time

import horovod.torch as hvd
import torch
from horovod.common.exceptions import HorovodInternalError

hvd.init()
model = torch.nn.Linear(3, 1)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
)
try:
    for step in range(10):
        if step == 3 and hvd.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if sys.argv[1] == "operation":
            hvd.allreduce(torch.ones(2), name=f"step.{step}")
        elif sys.argv[1] == "hook" and step == 3:
            time.sleep(2)  # The peer is dead when backward's hooks start the reduction.
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
except HorovodInternalError as error:
    print(f"caught at step {step}: {error}", flush=True)
    sys.exit(5)
