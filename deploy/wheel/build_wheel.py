"""Assembles the wheels from what Bazel built and from client/python.

    ringd            ringd/*.py, _core.abi3.so, lib/libringd.so, the programs (bin/), libraries of
                     Debian that a bare system lacks (lib/), and launchers for the bin folder
    ringd-horovod    horovod/*.py and the program horovodrun, from client/python/horovod: for who
                     asks for it

Standard library only: it runs before there is a virtual environment.
"""

import argparse
import platform
import re
import shutil
import tempfile
from pathlib import Path

import elf
from archive import Metadata, WheelWriter

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = {
    "ringd": "daemon/ringd",
    "ringd-worker": "worker/ringd-worker",
    "ringd-scheduler": "scheduler/ringd-scheduler",
    "ringctl": "client/cli/ringctl",
}
# Programs that other programs start: no launchers.
HELPERS = {"ringd-limits": "client/cli/bench/ringd-limits"}
EXTENSION_OUTPUTS = ["_core.abi3.so", "_core.so", "lib_core.so"]
# The oldest glibc that the wheel is meant for. Should it need a newer one, its tag says so.
MANYLINUX = (2, 34)
EXTRAS = {
    "torch": ["torch"],
    "tensorflow": ["tensorflow"],
    "jax": ["jax"],
    "spark": ["pyspark"],
    "ray": ["ray"],
}
# `import torch` (2.5 on) runs what is in this group.
ENTRY_POINTS = {"torch.backends": {"ringd": "ringd._entry_points:register_torch_backend"}}


def version() -> str:
    header = (ROOT / "common/base/version.h").read_text()
    match = re.search(r'kVersion\[\] = "([^"]+)"', header)
    if not match:
        raise SystemExit("common/base/version.h has no kVersion")
    return match[1]


def _output(bazel_bin: Path, *names: str) -> Path:
    for name in names:
        if (bazel_bin / name).is_file():
            return bazel_bin / name
    raise SystemExit(f"{bazel_bin / names[0]} is missing: run deploy/setup.sh")


def stage_binaries(bazel_bin: Path, package: Path) -> None:
    """Fills the package's folder with stripped ELF files that find one another anywhere."""
    foreign: dict[str, Path] = {}
    for name, built in (PROGRAMS | HELPERS).items():
        source, target = _output(bazel_bin, built), package / "bin" / name
        elf.strip(source, target)
        libraries = elf.foreign_libraries(source)
        if libraries:
            elf.set_rpath(target, "$ORIGIN/../lib")
        foreign |= libraries
    for name, source in foreign.items():
        elf.strip(source, package / "lib" / name)
        elf.set_rpath(package / "lib" / name, "$ORIGIN")
    library = package / "lib/libringd.so"
    elf.strip(_output(bazel_bin, "client/c/libringd.so"), library)
    extension = package / "_core.abi3.so"
    elf.strip(
        _output(bazel_bin, *(f"client/python/{name}" for name in EXTENSION_OUTPUTS)), extension
    )
    elf.set_rpath(extension, "$ORIGIN/lib")
    loop = package / "lib/libringd-loop.so"
    elf.strip(_output(bazel_bin, "client/python/libringd-loop.so"), loop)
    elf.set_rpath(loop, "$ORIGIN")
    for path in (extension, loop):
        for name in elf.needed(path):
            if name != "libringd.so" and name.endswith("libringd.so"):
                elf.rename_needed(path, name, "libringd.so")
    for path in (library, extension, loop):
        surplus = [
            name
            for name in elf.needed(path)
            if not elf.SYSTEM_LIBRARIES.fullmatch(name) and name != "libringd.so"
        ]
        if surplus:
            raise SystemExit(
                f"{path.name} lives in the training process and must not need {surplus}"
            )


def platform_tag(package: Path) -> str:
    needs = {path: elf.glibc_needed(path) for path in package.rglob("*") if path.is_file()}
    newest = max([MANYLINUX, *needs.values()])
    for path, glibc in needs.items():
        if glibc > MANYLINUX:
            print(f"note: {path.name} needs the glibc or libstdc++ of manylinux_2_{glibc[1]}")
    return f"manylinux_{newest[0]}_{newest[1]}_{platform.machine()}"


def add_sources(wheel: WheelWriter, source: Path, package: str) -> None:
    for path in sorted(source.rglob("*")):
        name = path.relative_to(source)
        is_source = path.suffix in (".py", ".pyi", ".c") or path.name == "py.typed"
        if is_source and path.is_file() and not path.name.endswith("_test.py"):
            wheel.add(f"{package}/{name}", path.read_bytes())


def build_ringd(bazel_bin: Path, output: Path) -> Path:
    readme = ROOT / "README.md"
    metadata = Metadata(
        name="ringd",
        version=version(),
        summary="Daemon-based distributed training",
        requires=["numpy"],
        extras=EXTRAS,
        entry_points=ENTRY_POINTS,
        description=readme.read_text() if readme.is_file() else "",
    )
    launcher = (Path(__file__).parent / "launcher.sh").read_text()
    with tempfile.TemporaryDirectory() as scratch:
        package = Path(scratch) / "ringd"
        stage_binaries(bazel_bin, package)
        tag = f"cp310-abi3-{platform_tag(package)}"
        with WheelWriter(output, metadata, tag) as wheel:
            add_sources(wheel, ROOT / "client/python/ringd", "ringd")
            for path in sorted(package.rglob("*")):
                if path.is_file():
                    wheel.add(str(path.relative_to(scratch)), path.read_bytes(), executable=True)
            wheel.add("ringd/include/ringd.h", (ROOT / "client/c/ringd.h").read_bytes())
            for name in PROGRAMS:
                wheel.add_script(name, launcher.replace("@PROGRAM@", name).encode())
            wheel.add_license((ROOT / "LICENSE").read_bytes())
    return wheel.path


def build_horovod(output: Path) -> Path:
    metadata = Metadata(
        name="ringd-horovod",
        version=version(),
        summary="Runs Horovod scripts on ringd: a drop-in for the package horovod",
        requires=[f"ringd=={version()}", "cloudpickle", "pyyaml"],
        entry_points={"console_scripts": {"horovodrun": "horovod.runner.launch:run_commandline"}},
        description=(ROOT / "client/python/horovod/README.md").read_text(),
    )
    with WheelWriter(output, metadata, "py3-none-any") as wheel:
        add_sources(wheel, ROOT / "client/python/horovod", "horovod")
        wheel.add_license((ROOT / "LICENSE").read_bytes())
    return wheel.path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bazel-bin", type=Path, default=ROOT / "bazel-bin")
    parser.add_argument(
        "--output", type=Path, default=ROOT / "dist", help="emptied of older wheels"
    )
    options = parser.parse_args()
    for tool in ("readelf", "strip", "patchelf", "ldd"):
        if not shutil.which(tool):
            raise SystemExit(f"{tool} is missing: install binutils and patchelf")
    wheels = [build_ringd(options.bazel_bin, options.output), build_horovod(options.output)]
    for old in options.output.glob("ringd*.whl"):
        if old not in wheels:
            old.unlink()
    for path in wheels:
        print(f"{path} {path.stat().st_size >> 10} KB")


if __name__ == "__main__":
    main()
