"""Disks are found by device, LVM volume group and volume of a pod."""

from pathlib import Path

import pytest

from actuators.node.block_devices import read_block_devices
from pipeline.processors.node_qos.node_state import BlockDevices

UID = "6a5e0b0c-6b0f-4a39-b9d2-1d2f8c0a4d11"


class FakeSys:
    """Block devices as sysfs shows them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "dev/block").mkdir(parents=True)

    def device(
        self, number: str, name: str, parent: str = "", slaves: tuple[str, ...] = ()
    ) -> Path:
        directory = self.root / "devices" / parent / name
        directory.mkdir(parents=True)
        (directory / "dev").write_text(f"{number}\n")
        (directory / "uevent").write_text(f"MAJOR=8\nDEVNAME={name}\nDEVTYPE=disk\n")
        if parent:
            (directory / "partition").write_text("1\n")
        for slave in slaves:
            (directory / "slaves").mkdir(exist_ok=True)
            (directory / "slaves" / Path(slave).name).symlink_to(self.root / "devices" / slave)
        (self.root / "dev/block" / number).symlink_to(directory)
        return directory

    def mapped(self, number: str, name: str, mapped: str, uuid: str, *slaves: str) -> None:
        directory = self.device(number, name, slaves=slaves)
        (directory / "dm").mkdir()
        (directory / "dm/name").write_text(f"{mapped}\n")
        (directory / "dm/uuid").write_text(f"{uuid}\n")


@pytest.fixture
def sys(tmp_path: Path) -> FakeSys:
    fake = FakeSys(tmp_path / "sys")
    fake.device("259:0", "nvme0n1")
    fake.device("259:1", "nvme0n1p1", "nvme0n1")
    fake.device("8:0", "sda")
    fake.device("8:16", "sdb")
    return fake


def read(sys: FakeSys, mounts: str = "") -> BlockDevices:
    proc = sys.root.parent / "proc"
    (proc / "1").mkdir(parents=True, exist_ok=True)
    (proc / "1/mountinfo").write_text(mounts)
    devices = read_block_devices(str(sys.root), str(proc))
    assert devices is not None
    return devices


def test_a_partition_stands_for_its_disk(sys: FakeSys) -> None:
    devices = read(sys).devices
    assert devices["nvme0n1p1"] == devices["nvme0n1"] == devices["259:1"] == "259:0"
    assert devices["sda"] == "8:0"


def test_a_volume_group_has_the_disks_below_its_volumes(sys: FakeSys) -> None:
    sys.mapped("253:0", "dm-0", "data--pool-thin", "LVM-a", "nvme0n1/nvme0n1p1", "sda")
    sys.mapped("253:1", "dm-1", "data--pool-db", "LVM-b", "dm-0", "sdb")
    sys.mapped("253:2", "dm-2", "secret-disk", "CRYPT-LUKS2-c", "sdb")
    devices = read(sys)
    assert devices.volume_groups == {"data-pool": ("259:0", "8:0", "8:16")}
    assert devices.devices["mapper/data--pool-db"] == "253:1"
    assert devices.devices["mapper/secret-disk"] == "253:2"


def test_volumes_of_pods_are_found_by_their_mount(sys: FakeSys) -> None:
    kubelet = f"/var/lib/kubelet/pods/{UID}"
    mounts = [
        f"1 0 259:1 / {kubelet}/volumes/kubernetes.io~local-volume/fast rw - ext4 /dev/x rw",
        f"2 0 8:0 / {kubelet}/volumes/kubernetes.io~csi/pvc-1/mount rw - ext4 /dev/sda rw",
        f"3 0 0:52 / {kubelet}/volumes/kubernetes.io~secret/token rw - tmpfs tmpfs rw",
        f"4 0 8:16 / {kubelet}/volumes/kubernetes.io~csi/a\\040b/mount rw - ext4 /dev/sdb rw",
        "5 0 8:16 / /var/lib/other rw - ext4 /dev/sdb rw", "broken",
    ]  # fmt: skip
    assert read(sys, "\n".join(mounts)).pod_volumes == {
        (UID, "fast"): "259:0", (UID, "pvc-1"): "8:0", (UID, "a b"): "8:16",
    }  # fmt: skip


def test_devices_that_are_their_own_slaves_end(sys: FakeSys) -> None:
    sys.mapped("253:0", "dm-0", "pool-a", "LVM-a", "dm-0")
    assert read(sys).volume_groups == {"pool": ()}


def test_without_sysfs_the_devices_are_unknown(tmp_path: Path) -> None:
    assert read_block_devices(str(tmp_path), str(tmp_path)) is None


def test_the_disk_of_this_machine_is_found() -> None:
    devices = read_block_devices("/sys", "/proc")
    assert devices is not None
    numbers = {entry.name for entry in Path("/sys/dev/block").iterdir()}
    assert numbers <= {*devices.devices}
    assert {*devices.devices.values()} <= numbers
