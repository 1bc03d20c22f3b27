"""The man pages: every key, flag and verb of the programs stands in them."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "man"


def output(*words: str) -> str:
    command = [ROOT / ".venv" / "bin" / words[0], *words[1:]]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def words_of(page: str) -> set[str]:
    text = (PAGES / page).read_text().replace("\\-", "-")
    return set(re.findall(r"-{0,2}[a-zA-Z][\w-]*", text))


def section(program: str) -> set[str]:
    """The words of ringd.toml(5) about one program."""
    text = (PAGES / "ringd.toml.5").read_text()
    return set(re.findall(r"\w+", text.split(f".SH [{program}]\n")[1].split(".SH ")[0]))


@pytest.mark.parametrize("program", ["ringd", "ringd-scheduler"])
def test_toml_page_has_every_key_of_the_services(program: str) -> None:
    keys = {
        flag.replace("-", "_")
        for flag in re.findall(r"^  --([a-z-]+)", output(program, "--help"), re.MULTILINE)
    } - {"config", "version"}
    assert len(keys) > 5
    assert keys - section(program) == set()


def test_toml_page_has_every_key_of_ringctl() -> None:
    keys = set(re.findall(r"^(\w+) = ", output("ringctl", "config", "dump"), re.MULTILINE))
    assert len(keys) > 3
    assert keys - section("ringctl") == set()


def test_ringctl_page_has_every_verb_and_flag() -> None:
    completion = output("ringctl", "completion", "bash")
    offered = {word for line in re.findall(r"words='([^']*)'", completion) for word in line.split()}
    assert len(offered) > 30
    assert offered - words_of("ringctl.1") - {"--help", "--version"} == set()
