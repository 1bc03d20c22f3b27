"""Writes wheels (PEP 427): the zip file, its METADATA, WHEEL and RECORD."""

import base64
import hashlib
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

# A fixed time, so that equal contents give equal wheels.
_TIMESTAMP = (2020, 1, 1, 0, 0, 0)


@dataclass
class Metadata:
    """What METADATA says."""

    name: str
    version: str
    summary: str
    requires: list[str]
    extras: dict[str, list[str]] = field(default_factory=dict)
    # Group -> name -> "module:function".
    entry_points: dict[str, dict[str, str]] = field(default_factory=dict)
    description: str = ""

    def text(self) -> str:
        lines = [
            "Metadata-Version: 2.1",
            f"Name: {self.name}",
            f"Version: {self.version}",
            f"Summary: {self.summary}",
            "License: Apache-2.0",
            "License-File: LICENSE",
            "Requires-Python: >=3.10",
            *(f"Requires-Dist: {requirement}" for requirement in self.requires),
        ]
        for extra, requirements in self.extras.items():
            lines.append(f"Provides-Extra: {extra}")
            lines += [f"Requires-Dist: {item} ; extra == '{extra}'" for item in requirements]
        lines += ["Description-Content-Type: text/markdown", "", self.description]
        return "\n".join(lines)

    def entry_points_text(self) -> str:
        """What entry_points.txt says; empty without entry points."""
        groups = []
        for group, entries in self.entry_points.items():
            lines = [f"{name} = {function}" for name, function in entries.items()]
            groups.append("\n".join([f"[{group}]", *lines, ""]))
        return "\n".join(groups)


class WheelWriter:
    """One wheel while it is written: a context manager; the file appears at its end."""

    def __init__(self, folder: Path, metadata: Metadata, tag: str):
        """`tag`: python-abi-platform, as cp310-abi3-manylinux_2_34_x86_64."""
        stem = f"{metadata.name.replace('-', '_')}-{metadata.version}"
        self.path = folder / f"{stem}-{tag}.whl"
        self._info = f"{stem}.dist-info"
        self._data = f"{stem}.data"
        self._metadata = metadata
        self._tag = tag
        self._record: list[str] = []
        folder.mkdir(parents=True, exist_ok=True)
        self._temporary = self.path.with_suffix(".partial")
        self._zip = zipfile.ZipFile(self._temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=6)

    def __enter__(self) -> "WheelWriter":
        return self

    def __exit__(self, kind: object, *unused: object) -> None:
        if kind is None:
            self._finish()
        self._zip.close()
        if kind is None:
            self._temporary.replace(self.path)
        else:
            self._temporary.unlink()

    def add(self, name: str, content: bytes, executable: bool = False) -> None:
        """Adds a file; `name` is its path below site-packages."""
        entry = zipfile.ZipInfo(name, _TIMESTAMP)
        entry.external_attr = (0o100755 if executable else 0o100644) << 16
        entry.compress_type = zipfile.ZIP_DEFLATED
        self._zip.writestr(entry, content)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        self._record.append(f"{name},sha256={digest},{len(content)}")

    def add_script(self, name: str, content: bytes) -> None:
        """Adds a program for the environment's bin folder."""
        self.add(f"{self._data}/scripts/{name}", content, executable=True)

    def add_license(self, content: bytes) -> None:
        self.add(f"{self._info}/LICENSE", content)

    def _finish(self) -> None:
        pure = str(self._tag.endswith("-any")).lower()
        wheel = f"Wheel-Version: 1.0\nGenerator: ringd\nRoot-Is-Purelib: {pure}\nTag: {self._tag}\n"
        self.add(f"{self._info}/METADATA", self._metadata.text().encode())
        self.add(f"{self._info}/WHEEL", wheel.encode())
        if self._metadata.entry_points:
            self.add(f"{self._info}/entry_points.txt", self._metadata.entry_points_text().encode())
        record = f"{self._info}/RECORD"
        self._zip.writestr(
            zipfile.ZipInfo(record, _TIMESTAMP), "\n".join([*self._record, f"{record},,", ""])
        )
