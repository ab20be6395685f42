"""The exporter on a real cgroup v2 hierarchy, in a guest. Usage is compared with the kernel's own
counters in the guest: an emulated machine is slow, and its speed varies."""

import mmap
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from node_exporter.collection import Collection, Usage
from node_exporter.exporter_service import collect_window
from node_exporter.kernel.cgroup_paths import Driver, KubeQOS, pod_dir
from node_exporter.sampler import Sampler
from pipeline.clock import SystemClock
from pipeline.settings import ExporterSettings, HostApplication, HostApplicationCgroup
from tests.cgroup_tree import CgroupV2Tree, cgroup_v2_tree
from tests.processes import eventually

pytestmark = pytest.mark.guest

MIB = 1 << 20
BUSY = "while True: pass"
DISK = Path("/dev/vda")


class Node:
    """A tree of pods, and a sampler that reads it."""

    def __init__(self, tree: CgroupV2Tree) -> None:
        self.tree = tree
        app = HostApplication(
            name="web", cgroup_path=HostApplicationCgroup(relative_path=f"{tree.name}/web")
        )
        settings = ExporterSettings(cgroup_parent=tree.name, host_applications=(app,))
        self.sampler = Sampler(settings, SystemClock())

    def container(
        self,
        uid: str,
        letter: str = "a",
        driver: Driver = Driver.CGROUPFS,
        kube_qos: KubeQOS = KubeQOS.BURSTABLE,
    ) -> str:
        """Make a container of a pod; its id is 64 times the letter. Returns its path."""
        name = letter * 64
        scope = name if driver is Driver.CGROUPFS else f"cri-containerd-{name}.scope"
        path = f"{pod_dir(driver, kube_qos, uid)}/{scope}"
        self.tree.make(path)
        return path

    def collect(self) -> Collection:
        """Read everything, also what other collections read every few seconds."""
        return self.sampler.collect(time.time_ns() // 1_000_000, ends_window=True)

    def collect_growth(
        self, *counters: Callable[[], int]
    ) -> tuple[Collection, list[tuple[int, int]]]:
        """Collect twice; returns the second collection and the least and most that each of the
        kernel's counters has grown in between."""
        earliest = [read() for read in counters]
        self.collect()
        latest = [read() for read in counters]
        time.sleep(1)
        least = [read() - start for read, start in zip(counters, latest, strict=True)]
        collection = self.collect()
        most = [read() - start for read, start in zip(counters, earliest, strict=True)]
        return collection, list(zip(least, most, strict=True))

    def usage(self, id: str) -> Usage:
        return usage_of(self.collect(), id)

    def cpu_us(self, path: str) -> int:
        return self.tree.fields(path, "cpu.stat")["usage_usec"]

    def stalled_us(self, path: str, resource: str) -> int:
        """Time in which some process of the cgroup waited for `resource`."""
        some = self.tree.read(path, f"{resource}.pressure").splitlines()[0]
        return int(some.rpartition("total=")[2])


@pytest.fixture
def node() -> Iterator[Node]:
    with cgroup_v2_tree("v2") as tree:
        node = Node(tree)
        yield node
        node.sampler.close()


def usage_of(collection: Collection, id: str) -> Usage:
    (usage,) = [usage for usage in collection.usages if usage.entity.id == id]
    return usage


@pytest.mark.parametrize("driver", Driver)
def test_pods_and_containers_of_each_driver_are_discovered(node: Node, driver: Driver) -> None:
    uids = {kube_qos: f"{kube_qos.lower()}-0a1b" for kube_qos in KubeQOS}
    for kube_qos, uid in uids.items():
        node.container(uid, "a", driver, kube_qos)
        node.container(uid, "b", driver, kube_qos)
    node.collect()
    collection = node.collect()
    pods = {u.entity.id: u for u in collection.usages if u.entity.kind == "pod"}
    assert {id: usage.entity.qos for id, usage in pods.items()} == {
        uid: kube_qos.value for kube_qos, uid in uids.items()
    }
    for usage in pods.values():
        assert set(usage.containers or ()) == {"a" * 64, "b" * 64}
    assert usage_of(collection, "besteffort").entity.kind == "tier"
    assert (collection.errors, collection.dropped) == ({}, {})


def test_cpu_time_agrees_with_the_kernel(node: Node) -> None:
    pods = {uid: str(Path(node.container(uid)).parent) for uid in ("busy", "idle")}
    node.tree.python(node.container("busy"), BUSY)
    node.tree.run(node.container("idle"), "sleep", "600")
    assert eventually(lambda: node.cpu_us(pods["busy"]) > 100_000)
    busy, idle, tier = (
        lambda path=path: node.cpu_us(path) for path in (*pods.values(), "kubepods/besteffort")
    )
    node.container("batch", kube_qos=KubeQOS.BEST_EFFORT)
    collection, growth = node.collect_growth(busy, idle, tier)
    for id, (least, most) in zip(("busy", "idle", "besteffort"), growth, strict=True):
        assert least <= (usage_of(collection, id).cpu_ns or 0) / 1000 <= most
    assert 0.1 < (usage_of(collection, "busy").cpu_cores or 0) < 1.1


def test_process_outside_of_pods_counts_as_system_usage(node: Node) -> None:
    node.container("idle")
    node.tree.make("other")
    node.tree.python("other", BUSY)
    assert eventually(lambda: node.cpu_us("other") > 100_000)
    collection, [(least, _)] = node.collect_growth(lambda: node.cpu_us("other"))
    assert collection.system is not None
    # The node counts timer ticks, of which an emulated machine misses some.
    assert (collection.system.cpu_ns or 0) / 1000 > 0.1 * least > 0


def test_anonymous_memory_and_page_cache_are_told_apart(node: Node) -> None:
    anonymous, cached = node.container("anonymous"), node.container("cached")
    node.tree.python(anonymous, f"held = b'1' * {48 * MIB}\nimport time; time.sleep(600)")
    read = f"file = open('{DISK}', 'rb')\nfor _ in range(24): file.read({MIB})"
    node.tree.python(cached, f"{read}\nimport time; time.sleep(600)")

    def memory(id: str) -> tuple[int, int]:
        usage = node.usage(id)
        without, with_cache = usage.memory_bytes, usage.memory_with_page_cache_bytes
        assert without is not None
        assert with_cache is not None
        return without // MIB, (with_cache - without) // MIB

    # Counters of memory.stat are up to two seconds old, and Python needs some memory for itself.
    assert eventually(lambda: 48 <= memory("anonymous")[0] < 72)
    assert eventually(lambda: 23 <= memory("cached")[1] < 40)
    assert memory("anonymous")[1] < 20
    assert eventually(lambda: memory("cached")[0] < 20)


def test_host_application_is_charged_for_all_its_memory(node: Node) -> None:
    node.tree.make("web")
    node.tree.python("web", f"held = b'1' * {32 * MIB}\nimport time; time.sleep(600)")
    charged = node.tree.path("web") / "memory.current"
    assert eventually(lambda: int(charged.read_text()) > 32 * MIB)
    usage = node.usage("web")
    assert usage.memory_with_page_cache_bytes == pytest.approx(int(charged.read_text()), rel=0.1)


def test_pod_reports_the_throttling_of_its_containers(node: Node) -> None:
    limited, free = node.container("pair", "a"), node.container("pair", "b")
    pod = str(Path(limited).parent)
    node.tree.set(limited, "cpu.max", "20000 100000")
    node.tree.python(limited, BUSY)
    node.tree.run(free, "sleep", "600")

    def throttled() -> int:
        return node.tree.fields(limited, "cpu.stat")["nr_throttled"]

    assert eventually(lambda: throttled() > 0)
    node.collect()
    start = throttled()
    assert eventually(lambda: throttled() > start + 5)
    usage = node.usage("pair")
    containers = usage.containers or {}
    first, second = containers["a" * 64].throttling, containers["b" * 64].throttling
    assert first is not None
    assert second is not None
    assert first.periods >= first.throttled_periods > 5
    assert first.throttled_ns > 0
    assert second.throttled_periods == 0
    # The counters of the pod exclude those of its containers, until it has a limit of its own.
    assert usage.throttling is not None
    assert usage.throttling.throttled_periods == 0
    node.tree.set(limited, "cpu.max", "max")
    node.tree.set(pod, "cpu.max", "20000 100000")
    assert eventually(lambda: node.tree.fields(pod, "cpu.stat")["nr_throttled"] > 5)
    usage = node.usage("pair")
    assert usage.throttling is not None
    assert usage.throttling.throttled_periods > 5


def test_processes_that_share_one_cpu_are_under_pressure(node: Node) -> None:
    shared = node.container("shared")
    node.container("idle")
    for _ in range(3):
        node.tree.python(shared, f"import os; os.sched_setaffinity(0, {{0}})\n{BUSY}")
    pod = str(Path(shared).parent)
    assert eventually(lambda: node.stalled_us(pod, "cpu") > 1_000_000)
    collection, [(least, most)] = node.collect_growth(lambda: node.stalled_us(pod, "cpu"))
    stall = usage_of(collection, "shared").stall
    assert stall is not None
    assert 100_000 < least <= stall.cpu_some_us <= most
    quiet = usage_of(collection, "idle").stall
    assert quiet is not None
    assert quiet.cpu_some_us == 0
    of_node = usage_of(collection, "").stall
    assert of_node is not None
    assert of_node.cpu_some_us > 0
    # The guest has no network interface.
    assert node.sampler.unsupported == {"hot_page_cache", "network"}


def test_memory_above_its_high_threshold_is_pressure(node: Node) -> None:
    squeezed, calm = node.container("squeezed"), node.container("calm")
    node.tree.set(squeezed, "memory.high", 16 * MIB)
    node.collect()
    node.tree.python(squeezed, f"held = [b'1' * 65536 * i for i in range({MIB})]")
    node.tree.run(calm, "sleep", "600")
    assert eventually(lambda: node.tree.fields(squeezed, "memory.events")["high"] > 0)
    assert eventually(lambda: node.stalled_us(squeezed, "memory") > 100_000)
    collection = node.collect()
    stall = usage_of(collection, "squeezed").stall
    assert stall is not None
    assert stall.memory_some_us > 0
    assert (stall.memory_full_us or 0) > 0
    quiet = usage_of(collection, "calm").stall
    assert quiet is not None
    assert quiet.memory_some_us == 0


def test_values_without_their_controller_are_unknown(node: Node) -> None:
    """A runtime may leave a controller off: CPU time is counted all the same."""
    container = node.container("bare")
    pod = str(Path(container).parent)
    node.tree.set(pod, "cgroup.subtree_control", "-cpu -memory -io -pids -cpuset")
    parent = str(Path(pod).parent)
    node.tree.set(parent, "cgroup.subtree_control", "-cpu -memory")
    node.tree.python(container, BUSY)
    node.collect()
    assert eventually(lambda: node.cpu_us(pod) > 100_000)
    usage = node.usage("bare")
    assert (usage.cpu_cores or 0) > 0
    assert usage.memory_bytes is None
    assert usage.memory_with_page_cache_bytes is None
    assert usage.throttling is None
    (growth,) = (usage.containers or {}).values()
    assert (growth.cpu_ns or 0) > 0
    assert growth.throttling is None


@pytest.mark.parametrize("driver", Driver)
def test_pod_that_vanishes_is_not_an_error(node: Node, driver: Driver) -> None:
    containers = {uid: node.container(uid, "a", driver) for uid in ("gone", "stays")}
    for container in containers.values():
        node.tree.run(container, "sleep", "600")
    ids = [usage.entity.id for usage in node.collect().usages if usage.entity.kind == "pod"]
    assert ids == ["gone", "stays"]
    pod = str(Path(containers["gone"]).parent)
    node.tree.remove(pod)
    second = node.collect()
    assert [u.entity.id for u in second.usages if u.entity.kind == "pod"] == ["stays"]
    assert (second.errors, second.dropped) == ({}, {})
    # Same name, another cgroup: its counters start at 0.
    node.container("gone", "a", driver)
    third = node.collect()
    assert usage_of(third, "gone").cpu_cores is None
    assert (third.errors, third.dropped) == ({}, {})


def test_containers_appear_and_end_between_two_readings(node: Node) -> None:
    first, last = node.container("pod", "a"), node.container("pod", "b")
    for container in (first, last):
        node.tree.run(container, "sleep", "600")
    node.collect()
    node.tree.remove(first)
    late = node.container("pod", "c")
    node.tree.set(late, "cpu.max", "10000 100000")
    node.tree.python(late, BUSY)
    assert eventually(lambda: node.tree.fields(late, "cpu.stat")["nr_throttled"] > 2)
    collection = node.collect()
    containers = usage_of(collection, "pod").containers or {}
    assert set(containers) == {"b" * 64, "c" * 64}
    late_throttling = containers["c" * 64].throttling
    assert late_throttling is not None
    assert late_throttling.throttled_periods > 2  # counted from its start
    assert collection.errors == {}


def test_writes_to_a_disk_are_reported(node: Node) -> None:
    node.collect()
    written = 8 * MIB
    with mmap.mmap(-1, written) as pages:
        descriptor = os.open(DISK, os.O_WRONLY | os.O_DIRECT)
        try:
            assert os.write(descriptor, pages) == written
        finally:
            os.close(descriptor)
    rates = node.collect().rates
    assert rates is not None
    assert rates.disk is not None
    assert rates.disk.out_bytes >= written


async def test_window_of_the_exporter_has_the_pods(node: Node) -> None:
    busy = node.container("busy", "a", Driver.SYSTEMD)
    node.tree.set(busy, "cpu.max", "50000 100000")
    node.tree.python(busy, f"held = b'1' * {16 * MIB}\n{BUSY}")
    assert eventually(lambda: int(node.tree.read(busy, "memory.current")) > 16 * MIB)
    settings = ExporterSettings(node_name="n2", cgroup_parent=node.tree.name, window_seconds=5)
    batch = await collect_window(settings, {}, SystemClock())
    assert batch.header.node == "n2"
    (pod,) = [row for row in batch.rows if row["kind"] == "pod"]
    assert (pod["id"], pod["qos"]) == ("busy", "Burstable")
    assert 0 < pod["cpu_cores_avg"] < 1.1
    assert 16 * MIB < pod["memory_bytes_last"] < 40 * MIB
    assert pod["cpu_throttled_seconds"] > 0
    (whole,) = [row for row in batch.rows if row["kind"] == "node"]
    assert whole["capacity_cpu_cores"] == os.cpu_count() == 2
