"""Fetch what boots the guest: QEMU, a kernel with its modules, and busybox, from Debian packages.

They are cached, not installed (`tests.debian_packages`).

`python -m tests.guest.guest_files` fetches everything and prints where it is.
"""

import lzma
import platform
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pipeline.local.cache_folders import Report, print_to_stderr
from tests.debian_packages import Apt, UnavailableError, ensure_fetched

QEMU: Final = "qemu-system-x86"
# The cloud kernel has no 9p.
KERNEL: Final = "linux-image-amd64"
BUSYBOX: Final = "busybox-static"
MODULES: Final = ("virtio_pci", "9pnet_virtio", "9p", "overlay", "virtio_blk")
"""Modules that the guest loads, after those that they depend on."""

_PROGRAM: Final = "qemu-system-x86_64"
_WHAT: Final = "QEMU and a kernel for tests on cgroup v2; takes half a minute, 100 MB"


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

    `report` receives lines of progress. Raises `UnavailableError` if they cannot be had here.
    """
    if platform.machine() != "x86_64":
        raise UnavailableError(f"the guest is for x86_64, this machine is {platform.machine()}")
    folder = ensure_fetched("guest", __file__, _WHAT, _fetch, report)
    root = folder / "root"
    own = root / "usr/bin" / _PROGRAM
    # apt downloads nothing if the system has QEMU.
    qemu = str(own) if own.exists() else shutil.which(_PROGRAM)
    if qemu is None:
        raise UnavailableError(f"no {_PROGRAM} in {own.parent} or on the PATH")
    order = (folder / "modules/order").read_text().split()
    return GuestFiles(
        Path(qemu),
        root,
        folder / "vmlinuz",
        folder / "busybox",
        tuple(folder / "modules" / name for name in order),
    )


def _fetch(scratch: Path, folder: Path) -> str:
    apt = Apt(scratch)
    package = apt.dependency(KERNEL, r"linux-image-\S+")
    version = package.removeprefix("linux-image-")
    qemu = apt.unpack(QEMU, with_dependencies=True)
    tools, kernel = apt.unpack(BUSYBOX), apt.unpack(package)
    (kernel / "boot" / f"vmlinuz-{version}").rename(folder / "vmlinuz")
    next(tools.rglob("bin/busybox")).rename(folder / "busybox")
    qemu.rename(folder / "root")
    _copy_modules(next(kernel.rglob(f"modules/{version}")), folder / "modules")
    return f"{QEMU} and {package}"


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


def main() -> None:
    try:
        files = ensure_guest_files()
    except UnavailableError as error:
        sys.exit(str(error))
    sys.stdout.write(f"{files.qemu}\n{files.kernel}\n{files.busybox}\n")


if __name__ == "__main__":
    main()
