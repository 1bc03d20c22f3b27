"""Ctrl-C while rank 0 waits for rank 1: KeyboardInterrupt at once, and waiting costs nothing."""

import os
import signal
import threading
import time

import horovod.torch as hvd
import torch

hvd.init()
hvd.allreduce(torch.ones(1))
if hvd.rank() == 1:
    time.sleep(6)
    hvd.allreduce(torch.ones(1), name="late", op=hvd.Sum)
else:
    handle = hvd.allreduce_async(torch.ones(1), name="late", op=hvd.Sum)
    threading.Timer(2, os.kill, (os.getpid(), signal.SIGINT)).start()
    begin, used = time.monotonic(), time.process_time()
    try:
        hvd.synchronize(handle)
    except KeyboardInterrupt:
        waited, used = time.monotonic() - begin, time.process_time() - used
        print(f"interrupted: waited {waited:.1f} used {used:.2f}")
    print(f"goes on: {hvd.synchronize(handle).item()}")
