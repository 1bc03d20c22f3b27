"""An MPI that takes 2 microseconds for everything: mpirun, mpicc and a rank of it in one file.

Tests put copies of it on PATH under these names, with a Python's path in the first line.
"""

import os
import shutil
import socket
import subprocess
import sys


def compile_rank(words):
    shutil.copy(sys.argv[0], words[words.index("-o") + 1])


def launch(words):
    if "--version" in words:
        print("mpirun (Open MPI) 0")
        return 0
    count, command = int(words[1]), words[2:]
    ranks = [
        subprocess.Popen(command, env={**os.environ, "FAKE_RANK": str(rank)})
        for rank in range(count)
    ]
    return max(rank.wait() for rank in ranks)


def serve(folder):
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(os.path.join(folder, os.environ["FAKE_RANK"]))
        for request in line.makefile():
            operation, items, dtype, calls, fresh = request.split()
            assert (operation, items, dtype, fresh) == ("allreduce", "256", "float32", "0")
            line.sendall(b"2000 " * int(calls) + b"\n")


if __name__ == "__main__":
    name = os.path.basename(sys.argv[0])
    if name == "mpicc":
        compile_rank(sys.argv)
    elif name == "mpirun":
        sys.exit(launch(sys.argv[1:]))
    else:
        serve(sys.argv[1])
