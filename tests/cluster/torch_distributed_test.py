"""The torch.distributed backend "ringd" under `ringctl run`: real daemons, real ranks."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

SCRIPTS = Path(__file__).resolve().parents[2] / "tests/torch_distributed"
RINGCTL = shutil.which("ringctl", path=f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}")

pytestmark = [
    pytest.mark.skipif(RINGCTL is None, reason="no ringctl: run deploy/setup.sh"),
    pytest.mark.timeout(300),
]


def run(command, env=None, expect=0):
    result = subprocess.run(
        list(map(str, command)),
        env={**os.environ, "PYTHONWARNINGS": "ignore", **(env or {})},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert result.returncode == expect, result.stdout + result.stderr
    return result.stdout + result.stderr


def run_job(ranks, *command, env=None, expect=0):
    return run([RINGCTL, "run", "-n", ranks, "--", sys.executable, *command], env, expect)


def check_script(script, ranks, env=None):
    output = run_job(ranks, SCRIPTS / script, env=env)
    assert output.count("checks passed") == ranks


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory):
    """The environment of a cluster of two nodes with two slots each."""
    directory = tmp_path_factory.mktemp("cluster") / "c"
    output = run([RINGCTL, "local", "up", "--nodes", 2, "--slots", 2, "--dir", directory])
    address = re.search(r"RINGD_SCHEDULER=(\S+)", output).group(1)
    yield {"RINGD_SCHEDULER": address}
    run([RINGCTL, "local", "down", "--dir", directory])


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_calls_ddp_fsdp_and_checkpoints_give_what_one_process_does(ranks):
    check_script("everything.py", ranks)


def test_compiled_models_train_as_they_do_uncompiled():
    check_script("compiled.py", 2)


def test_results_on_two_nodes_are_those_of_one_process(two_nodes):
    check_script("everything.py", 4, two_nodes)


INIT = """
import torch, torch.distributed as dist
dist.init_process_group({arguments})
tensor = torch.ones(2)
dist.all_reduce(tensor)
print("total", tensor.tolist())
dist.destroy_process_group()
"""


def test_rendezvous_needs_no_port_and_a_destroyed_group_can_be_made_again():
    program = INIT.format(arguments='"ringd", init_method="ringd://"')
    output = run_job(2, "-c", program + program, env={"MASTER_PORT": "1"})
    assert output.count("total [2.0, 2.0]") == 4


def test_import_of_the_backend_serves_where_autoload_is_off():
    program = "import ringd.torch.backend\n" + INIT.format(arguments='"ringd"')
    output = run_job(2, "-c", program, env={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})
    assert output.count("total [2.0, 2.0]") == 2


def test_process_that_ringd_did_not_start_is_told_how():
    program = "import ringd.torch.backend\n" + INIT.format(
        arguments='"ringd", store=dist.HashStore(), rank=0, world_size=2'
    )
    output = run([sys.executable, "-c", program], expect=1)
    assert "ringctl run -n N" in output


def test_process_alone_has_a_group_of_itself():
    program = INIT.format(arguments='"ringd", store=dist.HashStore(), rank=0, world_size=1')
    assert "total [1.0, 1.0]" in run([sys.executable, "-c", program])


def test_rank_that_dies_is_named_by_the_others():
    program = """
import os, torch, torch.distributed as dist
dist.init_process_group("ringd")
if dist.get_rank() == 1:
    os._exit(7)
try:
    dist.all_reduce(torch.ones(2))
except RuntimeError as error:
    print("told:", error)
"""
    output = run_job(2, "-c", program, expect=7)
    assert re.search(r"told: .*rank 1 .*7", output), output
