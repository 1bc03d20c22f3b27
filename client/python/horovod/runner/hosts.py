"""Lists of hosts, as Horovod has them, for ringctl."""

from __future__ import annotations

from collections.abc import Sequence

LOCAL = ("localhost", "127.0.0.1", "::1")


def parse_hosts(text: str, slots_per_host: int | None = None) -> list[tuple[str, int | None]]:
    """Pairs of name and slots of `a:2,b:2`; None: as many as the node has.

    Raises:
        ValueError: slots are no number.
    """
    return [
        _host(*word.strip().partition(":")[::2], slots_per_host, f"--hosts {text}")
        for word in text.split(",")
    ]


def read_hostfile(path: str, slots_per_host: int | None = None) -> list[tuple[str, int | None]]:
    """The same of a file with a host a line, `a slots=2`. Blank lines and comments are skipped.

    Raises:
        ValueError: the file can't be read, names no host, or has a line of another form.
    """
    try:
        with open(path) as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--hostfile {path}: {error}") from None
    hosts = []
    for number, line in enumerate(lines, 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        place = f"--hostfile {path}:{number}"
        if len(words) > 2 or (len(words) == 2 and not words[1].startswith("slots=")):
            raise ValueError(f"{place}: a line is HOST or HOST slots=N, not '{line.strip()}'")
        name, _, slots = words[0].partition(":")
        slots = words[1].removeprefix("slots=") if len(words) == 2 else slots
        hosts.append(_host(name, slots, slots_per_host, place))
    if not hosts:
        raise ValueError(f"--hostfile {path}: it names no host")
    return hosts


def _host(name: str, slots: str, slots_per_host: int | None, place: str) -> tuple[str, int | None]:
    if not name:
        raise ValueError(f"{place}: a host has no name")
    if not slots:
        return name, slots_per_host
    if not slots.isdecimal():
        raise ValueError(f"{place}: '{slots}' is no number of slots")
    return name, int(slots)


def fill(hosts: Sequence[tuple[str, int | None]], ranks: int, here: str | None) -> str:
    """`a:2,b:1`: host by host in this order, no more slots than there are ranks.

    Args:
        here: the name of this machine instead of localhost; None: leave it.
    """
    words = []
    left = ranks
    for name, slots in hosts:
        known = here if here is not None and name in LOCAL else name
        if slots is None:
            words.append(known)
            continue
        taken = min(slots, left)
        left -= taken
        words.append(f"{known}:{taken}")
    return ",".join(words)
