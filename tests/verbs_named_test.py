"""Every `ringctl WORD` that an error text or a page names exists."""

import functools
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
RINGCTL = ROOT / ".venv/bin/ringctl"
GROUPS = ["certs", "config", "local"]
# Words that follow "ringctl" in sentences about it.
PROSE = {"and", "begins", "ended", "has", "is", "proves"}


@functools.cache
def named():
    """{verb: a file that names it}."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    found = {}
    for name in names.splitlines():
        is_text = name.endswith((".cc", ".h", ".py", ".md", ".toml", ".sh", ".proto"))
        if not is_text or name.startswith(("third_party/", "tests/")) or "_test." in name:
            continue
        source = (ROOT / name).read_text()
        # Literals that continue, and comments and prose over two lines.
        source = re.sub(r'(?<!\\)"\s*\n\s*f?"', "", source)
        for match in re.finditer(
            r"""(?:[`'"(]|\w: |eval "\$\()ringctl ([a-z]+)(?: ([a-z]+))?""", source
        ):
            verb, inner = match.groups()
            words = (verb, inner) if verb in GROUPS and inner else (verb,)
            if verb not in PROSE:
                found.setdefault(words, name)
    return found


def test_texts_name_commands():
    assert {("run",), ("submit",), ("certs", "init"), ("local", "up")} <= set(named())
    assert len(named()) > 12


@pytest.mark.parametrize("words", sorted(named()), ids=" ".join)
def test_named_command_exists(words):
    result = subprocess.run(
        [RINGCTL, *words, "--help"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, f"{named()[words]}: {result.stderr}"
