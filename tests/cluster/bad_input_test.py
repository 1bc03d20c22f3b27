"""What ringctl, daemon and scheduler do with bad input: of users, and of hostile programs."""

import random
import re
import socket
import subprocess
import time

import pytest

from tests.support.jobs import (
    RINGCTL,
    LocalCluster,
    descriptors_of,
    memory_of,
    wait_until,
)

pytestmark = pytest.mark.skipif(RINGCTL is None, reason="no ringctl: run deploy/setup.sh")

SECONDS = 5  # "Within a second", on a machine that has other things to do.


RUN = ["run", "-n", "2"]
TRUE = ["--", "true"]
BAD = [
    (["frobnicate"], "unknown command 'frobnicate'"),
    (["run"], "no COMMAND"),
    (["run", "-n", "0", *TRUE], "-n: '0' is no whole number"),
    (["run", "-n", "-3", *TRUE], "-n: '-3' is no whole number"),
    (["run", "-n", "100000", *TRUE], "-n 100000: one machine takes at most 4096 ranks"),
    (["run", "-n", "3", "--nodes", "2", "--ranks-per-node", "2", *TRUE], "-n 3 is not --nodes 2"),
    (["run", "--nodes", "2", *TRUE], "ringctl local up --nodes 2"),
    (["run", "--frob", *TRUE], "unknown option '--frob'"),
    ([*RUN, "--hosts", "", *TRUE], "--hosts: is empty"),
    ([*RUN, "--hosts", "a:x", *TRUE], "'x' is no count of slots"),
    ([*RUN, "--hosts", "a:1,a:1", *TRUE], "node a is there twice"),
    ([*RUN, "--hosts", "nowhere:2", *TRUE], "unknown node nowhere"),
    ([*RUN, "--hostfile", "/nonexistent", *TRUE], "--hostfile /nonexistent: can't read"),
    ([*RUN, "--grace", "5 parsecs", *TRUE], "--grace '5 parsecs' is no duration"),
    ([*RUN, "--deadline", "-3s", *TRUE], "--deadline '-3s' is no duration"),
    ([*RUN, "--env", "=x", *TRUE], "--env '=x' has no name"),
    ([*RUN, "--min", "3", *TRUE], "must not decrease"),
    ([*RUN, "--cwd", "/nonexistent", *TRUE], "/nonexistent: no such directory (--cwd)"),
    ([*RUN, "--cwd", "/etc/passwd", *TRUE], "/etc/passwd: not a directory (--cwd)"),
    ([*RUN, "--output-dir", "/proc/x", *TRUE], "--output-dir must name a writable folder"),
    ([*RUN, "--output-dir", "/etc/passwd/x", *TRUE], "/etc/passwd/x: Not a directory"),
    ([*RUN, "--", "python3", "missing.py"], r"node \S+: missing.py: no such file"),
    ([*RUN, "--", "./no-python", "x.py"], r"node \S+: ./no-python: no such program"),
    ([*RUN, "--", "/etc/passwd"], r"node \S+: /etc/passwd: not an executable file"),
    (["list"], "'list' needs a scheduler"),
    (["--scheduler", "nonsense", "list"], "'nonsense' is no address"),
    (["--scheduler", "unix:/nonexistent", *RUN, *TRUE], "no scheduler answers at unix:/nonexist"),
    (["--scheduler", "127.0.0.1:1", "submit", *TRUE], "no scheduler answers at 127.0.0.1:1"),
    (["--config", "bad.toml", *RUN, *TRUE], "bad.toml: unknown key 'slotz'"),
    (["--config", "missing.toml", "version"], "missing.toml: can't read"),
    (["local", "up", "--nodes", "0"], "--nodes: '0' is no whole number"),
    (["local", "down", "--dir", "/nonexistent"], "no cluster in /nonexistent"),
]


@pytest.mark.parametrize(("words", "message"), BAD, ids=[" ".join(w) for w, _ in BAD])
def test_bad_input_is_refused_at_once(home, words, message):
    (home.path / "bad.toml").write_text("slotz = 3\n")
    started = time.monotonic()
    result = home.ringctl(*words, mark=False)
    assert time.monotonic() - started < SECONDS
    assert result.returncode == 2, result.stderr
    assert message in result.stderr or re.search(message, result.stderr), result.stderr
    home.assert_clean(2)


@pytest.fixture
def cluster(home):
    home.env["RINGD_ARENA_BYTES"] = "16MB"
    cluster = LocalCluster(home, nodes=2, slots=3)
    yield cluster
    cluster.down()


def test_a_cluster_refuses_what_it_cannot_run(cluster, home):
    for words, message in [
        (["-n", "7", *TRUE], "7 slots"),
        (["--hosts", "c:1", *TRUE], "unknown node c"),
        (["-n", "2", "--hosts", "a:0,b:2", "--", "./no"], r"node b: ./no: no such program"),
        (["-n", "2", "--hosts", "a:9", *TRUE], "asks for 9 slots of node a, which has 3"),
    ]:
        result = home.ringctl("run", *words)
        assert result.returncode == 2, (words, result.stderr)
        assert message in result.stderr or re.search(message, result.stderr), result.stderr
    again = home.ringctl("local", "up", "--nodes", 2, "--dir", cluster.dir)
    assert again.returncode == 2 and str(cluster.dir) in again.stderr
    for verb in ("describe", "wait", "logs", "cancel"):
        unknown = home.ringctl(verb, "j-77")
        assert unknown.returncode == 2 and "j-77" in unknown.stderr, (verb, unknown)
    job = cluster.submit("--", "no-such-program")
    assert home.ringctl("wait", job).returncode != 0
    assert "no-such-program: no such program" in cluster.describe(job)["reason"]


# --- Hostile programs.

HOSTILE = """
import ctypes, os, random, struct, sys, time
import numpy as np, ringd

HEAD, POISON, QUEUE, PLACES = 128, 388, 4096, 65536
mode, seed = sys.argv[1], int(sys.argv[2])
random.seed(seed)
ringd.init()
ringd.allreduce(np.ones(4096))  # Large enough to be a descriptor.
for line in open("/proc/self/maps"):
    if "memfd:ringd-arena" in line:
        base, end = (int(x, 16) for x in line.split()[0].split("-"))
        break

def word(at, kind):
    return struct.unpack(kind, ctypes.string_at(base + at, struct.calcsize(kind)))[0]

def put(at, data):
    ctypes.memmove(base + at, data, len(data))

def publish(descriptors):
    put(QUEUE + 128 * (word(HEAD, "Q") % PLACES), descriptors)
    put(HEAD, struct.pack("Q", word(HEAD, "Q") + len(descriptors) // 128))

def ring():
    for fd in os.listdir("/proc/self/fd"):
        try:
            if "eventfd" in os.readlink("/proc/self/fd/" + fd):
                os.write(int(fd), struct.pack("Q", 1))
        except OSError:
            pass

head = word(HEAD, "Q")
descriptor = bytearray(ctypes.string_at(base + QUEUE + 128 * (head - 1), 128))
struct.pack_into("I", descriptor, 12, word(QUEUE + 128 * PLACES +
                                          16 * struct.unpack_from("I", descriptor, 8)[0], "I") + 1)
struct.pack_into("Q", descriptor, 24, head + 1)
for at in (96, 108):  # No number of its own: the daemon counts.
    struct.pack_into("I", descriptor, at, 0)
if mode == "random":
    publish(random.randbytes(128))
elif mode == "flood":
    publish(random.randbytes(128 * 1000))
elif mode == "head":
    put(HEAD, struct.pack("Q", random.choice([0, 2**63, 2**64 - 1, head + PLACES + 1])))
elif mode == "offset":
    struct.pack_into("Q", descriptor, 32, random.choice([2**48 - 8, 2**63, 1, end - base - 8]))
    publish(bytes(descriptor))
elif mode == "count":
    struct.pack_into("Q", descriptor, 48, random.choice([2**61, 2**64 - 1, 2**40]))
    publish(bytes(descriptor))
elif mode == "meta":
    struct.pack_into("QI", descriptor, 64, random.choice([0, 2**63, QUEUE]), 2**26)
    publish(bytes(descriptor))
elif mode == "slot":
    struct.pack_into("I", descriptor, 8, PLACES + random.randrange(PLACES))
    publish(bytes(descriptor))
ring()
stop = time.monotonic() + 5
while not word(POISON, "I"):
    assert time.monotonic() < stop, "not cut off"
    time.sleep(0.01)
try:
    ringd.allreduce(np.ones(4))
except ringd.RingdError as error:
    print("told:", error, flush=True)
    os._exit(9)
"""

VICTIM = """
import sys, time
import numpy as np, ringd
ringd.init()
print("going", flush=True)
end = time.monotonic() + float(sys.argv[1])
step = done = 0
while not done:
    step += 1
    x = ringd.allreduce(np.full(5000, step), op=ringd.Sum)
    assert (x == step * ringd.size()).all()
    done = ringd.allreduce(np.array([time.monotonic() > end]), op=ringd.Max)[0]
print("right", flush=True)
"""


def start_victim(home, seconds):
    job = home.start("run", "-n", 4, "--nodes", 2, *home.script(VICTIM, "victim.py"), seconds)
    job.await_text("going", times=4)
    return job


def daemon_of(cluster):
    return cluster.nodes()["a"]["daemon_pid"]


def test_rubbish_in_an_arena_harms_its_writer_only(cluster, home):
    script = home.script(HOSTILE, "hostile.py")
    victim = start_victim(home, 8)
    daemon = daemon_of(cluster)
    memory, descriptors = memory_of(daemon), descriptors_of(daemon)
    for mode in ("random", "flood", "head", "offset", "count", "meta", "slot"):
        result = home.ringctl("run", "--hosts", "a:3", *script, mode, 1)
        assert result.returncode == 9, (mode, result)
        assert "told: the daemon has cut this process off" in result.stdout
        assert "its client was dropped" in result.stderr
    assert victim.end(25) == 0, victim.stderr
    assert victim.stdout.count("right") == 4
    assert daemon_of(cluster) == daemon
    assert memory_of(daemon) < memory + (16 << 20)
    wait_until(lambda: descriptors_of(daemon) <= descriptors, 10, "its descriptors are closed")


def send_packets(path, descriptors):
    """Rubbish on a SOCK_SEQPACKET socket."""
    packets = [
        random.randbytes(30),
        random.randbytes(100_000),
        bytes(64),
        b"",
        *(bytes([kind, 0, 0, 0, 1, 0, 0, 0]) + random.randbytes(56) for kind in range(24)),
    ]
    for number, packet in enumerate(packets):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.settimeout(0.05)
            try:
                sock.connect(path)
                if number % 2:
                    socket.send_fds(sock, [packet], descriptors)
                else:
                    sock.send(packet)
                sock.recv(4096)
            except OSError:
                pass


def send_bytes(address):
    """Rubbish on a stream socket."""
    family = socket.AF_INET if isinstance(address, tuple) else socket.AF_UNIX
    for data in (
        random.randbytes(5000),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + random.randbytes(500),
        b"\x16\x03\x01" + random.randbytes(300),
        bytes(1 << 20),
        b"GET / HTTP/1.1\r\n\r\n",
    ):
        with socket.socket(family) as sock:
            sock.settimeout(0.05)
            try:
                sock.connect(address)
                sock.sendall(data)
                sock.recv(4096)
            except OSError:
                pass


def addresses_of(cluster):
    """TCP ports of scheduler and daemons."""
    listening = subprocess.run(
        ["ps", "-ww", "-eo", "args"], capture_output=True, text=True, check=True
    ).stdout
    ours = [line for line in listening.splitlines() if str(cluster.dir) in line]
    ports = re.findall(r"--(?:listen|data-address) 127\.0\.0\.1:(\d+)", "\n".join(ours))
    return [("127.0.0.1", int(port)) for port in ports]


def test_rubbish_on_the_sockets_harms_nobody(cluster, home):
    victim = start_victim(home, 12)
    daemon = daemon_of(cluster)
    memory, descriptors = memory_of(daemon), descriptors_of(daemon)
    run = cluster.dir / "a/r"
    with open("/dev/null") as null:
        flood = [null.fileno()] * 200
        for path in [run / "arena.sock", *run.glob("w/*/*.sock")]:
            send_packets(str(path), flood)
    streams = [str(run / "ringd.sock"), str(cluster.dir / "s.sock"), *addresses_of(cluster)]
    assert len(streams) == 5
    for address in streams:
        send_bytes(address)
    held = []
    for address in streams:  # And now those that say nothing.
        for _ in range(40):
            family = socket.AF_INET if isinstance(address, tuple) else socket.AF_UNIX
            held.append(socket.socket(family))
            held[-1].settimeout(0.2)
            held[-1].connect_ex(address)
    assert home.ringctl("run", "-n", 2, "--nodes", 2, *home.script(VICTIM), 0).returncode == 0
    for sock in held:
        sock.close()
    assert victim.end(30) == 0, victim.stderr
    assert victim.stdout.count("right") == 4
    assert memory_of(daemon) < memory + (16 << 20)
    wait_until(lambda: descriptors_of(daemon) <= descriptors, 10, "its descriptors are closed")


INTRUDER = """
import os, socket, struct
home = os.environ["RINGD_SOCKET"]
def ask(path, packet):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(5)
        sock.connect(path)
        sock.send(packet)
        return sock.recv(4096)
# A client of another version is told so by both numbers.
answer = ask(home, struct.pack("6I", 16, 7, 2, 1, os.getpid(), 0))
print("version:", answer[16:].split(b"\\0")[0].decode())
answer = ask(home, struct.pack("6I", 16, 2, 99, 1, os.getpid(), 0))
print("layout:", answer[16:].split(b"\\0")[0].decode())
# An arena offered with a session that nobody was given.
arena = os.path.join(os.path.dirname(home), "../../arena.sock")
memory = os.memfd_create("x", os.MFD_ALLOW_SEALING)
os.ftruncate(memory, 16 << 20)
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
    sock.settimeout(5)
    sock.connect(arena)
    packet = struct.pack("2I", 1, 2) + bytes(range(32)) + struct.pack("QIIQ", 1, 0, 0, 16 << 20)
    socket.send_fds(sock, [packet], [memory])
    answer = sock.recv(4096)
    print("session:", answer[:4], answer[16:].split(b"\\0")[0].decode(), "fds none")
"""


def test_strangers_are_refused_by_worker_and_daemon(home):
    result = home.ringctl("run", "-n", 1, *home.script(INTRUDER))
    assert result.returncode == 0, result.stderr
    assert re.search(r"version: .*7", result.stdout), result.stdout
    assert re.search(r"layout: .*99", result.stdout), result.stdout
    assert re.search(r"session: .*session", result.stdout), result.stdout
    home.assert_clean()
