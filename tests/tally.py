"""Adds up the test cases of Bazel's build event files and pytest's junit files; names failures.

The last line is "N passed, N failed"; the exit code is 1 if anything failed, or if no test ran.
"""

import argparse
import json
import sys
import urllib.parse
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path

_BROKEN_BUILD_FILES = ("LOADING_FAILURE", "ANALYSIS_FAILURE")


@dataclass
class Tally:
    """Number of passed cases, and the names of failed ones."""

    passed: int = 0
    failed: list[str] = field(default_factory=list)


def add_junit(tally: Tally, path: Path, prefix: str = "") -> int:
    """Adds the cases of a junit file, skipped ones as neither. Returns the number of failures."""
    before = len(tally.failed)
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        outcomes = {child.tag for child in case}
        if outcomes & {"failure", "error"}:
            names = [case.get("classname"), case.get("name")]
            tally.failed.append(prefix + ".".join(name for name in names if name))
        elif "skipped" not in outcomes and case.get("result") not in ("skipped", "suppressed"):
            tally.passed += 1
    return len(tally.failed) - before


def _test_xml(event: dict) -> Path | None:
    for output in event["testResult"].get("testActionOutput", []):
        if output["name"] == "test.xml":
            return Path(urllib.parse.unquote(urllib.parse.urlparse(output["uri"]).path))
    return None


def add_bazel(tally: Tally, path: Path) -> None:
    """Adds what a build event file (JSON lines) says: each test's cases, and what did not build."""
    for line in path.read_text().splitlines():
        event = json.loads(line)
        identity = event.get("id", {})
        if "testResult" in event:
            label = identity["testResult"]["label"]
            status = event["testResult"]["status"]
            xml = _test_xml(event)
            failures = 0
            if xml is not None and xml.is_file():
                failures = add_junit(tally, xml, f"{label} ")
            elif status == "PASSED":
                tally.passed += 1
            if status != "PASSED" and failures == 0:
                tally.failed.append(f"{label} ({status.lower()})")
        elif "actionCompleted" in identity and not event.get("action", {}).get("success", False):
            action = identity["actionCompleted"]
            output = Path(action.get("primaryOutput", "")).name
            tally.failed.append(f"{action.get('label', '')} did not build ({output})")
        elif event.get("aborted", {}).get("reason") in _BROKEN_BUILD_FILES:
            description = event["aborted"].get("description", "no description")
            tally.failed.append(f"broken BUILD files: {description.splitlines()[0]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--status", type=int, default=0, help="1 if a runner of these tests failed")
    parser.add_argument("results", nargs="*", type=Path, help=".json of Bazel, .xml of pytest")
    options = parser.parse_args()
    tally = Tally()
    for path in options.results:
        if path.suffix == ".json":
            add_bazel(tally, path)
        else:
            add_junit(tally, path)
    if options.status and not tally.failed:
        tally.failed.append("a test runner failed without naming a test (see above)")
    for name in dict.fromkeys(tally.failed):
        print(f"FAILED  {name}")
    if not tally.passed and not tally.failed:
        print("no test ran: the pattern matches none")
    print(f"{tally.passed} passed, {len(tally.failed)} failed")
    return 1 if tally.failed or not tally.passed else 0


if __name__ == "__main__":
    sys.exit(main())
