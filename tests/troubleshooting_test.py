"""docs/troubleshooting.md: the messages in it are those of the code."""

import functools
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/troubleshooting.md"
ROOMS = ["client", "common", "daemon", "proto", "scheduler", "worker"]


def messages():
    """The code in the first column of the page's tables; two backticks stand for one in it."""
    for row in re.findall(r"^\| (`.*?) \|", PAGE.read_text(), re.MULTILINE):
        for message in re.findall(r"`((?:[^`]|``)+)`", row):
            yield message.replace("``", "`")


@functools.cache
def texts():
    """What the sources say, pieces of one literal joined."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *ROOMS]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    found = []
    for name in names.splitlines():
        is_test = name.endswith(("_test.cc", "_test.py")) or "/tests/" in name
        if name.endswith((".cc", ".h", ".py")) and not is_test:
            source = (ROOT / name).read_text()
            found.append(re.sub(r'(?<!\\)"\s*f?"', "", source).replace('\\"', '"'))
    return "\n".join(found)


def test_page_has_messages():
    assert len(list(messages())) > 60


@pytest.mark.parametrize("message", list(messages()))
def test_message_is_in_the_code(message):
    pieces = [piece.strip() for piece in message.split("...")]
    assert all(piece in texts() for piece in pieces), pieces
    assert max(map(len, pieces)) >= 8, "too short to be told from others"
