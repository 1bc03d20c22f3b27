"""House rules that a machine can check."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = [
    "client",
    "common",
    "daemon",
    "deploy",
    "docs",
    "examples",
    "proto",
    "scheduler",
    "tests",
    "third_party",
    "worker",
]
MAX_FILE_LINES = 600
MAX_BUILD_LINES = 200
MAX_FUNCTION_LINES = 70
NOT_COUNTED = {".json", ".svg", ".png", ".lock", ".txt"}

# What a room may depend on, besides itself and third_party.
ARROWS = {
    "common": [],
    "proto": ["common"],
    "worker": ["common", "proto", "client/session"],
    "daemon": ["common", "proto"],
    "client": ["common", "proto"],
    "scheduler": ["common", "proto"],
}
# Folders that become part of the training process or lie under it: the standard library only.
PLAIN = ["client/c", "client/python", "common/base", "common/reduce"]


def tracked(*patterns: str) -> list[Path]:
    """Files of this checkout that git tracks or would add, relative to its root."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return sorted({Path(line) for line in output.splitlines() if (ROOT / line).is_file()})


def lines(path: Path) -> list[str]:
    return (ROOT / path).read_text(errors="replace").splitlines()


def cpp_files() -> list[Path]:
    return tracked("*.h", "*.cc")


def test_files_are_short():
    long = {
        str(path): len(lines(path))
        for path in tracked()
        if path.name != "LICENSE"
        and path.suffix not in NOT_COUNTED
        and len(lines(path)) > MAX_FILE_LINES
    }
    assert not long


def test_build_files_are_short():
    assert not [p for p in tracked("BUILD", "*/BUILD") if len(lines(p)) > MAX_BUILD_LINES]


@pytest.mark.parametrize("room", [room for room in ROOMS if (ROOT / room).is_dir()])
def test_every_room_has_a_readme(room):
    if tracked(room):
        assert (ROOT / room / "README.md").is_file()


def test_top_level_has_no_other_folders():
    folders = {p.parts[0] for p in tracked() if len(p.parts) > 1 and not p.parts[0].startswith(".")}
    assert folders <= set(ROOMS)


def long_functions(path: Path) -> list[str]:
    """Functions of clang-formatted C++ by indentation: from a declaration to a lone brace below."""
    found = []
    starts: dict[int, int] = {}
    for number, line in enumerate(lines(path), 1):
        indent = len(line) - len(line.lstrip())
        text = line.strip()
        if not text or text.startswith(("#", "//", "public:", "private:", "protected:", ":", ")")):
            continue
        if text == "}":
            length = number - starts.get(indent, number) + 1
            if indent <= 2 and length > MAX_FUNCTION_LINES:
                found.append(f"{path}:{starts[indent]} has {length} lines")
        elif not text.startswith("}"):
            starts[indent] = number
    return found


def test_functions_are_short():
    assert not [function for path in cpp_files() for function in long_functions(path)]


def test_no_unfinished_marks():
    marks = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X"]) + r")\b")
    found = [
        f"{path}:{number}"
        for path in tracked()
        if path.suffix not in NOT_COUNTED
        for number, line in enumerate(lines(path), 1)
        if marks.search(line)
    ]
    assert not found


def test_header_guards_are_named_for_the_path():
    for path in tracked("*.h"):
        guard = "RINGD_" + re.sub(r"[^A-Z0-9]", "_", str(path).upper()) + "_"
        assert f"#ifndef {guard}" in lines(path), f"{path} needs the guard {guard}"


def arrow_breaches(path: Path, targets: list[str]) -> list[str]:
    room = path.parts[0]
    if room not in ARROWS:
        return []
    allowed = [room, "third_party", *ARROWS[room]]
    return [
        f"{path} -> {target}"
        for target in targets
        if target.split("/")[0] in ROOMS
        and not any(target == door or target.startswith(door + "/") for door in allowed)
    ]


def test_dependencies_point_one_way():
    breaches = []
    for path in tracked("BUILD", "*/BUILD"):
        code = "\n".join(line.split("#")[0] for line in lines(path))
        code = re.sub(r"visibility = \[[^]]*\]", "", code)
        breaches += arrow_breaches(path, re.findall(r'"//([^:"]+)[:"]', code))
    for path in cpp_files():
        includes = [re.match(r'#include "([^"]+)/[^/"]+"', line) for line in lines(path)]
        breaches += arrow_breaches(path, [match[1] for match in includes if match])
    assert not breaches


def test_code_of_the_training_process_is_plain():
    """client/c has no Abseil, spdlog, gRPC or protobuf: frameworks export copies of their own."""
    banned = re.compile(r'#include [<"](absl|spdlog|fmt|grpc|grpcpp|google/protobuf)/|\.pb\.h"')
    found = [
        f"{path}:{number}"
        for path in cpp_files()
        if any(path.is_relative_to(folder) for folder in PLAIN)
        for number, line in enumerate(lines(path), 1)
        if banned.search(line)
    ]
    assert not found


def test_cpp_is_formatted():
    tool = shutil.which("clang-format-14")
    if tool is None:
        pytest.skip("clang-format-14 is not installed")
    files = [str(path) for path in cpp_files()]
    command = [tool, "--dry-run", *files]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    ill_formed = sorted(
        {
            line.split(":")[0]
            for line in result.stderr.splitlines()
            if ".h:" in line or ".cc:" in line
        }
    )
    assert not ill_formed, "run clang-format-14 -i on these"


@pytest.mark.parametrize("command", [["check"], ["format", "--check"]], ids=["lint", "format"])
def test_python_is_clean(command):
    if subprocess.run([sys.executable, "-m", "ruff", "--version"], capture_output=True).returncode:
        pytest.skip("ruff is not installed: RINGD_SETUP=full deploy/setup.sh")
    result = subprocess.run(
        [sys.executable, "-m", "ruff", *command, "."], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_shell_scripts_are_strict():
    for path in tracked("*.sh", ".ci/run"):
        text = "\n".join(lines(path))
        if text.startswith("#!/usr/bin/env bash"):
            assert re.search(r"^set -e?uo pipefail", text, re.MULTILINE), path
