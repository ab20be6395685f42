"""Each thing that can go wrong with a reading has its stated outcome; on fake nodes."""

import shutil
from pathlib import Path

import pytest

from node_exporter import exporter_metrics
from node_exporter.collection import NODE, Collection, Usage
from node_exporter.kernel.cgroup_paths import KubeQOS
from node_exporter.sampler import Sampler
from pipeline.clock import ManualClock
from pipeline.errors import KernelError, KernelFileError
from pipeline.settings import ExporterSettings, HostApplication, HostApplicationCgroup
from tests.node_exporter.fake_node import SECOND_NS, FakeNode

APP = HostApplication(
    name="nginx",
    priority="koord-prod",
    qos="LS",
    cgroup_path=HostApplicationCgroup(relative_path="web/nginx/"),
)


class Reader:
    """A sampler over a fake node, with a clock that the test moves."""

    def __init__(self, node: FakeNode, settings: ExporterSettings | None = None) -> None:
        self.clock = ManualClock()
        self.sampler = Sampler(settings or node.settings(), self.clock)

    async def read(self, after: float = 1.0) -> Collection:
        await self.clock.advance(after)
        return self.sampler.collect(round(self.clock.now()) * 1000)


def system_of(collection: Collection) -> tuple[float | None, int | None]:
    system = collection.system
    return (None, None) if system is None else (system.cpu_cores, system.memory_bytes)


def of(collection: Collection, id: str) -> Usage:
    (usage,) = [u for u in collection.usages if u.entity.id == id]
    return usage


def ids(collection: Collection) -> list[str]:
    return [usage.entity.id for usage in collection.usages]


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def node(tmp_path: Path, request: pytest.FixtureRequest) -> FakeNode:
    return FakeNode(tmp_path, request.param)


async def test_fake_pods_and_tier_are_read(node: FakeNode) -> None:
    """NP-02, K11-18: on cgroup v1 and v2."""
    reader = Reader(node)
    node.pod("a", 0)
    node.cgroup("kubepods/besteffort", 0, 70)
    first = await reader.read()
    assert of(first, "a").cpu_cores is None  # the first reading gives no usage of CPU
    assert of(first, "a").memory_bytes == 100
    node.pod("a", SECOND_NS // 2)
    node.cgroup("kubepods/besteffort", SECOND_NS)
    node.node(50)
    second = await reader.read()
    assert ids(second) == ["", "a", "besteffort"]
    assert of(second, "a") == Usage(
        of(first, "a").entity, SECOND_NS // 2, 1.0, 100, 200, None, of(second, "a").throttling
    )
    assert of(second, "a").entity.qos == "Burstable"
    assert of(second, "besteffort").cpu_cores == 1.0
    assert of(second, "").cpu_cores == 0.5
    assert of(second, "").memory_bytes == 1000 * 1024
    assert of(second, "").memory_with_page_cache_bytes == 2000 * 1024


async def test_fake_counter_going_backwards_drops_that_sample(node: FakeNode) -> None:
    reader = Reader(node)
    node.pod("a", 5 * SECOND_NS)
    node.node(500)
    await reader.read()
    node.pod("a", SECOND_NS)
    node.node(100)
    second = await reader.read()
    assert of(second, "a").cpu_cores is None
    assert of(second, "").cpu_cores is None
    assert second.dropped == {"counter_went_backwards": 2}
    node.pod("a", 2 * SECOND_NS)
    node.node(200)
    third = await reader.read()
    assert of(third, "a").cpu_cores == of(third, "").cpu_cores == 1.0
    assert not third.dropped


async def test_fake_pod_that_ends_is_no_error_and_may_come_back(node: FakeNode) -> None:
    reader = Reader(node)
    node.pod("a", 0)
    node.pod("b", 0)
    await reader.read()
    for directory in node.cgroups.rglob("poda"):
        shutil.rmtree(directory)
    second = await reader.read()
    assert ids(second) == ["", "b"]
    assert not second.errors
    assert not second.dropped
    node.pod("a", 7 * SECOND_NS)  # a new cgroup under the old name, with another counter
    assert of(await reader.read(), "a").cpu_cores is None


async def test_fake_pod_that_ends_while_it_is_read_is_no_error(tmp_path: Path) -> None:
    node = FakeNode(tmp_path)
    reader = Reader(node)
    node.pod("a", 0)
    shutil.rmtree(node.cgroups / "memory" / node.path("a"))  # found in one tree, gone in the next
    assert ids(await reader.read()) == [""]
    node.pod("a", 0)
    assert ids(await reader.read()) == ["", "a"]


async def test_fake_garbage_costs_the_sample_of_one_pod(node: FakeNode) -> None:
    reader = Reader(node)
    node.pod("a", 0)
    node.pod("b", 0)
    await reader.read()
    controller = "memory" if node.version == 1 else ""
    node.file(controller, node.path("a"), "memory.stat", "total_cache 1\n")
    second = await reader.read()
    assert ids(second) == ["", "b"]
    assert second.errors == {"pod": 1}
    assert second.dropped == {"unreadable": 1}
    node.pod("a", 3 * SECOND_NS)
    assert of(await reader.read(), "a").cpu_cores == 1.5  # over the two seconds that have passed


async def test_fake_garbage_of_a_container_costs_no_sample_of_its_pod(tmp_path: Path) -> None:
    node = FakeNode(tmp_path)
    node.pod("a", 0)
    node.file("cpuacct", f"{node.path('a')}/{'c0' * 32}", "cpuacct.usage", "0\n")
    node.file("cpu", f"{node.path('a')}/{'c0' * 32}", "cpu.stat", "nr_periods x\n")
    reader = Reader(node)
    collection = await reader.read()
    assert collection.errors == {"container": 1}
    assert of(collection, "a").memory_bytes == 100
    assert of(collection, "a").containers is None


async def test_fake_broken_proc_costs_the_node_and_not_the_pods(node: FakeNode) -> None:
    reader = Reader(node)
    node.pod("a", 0)
    (node.proc / "stat").write_text("cpu x\n")
    first = await reader.read()
    assert ids(first) == ["a"]
    assert first.errors == {"node": 1}


def test_fake_proc_that_is_not_there_is_refused_at_the_start(tmp_path: Path) -> None:
    node = FakeNode(tmp_path)
    for name in ("stat", "meminfo"):
        saved = (node.proc / name).read_text()
        (node.proc / name).unlink()
        with pytest.raises(KernelFileError, match=r"exporter\.proc_root"):
            Sampler(node.settings(), ManualClock())
        (node.proc / name).write_text(saved)


async def test_fake_what_cannot_be_read_is_said_at_once_and_then_once_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(
        "node_exporter.sampler.log.warning", lambda _, *, kind, why: said.append(kind)
    )
    node = FakeNode(tmp_path)
    for uid in ("a", "b"):
        node.pod(uid, 0)
        node.file("memory", node.path(uid), "memory.stat", "broken")
    reader = Reader(node)
    (node.proc / "stat").write_text("cpu x\n")
    for expected in (["node", "pod"], [], ["node", "pod"]):
        said.clear()
        await reader.read(after=30)
        assert said == expected
    assert "expected 8 fields" in str(reader.sampler.failure)
    node.node(1)
    await reader.read()
    assert reader.sampler.failure is None


async def test_fake_pause_longer_than_twenty_intervals_starts_anew(node: FakeNode) -> None:
    reader = Reader(node)
    node.pod("a", 0)
    await reader.read()
    node.pod("a", 10 * SECOND_NS)
    assert of(await reader.read(after=20), "a").cpu_cores == 0.5
    node.pod("a", 50 * SECOND_NS)
    late = await reader.read(after=21)
    assert of(late, "a").cpu_cores is None
    assert late.dropped == {"previous_too_old": 2}


async def test_fake_kubepods_that_appears_later_is_found(node: FakeNode) -> None:
    reader = Reader(node)
    assert ids(await reader.read()) == [""]
    node.pod("a", 0)
    assert ids(await reader.read()) == ["", "a"]


async def test_fake_kubepods_that_is_not_there_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[dict[str, str]] = []
    monkeypatch.setattr(
        "node_exporter.sampler.log.warning", lambda event, **values: said.append(values)
    )
    node = FakeNode(tmp_path)
    node.pod("a", 0)
    for driver in ("auto", "cgroupfs"):
        reader = Reader(node, node.settings(cgroup_parent="nope", cgroup_driver=driver))
        for _ in range(3):
            assert ids(await reader.read()) == [""]
        (one,) = said
        assert one["below"] == f"{node.cgroups}/cpuacct/nope"
        assert "cgroup_parent" in one["hint"]
        said.clear()
    reader = Reader(node)
    assert ids(await reader.read()) == ["", "a"]
    assert not said


async def test_fake_cgroup_parent_is_below_the_root_also_with_a_slash_in_front(
    node: FakeNode,
) -> None:
    for path in (node.path("a"), "kubelet/" + node.path("b")):
        node.cgroup(path, 0)
    reader = Reader(node, node.settings(cgroup_parent="/kubelet/"))
    assert ids(await reader.read()) == ["", "b"]
    reader = Reader(node, node.settings(cgroup_parent="/"))
    assert ids(await reader.read()) == ["", "a"]


async def test_fake_pod_in_two_classes_is_one_row(node: FakeNode) -> None:
    reader = Reader(node)
    node.pod("a", 0)
    node.pod("a", 0, kube_qos=KubeQOS.GUARANTEED)
    assert ids(await reader.read()).count("a") == 1


async def test_fake_host_application_is_read_by_its_path(node: FakeNode) -> None:
    """K14-35, K16-37: by cgroup path, on the page under Koordinator's name."""
    reader = Reader(node, node.settings(host_applications=(APP,)))
    assert ids(await reader.read()) == [""]  # it has not been started
    node.cgroup("web/nginx", 0, 100)
    await reader.read()
    node.cgroup("web/nginx", 2 * SECOND_NS, 100)
    usage = of(collection := await reader.read(), "nginx")
    assert (usage.entity.kind, usage.entity.qos) == ("host_app", "LS")
    assert usage.cpu_cores == 2.0
    assert usage.memory_bytes == 100
    assert usage.memory_with_page_cache_bytes == 500  # all that is charged, as Koordinator has it

    exporter_metrics.record(collection, node.settings(host_applications=(APP,)), "fake")
    labels = ("fake", "nginx", "koord-prod", "LS")
    samples = {
        tuple(s.labels.values()): s.value
        for s in next(iter(exporter_metrics.KOORDLET_HOST_APP.collect())).samples
    }
    assert samples == {(*labels, "cpu", "core"): 2.0, (*labels, "memory", "byte"): 100.0}
    for directory in list(node.cgroups.rglob("nginx")):
        shutil.rmtree(directory)
    # Files of a fake stay readable while they are open, those of a real cgroup do not.
    reader = Reader(node, node.settings(host_applications=(APP,)))
    exporter_metrics.record(await reader.read(), node.settings(host_applications=(APP,)), "fake")
    assert not next(iter(exporter_metrics.KOORDLET_HOST_APP.collect())).samples


def test_fake_host_application_outside_the_tree_is_refused_at_the_start(tmp_path: Path) -> None:
    escaping = HostApplicationCgroup(relative_path="../etc")
    app = HostApplication(name="x", cgroup_path=escaping)
    node = FakeNode(tmp_path)
    with pytest.raises(KernelError, match="host application x"):
        Sampler(node.settings(host_applications=(app,)), ManualClock())


async def test_fake_host_application_beside_pods_is_found_before_there_are_any(
    tmp_path: Path,
) -> None:
    node = FakeNode(tmp_path)
    place = HostApplicationCgroup(base="Kubepods", relative_path="web")
    app = HostApplication(name="web", cgroup_path=place)
    node.cgroup("kubepods.slice/web", 0)
    reader = Reader(node, node.settings(host_applications=(app,)))
    for _ in range(2):
        assert "web" in ids(await reader.read())


async def test_fake_file_that_appears_is_found_within_a_minute(tmp_path: Path) -> None:
    node = FakeNode(tmp_path)
    node.pod("a", 0)
    for controller in ("memory", "cpu"):
        for file in (node.cgroups / controller / node.path("a")).iterdir():
            file.unlink()
    reader = Reader(node)
    assert of(await reader.read(), "a").memory_bytes is None
    assert "memory" in reader.sampler.unsupported
    node.pod("a", 0)
    for _ in range(6):
        later = await reader.read(after=10)
    assert of(later, "a").memory_bytes == 100
    assert not {"memory", "throttling"} & reader.sampler.unsupported


async def test_fake_kidled_gives_hot_page_cache_and_others_state_that_they_do_not(
    tmp_path: Path,
) -> None:
    """K14-34: the three policies; hot page cache only on fakes, else the default."""
    node = FakeNode(tmp_path)
    reader = Reader(node)
    node.pod("a", 0)
    first = await reader.read()
    assert of(first, "a").memory_with_hot_page_cache_bytes is None
    assert "hot_page_cache" in reader.sampler.unsupported
    policy = "usageWithHotPageCache"
    assert (
        exporter_metrics.memory_by_policy(of(first, "a"), policy) == 100
    )  # falls back, and states it

    ages = "0 0 0 0 0 10 0 0\n"
    rows = "".join(f"{row} {ages}" for row in ("cfei", "dfei", "cfui", "dfui"))
    for path in ("", node.path("b")):
        node.file("memory", path, "memory.idle_page_stats", rows)
    node.pod("b", 0)
    reader = Reader(node)
    second = await reader.read()
    assert of(second, "b").memory_with_hot_page_cache_bytes == 200 - 40
    assert of(second, "").memory_with_hot_page_cache_bytes == 2000 * 1024 - 40
    assert exporter_metrics.memory_by_policy(of(second, "b"), policy) == 160
    assert exporter_metrics.memory_by_policy(of(second, "b"), "usageWithPageCache") == 200
    assert "hot_page_cache" not in reader.sampler.unsupported


async def test_fake_kernel_without_features_states_each(node: FakeNode) -> None:
    shutil.rmtree(node.proc / "pressure")
    reader = Reader(node)
    node.pod("a", 0)
    await reader.read()
    expected = {"hot_page_cache", "node_pressure", "pod_pressure", "network", "disk"}
    if node.version == 2:
        expected.add("throttling")
    assert reader.sampler.unsupported == expected


async def test_system_is_what_is_left_while_every_part_is_fresh(node: FakeNode) -> None:
    """K14-46: a part older than the setting makes the system unknown."""
    settings = node.settings(host_applications=(APP,), system_outdated_seconds=3.0)
    reader = Reader(node, settings)

    def use(seconds: int) -> None:
        node.node(200 * seconds)
        node.cgroup("web/nginx", seconds * SECOND_NS // 2, 1024)
        node.pod("a", seconds * SECOND_NS, 2048)
        node.cgroup("kubepods/besteffort", seconds * SECOND_NS, 4096)  # counted in its pods already

    use(1)
    first = await reader.read()
    assert system_of(first) == (None, 1024 * 1000 - 3072)
    use(2)
    second = await reader.read()
    assert system_of(second) == (0.5, 1024 * 1000 - 3072)
    cpu = ("cpuacct", "cpuacct.usage") if node.version == 1 else ("", "cpu.stat")
    for age in range(1, 6):  # one part cannot be read: its last value bridges three seconds
        use(2 + age)
        node.file(cpu[0], node.path("a"), cpu[1], "broken")
        known = system_of(await reader.read())[0]
        assert known == (0.5 if age <= 3 else None)
    use(8)
    assert system_of(await reader.read())[0] == 0.5


async def test_system_is_never_below_zero(node: FakeNode) -> None:
    reader = Reader(node)
    for second in range(2):
        node.node(10 * second)
        node.pod("a", second * SECOND_NS, 1 << 40)
        collection = await reader.read()
    assert system_of(collection) == (0.0, 0)


async def test_fake_rates_and_pressure_are_growth_between_slow_readings(tmp_path: Path) -> None:
    node = FakeNode(tmp_path)
    (node.sys / "class/net/eth0/device").mkdir(parents=True)
    (node.sys / "block/vda/device").mkdir(parents=True)
    header = "Inter\n face\n"

    def use(n: int) -> None:
        (node.proc / "1/net/dev").write_text(header + f"eth0: {n * 500} 0 0 0 0 0 0 0 {n * 50}\n")
        disk = f"254 0 vda 0 0 {10 * n} 0 0 0 {n} 0\n254 1 vda1 0 0 {10 * n} 0 0 0 {n} 0\n"
        (node.proc / "diskstats").write_text(disk)
        for resource in ("cpu", "memory", "io"):
            line = f"avg10=0.00 avg60=0.00 avg300=0.00 total={n * 1_000_000}\n"
            (node.proc / "pressure" / resource).write_text(f"some {line}full {line}")

    reader = Reader(node)
    collections = []
    for n in range(12):
        use(n)
        collections.append(await reader.read())
    slow = [c for c in collections if c.rates is not None]
    assert len(slow) == 2  # of three: the first only remembers
    rates = slow[1].rates
    assert rates is not None
    assert (rates.seconds, rates.network, rates.disk) == (5.0, (2500, 250), (25600, 2560))
    stall = of(slow[1], "").stall
    assert stall is not None
    assert stall[:3] == (5.0, 5_000_000, 5_000_000)
    use(0)  # all counters go back
    for _ in range(5):
        after = await reader.read()
    assert after.rates is None or (after.rates.network, after.rates.disk) == (None, None)
    assert of(after, NODE.id).stall is None


@pytest.mark.parametrize("interval", [0.1, 0.3, 0.7, 0.9, 1.0, 7.0, 60.0])
async def test_fake_slow_readings_come_with_any_interval(tmp_path: Path, interval: float) -> None:
    node = FakeNode(tmp_path)
    (node.proc / "1/net/dev").write_text("Inter\n face\neth0: 1 0 0 0 0 0 0 0 2\n")
    sampler = Sampler(node.settings(collect_interval_seconds=interval), clock := ManualClock())
    found = []
    for tick in range(round(60 / interval) + 1):
        at_ms = round(tick * interval * 1000)
        # Readings are some milliseconds early or late.
        await clock.advance(tick * interval + 0.004 * (tick % 3) - clock.monotonic())
        found.append(sampler.collect(at_ms).rates)
    spans = [rates.seconds for rates in found if rates is not None]
    assert max(spans) <= max(5.0, interval) + interval / 2 + 0.01
    assert sum(spans) == pytest.approx(60, abs=max(6.0, interval))
    if interval < 5:
        assert len(spans) <= 14  # and no more often than they need to
