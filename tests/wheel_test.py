"""The wheel: what is in it, what it needs, and that it runs where only it is installed."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ["ringctl", "ringd", "ringd-limits", "ringd-scheduler", "ringd-worker"]
# In a bare Debian or RHEL of the wheel's tag; what else a file needs must be in the wheel.
SYSTEM = {"libc", "libm", "libstdc++", "libgcc_s", "libdl", "librt", "libpthread"}


@pytest.fixture(scope="module")
def wheel() -> Path:
    wheels = list((ROOT / "dist").glob("ringd-*.whl"))
    assert len(wheels) == 1, "deploy/setup.sh leaves exactly one wheel of ringd in dist/"
    return wheels[0]


@pytest.fixture(scope="module")
def unpacked(wheel, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    for program in (folder / "ringd/bin").iterdir():
        program.chmod(0o755)
    return folder


def needed(path: Path) -> list[str]:
    output = subprocess.run(
        ["readelf", "--dynamic", path], check=True, capture_output=True, text=True
    )
    return re.findall(r"\(NEEDED\).*\[(.+)\]", output.stdout)


def is_system(library: str) -> bool:
    return library.split(".so")[0] in SYSTEM or library.startswith("ld-linux")


def test_wheel_is_abi3_for_any_python_from_3_10(wheel):
    assert re.fullmatch(
        r"ringd-\d+\.\d+\.\d+-cp310-abi3-manylinux_2_\d+_(x86_64|aarch64)\.whl", wheel.name
    )


def test_wheel_holds_programs_libraries_and_package(unpacked):
    assert sorted(path.name for path in (unpacked / "ringd/bin").iterdir()) == PROGRAMS
    for name in [
        "__init__.py",
        "py.typed",
        "_core.abi3.so",
        "lib/libringd.so",
        "lib/libringd-loop.so",
        "include/ringd.h",
    ]:
        assert (unpacked / "ringd" / name).is_file()


def test_wheel_tells_pytorch_of_its_backend(unpacked):
    (text,) = [path.read_text() for path in unpacked.glob("*.dist-info/entry_points.txt")]
    lines = ["[torch.backends]", "ringd = ringd._entry_points:register_torch_backend"]
    assert text.splitlines() == lines


def test_libraries_of_the_training_process_need_the_system_only(unpacked):
    assert all(is_system(library) for library in needed(unpacked / "ringd/lib/libringd.so"))
    extension = needed(unpacked / "ringd/_core.abi3.so")
    assert all(is_system(library) or library == "libringd.so" for library in extension)


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_need_the_system_and_bundled_libraries_only(unpacked, program):
    bundled = {path.name for path in (unpacked / "ringd/lib").iterdir()}
    surplus = {name for name in needed(unpacked / "ringd/bin" / program) if not is_system(name)}
    assert surplus <= bundled


def test_platform_tag_is_what_auditwheel_finds(wheel):
    if subprocess.run([sys.executable, "-m", "auditwheel", "--version"]).returncode:
        pytest.skip("auditwheel is not installed: RINGD_SETUP=full deploy/setup.sh")
    shown = subprocess.run(
        [sys.executable, "-m", "auditwheel", "show", wheel],
        check=True,
        capture_output=True,
        text=True,
    )
    text = " ".join(shown.stdout.split())
    verdict = re.search(r'consistent with the following platform tag: "manylinux_2_(\d+)_', text)
    tag = re.search(r"manylinux_2_(\d+)_", wheel.name)
    assert verdict and int(verdict[1]) <= int(tag[1]), text


def test_launchers_run_without_any_environment(tmp_path):
    version = re.search(r'"([\d.]+)"', (ROOT / "common/base/version.h").read_text())[1]
    link = tmp_path / "ringctl"
    link.symlink_to(ROOT / ".venv/bin/ringctl")
    for launcher in [ROOT / ".venv/bin/ringctl", link]:
        command = ["env", "-i", launcher, "version"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=10)
        assert result.returncode == 0, result.stderr
        assert version in result.stdout


def test_import_needs_no_framework_and_no_daemon():
    script = "import ringd, sys; print(ringd.__file__, 'torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    file, torch_loaded = result.stdout.split()
    assert "site-packages" in file
    assert torch_loaded == "False"


def test_horovod_is_a_wheel_of_its_own():
    (wheel,) = (ROOT / "dist").glob("ringd_horovod-*-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(next(n for n in names if n.endswith("METADATA"))).decode()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"horovod", "ringd_horovod"}
    assert "Requires-Dist: ringd==" in metadata and metadata.startswith("Metadata-Version")
    script = "import importlib.util; print(importlib.util.find_spec('horovod'))"
    result = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True)
    assert result.stdout == "None\n", "set-up installs it for nobody"
