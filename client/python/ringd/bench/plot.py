"""Draws what `ringctl bench --output json` prints: bandwidth by size, a panel an operation.

python -m ringd.bench.plot FILE < ROWS
python -m ringd.bench.plot --check FILE     only says whether it could
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any


def _reason_against(file: str) -> str | None:
    """Why it can't draw into that file; None: it can."""
    try:
        import matplotlib
    except ImportError as error:
        return f"--plot needs matplotlib, and {error}: pip install matplotlib"
    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    kinds = Figure().canvas.get_supported_filetypes()
    kind = os.path.splitext(file)[1].lstrip(".").lower()
    if kind not in kinds:
        return f"--plot {file}: the name must end in one of .{', .'.join(sorted(kinds))}"
    folder = os.path.dirname(file) or "."
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        return f"--plot {file}: {folder} is no folder that can be written to"
    return None


def draw(rows: list[dict[str, Any]], file: str) -> None:
    """Rows without bytes (barriers) are left out."""
    from matplotlib.figure import Figure

    rows = [row for row in rows if row["bytes"] > 0]
    operations = list(dict.fromkeys(row["operation"] for row in rows))
    figure = Figure(figsize=(6, 3.5 * max(1, len(operations))), layout="constrained")
    panels = figure.subplots(max(1, len(operations)), squeeze=False)[:, 0]
    for operation, panel in zip(operations, panels, strict=False):
        ours = [row for row in rows if row["operation"] == operation]
        for name in dict.fromkeys(row["implementation"] for row in ours):
            points = [row for row in ours if row["implementation"] == name]
            panel.plot(
                [row["bytes"] for row in points],
                [row["algbw_gbps"] for row in points],
                marker="o",
                label=name,
            )
        limits = {row["bytes"]: row["limit_gbps"] for row in ours if row["limit_gbps"] is not None}
        if limits:
            panel.plot(list(limits), list(limits.values()), "k--", label="limit")
        panel.set(title=operation, xlabel="bytes", ylabel="algbw, GB/s", xscale="log", yscale="log")
        panel.legend()
    figure.savefig(file)


def main() -> int:
    parser = argparse.ArgumentParser(prog="ringd.bench.plot", description=__doc__.splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    reason = _reason_against(options.file)
    if reason is not None:
        print(f"ringctl bench: {reason}", file=sys.stderr)
        return 2
    if not options.check:
        draw(json.load(sys.stdin), options.file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
