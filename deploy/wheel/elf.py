"""What the wheel needs to know and change about ELF files, by binutils and patchelf."""

import re
import shutil
import subprocess
from pathlib import Path

# Libraries that every manylinux system has.
SYSTEM_LIBRARIES = re.compile(r"(ld-linux.*|lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+))\.so(\.\d+)*")

# GLIBCXX_3.4.N -> the oldest manylinux profile (PEP 600) whose systems have that libstdc++.
_PROFILE_OF_GLIBCXX = {29: (2, 34), 30: (2, 35), 31: (2, 38), 32: (2, 38), 33: (2, 39)}


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def needed(path: Path) -> list[str]:
    """The DT_NEEDED entries."""
    return re.findall(r"\(NEEDED\).*\[(.+)\]", _run("readelf", "--dynamic", str(path)))


def foreign_libraries(path: Path) -> dict[str, Path]:
    """Shared libraries, also indirect ones, that a bare system may lack: name -> file here."""
    found = {}
    for line in _run("ldd", str(path)).splitlines():
        match = re.match(r"\s*(\S+) => (\S+)", line)
        if match and not SYSTEM_LIBRARIES.fullmatch(match[1]):
            if match[2] == "not":
                raise SystemExit(f"{path} needs {match[1]}, which is not on this machine")
            found[match[1]] = Path(match[2])
    return found


def glibc_needed(path: Path) -> tuple[int, int]:
    """The oldest manylinux profile, (major, minor) of glibc, whose systems can load this file."""
    versions = _run("readelf", "--version-info", "--wide", str(path))
    glibc = [(int(a), int(b)) for a, b in re.findall(r"Name: GLIBC_(\d+)\.(\d+)", versions)]
    glibcxx = [int(a) for a in re.findall(r"Name: GLIBCXX_3\.4\.(\d+)", versions)]
    for number in glibcxx:
        if number > max(_PROFILE_OF_GLIBCXX):
            raise SystemExit(f"{path} needs GLIBCXX_3.4.{number}: add it to {__file__}")
        glibc.append(_PROFILE_OF_GLIBCXX.get(number, (2, 17)))
    return max(glibc, default=(2, 17))


def strip(source: Path, target: Path) -> None:
    """Copies a file without its symbols."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(0o755)
    _run("strip", "--strip-unneeded", str(target))


def set_rpath(path: Path, rpath: str) -> None:
    """Makes the loader look for libraries in `rpath`, which may contain $ORIGIN."""
    _run("patchelf", "--force-rpath", "--set-rpath", rpath, str(path))


def rename_needed(path: Path, old: str, new: str) -> None:
    """Changes a DT_NEEDED entry."""
    _run("patchelf", "--replace-needed", old, new, str(path))
