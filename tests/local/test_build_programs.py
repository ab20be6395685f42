"""Building the programs of the control plane: real Go, on modules of a few lines."""

import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from pipeline.errors import ControlPlaneBuildError
from pipeline.local.build_programs import (
    ALERTMANAGER_SOURCES,
    HELM_SOURCES,
    KOORDINATOR_SOURCES,
    PROGRAMS,
    PROMETHEUS_SOURCES,
    SOURCES,
    ensure_alertmanager,
    ensure_helm,
    ensure_koordinator,
    ensure_programs,
    ensure_prometheus,
    ensure_promtool,
)

pytestmark = pytest.mark.slow

MAIN = """package main

import (
	"fmt"
	"os"
	"path/filepath"
)

func main() { fmt.Println(filepath.Base(os.Args[0])) }
"""
MODULE = "module example.org/small\n\ngo 1.26.0\n\n// {name} v1.2.3\n"


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "sources"
    (folder / "kwok" / "cmd").mkdir(parents=True)
    (folder / "main.go").write_text(MAIN)
    (folder / "go.mod").write_text(MODULE.format(name="k8s.io/kubernetes"))
    # The package that is asked for is this module's own here, not one that is fetched.
    kwok = "module sigs.k8s.io/kwok\n\ngo 1.26.0\n\n// sigs.k8s.io/kwok v1.2.3\n"
    (folder / "kwok" / "go.mod").write_text(kwok)
    (folder / "kwok" / "cmd" / "kwok").mkdir()
    (folder / "kwok" / "cmd" / "kwok" / "main.go").write_text(MAIN)
    for name in ("go.sum", "kwok/go.sum"):
        (folder / name).touch()
    return folder


def test_programs_are_built_once(sources: Path) -> None:
    progress: list[str] = []
    built = ensure_programs(sources, environ={}, report=progress.append)
    assert set(built) == set(PROGRAMS)
    assert progress[0].startswith("building Kubernetes v1.2.3 with Go 1.")
    for name, path in built.items():
        assert subprocess.check_output([path], text=True) == f"{name}\n"
    assert ensure_programs(sources, environ={}, report=pytest.fail) == built
    (folder,) = {path.parent for path in built.values()}
    assert {path.name for path in folder.iterdir()} == {*PROGRAMS, "kubernetes", "lock"}


def test_changed_sources_are_built_again(sources: Path) -> None:
    built = ensure_programs(sources, environ={}, report=print)
    (sources / "main.go").write_text(MAIN.replace("Println(", 'Println("newer", '))
    newer = ensure_programs(sources, environ={}, report=print)
    assert newer["etcd"] != built["etcd"]
    assert subprocess.check_output([newer["etcd"]], text=True) == "newer etcd\n"


def test_compile_error_has_the_compilers_output(sources: Path) -> None:
    (sources / "main.go").write_text("package main\n\nfunc main() { nothing() }\n")
    with pytest.raises(ControlPlaneBuildError, match="undefined: nothing") as caught:
        ensure_programs(sources, environ={}, report=print)
    assert "GOPROXY" in (caught.value.hint or "")
    (sources / "main.go").write_text(MAIN)
    assert ensure_programs(sources, environ={}, report=print)["etcd"].exists()


def test_programs_in_kubebuilder_assets_are_used(sources: Path, tmp_path: Path) -> None:
    assets = tmp_path / "assets"
    assets.mkdir()
    (assets / "etcd").write_text("#!/bin/sh\n")
    environ = {"KUBEBUILDER_ASSETS": str(assets)}
    programs = ensure_programs(sources, environ=environ, report=print)
    assert programs["etcd"] == assets / "etcd"
    assert programs["kwok"].parent.name != "assets"
    for name in PROGRAMS:
        (assets / name).write_text("#!/bin/sh\n")
    shutil.rmtree(sources)
    programs = ensure_programs(sources, environ=environ, report=pytest.fail)
    assert {path.parent for path in programs.values()} == {assets}


def test_missing_sources_are_an_error_with_a_fix(tmp_path: Path) -> None:
    with pytest.raises(ControlPlaneBuildError, match="cannot read") as caught:
        ensure_programs(tmp_path / "none", environ={}, report=print)
    assert "KUBEBUILDER_ASSETS" in (caught.value.hint or "")


def test_unwritable_program_cache_is_an_error(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ControlPlaneBuildError, match="cannot write to") as caught:
        ensure_programs(sources, environ={}, report=print)
    assert "XDG_CACHE_HOME" in (caught.value.hint or "")


def test_go_modules_pin_the_programs() -> None:
    for name in ("go.mod", "go.sum", "main.go", "stages.yaml", "kwok/go.mod", "kwok/go.sum"):
        assert (SOURCES / name).stat().st_size > 0
    for name in ("go.mod", "go.sum"):
        assert (PROMETHEUS_SOURCES / name).stat().st_size > 0
        assert (ALERTMANAGER_SOURCES / name).stat().st_size > 0
        assert (HELM_SOURCES / name).stat().st_size > 0
        assert (KOORDINATOR_SOURCES / name).stat().st_size > 0


@pytest.mark.parametrize(
    ("path", "ensured"),
    [
        (
            "github.com/prometheus/prometheus",
            {"prometheus": ensure_prometheus, "promtool": ensure_promtool},
        ),
        ("github.com/prometheus/alertmanager", {"alertmanager": ensure_alertmanager}),
        ("helm.sh/helm/v4", {"helm": ensure_helm}),
        (
            "github.com/koordinator-sh/koordinator",
            {
                name: partial(ensure_koordinator, name)
                for name in ("koord-scheduler", "koord-manager")
            },
        ),
    ],
)
def test_programs_of_a_module_are_built_once(
    sources: Path, path: str, ensured: dict[str, Callable[..., Path]]
) -> None:
    module = path.removesuffix("/v4").rpartition("/")[2]
    folder = sources.parent / module
    for name in ensured:
        (folder / "cmd" / name).mkdir(parents=True)
        (folder / "cmd" / name / "main.go").write_text(MAIN)
    (folder / "go.mod").write_text(f"module {path}\n\ngo 1.26.0\n\n// {path} v0.1.2\n")
    (folder / "go.sum").touch()
    for name, ensure in ensured.items():
        progress: list[str] = []
        built = ensure(folder, report=progress.append)
        assert progress[0].lower().startswith(f"building {name} v0.1.2 with go 1.")
        assert built.parent.parent.name == module
        assert subprocess.check_output([built], text=True) == f"{name}\n"
        assert ensure(folder, report=pytest.fail) == built
        with pytest.raises(ControlPlaneBuildError, match="cannot read"):
            ensure(folder / "none", report=print)
