"""Wheel and sdist as `make dist` builds them, and the wheels that a lock pins."""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from pipeline.local.cache_folders import cache_root, file_lock, print_to_stderr
from tests.processes import ROOT

_DOWNLOAD_SECONDS: Final = 900.0
_BUILD_SECONDS: Final = 300.0
_WHAT_IS_BUILT: Final = (
    "pipeline", "actuators", "node-exporter", "tests", "docs", "deploy", "benchmarks", "Makefile",
    "CHANGELOG.md", "LICENSE", "README.md", ".gitignore", "mkdocs.yml", "pyproject.toml",
    "requirements-dev.lock", "requirements-exporter.lock", "requirements-pipeline.lock",
)  # fmt: skip


def pinned_wheels(lock: str) -> Path:
    """Return a directory with the wheels that `requirements-<lock>.lock` pins.

    It is filled once for each content of the lock, and verified by pip at every installation.
    """
    file = ROOT / f"requirements-{lock}.lock"
    digest = hashlib.sha256(file.read_bytes() + platform.python_version().encode())
    folder = cache_root() / "wheels" / digest.hexdigest()[:16]
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        waiting = "waiting for another process that downloads wheels"
        with file_lock(folder.parent / "lock", print_to_stderr, waiting):
            # The previous holder of the lock may have downloaded them.
            if not folder.exists():
                with tempfile.TemporaryDirectory(prefix="fetching-", dir=folder.parent) as scratch:
                    run_pip("download", "--require-hashes", "--no-deps", "--only-binary=:all:",
                            f"--dest={scratch}/wheels", f"--requirement={file}")  # fmt: skip
                    Path(scratch, "wheels").rename(folder)
    return folder


def run_pip(*arguments: str, python: str = sys.executable) -> None:
    """Run pip of the tests' environment, for the environment of `python`."""
    command = [sys.executable, "-m", "pip", "--quiet", "--no-input", f"--python={python}"]
    subprocess.run([*command, *arguments], check=True, timeout=_DOWNLOAD_SECONDS)


def copy_sources(folder: Path) -> Path:
    """Copy what is built to `folder`, with files of other times and other modes, as another
    checkout has them. Directories that programs leave behind in a checkout are copied too."""
    folder.mkdir()
    for name in _WHAT_IS_BUILT:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, copy_function=shutil.copy)
        else:
            shutil.copy(source, folder / name)
    for path in folder.rglob("*.py"):
        path.chmod(0o600)
    return folder


def build_distribution(sources: Path, folder: Path, epoch: int = 1_700_000_000) -> list[Path]:
    """Build sdist and wheel into `folder` as `make dist` does; returns their paths by name."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)],
        cwd=sources, env=os.environ | {"SOURCE_DATE_EPOCH": str(epoch)}, check=True,
        stdout=subprocess.DEVNULL, timeout=_BUILD_SECONDS,
    )  # fmt: skip
    return sorted(folder.iterdir())
