"""The programs of the local control plane, built once from `deploy/controlplane`, and Prometheus,
from `deploy/prometheus`.

They lie in a folder of the user's cache that is named by what they are built from, so another
version is another folder. A program gets there by a rename, once it is whole. Two processes at a
time take turns by a file lock. KUBEBUILDER_ASSETS names a folder whose programs are taken as they
are; what it lacks is built.

`python -m pipeline.local.build_programs` builds them and says where they lie.
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
from pipeline.local.cache_folders import Say, cache_root, in_turn, on_stderr
from pipeline.local.go_toolchain import Go, find_go

SOURCES: Final = Path(__file__).parents[2] / "deploy" / "controlplane"
PROMETHEUS_SOURCES: Final = SOURCES.parent / "prometheus"

# All of these are one program, which looks at the name that it is called by.
_KUBERNETES: Final = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubectl",
)
PROGRAMS: Final = (*_KUBERNETES, "kwok")

_FILES: Final = ("main.go", "go.mod", "go.sum", "kwok/go.mod", "kwok/go.sum")
_PROMETHEUS_FILES: Final = ("go.mod", "go.sum")
_BUILD: Final = ("build", "-trimpath", "-mod=readonly")
_SCRATCH: Final = "building-"
_STRIP: Final = "-s -w"
_QUIET_SECONDS: Final = 15.0
_TAIL_LINES: Final = 15


def are_programs_built(sources: Path = SOURCES) -> bool:
    """Whether `ensure_programs` has nothing to build."""
    folder = _folder(sources)
    return all((folder / name).exists() for name in PROGRAMS)


def ensure_programs(
    sources: Path = SOURCES, *, environ: Mapping[str, str] = os.environ, say: Say | None = None
) -> dict[str, Path]:
    """Each of `PROGRAMS` and where it lies, built first where it is not there.

    `say` is told what goes on (by default stderr). Raises ControlPlaneBuildError if they are to be
    built and cannot be.
    """
    given = Path(environ["KUBEBUILDER_ASSETS"]) if environ.get("KUBEBUILDER_ASSETS") else None
    found = {
        name: given / name for name in PROGRAMS if given is not None and (given / name).is_file()
    }
    wanted = [name for name in PROGRAMS if name not in found]
    if wanted:
        folder = _folder(sources)
        if not all((folder / name).exists() for name in wanted):
            _build(sources, folder, say or on_stderr)
        found |= {name: folder / name for name in wanted}
    return found


def ensure_prometheus(sources: Path = PROMETHEUS_SOURCES, *, say: Say | None = None) -> Path:
    """Where Prometheus lies, built first where it is not there.

    Raises ControlPlaneBuildError if it is to be built and cannot be.
    """
    folder = _folder(sources, _PROMETHEUS_FILES, "prometheus")
    program = folder / "prometheus"
    if not program.exists():
        say = say or on_stderr
        go = find_go()
        with _turn_to_build(folder, say, "Prometheus") as scratch:
            _build_prometheus(go, sources, folder, scratch, say)
    return program


def _folder(sources: Path, files: Sequence[str] = _FILES, name: str = "controlplane") -> Path:
    digest = hashlib.sha256()
    try:
        for file in files:
            digest.update((sources / file).read_bytes())
    except OSError as error:
        raise ControlPlaneBuildError(
            f"cannot read {error.filename}: {error.strerror}",
            hint="the control plane is built in a checkout of the project: clone it, or set "
            "KUBEBUILDER_ASSETS to a folder that has " + ", ".join(PROGRAMS),
        ) from error
    return cache_root() / name / digest.hexdigest()[:16]


def _build(sources: Path, folder: Path, say: Say) -> None:
    go = find_go()
    with _turn_to_build(folder, say, "the control plane") as scratch:
        _build_kubernetes(go, sources, folder, scratch, say)
        _build_kwok(go, sources, folder, scratch, say)


@contextmanager
def _turn_to_build(folder: Path, say: Say, what: str) -> Iterator[Path]:
    """A folder for what is not whole yet, beside what will be; one process at a time has one."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (
            in_turn(folder / "lock", say, f"another process builds {what}; waiting"),
            tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=folder) as scratch,
        ):
            for leftover in folder.glob(f"{_SCRATCH}*"):
                if leftover != Path(scratch):
                    shutil.rmtree(leftover, ignore_errors=True)
            yield Path(scratch)
    except OSError as error:
        raise ControlPlaneBuildError(
            f"cannot write to {folder}: {error.strerror or error}",
            hint="set XDG_CACHE_HOME to a folder that you may write",
        ) from error


def _build_prometheus(go: Go, sources: Path, folder: Path, scratch: Path, say: Say) -> None:
    # Whoever held the lock before may have built it.
    if (folder / "prometheus").exists():
        return
    version = _version_in(sources / "go.mod", "github.com/prometheus/prometheus")
    say(f"building Prometheus {version} with Go {go.version}, once: three minutes on two cores")
    package = "github.com/prometheus/prometheus/cmd/prometheus"
    binary = scratch / "prometheus"
    # Without the clients of two dozen clouds, in which it would look for targets.
    flags = ["-tags", "remove_all_sd", "-ldflags", _STRIP]
    _run(go, [*flags, "-o", str(binary), package], sources, say)
    binary.replace(folder / "prometheus")


def _build_kubernetes(go: Go, sources: Path, folder: Path, scratch: Path, say: Say) -> None:
    # Whoever held the lock before may have built it.
    if all((folder / name).exists() for name in _KUBERNETES):
        return
    version = _version_in(sources / "go.mod", "k8s.io/kubernetes")
    major, minor, _ = version.removeprefix("v").split(".")
    stamps = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    # Without these clients cannot tell which Kubernetes it is.
    flags = [_STRIP, *(f"-X k8s.io/component-base/version.{k}={v}" for k, v in stamps.items())]
    say(f"building Kubernetes {version} with Go {go.version}, once: five minutes on two cores")
    binary = scratch / "kubernetes"
    _run(go, ["-ldflags", " ".join(flags), "-o", str(binary), "."], sources, say)
    binary.replace(folder / binary.name)
    for name in _KUBERNETES:
        link = scratch / name
        link.symlink_to(binary.name)
        link.replace(folder / name)


def _build_kwok(go: Go, sources: Path, folder: Path, scratch: Path, say: Say) -> None:
    if (folder / "kwok").exists():
        return
    version = _version_in(sources / "kwok" / "go.mod", "sigs.k8s.io/kwok")
    say(f"building KWOK {version}, which plays the kubelets: another minute")
    package = "sigs.k8s.io/kwok/cmd/kwok"
    binary = scratch / "kwok"
    _run(go, ["-ldflags", _STRIP, "-o", str(binary), package], sources / "kwok", say)
    binary.replace(folder / "kwok")


def _version_in(file: Path, module: str) -> str:
    found = re.search(rf"{re.escape(module)} (v\S+)", file.read_text(encoding="utf-8"))
    if found is None:
        raise ControlPlaneBuildError(f"{file} does not say which {module} it requires")
    return found[1]


def _run(go: Go, arguments: Sequence[str], folder: Path, say: Say) -> None:
    """Run `go build`, with a word every quarter of a minute."""
    environment = {
        # What a user has set for projects of theirs must not change what is built here.
        **{name: value for name, value in os.environ.items() if name not in ("GOFLAGS", "GOWORK")},
        "CGO_ENABLED": "0",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
    }
    began = time.monotonic()
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
                        code = build.wait(_QUIET_SECONDS)
                        break
                    except subprocess.TimeoutExpired:
                        say(f"  building for {time.monotonic() - began:.0f} s")
            except BaseException:
                build.kill()
                raise
        if code != 0:
            output.seek(0)
            said = output.read().splitlines()[-_TAIL_LINES:]
            raise ControlPlaneBuildError(
                "\n".join([f"go build in {folder} ended with {code}:", *(f"  {s}" for s in said)]),
                hint="modules are fetched once: connect to the network, or set GOPROXY to a proxy "
                "that you reach, or KUBEBUILDER_ASSETS to a folder that has " + ", ".join(PROGRAMS),
            )
    say(f"built in {time.monotonic() - began:.0f} s")


def main() -> None:
    """Build what is not there, and say where all of it lies."""
    for name, path in ensure_programs().items():
        sys.stdout.write(f"{name:24} {path}\n")
    sys.stdout.write(f"{'prometheus':24} {ensure_prometheus()}\n")


if __name__ == "__main__":
    main()
