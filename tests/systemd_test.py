"""The systemd units: accepted by systemd itself, and as open or closed as they claim to be."""

import configparser
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
UNITS = ROOT / "deploy" / "systemd"
PROGRAMS = {"ringd.service": "ringd", "ringd-scheduler.service": "ringd-scheduler"}


@pytest.fixture
def installed(tmp_path: pathlib.Path) -> pathlib.Path:
    """Copies of the units whose programs are those of the virtual environment."""
    for unit, program in PROGRAMS.items():
        text = (UNITS / unit).read_text()
        assert f"ExecStart=/usr/bin/{program} " in text
        text = text.replace(f"/usr/bin/{program}", str(ROOT / ".venv" / "bin" / program))
        (tmp_path / unit).write_text(re.sub(r"^Documentation=.*\n", "", text, flags=re.MULTILINE))
    return tmp_path


def directives(unit: str) -> dict[str, str]:
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str
    parser.read(UNITS / unit)
    return dict(parser["Service"])


@pytest.mark.parametrize("unit", PROGRAMS)
def test_verify_each_unit_is_accepted(installed: pathlib.Path, unit: str) -> None:
    run = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", installed / unit],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stdout + run.stderr) == (0, "")


def test_daemon_unit_has_what_ranks_need_and_nothing_they_would_inherit() -> None:
    service = directives("ringd.service")
    assert service["Type"] == "notify"
    assert service["KillMode"] == "process"
    assert service["Delegate"] == "yes"
    assert "WatchdogSec" in service
    inherited = re.compile(
        r"^(Protect|Private|Restrict|SystemCall|Capability|NoNewPrivileges|ReadOnly|Inaccessible|"
        r"LockPersonality|MemoryDeny|OOMScoreAdjust|Nice|CPUAffinity|UMask|User|Group)"
    )
    assert [name for name in service if inherited.match(name)] == []


def test_scheduler_unit_is_hardened(installed: pathlib.Path) -> None:
    run = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--threshold=20", "--no-pager"]
        + [str(installed / "ringd-scheduler.service")],
        capture_output=True,
        text=True,
        check=False,
    )
    # The threshold is ten times the exposure that systemd prints: at most 2.0 of 10.
    assert run.returncode == 0, run.stdout[-500:] + run.stderr


def test_install_into_a_folder_places_everything(tmp_path: pathlib.Path) -> None:
    wheels = list((ROOT / "dist").glob("ringd-*.whl"))
    assert wheels, "deploy/setup.sh has not built the wheel"
    run = subprocess.run(
        [UNITS / "install.sh", "both", f"dist/{wheels[0].name}"],
        cwd=ROOT,  # A relative path is the caller's, not the script's.
        env={"DESTDIR": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    for unit in PROGRAMS:
        assert (tmp_path / "etc/systemd/system" / unit).is_file()
    assert (tmp_path / "etc/ringd/ringd.toml").is_file()
    for program in ("ringd", "ringd-worker", "ringd-scheduler", "ringctl"):
        target = (tmp_path / "usr/bin" / program).readlink()
        assert (tmp_path / target.relative_to("/")).is_file()
    version = subprocess.run(
        [tmp_path / "opt/ringd/bin/ringctl", "version"], capture_output=True, text=True, check=True
    )
    assert version.stdout.startswith("ringctl ")


def test_install_without_a_word_says_what_to_say() -> None:
    run = subprocess.run([UNITS / "install.sh"], capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert "daemon, scheduler or both" in run.stderr


@pytest.mark.parametrize("program", PROGRAMS.values())
def test_sample_configuration_is_understood(program: str) -> None:
    """The file is read before the flags, so only an accepted one lets a wrong flag be named."""
    run = subprocess.run(
        [ROOT / ".venv" / "bin" / program, "--config", UNITS / "ringd.toml", "--no-such-flag"],
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )
    assert run.returncode == 2
    assert "--no-such-flag" in run.stderr
