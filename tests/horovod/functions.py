"""Functions that horovod_test.py gives to `horovod.run`."""

import os

import horovod.torch as hvd
import torch


def total(first, second=0):
    """This rank's number, and the sum of all ranks' `first + second + rank`."""
    hvd.init()
    value = hvd.allreduce(torch.tensor([first + second + hvd.rank()]), op=hvd.Sum)
    return hvd.rank(), value.item(), os.environ.get("HOROVOD_CYCLE_TIME")


def fail_on_one():
    """Rank 1 raises; others wait for it."""
    hvd.init()
    if hvd.rank() == 1:
        raise KeyError("a rank's own trouble")
    hvd.barrier()
