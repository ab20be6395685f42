"""`kubectl springtide`, by the real kubectl."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from pipeline.local.build_programs import ensure_programs

_PROJECT = Path(__file__).parents[2]
_SECONDS = 120.0


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder with the script that pip makes of the entry point."""
    with (_PROJECT / "pyproject.toml").open("rb") as file:
        module, _, function = tomllib.load(file)["project"]["scripts"][
            "kubectl-springtide"
        ].partition(":")
    script = tmp_path / "kubectl-springtide"
    script.write_text(
        f"#!{sys.executable}\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n"
    )
    script.chmod(0o755)
    return tmp_path


@pytest.mark.plane
def test_kubectl_runs_springtide(installed: Path) -> None:
    environment = os.environ | {
        "PATH": f"{installed}:{os.environ['PATH']}", "PYTHONPATH": str(_PROJECT),
    }  # fmt: skip

    def kubectl(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [ensure_programs()["kubectl"], *arguments], env=environment, check=False,
            capture_output=True, text=True, timeout=_SECONDS,
        )  # fmt: skip

    plugins = kubectl("plugin", "list")
    assert str(installed / "kubectl-springtide") in plugins.stdout, plugins.stderr
    shown = kubectl("springtide", "top", "--help")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith("Usage: kubectl springtide top [OPTIONS]")
    mistyped = kubectl("springtide", "tpo")
    assert (mistyped.returncode, "Did you mean 'top'?" in mistyped.stderr) == (2, True)
