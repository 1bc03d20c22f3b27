"""Horovodrun's configuration files."""

from __future__ import annotations

from typing import Any

from .flags import FLAGS


def read(path: str) -> dict[str, Any]:
    """Values by `Flag.key`.

    Raises:
        ValueError: the file can't be read, is no YAML of sections, or has a name that no flag has.
    """
    try:
        import yaml
    except ImportError:
        raise ValueError("--config-file needs PyYAML: pip install pyyaml") from None
    try:
        with open(path) as file:
            content = yaml.safe_load(file) or {}
    except (OSError, yaml.YAMLError) as error:
        raise ValueError(f"--config-file {path}: {error}") from None
    return values(content, path)


def values(content: Any, path: str) -> dict[str, Any]:
    """The same of what a file says."""
    if not isinstance(content, dict):
        raise ValueError(f"--config-file {path}: it has no sections")
    by_place = {flag.config: flag for flag in FLAGS if flag.config}
    found: dict[str, Any] = {}
    for section, entries in content.items():
        if section == "controller":
            continue
        if not isinstance(entries, dict):
            raise ValueError(f"--config-file {path}: {section} has no entries")
        for name, value in entries.items():
            flag = by_place.get((section, name))
            if flag is None:
                raise ValueError(f"--config-file {path}: {section}.{name} is unknown")
            found[flag.key] = _converted(flag.kind, value, f"{path}: {section}.{name}")
    return found


def _converted(kind: Any, value: Any, place: str) -> Any:
    try:
        return bool(value) if kind is None else kind(value)
    except (TypeError, ValueError):
        raise ValueError(f"--config-file {place}: {value!r} can't be used") from None
