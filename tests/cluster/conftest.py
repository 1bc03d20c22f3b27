"""What the tests here share: a home of their own for ringctl, and a cluster of two nodes."""

import os
import shutil

import pytest

from tests.support.jobs import Home, LocalCluster


@pytest.fixture
def home(tmp_path):
    home = Home(tmp_path)
    yield home
    home.kill_all()


@pytest.fixture(params=["loopback", "namespaces"])
def cluster(home, request):
    """Two nodes of two slots, over the loopback interface and in network namespaces."""
    options = []
    if request.param == "namespaces":
        if os.geteuid() != 0 or not shutil.which("ip"):
            pytest.skip("needs root and iproute2: a network namespace for each node")
        options = ["--netns"]
    cluster = LocalCluster(home, options=options)
    yield cluster
    cluster.down()
