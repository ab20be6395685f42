"""Read which disks a node has, by the names that policies give them.

Everything is in sysfs and in the table of mounts: no tool is run.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from node_exporter.kernel.kernel_file import read_table
from pipeline.errors import KernelFileError
from pipeline.processors.node_qos.node_state import BlockDevices

_DEEPEST: Final = 8
"""Layers of device mapper that are followed, such as LVM on a RAID."""

# `volume--group-logical--volume`: a hyphen in a name is doubled.
_LVM_NAME: Final = re.compile(r"((?:[^-]|--)+)-(?:[^-]|--)+")
_POD_VOLUME: Final = re.compile(r"/pods/([^/]+)/volumes/[^/]+/([^/]+)(?:/mount)?\Z")
_ESCAPE: Final = re.compile(r"\\([0-7]{3})")


class _Device(NamedTuple):
    """A block device: its name below /dev, the number of the device that its limits are set on,
    which for a partition is its disk, and its directory in sysfs."""

    name: str
    limited: str
    directory: Path


def read_block_devices(sys_root: str, proc_root: str) -> BlockDevices | None:
    """Read the block devices, and the mounted volumes of pods; None if sysfs cannot be read.

    A volume has the name of its directory: for a PersistentVolumeClaim that of its volume.
    """
    by_number = _devices(Path(sys_root, "dev/block"))
    if by_number is None:
        return None
    names = {device.name: device.limited for device in by_number.values()}
    groups = dict[str, set[str]]()
    for device in by_number.values():
        mapped = _text(device.directory / "dm/name")
        if not mapped:
            continue
        names[f"mapper/{mapped}"] = device.limited
        match = _LVM_NAME.fullmatch(mapped)
        if match and _text(device.directory / "dm/uuid").startswith("LVM-"):
            disks = _disks_below(device, by_number, _DEEPEST)
            groups.setdefault(match[1].replace("--", "-"), set()).update(disks)
    return BlockDevices(
        devices=names | {number: device.limited for number, device in by_number.items()},
        volume_groups={name: tuple(sorted(disks)) for name, disks in groups.items()},
        pod_volumes=dict(_pod_volumes(_text(Path(proc_root, "1/mountinfo")), by_number)),
    )


def _devices(directory: Path) -> dict[str, _Device] | None:
    """All block devices by number, such as `8:0`."""
    try:
        entries = [*directory.iterdir()]
    except OSError:
        return None
    by_number = {}
    for entry in entries:
        path = entry.resolve()
        words = dict(line.partition("=")[::2] for line in _text(path / "uevent").splitlines())
        is_partition = (path / "partition").exists()
        disk = _text(path.parent / "dev") if is_partition else entry.name
        # A device may be removed in the meantime.
        if disk and (name := words.get("DEVNAME")):
            by_number[entry.name] = _Device(name, disk, path)
    return by_number


def _disks_below(device: _Device, by_number: Mapping[str, _Device], depth: int) -> Iterator[str]:
    """The disks that a mapped device is made of."""
    try:
        below = [*(device.directory / "slaves").iterdir()]
    except OSError:
        below = []
    if not below:
        yield device.limited
    for directory in below if depth else ():
        number = _text(directory / "dev")
        if number in by_number:
            yield from _disks_below(by_number[number], by_number, depth - 1)


def _pod_volumes(
    mounts: str, by_number: Mapping[str, _Device]
) -> Iterator[tuple[tuple[str, str], str]]:
    """The disks of volumes, by UID of the pod and name."""
    for line in mounts.splitlines():
        words = line.split(" ")
        match = _POD_VOLUME.search(_unescaped(words[4])) if len(words) > 4 else None
        if match and words[2] in by_number:
            yield (match[1], match[2]), by_number[words[2]].limited


def _unescaped(path: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), path)


def _text(path: Path) -> str:
    """A file without white space around it; empty if it cannot be read: devices come and go."""
    try:
        content = read_table(str(path)) or b""
    except KernelFileError:
        return ""
    return content.decode(errors="replace").strip()
