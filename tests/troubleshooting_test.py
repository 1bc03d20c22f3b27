"""docs/troubleshooting.md: its messages are those of the code, and those of the code are in it."""

import functools
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/troubleshooting.md"
ROOMS = ["client", "common", "daemon", "proto", "scheduler", "worker"]
# Where a message begins: what C++ and Python call to make an error, or to say something.
CALL = re.compile(
    r"(absl::\w+Error|\b(?:FailFormat|Fail|Invalid|Complain|Refuse|Unavailable|Say)|raise \w+"
    r"|warnings\.warn|set_reason)\("
)
# What a daemon or the scheduler says of an operation, a rank or a job.
OUTCOME = re.compile(r"\b(message|reason|trouble|blame)_? = ")
TEST_SOURCES = re.compile(r"_test\.|/tests/|/testing/|/fuzz|fake_|fuzz/")
# (file, call, why its messages are no rows of the page)
EXCEPTIONS = [
    ("", "absl::InternalError", "a bug of ringd: the page says to report it"),
    ("", "absl::(Cancelled|Aborted)Error", "ends a call; users see the end of the job"),
    (
        "daemon/(collectives|engine/(names|groups|order|arena)|transport/(link|handshake|data_port))"
        "|daemon/transport/(event_loop|tcp.h)",
        "absl::",
        "what a damaged or foreign peer sent: the cause behind a rank's or node's name",
    ),
    (
        "daemon/(session/arena_server|engine/(job|engine_impl|segment))|client/session/",
        "absl::",
        "between worker and daemon: users see the worker's own message",
    ),
    (
        "daemon/(logs|server)|scheduler/(state/queue|server/core)|worker/(spec|client_server)"
        "|common/process",
        "",
        "a call that ringd's own programs make right",
    ),
    (
        "client/c/(arena_memory|standalone|plan|request|ringd|arena_client|arena_client_groups"
        "|arena_client_plans)\\.cc",
        "",
        "the C API names the argument; ringd's Python checks it before",
    ),
    ("client/cli/local/processes", "", "/proc and namespaces that ringctl made itself"),
    ("client/python/ringd/bench", "", "a row of `ringctl bench --peers` that can't be had"),
]


def messages():
    """The code in the first column of the page's tables; two backticks stand for one in it."""
    for row in re.findall(r"^\| (`.*?) \|", PAGE.read_text(), re.MULTILINE):
        for message in re.findall(r"`((?:[^`]|``)+)`", row):
            yield message.replace("``", "`")


def pieces_of(message):
    return [piece.strip() for piece in message.split("...")]


@functools.cache
def sources():
    """{file: its text, pieces of one literal joined}."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *ROOMS]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    found = {}
    for name in names.splitlines():
        if name.endswith((".cc", ".h", ".py")) and not TEST_SOURCES.search(name):
            source = (ROOT / name).read_text()
            found[name] = re.sub(r'(?<!\\)"\s*f?"', "", source)
    return found


@functools.cache
def texts():
    return "\n".join(sources().values()).replace('\\"', '"')


def until(end, source, start):
    """The text from `start` to `end`, a bracket or semicolon that belongs to what is before it."""
    depth, i, quoted = 0, start, False
    while i < len(source):
        if source[i] == "\\":
            i += 1
        elif source[i] == '"':
            quoted = not quoted
        elif not quoted and depth == 0 and source[i] == end:
            break
        elif not quoted:
            depth += {"(": 1, ")": -1}.get(source[i], 0)
        i += 1
    return source[start:i]


def spoken():
    """(file, call, text) of each message in the code; `...` between its literals."""
    for name, source in sources().items():
        found = [(match, ")") for match in CALL.finditer(source)]
        if name.endswith(".cc"):
            found += [(match, ";") for match in OUTCOME.finditer(source)]
        for match, end in found:
            literals = re.findall(r'"((?:[^"\\]|\\.)*)"', until(end, source, match.end()))
            # Less is a path and the system's words.
            if max((len(literal.strip()) for literal in literals), default=0) >= 8:
                text = " ... ".join(literals).replace('\\"', '"').replace("\\n", " ")
                yield name, match.group(1), text


def exceptions_of(name, call):
    return [why for file, kind, why in EXCEPTIONS if re.match(file, name) and re.match(kind, call)]


def test_every_message_of_the_code_is_on_the_page():
    told = [pieces_of(message) for message in messages()]
    missing = [
        f"{name}: {text}"
        for name, call, text in spoken()
        if not exceptions_of(name, call)
        and not any(all(piece in text for piece in pieces) for pieces in told)
    ]
    assert missing == [], "add rows to docs/troubleshooting.md:\n" + "\n".join(missing)


def test_exceptions_are_needed():
    used = {why for name, call, _ in spoken() for why in exceptions_of(name, call)}
    assert used == {why for _, _, why in EXCEPTIONS}


def test_page_and_code_have_messages():
    assert len(list(messages())) > 450
    assert len(list(spoken())) > 700


@pytest.mark.parametrize("message", dict.fromkeys(messages()))
def test_message_is_in_the_code(message):
    pieces = pieces_of(message)
    assert all(piece in texts() for piece in pieces), pieces
    assert max(map(len, pieces)) >= 8, "too short to be told from others"
