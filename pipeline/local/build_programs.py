"""Build the local control plane (`deploy/controlplane`), Prometheus with promtool
(`deploy/prometheus`), Alertmanager (`deploy/alertmanager`), Helm (`deploy/helm`), and, only for
the comparison with them, programs of Koordinator (`deploy/koordinator`).

Programs are cached in a directory named by the hash of their sources. A finished program is moved
there atomically, and a file lock serializes builds. Programs in the directory KUBEBUILDER_ASSETS
are used as they are; missing ones are built.

`python -m pipeline.local.build_programs` builds all but Koordinator's and prints their paths.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pipeline.errors import ControlPlaneBuildError
from pipeline.local.cache_folders import Report, cache_root, file_lock, print_to_stderr
from pipeline.local.go_toolchain import Go, find_go

SOURCES: Final = Path(__file__).parents[2] / "deploy" / "controlplane"
PROMETHEUS_SOURCES: Final = SOURCES.parent / "prometheus"
ALERTMANAGER_SOURCES: Final = SOURCES.parent / "alertmanager"
HELM_SOURCES: Final = SOURCES.parent / "helm"
KOORDINATOR_SOURCES: Final = SOURCES.parent / "koordinator"

# One binary, which selects the program by the name that it is called by.
_KUBERNETES: Final = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubectl",
)
PROGRAMS: Final = (*_KUBERNETES, "kwok")

_FILES: Final = ("main.go", "go.mod", "go.sum", "kwok/go.mod", "kwok/go.sum")
_MODULE_FILES: Final = ("go.mod", "go.sum")
_BUILD: Final = ("build", "-trimpath", "-mod=readonly")
# Without service discovery, and so without the clients of two dozen clouds.
_NO_CLOUDS: Final = ("-tags", "remove_all_sd")
_SCRATCH_PREFIX: Final = "building-"
_STRIP_FLAGS: Final = "-s -w"
_PROGRESS_SECONDS: Final = 15.0
_TAIL_LINES: Final = 15


def are_programs_built(sources: Path = SOURCES) -> bool:
    """Whether `ensure_programs` has nothing to build."""
    folder = _cache_folder(sources)
    return all((folder / name).exists() for name in PROGRAMS)


def ensure_programs(
    sources: Path = SOURCES,
    *,
    environ: Mapping[str, str] = os.environ,
    report: Report = print_to_stderr,
) -> dict[str, Path]:
    """Return the path of each of `PROGRAMS`, and build missing ones first.

    `report` receives lines of progress (default: standard error). Raises `ControlPlaneBuildError`
    if a build fails.
    """
    assets = Path(environ["KUBEBUILDER_ASSETS"]) if environ.get("KUBEBUILDER_ASSETS") else None
    paths = {
        name: assets / name for name in PROGRAMS if assets is not None and (assets / name).is_file()
    }
    missing = [name for name in PROGRAMS if name not in paths]
    if missing:
        folder = _cache_folder(sources)
        if not all((folder / name).exists() for name in missing):
            _build(sources, folder, report)
        paths |= {name: folder / name for name in missing}
    return paths


def ensure_prometheus(
    sources: Path = PROMETHEUS_SOURCES, *, report: Report = print_to_stderr
) -> Path:
    """Return the path of Prometheus, and build it first if it is missing. Raises
    `ControlPlaneBuildError` if the build fails."""
    what = "building Prometheus {version} with Go {go}; takes three minutes on two cores"
    return _ensure_program(
        "github.com/prometheus/prometheus/cmd/prometheus", sources, what, report, *_NO_CLOUDS
    )


def ensure_promtool(
    sources: Path = PROMETHEUS_SOURCES, *, report: Report = print_to_stderr
) -> Path:
    """Return the path of promtool, which checks metrics pages and rules, and build it first if it
    is missing. Raises `ControlPlaneBuildError` if the build fails."""
    what = "building promtool {version} with Go {go}; takes two minutes on two cores"
    return _ensure_program(
        "github.com/prometheus/prometheus/cmd/promtool", sources, what, report, *_NO_CLOUDS
    )


def ensure_alertmanager(
    sources: Path = ALERTMANAGER_SOURCES, *, report: Report = print_to_stderr
) -> Path:
    """Return the path of Alertmanager, and build it first if it is missing. Raises
    `ControlPlaneBuildError` if the build fails."""
    what = "building Alertmanager {version} with Go {go}; takes a minute on two cores"
    return _ensure_program(
        "github.com/prometheus/alertmanager/cmd/alertmanager", sources, what, report
    )


def ensure_helm(sources: Path = HELM_SOURCES, *, report: Report = print_to_stderr) -> Path:
    """Return the path of Helm, and build it first if it is missing. Raises `ControlPlaneBuildError`
    if the build fails."""
    what = "building Helm {version} with Go {go}; takes three minutes on two cores"
    return _ensure_program("helm.sh/helm/v4/cmd/helm", sources, what, report)


def ensure_koordinator(
    name: str, sources: Path = KOORDINATOR_SOURCES, *, report: Report = print_to_stderr
) -> Path:
    """Return the path of a program of Koordinator (`koord-scheduler`, `koord-manager`), and build
    it first if it is missing. Raises `ControlPlaneBuildError` if the build fails."""
    what = f"building {name} {{version}} with Go {{go}}; takes five minutes on two cores"
    return _ensure_program(
        f"github.com/koordinator-sh/koordinator/cmd/{name}", sources, what, report
    )


def ensure_own_program(sources: Path, name: str, *, report: Report = print_to_stderr) -> Path:
    """Return the path of the program whose `main.go` and module files are in `sources`, and build
    it first if it is missing. Raises `ControlPlaneBuildError` if the build fails."""
    folder = _cache_folder(sources, ("main.go", *_MODULE_FILES), name)
    if not (folder / name).exists():
        go = find_go()
        with _locked_build_folder(folder, report, name) as scratch:
            if not (folder / name).exists():
                report(f"building {name} with Go {go.version}; takes a minute on two cores")
                binary = scratch / name
                _run(go, ["-ldflags", _STRIP_FLAGS, "-o", str(binary), "."], sources, report)
                binary.replace(folder / name)
    return folder / name


def _ensure_program(package: str, sources: Path, what: str, report: Report, *flags: str) -> Path:
    """The program of `package`, built if it is missing."""
    module, _, name = package.partition("/cmd/")
    # The name of a module: helm of helm.sh/helm/v4.
    folder_name = re.sub(r"/v\d+$", "", module).rpartition("/")[2]
    folder = _cache_folder(sources, _MODULE_FILES, folder_name)
    if not (folder / name).exists():
        go = find_go()
        with _locked_build_folder(folder, report, name.capitalize()) as scratch:
            _build_program(go, package, what, sources, scratch, report, *flags)
    return folder / name


def _cache_folder(sources: Path, files: Sequence[str] = _FILES, name: str = "controlplane") -> Path:
    digest = hashlib.sha256()
    try:
        for file in files:
            digest.update((sources / file).read_bytes())
    except OSError as error:
        raise ControlPlaneBuildError(
            f"cannot read {error.filename}: {error.strerror}",
            hint="build the control plane in a checkout of the project, or set "
            "KUBEBUILDER_ASSETS to a directory with " + ", ".join(PROGRAMS),
        ) from error
    return cache_root() / name / digest.hexdigest()[:16]


def _build(sources: Path, folder: Path, report: Report) -> None:
    go = find_go()
    with _locked_build_folder(folder, report, "the control plane") as scratch:
        _build_kubernetes(go, sources, scratch, report)
        what = "building KWOK {version}, which simulates kubelets; takes another minute"
        _build_program(go, "sigs.k8s.io/kwok/cmd/kwok", what, sources / "kwok", scratch, report)


@contextmanager
def _locked_build_folder(folder: Path, report: Report, what: str) -> Iterator[Path]:
    """Lock the directory for a build, and yield a scratch directory in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (
            file_lock(folder / "lock", report, f"waiting for another process that builds {what}"),
            tempfile.TemporaryDirectory(prefix=_SCRATCH_PREFIX, dir=folder) as scratch,
        ):
            for leftover in folder.glob(f"{_SCRATCH_PREFIX}*"):
                if leftover != Path(scratch):
                    shutil.rmtree(leftover, ignore_errors=True)
            yield Path(scratch)
    except OSError as error:
        raise ControlPlaneBuildError(
            f"cannot write to {folder}: {error.strerror or error}",
            hint="set XDG_CACHE_HOME to a writable directory",
        ) from error


def _build_kubernetes(go: Go, sources: Path, scratch: Path, report: Report) -> None:
    folder = scratch.parent
    # The previous holder of the lock may have built it.
    if all((folder / name).exists() for name in _KUBERNETES):
        return
    version = _required_version(sources / "go.mod", "k8s.io/kubernetes")
    major, minor, _ = version.removeprefix("v").split(".")
    fields = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    # Clients read the version of Kubernetes from these variables.
    flags = [_STRIP_FLAGS]
    flags += [f"-X k8s.io/component-base/version.{key}={value}" for key, value in fields.items()]
    report(f"building Kubernetes {version} with Go {go.version}; takes five minutes on two cores")
    binary = scratch / "kubernetes"
    _run(go, ["-ldflags", " ".join(flags), "-o", str(binary), "."], sources, report)
    binary.replace(folder / binary.name)
    for name in _KUBERNETES:
        link = scratch / name
        link.symlink_to(binary.name)
        link.replace(folder / name)


def _build_program(
    go: Go, package: str, what: str, sources: Path, scratch: Path, report: Report, *flags: str
) -> None:
    """Build the program of `package`, whose path is `<module>/cmd/<program>`."""
    module, _, name = package.partition("/cmd/")
    folder = scratch.parent
    if (folder / name).exists():
        return
    version = _required_version(sources / "go.mod", module)
    report(what.format(version=version, go=go.version))
    binary = scratch / name
    _run(go, [*flags, "-ldflags", _STRIP_FLAGS, "-o", str(binary), package], sources, report)
    binary.replace(folder / name)


def _required_version(file: Path, module: str) -> str:
    match = re.search(rf"{re.escape(module)} (v\S+)", file.read_text(encoding="utf-8"))
    if match is None:
        raise ControlPlaneBuildError(f"{file} does not require {module}")
    return match[1]


def _run(go: Go, arguments: Sequence[str], folder: Path, report: Report) -> None:
    """Run `go build`, and report progress every 15 seconds."""
    environment = {
        # The user's settings for other projects must not change this build.
        **{name: value for name, value in os.environ.items() if name not in ("GOFLAGS", "GOWORK")},
        "CGO_ENABLED": "0",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
    }
    start = time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        with subprocess.Popen(
            [str(go.path), *_BUILD, *arguments],
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=output,
        ) as build:
            try:
                while True:
                    try:
                        code = build.wait(_PROGRESS_SECONDS)
                        break
                    except subprocess.TimeoutExpired:
                        report(f"  building for {time.monotonic() - start:.0f} s")
            except BaseException:
                build.kill()
                raise
        if code != 0:
            output.seek(0)
            tail = output.read().splitlines()[-_TAIL_LINES:]
            raise ControlPlaneBuildError(
                "\n".join(
                    [f"go build in {folder} ended with {code}:", *(f"  {line}" for line in tail)]
                ),
                hint="connect to the network to download modules, or set GOPROXY to a reachable "
                "proxy, or KUBEBUILDER_ASSETS to a directory with " + ", ".join(PROGRAMS),
            )
    report(f"built in {time.monotonic() - start:.0f} s")


def main() -> None:
    for name, path in ensure_programs().items():
        sys.stdout.write(f"{name:24} {path}\n")
    sys.stdout.write(f"{'prometheus':24} {ensure_prometheus()}\n")
    sys.stdout.write(f"{'promtool':24} {ensure_promtool()}\n")
    sys.stdout.write(f"{'alertmanager':24} {ensure_alertmanager()}\n")
    sys.stdout.write(f"{'helm':24} {ensure_helm()}\n")


if __name__ == "__main__":
    main()
