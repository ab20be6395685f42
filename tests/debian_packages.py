"""Fetch programs that tests need from Debian packages, without installing them.

apt downloads the packages that this machine lacks, with lists of its own; dpkg-deb unpacks them.
The system stays as it is, and root is not needed. What is fetched is cached in a directory named by
the hash of the modules that fetch it and the release of the system.
"""

import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from pipeline.local.cache_folders import Report, cache_root, file_lock

_TOOLS: Final = ("apt-get", "apt-cache", "dpkg-deb")
_DOWNLOAD_SECONDS: Final = 300.0
_UNPACK_SECONDS: Final = 120.0
_ERRORS_MAX: Final = 3
_WHY_CHARACTERS: Final = 600


class UnavailableError(Exception):
    """What a test needs cannot be had on this machine; the text is the reason."""


def ensure_fetched(
    name: str, module: str, what: str, fetch: Callable[[Path, Path], str], report: Report
) -> Path:
    """Return the cache directory `name`, filled by `fetch` first if it is not complete.

    `fetch` gets a scratch directory in it and the directory itself, and returns what it fetched.
    `module` is the file that defines it, `what` describes the download. Raises `UnavailableError`
    if it cannot be had here.
    """
    folder = _cache_folder(name, module)
    if not (folder / "complete").exists():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            waiting = f"waiting for another process that fetches the {name}'s packages"
            with file_lock(folder / "lock", report, waiting):
                # The previous holder of the lock may have fetched it.
                if not (folder / "complete").exists():
                    _fetch(folder, what, fetch, report)
        except OSError as error:
            raise UnavailableError(
                f"cannot write to {error.filename or folder}: {error.strerror or error}"
            ) from error
    return folder


def _cache_folder(name: str, module: str) -> Path:
    if absent := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        raise UnavailableError(
            f"Debian packages are fetched with {', '.join(absent)}, which is not installed"
        )
    digest = hashlib.sha256()
    for file in (module, __file__):
        digest.update(Path(file).read_bytes())
    digest.update(repr(sorted(platform.freedesktop_os_release().items())).encode())
    return cache_root() / name / digest.hexdigest()[:16]


def _fetch(folder: Path, what: str, fetch: Callable[[Path, Path], str], report: Report) -> None:
    start = time.monotonic()
    report(f"fetching {what}")
    for leftover in folder.iterdir():
        if leftover.is_dir():
            shutil.rmtree(leftover)
    with tempfile.TemporaryDirectory(prefix="fetching-", dir=folder) as scratch:
        fetched = fetch(Path(scratch), folder)
    (folder / "complete").touch()
    report(f"fetched {fetched} in {time.monotonic() - start:.0f} s")


class Apt:
    """apt with lists and caches in a scratch directory: the system's may be old, and belong to
    root. Every method raises `UnavailableError` if apt fails."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        for directory in ("lists/partial", "cache/archives/partial"):
            (scratch / directory).mkdir(parents=True)
        self._options = [
            f"-oDir::State::Lists={scratch / 'lists'}",
            f"-oDir::Cache={scratch / 'cache'}",
            "-oDebug::NoLocking=1",
            "-oAcquire::Retries=2",
            "-oAcquire::http::Timeout=30",
            "-oAcquire::Languages=none",
            "-oAPT::Sandbox::User=",
            "-q",
        ]
        _run(["apt-get", *self._options, "update"], _DOWNLOAD_SECONDS)

    def dependency(self, package: str, pattern: str) -> str:
        """The name of a package, as the pattern finds it, that this one depends on."""
        command = ["apt-cache", *self._options, "depends", "--important", package]
        try:
            # `update` ends with 0 if it cannot fetch a list; then the next finds no package.
            depends = _run(command, _DOWNLOAD_SECONDS)
        except UnavailableError as error:
            hint = f"check the network, and whether this distribution has {package}"
            raise UnavailableError(f"{error}; {hint}") from error
        name = re.search(f"Depends: ({pattern})", depends)
        if name is None:
            raise UnavailableError(f"apt knows no package that {package} depends on")
        return name[1]

    def unpack(self, package: str, *, with_dependencies: bool = False) -> Path:
        """Download a package, with the missing ones of those that it depends on, and unpack them
        all into a directory, which is empty if nothing is missing."""
        archives, unpacked = (self._scratch / kind / package for kind in ("archives", "unpacked"))
        (archives / "partial").mkdir(parents=True)
        unpacked.mkdir(parents=True)
        if with_dependencies:
            install = ["--yes", "--no-install-recommends", "--download-only", "install", package]
            into = f"-oDir::Cache::Archives={archives}"
            _run(["apt-get", *self._options, into, *install], _DOWNLOAD_SECONDS)
        else:
            command = ["apt-get", *self._options, "download", package]
            _run(command, _DOWNLOAD_SECONDS, archives)
        for archive in sorted(archives.glob("*.deb")):
            _run(["dpkg-deb", "--extract", str(archive), str(unpacked)], _UNPACK_SECONDS)
        return unpacked

    def unpack_root(self, *packages: str) -> Path:
        """Unpack packages and all that they depend on, whatever this system has, into a root file
        system of their own. Their scripts are not run."""
        root, archives, status = (self._scratch / name for name in ("root", "all", "no-status"))
        (archives / "partial").mkdir(parents=True)
        status.touch()
        for name in ("bin", "lib", "lib64", "sbin"):
            (root / "usr" / name).mkdir(parents=True)
            (root / name).symlink_to(f"usr/{name}")
        options = [f"-oDir::Cache::Archives={archives}", f"-oDir::State::status={status}"]
        install = ["--yes", "--no-install-recommends", "--download-only", "install", *packages]
        _run(["apt-get", *self._options, *options, *install], _DOWNLOAD_SECONDS)
        tree = self._scratch / "root.tar"
        for archive in sorted(archives.glob("*.deb")):
            # Not `--extract`, which would replace the links /bin and /lib by directories.
            with tree.open("wb") as file:
                subprocess.run(["dpkg-deb", "--fsys-tarfile", archive], stdout=file, check=True)
            unpack = ["tar", "--extract", "--keep-directory-symlink", f"--directory={root}"]
            _run([*unpack, f"--file={tree}"], _UNPACK_SECONDS)
        return root


def _run(command: Sequence[str], seconds: float, folder: Path | None = None) -> str:
    """Run a command in `folder`; returns what it printed."""
    try:
        completed = subprocess.run(
            command, cwd=folder, timeout=seconds, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            check=False, env={**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"},
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"{command[0]} did not end within {seconds:g} s") from error
    if completed.returncode:
        lines = completed.stdout.splitlines()
        errors = [line for line in lines if line.startswith(("E:", "W:", "dpkg"))] or lines
        why = "; ".join(errors[-_ERRORS_MAX:]) or f"exit code {completed.returncode}"
        words = [word for word in command if not word.startswith("-")]
        raise UnavailableError(f"`{' '.join(words)}` failed: {why[:_WHY_CHARACTERS]}")
    return completed.stdout
