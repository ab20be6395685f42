"""Fetch the npm packages that the console is made of and checked with.

Versions and hashes are those of `npm/package-lock.json`; the packages are cached, and no script of
theirs runs.
"""

import shutil
import subprocess
from pathlib import Path
from typing import Final

from pipeline.local.cache_folders import Report, print_to_stderr
from tests.debian_packages import UnavailableError, ensure_fetched

_LISTS: Final = Path(__file__).parent / "npm"
_WHAT: Final = "npm packages for tests of the console"
_SECONDS: Final = 300.0
_WHY_CHARACTERS: Final = 600


def ensure_npm_packages(*, report: Report = print_to_stderr) -> Path:
    """Return the directory `node_modules`, and fetch it first if it is missing.

    Raises `UnavailableError` if it cannot be had here.
    """
    lock = str(_LISTS / "package-lock.json")
    return ensure_fetched("npm", lock, _WHAT, _fetch, report) / "node_modules"


def _fetch(scratch: Path, folder: Path) -> str:
    npm = shutil.which("npm")
    if npm is None:
        raise UnavailableError("npm is not installed")
    for name in ("package.json", "package-lock.json"):
        shutil.copy(_LISTS / name, scratch)
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    try:
        completed = subprocess.run(
            command, cwd=scratch, timeout=_SECONDS, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"npm did not end within {_SECONDS:g} s") from error
    if completed.returncode:
        raise UnavailableError(f"`npm ci` failed: {completed.stdout[-_WHY_CHARACTERS:]}")
    (scratch / "node_modules").rename(folder / "node_modules")
    return "uplot and axe-core"
