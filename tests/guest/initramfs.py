"""Build the initramfs of the guest: busybox, modules, and a script that runs one command.

The script mounts the whole file system of this machine read-only by 9p, with a layer in memory
above it, so that the command finds Python, the project and its packages at the same paths and may
write anywhere. Then it mounts cgroup v2 with every controller, and runs the command as root.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.guest.guest_files import GuestFiles

SHARE_TAG: Final = "machine"
REPORT_DEVICE: Final = "/dev/ttyS1"
"""Serial port on which the command reports; the console is the first one."""
BOOTED: Final = "booted"
"""First line on the report device, before the command starts."""
EXIT_PREFIX: Final = "exit "
"""Start of the last line on the report device; the exit code of the command follows."""

_SHARE_OPTIONS: Final = "trans=virtio,version=9p2000.L,ro,msize=1048576,cache=loose"
_DIRECTORY, _EXECUTABLE, _FILE = 0o040755, 0o100755, 0o100644

_INIT: Final = f"""#!/busybox sh
fail() {{ echo "guest: $1 failed"; /busybox poweroff -f; }}
/busybox mount -t devtmpfs none /dev || fail "mount of /dev"
exec </dev/null >/dev/console 2>&1
/busybox mount -t proc none /proc || fail "mount of /proc"
while read -r module; do
  /busybox insmod "/modules/$module" || fail "insmod $module"
done </modules/order
/busybox mount -t 9p -o {_SHARE_OPTIONS} {SHARE_TAG} /share || fail "mount of the 9p share"
/busybox mount -t tmpfs -o size=50% none /layer || fail "mount of the writable layer"
/busybox mkdir /layer/upper /layer/work
/busybox mount -t overlay -o lowerdir=/share,upperdir=/layer/upper,workdir=/layer/work none /root \\
  || fail "mount of the overlay"
/busybox mount -t proc none /root/proc || fail "mount of proc"
/busybox mount -t sysfs none /root/sys || fail "mount of sysfs"
/busybox mount -t devtmpfs none /root/dev || fail "mount of devtmpfs"
/busybox mkdir -p /root/dev/shm /root/dev/pts
/busybox mount -t tmpfs none /root/dev/shm || fail "mount of /dev/shm"
/busybox mount -t devpts none /root/dev/pts || fail "mount of devpts"
/busybox mount -t cgroup2 none /root/sys/fs/cgroup || fail "mount of cgroup v2"
/busybox ip link set lo up
/busybox stty -F {REPORT_DEVICE} raw -echo || fail "stty of the report device"
echo {BOOTED} >{REPORT_DEVICE}
/busybox chroot /root /bin/sh -c "$(/busybox cat /command)"
echo "{EXIT_PREFIX}$?" >{REPORT_DEVICE}
/busybox poweroff -f
"""


def initramfs(
    files: GuestFiles, command: Sequence[str], folder: Path, environ: Mapping[str, str]
) -> bytes:
    """An initramfs that runs `command` in `folder` with exactly this environment."""
    assignments = [f"{name}={value}" for name, value in environ.items()]
    words = ["exec", "env", "-i", *assignments, *command]
    script = f"cd {shlex.quote(str(folder))} && {shlex.join(words)}\n"
    entries: list[tuple[str, int, bytes]] = [
        (name, _DIRECTORY, b"") for name in ("dev", "proc", "share", "layer", "root", "modules")
    ]
    entries += [
        ("init", _EXECUTABLE, _INIT.encode()),
        ("busybox", _EXECUTABLE, files.busybox.read_bytes()),
        ("command", _FILE, script.encode()),
        ("modules/order", _FILE, "".join(f"{path.name}\n" for path in files.modules).encode()),
    ]
    entries += [(f"modules/{path.name}", _FILE, path.read_bytes()) for path in files.modules]
    return b"".join(_archive(entries))


def _archive(entries: Sequence[tuple[str, int, bytes]]) -> Iterator[bytes]:
    """A cpio archive (newc) of (path, mode, content)."""
    for inode, (path, mode, content) in enumerate([*entries, ("TRAILER!!!", 0, b"")], start=1):
        name = path.encode() + b"\0"
        # inode, mode, uid, gid, links, mtime, size, devices (4), length of the name, checksum
        fields = (inode, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name), 0)
        header = b"070701" + b"".join(b"%08X" % field for field in fields)
        yield _padded(header + name)
        yield _padded(content)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
