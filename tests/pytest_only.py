"""A pytest plugin (-p tests.pytest_only): --only REGEX runs the tests whose node id it matches."""

import re

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--only", default="", metavar="REGEX", help="run tests whose id matches")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    pattern = re.compile(config.getoption("--only"))
    left_out = [item for item in items if not pattern.search(item.nodeid)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if pattern.search(item.nodeid)]
