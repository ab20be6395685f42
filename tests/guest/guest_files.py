"""Fetch what boots the guest: QEMU, a kernel with its modules, and busybox, from Debian packages.

apt downloads the packages that this machine lacks, with lists of its own; dpkg-deb unpacks them.
The system stays as it is, and root is not needed. The result is cached in a directory named by the
hash of this file and the release of the system.

`python -m tests.guest.guest_files` fetches everything and prints where it is.
"""

import hashlib
import lzma
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pipeline.local.cache_folders import Report, cache_root, file_lock, print_to_stderr

QEMU: Final = "qemu-system-x86"
# The cloud kernel has no 9p.
KERNEL: Final = "linux-image-amd64"
BUSYBOX: Final = "busybox-static"
MODULES: Final = ("virtio_pci", "9pnet_virtio", "9p", "overlay", "virtio_blk")
"""Modules that the guest loads, after those that they depend on."""

_PROGRAM: Final = "qemu-system-x86_64"
_TOOLS: Final = ("apt-get", "apt-cache", "dpkg-deb")
_DOWNLOAD_SECONDS: Final = 300.0
_UNPACK_SECONDS: Final = 120.0
_ERRORS_MAX: Final = 3
_WHY_CHARACTERS: Final = 600


class GuestUnavailableError(Exception):
    """No guest can be booted on this machine; the text is the reason."""


@dataclass(frozen=True)
class GuestFiles:
    """Everything that boots the guest; `modules` are in the order in which they are loaded."""

    qemu: Path
    root: Path
    """Unpacked packages of QEMU: libraries, modules and firmware."""
    kernel: Path
    busybox: Path
    modules: tuple[Path, ...]


def ensure_guest_files(*, report: Report = print_to_stderr) -> GuestFiles:
    """Return the files of the guest, and fetch them first if they are missing.

    `report` receives lines of progress. Raises `GuestUnavailableError` if they cannot be had here.
    """
    folder = _cache_folder()
    if not (folder / "complete").exists():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            waiting = "waiting for another process that fetches the guest's packages"
            with file_lock(folder / "lock", report, waiting):
                # The previous holder of the lock may have fetched it.
                if not (folder / "complete").exists():
                    _fetch(folder, report)
        except OSError as error:
            raise GuestUnavailableError(
                f"cannot write to {error.filename or folder}: {error.strerror or error}"
            ) from error
    root = folder / "root"
    own = root / "usr/bin" / _PROGRAM
    # apt downloads nothing if the system has QEMU.
    qemu = str(own) if own.exists() else shutil.which(_PROGRAM)
    if qemu is None:
        raise GuestUnavailableError(f"no {_PROGRAM} in {own.parent} or on the PATH")
    order = (folder / "modules/order").read_text().split()
    return GuestFiles(
        Path(qemu),
        root,
        folder / "vmlinuz",
        folder / "busybox",
        tuple(folder / "modules" / name for name in order),
    )


def _cache_folder() -> Path:
    if platform.machine() != "x86_64":
        raise GuestUnavailableError(
            f"the guest is for x86_64, this machine is {platform.machine()}"
        )
    if absent := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        raise GuestUnavailableError(
            f"packages of the guest are fetched with {', '.join(absent)}, which is not installed"
        )
    digest = hashlib.sha256(Path(__file__).read_bytes())
    digest.update(repr(sorted(platform.freedesktop_os_release().items())).encode())
    return cache_root() / "guest" / digest.hexdigest()[:16]


def _fetch(folder: Path, report: Report) -> None:
    start = time.monotonic()
    report("fetching QEMU and a kernel for tests on cgroup v2; takes half a minute, 100 MB")
    for leftover in folder.iterdir():
        if leftover.is_dir():
            shutil.rmtree(leftover)
    with tempfile.TemporaryDirectory(prefix="fetching-", dir=folder) as name:
        scratch = Path(name)
        kernel = _download(scratch)
        for part in ("qemu", "tools", "kernel"):
            unpacked = scratch / part
            unpacked.mkdir()
            for package in sorted((scratch / "archives" / part).glob("*.deb")):
                _run(["dpkg-deb", "--extract", str(package), str(unpacked)], _UNPACK_SECONDS)
        version = kernel.removeprefix("linux-image-")
        (scratch / "kernel/boot" / f"vmlinuz-{version}").rename(folder / "vmlinuz")
        busybox = next((scratch / "tools").rglob("bin/busybox"))
        busybox.rename(folder / "busybox")
        (scratch / "qemu").rename(folder / "root")
        _copy_modules(next((scratch / "kernel").rglob(f"modules/{version}")), folder / "modules")
    (folder / "complete").touch()
    report(f"fetched {QEMU} and {kernel} in {time.monotonic() - start:.0f} s")


def _download(scratch: Path) -> str:
    """Download all packages to `archives` in `scratch`; returns the kernel's package."""
    for directory in ("lists/partial", "cache/archives/partial"):
        (scratch / directory).mkdir(parents=True)
    for part in ("qemu", "tools", "kernel"):
        (scratch / "archives" / part / "partial").mkdir(parents=True)
    # Own lists and caches: the system's may be old, and belong to root.
    options = [
        f"-oDir::State::Lists={scratch / 'lists'}",
        f"-oDir::Cache={scratch / 'cache'}",
        "-oDebug::NoLocking=1",
        "-oAcquire::Retries=2",
        "-oAcquire::http::Timeout=30",
        "-oAcquire::Languages=none",
        "-oAPT::Sandbox::User=",
        "-q",
    ]
    _run(["apt-get", *options, "update"], _DOWNLOAD_SECONDS)
    try:
        # It ends with 0 if a list cannot be fetched; then the next command may find no package.
        depends = _run(["apt-cache", *options, "depends", "--important", KERNEL], _DOWNLOAD_SECONDS)
    except GuestUnavailableError as error:
        hint = f"check the network, and whether this distribution has {KERNEL}"
        raise GuestUnavailableError(f"{error}; {hint}") from error
    kernel = re.search(r"Depends: (linux-image-\S+)", depends)
    if kernel is None:
        raise GuestUnavailableError(f"apt knows no package that {KERNEL} depends on")
    install = ["--yes", "--no-install-recommends", "--download-only", "install", QEMU]
    archives = scratch / "archives"
    to_qemu = f"-oDir::Cache::Archives={archives / 'qemu'}"
    _run(["apt-get", *options, to_qemu, *install], _DOWNLOAD_SECONDS)
    for part, package in (("tools", BUSYBOX), ("kernel", kernel[1])):
        command = ["apt-get", *options, "download", package]
        _run(command, _DOWNLOAD_SECONDS, archives / part)
    return kernel[1]


def _copy_modules(tree: Path, folder: Path) -> None:
    """Copy `MODULES` and what they depend on, uncompressed, and write their order to `order`."""
    found = {path.name.split(".ko")[0].replace("-", "_"): path for path in tree.rglob("*.ko*")}
    order: list[str] = []
    folder.mkdir()

    def add(name: str) -> None:
        # A module that is not there is built in.
        if name in order or name not in found:
            return
        data = found[name].read_bytes()
        if found[name].suffix == ".xz":
            data = lzma.decompress(data)
        match = re.search(rb"\0depends=([^\0]*)\0", data)
        for dependency in match[1].decode().split(",") if match else ():
            add(dependency.replace("-", "_"))
        (folder / name).write_bytes(data)
        order.append(name)

    for name in MODULES:
        add(name)
    (folder / "order").write_text("\n".join(order))


def _run(command: Sequence[str], seconds: float, folder: Path | None = None) -> str:
    """Run a command in `folder`; returns what it printed."""
    try:
        completed = subprocess.run(
            command, cwd=folder, timeout=seconds, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            check=False, env={**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"},
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise GuestUnavailableError(f"{command[0]} did not end within {seconds:g} s") from error
    if completed.returncode:
        lines = completed.stdout.splitlines()
        errors = [line for line in lines if line.startswith(("E:", "W:", "dpkg"))] or lines
        why = "; ".join(errors[-_ERRORS_MAX:]) or f"exit code {completed.returncode}"
        words = [word for word in command if not word.startswith("-")]
        raise GuestUnavailableError(f"`{' '.join(words)}` failed: {why[:_WHY_CHARACTERS]}")
    return completed.stdout


def main() -> None:
    try:
        files = ensure_guest_files()
    except GuestUnavailableError as error:
        sys.exit(str(error))
    sys.stdout.write(f"{files.qemu}\n{files.kernel}\n{files.busybox}\n")


if __name__ == "__main__":
    main()
