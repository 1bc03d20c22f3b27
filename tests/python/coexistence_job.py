"""One rank of coexistence_test.py: imports in the order given, then all of them at work in turns.

coexistence_job.py ORDER_OF_RANK_0 ORDER_OF_RANK_1     module,module,...
"""

import importlib
import os
import subprocess
import sys
import threading
from concurrent import futures

RANK = int(os.environ["RINGD_RANK"])
os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="", JAX_PLATFORMS="cpu")
ORDER = sys.argv[1 + RANK].split(",")
LOADED = {name: importlib.import_module(name) for name in ORDER}

import numpy as np  # noqa: E402
import ringd  # noqa: E402


class Echo:
    """A gRPC server in this process, and a channel to it that stays open."""

    def __init__(self, grpc):
        handler = grpc.unary_unary_rpc_method_handler(lambda request, _: request[::-1])
        methods = grpc.method_handlers_generic_handler("test.Echo", {"Reverse": handler})
        self._server = grpc.server(futures.ThreadPoolExecutor(2), handlers=(methods,))
        port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        self._reverse = self._channel.unary_unary("/test.Echo/Reverse")

    def check(self):
        assert self._reverse(b"ring", timeout=20) == b"gnir"

    def close(self):
        self._channel.close()
        self._server.stop(0).wait()


def check_tensorflow(tf):
    matrix = tf.constant([[1.0, 2.0], [3.0, 4.0]])
    double = tf.function(lambda x: tf.linalg.matmul(x, x))
    assert double(matrix).numpy().tolist() == [[7.0, 10.0], [15.0, 22.0]]


def check_jax(jax):
    slope = jax.jit(jax.grad(lambda x: x * x * x))
    assert float(slope(2.0)) == 12.0


def check_torch(torch):
    x = torch.tensor([3.0], requires_grad=True)
    (x * x).backward()
    assert x.grad.item() == 6.0


def check_frameworks(echo):
    for name, check in [
        ("tensorflow", check_tensorflow),
        ("jax", check_jax),
        ("torch", check_torch),
    ]:
        if name in LOADED:
            check(LOADED[name])
    if echo is not None:
        echo.check()


def check_ringd(step):
    values = np.arange(5000, dtype=np.float32) * (ringd.rank() + step)
    total = ringd.allreduce(values, op=ringd.Sum)
    np.testing.assert_array_equal(total, np.arange(5000, dtype=np.float32) * (2 * step + 1))
    if "ringd.torch" in sys.modules:
        torch = sys.modules["torch"]
        tensor = torch.full((1000,), float(ringd.rank() + 1), requires_grad=False)
        result = sys.modules["ringd.torch"].allreduce(tensor, op=ringd.Sum)
        assert torch.equal(result, torch.full((1000,), 3.0))


def check_fork():
    """A program started, and a plain fork whose child ends without a word to anyone."""
    run = subprocess.run(["echo", "x"], capture_output=True, check=True)
    assert run.stdout == b"x\n"
    pid = os.fork()
    if pid == 0:
        try:
            ringd.allreduce(np.ones(1))
        except ringd.RingdError as error:
            os._exit(0 if "fork" in str(error) else 3)
        os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def check_threads():
    """Frameworks at work while the ring is."""
    failed = []

    def work():
        try:
            check_frameworks(None)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    for step in range(20):
        check_ringd(step)
    thread.join()
    assert not failed, failed


def main():
    echo = Echo(LOADED["grpc"]) if "grpc" in LOADED else None
    check_frameworks(echo)
    ringd.init()
    check_ringd(1)
    check_frameworks(echo)
    check_fork()
    check_ringd(2)
    check_frameworks(echo)
    check_threads()
    check_fork()
    ringd.shutdown()
    check_frameworks(echo)
    ringd.init()
    check_ringd(3)
    ringd.shutdown()
    if echo is not None:
        echo.close()
    print("all at peace after", ",".join(ORDER))


main()
