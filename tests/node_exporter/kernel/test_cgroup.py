"""Layouts, drivers, discovery and counters, on real v1 cgroups and on fake trees."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from node_exporter.kernel import discovery
from node_exporter.kernel.cgroup import detect_layout, open_cgroup
from node_exporter.kernel.cgroup_paths import Driver, KubeQOS, pod_dir, qos_dir
from node_exporter.kernel.kernel_file import KernelFile, read_table
from node_exporter.kernel.node_files import NodeFiles, boot_id, machine_id
from pipeline.errors import CgroupGoneError, KernelFileError
from tests.cgroup_tree import cgroup_tree
from tests.processes import eventually

UID = "11111111-2222-3333-4444-555555555555"
STATIC = "0123456789abcdef0123456789abcdef"
V2_MEMORY = "anon 9\nfile 9\ninactive_anon 1\nactive_anon 2\ninactive_file 30\nactive_file 40\n"


def fake_v2(root: Path) -> Path:
    (root / "cgroup.controllers").write_text("cpu memory\n")
    return root


def fake_pod(root: Path, path: str) -> Path:
    directory = root / path
    directory.mkdir(parents=True)
    (directory / "cpu.stat").write_text(
        "usage_usec 5\nnr_periods 3\nnr_throttled 2\nthrottled_usec 7\n"
    )
    (directory / "memory.stat").write_text(V2_MEMORY + "unevictable 4\n")
    (directory / "memory.current").write_text("99\n")
    for resource in ("cpu", "memory", "io"):
        (directory / f"{resource}.pressure").write_text(
            "some avg10=0.00 avg60=0.00 avg300=0.00 total=17\n"
        )
    return directory


def mounts() -> dict[str, tuple[str, list[str]]]:
    """(type, options) of each mounted file system, by its directory."""
    file_systems = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount, _, kind = line.partition(" - ")
        file_systems[mount.split()[4]] = (kind.split()[0], kind.split()[2].split(","))
    return file_systems


@pytest.mark.cgroups
def test_detected_layout_matches_the_mounts() -> None:
    layout, mounted = detect_layout("/sys/fs/cgroup"), mounts()
    if layout.version == 2:
        assert mounted["/sys/fs/cgroup"][0] == "cgroup2"
        assert {layout.cpu, layout.memory, layout.pressure} == {"/sys/fs/cgroup"}
        return
    for controller in ("cpuacct", "cpu", "memory"):
        directory = layout.bandwidth if controller == "cpu" else getattr(layout, controller[:6], "")
        kind, options = mounted[str(Path(directory or layout.cpu).resolve())]
        assert kind == "cgroup"
        assert controller in options
    unified = "/sys/fs/cgroup/unified"
    assert layout.pressure == (unified if unified in mounted else None)


@pytest.mark.cgroups
@pytest.mark.parametrize("driver", Driver)
def test_pods_are_listed_and_read_until_they_are_removed(driver: Driver) -> None:
    layout = detect_layout("/sys/fs/cgroup")
    with cgroup_tree("kernel", ("cpu", "cpuacct", "memory", "unified")) as tree:
        assert discovery.detect_driver(layout, tree.name) is None
        below = len(tree.name) + 1
        for kube_qos, uid in zip(KubeQOS, (UID, STATIC, "short"), strict=True):
            tree.make(pod_dir(driver, kube_qos, uid, tree.name)[below:])
        assert discovery.detect_driver(layout, tree.name) is driver
        pods = discovery.list_pods(layout, driver, tree.name)
        assert [(pod.uid, pod.kube_qos) for pod in pods] == [
            (STATIC, KubeQOS.BURSTABLE),
            (UID, KubeQOS.GUARANTEED),
            ("short", KubeQOS.BEST_EFFORT),
        ]

        pod = pods[1]
        name = "ab" * 32
        scope = f"cri-containerd-{name}.scope" if driver is Driver.SYSTEMD else name
        container = f"{pod.path}/{scope}"
        tree.make(container[below:])
        assert discovery.list_containers(layout, driver, pod) == {name: container}

        tree.python(container[below:], "x = b'x' * (8 << 20)\nwhile True: pass")
        cgroup = open_cgroup(layout, pod.path)
        used, throttling = cgroup.cpu()
        assert used is not None

        def anonymous_bytes() -> int:
            memory = cgroup.memory()
            return memory.anon_bytes if memory else 0

        assert eventually(lambda: anonymous_bytes() >= 8 << 20)
        assert (cgroup.cpu()[0] or 0) > used  # used by the container, read from its pod
        pressure = cgroup.pressure("cpu")
        assert None not in (throttling, cgroup.charged_bytes(), pressure and pressure.full)
        assert cgroup.cold_bytes() is None

        tree.remove(pod.path[below:])  # while its files are open
        reads: tuple[Callable[[], object], ...] = (
            cgroup.cpu, cgroup.memory, lambda: open_cgroup(layout, pod.path).cpu(),
            lambda: discovery.list_containers(layout, driver, pod),
        )  # fmt: skip
        for read in reads:
            with pytest.raises(CgroupGoneError):
                read()
        cgroup.close()
        assert len(discovery.list_pods(layout, driver, tree.name)) == 2


def test_fake_v2_has_the_same_counters(tmp_path: Path) -> None:
    """Usage comes from cpu.stat, memory.current and memory.stat of cgroup v2."""
    layout = detect_layout(str(fake_v2(tmp_path)))
    assert layout.version == 2
    for kube_qos in KubeQOS:
        fake_pod(tmp_path, pod_dir(Driver.SYSTEMD, kube_qos, f"{UID}{kube_qos[0].lower()}"))
    assert discovery.detect_driver(layout) is Driver.SYSTEMD
    pods = discovery.list_pods(layout, Driver.SYSTEMD)
    assert sorted((pod.uid, pod.kube_qos) for pod in pods) == sorted(
        (f"{UID}{kube_qos[0].lower()}", kube_qos) for kube_qos in KubeQOS
    )
    cgroup = open_cgroup(layout, pods[0].path)
    assert cgroup.cpu() == (5000, (3, 2, 7000))
    assert cgroup.memory() == (7, 70)
    assert (cgroup.charged_bytes(), cgroup.cold_bytes()) == (99, None)
    assert cgroup.pressure("io") == ((0.0, 0.0, 0.0, 17), None)
    cgroup.close()


def test_fake_v2_without_controllers_has_unknown_counters(tmp_path: Path) -> None:
    layout = detect_layout(str(fake_v2(tmp_path)))
    path = pod_dir(Driver.CGROUPFS, KubeQOS.BURSTABLE, UID)
    (tmp_path / path).mkdir(parents=True)
    (tmp_path / path / "cpu.stat").write_text("usage_usec 5\nuser_usec 5\n")
    cgroup = open_cgroup(layout, path)
    assert cgroup.cpu() == (5000, None)
    assert {cgroup.memory(), cgroup.charged_bytes(), cgroup.pressure("cpu")} == {None}


@pytest.mark.parametrize(
    "scope", ["docker-{}.scope", "cri-containerd-{}.scope", "crio-{}.scope", "pouch-{}.scope", "{}"]
)
def test_fake_containers_of_every_runtime_are_listed(tmp_path: Path, scope: str) -> None:
    """CRI-O (crio-<id>.scope), containerd, docker and pouch; both drivers."""
    layout = detect_layout(str(fake_v2(tmp_path)))
    driver = Driver.CGROUPFS if scope == "{}" else Driver.SYSTEMD
    path = pod_dir(driver, KubeQOS.BEST_EFFORT, STATIC)
    name = "c0ffee" * 8
    (tmp_path / path / scope.format(name)).mkdir(parents=True)
    (tmp_path / path / "cgroup.procs").write_text("")
    (pod,) = discovery.list_pods(layout, driver)
    assert (pod.uid, pod.kube_qos) == (STATIC, KubeQOS.BEST_EFFORT)
    found = discovery.list_containers(layout, driver, pod)
    assert found == {name: f"{path}/{scope.format(name)}"}


def test_fake_driver_with_pods_wins_over_leftovers_of_another_driver(tmp_path: Path) -> None:
    layout = detect_layout(str(fake_v2(tmp_path)))
    assert discovery.detect_driver(layout) is None
    for kube_qos in KubeQOS:  # the systemd driver leaves these until the next boot
        (tmp_path / qos_dir(Driver.SYSTEMD, kube_qos)).mkdir(parents=True)
    assert discovery.detect_driver(layout) is Driver.SYSTEMD
    (tmp_path / "kubepods").mkdir()
    assert discovery.detect_driver(layout) is Driver.SYSTEMD
    fake_pod(tmp_path, pod_dir(Driver.CGROUPFS, KubeQOS.BURSTABLE, UID))
    assert discovery.detect_driver(layout) is Driver.CGROUPFS


def test_fake_v1_controllers_may_share_a_mount(tmp_path: Path) -> None:
    path = pod_dir(Driver.CGROUPFS, KubeQOS.GUARANTEED, UID)
    shared_mount, memory = tmp_path / "cpu,cpuacct" / path, tmp_path / "memory" / path
    shared_mount.mkdir(parents=True)
    memory.mkdir(parents=True)
    (shared_mount / "cpuacct.usage").write_text("123\n")
    (memory / "memory.idle_page_stats").write_text("nonsense")
    cgroup = open_cgroup(detect_layout(str(tmp_path)), path)
    assert cgroup.cpu() == (123, None)
    assert cgroup.pressure("cpu") is None
    with pytest.raises(KernelFileError, match="idle_page_stats"):
        cgroup.cold_bytes()


def test_error_of_a_root_without_cgroups_names_the_setting(tmp_path: Path) -> None:
    for root in (tmp_path, tmp_path / "missing"):
        with pytest.raises(KernelFileError, match=r"exporter\.cgroup_root"):
            detect_layout(str(root))


def test_file_is_read_completely_each_time(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"a" * 4096)
    file = KernelFile(str(path))
    for content in (b"a" * 4096, b"b" * 50_000):
        path.write_bytes(content)
        assert file.read() == content
    file.close()
    path.unlink()
    assert file.read() is None
    assert read_table(str(path)) is None


def test_error_of_an_unreadable_file_contains_its_path(tmp_path: Path) -> None:
    with pytest.raises(KernelFileError, match=str(tmp_path)):
        KernelFile(str(tmp_path)).read()  # a directory
    with pytest.raises(KernelFileError, match=str(tmp_path)):
        read_table(str(tmp_path))


@pytest.mark.cgroups
def test_counters_of_this_node_are_read() -> None:
    node = NodeFiles()
    ticks, memory = node.ticks(), node.meminfo()
    assert ticks > 0
    assert 0 < memory.used_bytes < memory.total_bytes
    assert (node.online_cpus(), len(boot_id())) == (os.cpu_count(), 36)
    assert None not in (node.network(), node.disks(), node.pressure("memory"))
    assert machine_id()
    node.close()


def test_fake_machine_id_is_read_from_the_host_if_possible(tmp_path: Path) -> None:
    image, host = tmp_path / "image/etc", tmp_path / "proc/1/root/etc"
    image.mkdir(parents=True)
    (image / "machine-id").write_text("of-the-image\n")
    roots = (str(tmp_path / "proc"), str(image))
    assert machine_id(*roots) == "of-the-image"
    (host / "machine-id").mkdir(parents=True)  # exists, but cannot be read
    assert machine_id(*roots) == "of-the-image"
    (host / "machine-id").rmdir()
    (host / "machine-id").write_text("of-the-host\n")
    assert machine_id(*roots) == "of-the-host"


def test_fake_node_without_features_has_unknown_counters(tmp_path: Path) -> None:
    node = NodeFiles(str(tmp_path), str(tmp_path / "sys"))
    assert {node.pressure("cpu"), node.network(), node.disks(), node.online_cpus()} == {None}
    assert machine_id(str(tmp_path), str(tmp_path)) == boot_id(str(tmp_path)) == ""
    with pytest.raises(KernelFileError, match=r"exporter\.proc_root"):
        node.ticks()
    (tmp_path / "net").mkdir()
    (tmp_path / "net/dev").write_text(
        "a\nb\n lo: 9 0 0 0 0 0 0 0 9\n veth0: 1 0 0 0 0 0 0 0 2\n eth0: 10 0 0 0 0 0 0 0 20\n"
    )
    assert node.network() == (11, 22)  # no physical interface: all except the loopback
    (tmp_path / "sys/class/net/eth0/device").mkdir(parents=True)
    assert node.network() == (10, 20)
    # A virtual function below eth0 (Azure): the bytes of eth0 include its bytes.
    virtual_function = tmp_path / "sys/class/net/enP1s1"
    (virtual_function / "device").mkdir(parents=True)
    with (tmp_path / "net/dev").open("a") as table:
        table.write(" enP1s1: 7 0 0 0 0 0 0 0 7\n")
    assert node.network() == (17, 27)
    (virtual_function / "master").symlink_to("../eth0")
    assert node.network() == (10, 20)
    # Two members of a bond, which has no device: each member counts.
    (tmp_path / "sys/class/net/bond0").mkdir()
    (virtual_function / "master").unlink()
    (virtual_function / "master").symlink_to("../bond0")
    assert node.network() == (17, 27)
    assert qos_dir(Driver.SYSTEMD, KubeQOS.GUARANTEED) == "kubepods.slice"
