"""The wheel and the sdist: built twice, opened, and installed on a clean Python."""

import json
import subprocess
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from pipeline import __version__
from pipeline.cli.main import COMMANDS
from pipeline.errors import UsageError, install_hint
from tests.packages.wheels import build_distribution, copy_sources, pinned_wheels, run_pip
from tests.processes import ROOT

pytestmark = pytest.mark.slow

_SECONDS = 120.0
_ROLES_WITH_EXTRAS = (
    "worker", "extender", "watcher", "actuator", "planner", "evictor", "notifier", "provider",
    "archive", "node-actuator",
)  # fmt: skip


@pytest.fixture(scope="module")
def distribution(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The paths of wheel and sdist."""
    wheel, sdist = build_distribution(ROOT, tmp_path_factory.mktemp("dist"))
    return wheel, sdist


@pytest.fixture(scope="module")
def installed(distribution: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`bin` of an environment with the wheel and its base dependencies, from pinned wheels."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=False, symlinks=True)
    find = ("--no-index", f"--find-links={pinned_wheels('exporter')}")
    run_pip("install", *find, str(distribution[0]), python=str(folder / "bin/python"))
    return folder / "bin"


def run(*command: str | Path, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, cwd=folder,
        env={"PATH": "/usr/bin:/bin"}, timeout=_SECONDS,
    )  # fmt: skip


def test_equal_sources_make_equal_bytes(distribution: tuple[Path, Path], tmp_path: Path) -> None:
    """In another directory, at another time, with other modes of files."""
    sources = copy_sources(tmp_path / "elsewhere")
    again = build_distribution(sources, tmp_path / "dist")
    assert [path.name for path in again] == [path.name for path in distribution]
    assert [path.read_bytes() == first.read_bytes() for path, first in zip(
        again, distribution, strict=True
    )] == [True, True]  # fmt: skip


def test_the_wheel_has_the_packages_and_their_data_alone(distribution: tuple[Path, Path]) -> None:
    names = zipfile.ZipFile(distribution[0]).namelist()
    information = f"springtide-{__version__}.dist-info"
    assert {name.split("/")[0] for name in names} == {
        "actuators", "node_exporter", "pipeline", information,
    }  # fmt: skip
    tracked = run("git", "ls-files", "pipeline", "actuators", "node-exporter/node_exporter",
                  folder=ROOT).stdout.split()  # fmt: skip
    expected = {name.removeprefix("node-exporter/") for name in tracked}
    packed = {name for name in names if not name.startswith(information)}
    # Files that are not tracked yet are part of the wheel that is built beside them.
    assert packed >= expected
    assert {Path(name).suffix for name in packed} == {
        ".py", ".typed", ".lock", ".json",
        ".html", ".js", ".css", ".svg", ".LICENSE",  # of the console
    }  # fmt: skip
    licences = {name for name in names if name.startswith(f"{information}/licenses/")}
    assert {Path(name).name for name in licences} == {"LICENSE", "uplot.LICENSE"}


def test_the_sdist_builds_the_same_wheel(distribution: tuple[Path, Path], tmp_path: Path) -> None:
    wheel, sdist = distribution
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (sources,) = tmp_path.iterdir()
    for name in ("Makefile", "requirements-pipeline.lock", "deploy/image/Containerfile"):
        assert (sources / name).is_file()
    again = build_distribution(sources, tmp_path / "dist")[0]
    assert again.read_bytes() == wheel.read_bytes()


def test_a_wheel_without_extras_is_an_exporter(installed: Path) -> None:
    shown = run(installed / "springtide", "--version")
    assert (shown.returncode, shown.stdout.split()[:2]) == (0, ["springtide", __version__])
    shown = run(installed / "springtide", "exporter", "--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "--cgroup-root" in shown.stdout
    window = run(installed / "springtide", "exporter", "--once", "--window-seconds", "2")
    assert window.returncode == 0, window.stderr
    assert json.loads(window.stdout.splitlines()[0])["kind"] == "header"
    heavy = run(installed / "python", "-c", "import numpy")
    assert "No module named 'numpy'" in heavy.stderr


def test_a_process_without_opentelemetry_names_the_extra_tracing(installed: Path) -> None:
    program = """
from pipeline import tracing
from pipeline.settings import TracingSettings
with tracing.exporting("worker", TracingSettings()):
    print("off")
with tracing.exporting("worker", TracingSettings(endpoint="http://127.0.0.1:1")):
    pass
"""
    shown = run(installed / "python", "-c", program)
    assert shown.stdout == "off\n"
    assert "MissingExtraError: OpenTelemetry is not installed" in shown.stderr


@pytest.mark.parametrize("role", _ROLES_WITH_EXTRAS)
def test_other_roles_name_the_extra_that_they_need(installed: Path, role: str) -> None:
    extra = COMMANDS[role].extra
    assert extra is not None
    shown = run(installed / "springtide", role)
    assert shown.returncode == UsageError.exit_code
    assert install_hint(extra) in shown.stderr
    assert "Traceback" not in shown.stderr
