"""Readings of fake nodes, and the outcome of each kind of failure."""

import shutil
from pathlib import Path

import pytest

from node_exporter import exporter_metrics
from node_exporter.collection import NODE, Collection, Rates, Usage
from node_exporter.kernel.cgroup_paths import KubeQOS
from node_exporter.kernel.parse_files import Traffic
from node_exporter.sampler import Sampler
from pipeline.clock import ManualClock
from pipeline.errors import KernelError, KernelFileError
from pipeline.settings import ExporterSettings, HostApplication, HostApplicationCgroup
from pipeline.settings.base import MemoryCollectPolicy
from tests.node_exporter.fake_node import SECOND_NS, FakeNode

V1 = pytest.mark.parametrize("node", [1], ids=["v1"], indirect=True)
"""A test of cgroup v1 alone."""
APP = HostApplication(
    name="nginx", priority="koord-prod", qos="LS",
    cgroup_path=HostApplicationCgroup(relative_path="web/nginx/"),
)  # fmt: skip


class Reader:
    """A sampler with a fake node and a clock that the test controls."""

    def __init__(self, node: FakeNode, settings: ExporterSettings | None = None) -> None:
        self.clock = ManualClock()
        self.sampler = Sampler(settings or node.settings(), self.clock)

    async def read(self, after: float = 1.0) -> Collection:
        await self.clock.advance(after)
        return self.sampler.collect(round(self.clock.now()) * 1000)


def system_usage(collection: Collection) -> tuple[float | None, int | None]:
    system = collection.system
    return (None, None) if system is None else (system.cpu_cores, system.memory_bytes)


def usage_of(collection: Collection, id: str) -> Usage:
    (usage,) = [u for u in collection.usages if u.entity.id == id]
    return usage


def ids(collection: Collection) -> list[str]:
    return [usage.entity.id for usage in collection.usages]


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def node(tmp_path: Path, request: pytest.FixtureRequest) -> FakeNode:
    return FakeNode(tmp_path, request.param)


@pytest.fixture
def reader(node: FakeNode) -> Reader:
    return Reader(node)


async def test_fake_pods_and_tier_are_read(node: FakeNode, reader: Reader) -> None:
    node.pod("a", 0)
    node.cgroup("kubepods/besteffort", 0, 70)
    first = await reader.read()
    read = usage_of(first, "a")
    assert (read.cpu_cores, read.memory_bytes) == (None, 100)  # CPU usage needs two readings
    node.pod("a", SECOND_NS // 2)
    node.cgroup("kubepods/besteffort", SECOND_NS)
    node.node(50)
    second = await reader.read()
    assert ids(second) == ["", "a", "besteffort"]
    assert usage_of(second, "a") == Usage(
        usage_of(first, "a").entity, SECOND_NS // 2, 1.0, 100, 200, None,
        usage_of(second, "a").throttling,
    )  # fmt: skip
    assert usage_of(second, "a").entity.qos == "Burstable"
    assert usage_of(second, "besteffort").cpu_cores == 1.0
    whole = usage_of(second, "")
    memory = (whole.memory_bytes, whole.memory_with_page_cache_bytes)
    assert (whole.cpu_cores, memory) == (0.5, (1000 * 1024, 2000 * 1024))


async def test_fake_counter_that_goes_backwards_drops_the_sample(
    node: FakeNode, reader: Reader
) -> None:
    node.pod("a", 5 * SECOND_NS)
    node.node(500)
    await reader.read()
    node.pod("a", SECOND_NS)
    node.node(100)
    second = await reader.read()
    assert [usage_of(second, id).cpu_cores for id in ("a", "")] == [None, None]
    assert second.dropped == {"counter_went_backwards": 2}
    node.pod("a", 2 * SECOND_NS)
    node.node(200)
    third = await reader.read()
    assert usage_of(third, "a").cpu_cores == usage_of(third, "").cpu_cores == 1.0
    assert not third.dropped


async def test_fake_pod_may_end_and_return_without_an_error(node: FakeNode, reader: Reader) -> None:
    node.pod("a", 0)
    node.pod("b", 0)
    await reader.read()
    for directory in node.cgroups.rglob("poda"):
        shutil.rmtree(directory)
    second = await reader.read()
    assert (ids(second), second.errors, second.dropped) == (["", "b"], {}, {})
    node.pod("a", 7 * SECOND_NS)  # a new cgroup under the old name, with another counter
    assert usage_of(await reader.read(), "a").cpu_cores is None


@V1
async def test_fake_pod_that_ends_during_a_reading_is_not_an_error(
    node: FakeNode, reader: Reader
) -> None:
    node.pod("a", 0)
    # Listed in one hierarchy, missing in the next.
    shutil.rmtree(node.cgroups / "memory" / node.path("a"))
    assert ids(await reader.read()) == [""]
    node.pod("a", 0)
    assert ids(await reader.read()) == ["", "a"]


async def test_fake_invalid_file_drops_the_sample_of_its_pod_only(
    node: FakeNode, reader: Reader
) -> None:
    node.pod("a", 0)
    node.pod("b", 0)
    await reader.read()
    controller = "memory" if node.version == 1 else ""
    node.file(controller, node.path("a"), "memory.stat", "total_cache 1\n")
    second = await reader.read()
    assert ids(second) == ["", "b"]
    assert (second.errors, second.dropped) == ({"pod": 1}, {"unreadable": 1})
    node.pod("a", 3 * SECOND_NS)
    assert usage_of(await reader.read(), "a").cpu_cores == 1.5  # over two seconds


@V1
async def test_fake_invalid_file_of_a_container_does_not_drop_the_sample_of_its_pod(
    node: FakeNode,
) -> None:
    node.pod("a", 0)
    node.file("cpuacct", f"{node.path('a')}/{'c0' * 32}", "cpuacct.usage", "0\n")
    node.file("cpu", f"{node.path('a')}/{'c0' * 32}", "cpu.stat", "nr_periods x\n")
    collection = await Reader(node).read()
    usage = usage_of(collection, "a")
    assert collection.errors == {"container": 1}
    assert (usage.memory_bytes, usage.containers) == (100, None)


@V1
async def test_fake_limited_container_is_read_each_second_also_when_files_are_reopened(
    node: FakeNode, reader: Reader
) -> None:
    node.pod("a", 0)
    container = f"{node.path('a')}/{'c0' * 32}"
    periods = 0
    for second in range(130):
        node.file("cpuacct", container, "cpuacct.usage", f"{second * SECOND_NS}\n")
        stat = f"nr_periods {10 * second + 10}\nnr_throttled {second}\nthrottled_time 0\n"
        node.file("cpu", container, "cpu.stat", stat)
        containers = usage_of(await reader.read(), "a").containers
        assert containers is not None
        for growth in containers.values():
            assert growth.throttling is not None
            periods += growth.throttling.periods
    assert periods == 10 * 129


@V1
async def test_fake_throttling_of_a_pod_is_read_each_second_once_it_has_had_a_limit(
    node: FakeNode, reader: Reader
) -> None:
    node.pod("a", 0)
    periods: list[int | None] = []
    for second in range(13):
        node.file("cpuacct", node.path("a"), "cpuacct.usage", f"{second * SECOND_NS}\n")
        stat = f"nr_periods {10 * max(0, second - 6)}\nnr_throttled 0\nthrottled_time 0\n"
        node.file("cpu", node.path("a"), "cpu.stat", stat)
        throttling = usage_of(await reader.read(), "a").throttling
        periods.append(throttling.periods if throttling else None)
    # Without a limit every five seconds; nothing is lost meanwhile.
    assert periods == [None] * 5 + [0] + [None] * 4 + [40, 10, 10]


async def test_fake_invalid_proc_drops_the_sample_of_the_node_only(
    node: FakeNode, reader: Reader
) -> None:
    node.pod("a", 0)
    (node.proc / "stat").write_text("cpu x\n")
    first = await reader.read()
    assert (ids(first), first.errors) == (["a"], {"node": 1})


@V1
def test_fake_missing_proc_is_refused_at_the_start(node: FakeNode) -> None:
    for name in ("stat", "meminfo"):
        saved = (node.proc / name).read_text()
        (node.proc / name).unlink()
        with pytest.raises(KernelFileError, match=r"exporter\.proc_root"):
            Sampler(node.settings(), ManualClock())
        (node.proc / name).write_text(saved)


@V1
async def test_fake_read_failures_are_logged_at_once_and_then_once_a_minute(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(
        "node_exporter.sampler.log.warning", lambda _, *, kind, why: warnings.append(kind)
    )
    for uid in ("a", "b"):
        node.pod(uid, 0)
        node.file("memory", node.path(uid), "memory.stat", "broken")
    reader = Reader(node)
    (node.proc / "stat").write_text("cpu x\n")
    for expected in (["node", "pod"], [], ["node", "pod"]):
        warnings.clear()
        await reader.read(after=30)
        assert warnings == expected
    assert "expected 8 fields" in str(reader.sampler.failure)
    node.node(1)
    await reader.read()
    assert reader.sampler.failure is None


async def test_fake_pause_longer_than_twenty_intervals_discards_the_previous_reading(
    node: FakeNode, reader: Reader
) -> None:
    node.pod("a", 0)
    await reader.read()
    node.pod("a", 10 * SECOND_NS)
    assert usage_of(await reader.read(after=20), "a").cpu_cores == 0.5
    node.pod("a", 50 * SECOND_NS)
    late = await reader.read(after=21)
    assert usage_of(late, "a").cpu_cores is None
    assert late.dropped == {"previous_too_old": 2}


async def test_fake_kubepods_that_appears_later_is_read(node: FakeNode, reader: Reader) -> None:
    assert ids(await reader.read()) == [""]
    node.pod("a", 0)
    assert ids(await reader.read()) == ["", "a"]


@V1
async def test_fake_missing_kubepods_is_logged_once(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[dict[str, str]] = []
    monkeypatch.setattr(
        "node_exporter.sampler.log.warning", lambda event, **values: warnings.append(values)
    )
    node.pod("a", 0)
    for driver in ("auto", "cgroupfs"):
        reader = Reader(node, node.settings(cgroup_parent="nope", cgroup_driver=driver))
        for _ in range(3):
            assert ids(await reader.read()) == [""]
        (warning,) = warnings
        assert warning["below"] == f"{node.cgroups}/cpuacct/nope"
        assert "cgroup_parent" in warning["hint"]
        warnings.clear()
    assert (ids(await Reader(node).read()), warnings) == (["", "a"], [])


async def test_fake_cgroup_parent_may_begin_with_a_slash(node: FakeNode) -> None:
    for path in (node.path("a"), "kubelet/" + node.path("b")):
        node.cgroup(path, 0)
    for parent, uid in (("/kubelet/", "b"), ("/", "a")):
        reader = Reader(node, node.settings(cgroup_parent=parent))
        assert ids(await reader.read()) == ["", uid]


async def test_fake_pod_in_two_qos_classes_has_one_usage(node: FakeNode, reader: Reader) -> None:
    node.pod("a", 0)
    node.pod("a", 0, kube_qos=KubeQOS.GUARANTEED)
    assert ids(await reader.read()).count("a") == 1


async def test_fake_host_application_is_read_by_its_path(node: FakeNode) -> None:
    """The metrics page reports its usage under Koordinator's name."""
    reader = Reader(node, node.settings(host_applications=(APP,)))
    assert ids(await reader.read()) == [""]  # not started yet
    node.cgroup("web/nginx", 0, 100)
    await reader.read()
    node.cgroup("web/nginx", 2 * SECOND_NS, 100)
    usage = usage_of(collection := await reader.read(), "nginx")
    assert (usage.entity.kind, usage.entity.qos, usage.cpu_cores) == ("host_app", "LS", 2.0)
    # All charged memory, as in Koordinator.
    assert (usage.memory_bytes, usage.memory_with_page_cache_bytes) == (100, 500)

    exporter_metrics.record(collection, (APP,), "usageWithoutPageCache", "fake")
    labels = ("fake", "nginx", "koord-prod", "LS")
    samples = {
        tuple(s.labels.values()): s.value
        for s in next(iter(exporter_metrics.KOORDLET_HOST_APP.collect())).samples
    }
    assert samples == {(*labels, "cpu", "core"): 2.0, (*labels, "memory", "byte"): 100.0}
    for directory in list(node.cgroups.rglob("nginx")):
        shutil.rmtree(directory)
    # Open files of a fake tree stay readable after a removal, unlike those of a real cgroup.
    collection = await Reader(node, node.settings(host_applications=(APP,))).read()
    exporter_metrics.record(collection, (APP,), "usageWithoutPageCache", "fake")
    assert not next(iter(exporter_metrics.KOORDLET_HOST_APP.collect())).samples


@V1
def test_fake_host_application_outside_the_tree_is_refused_at_the_start(node: FakeNode) -> None:
    app = HostApplication(name="x", cgroup_path=HostApplicationCgroup(relative_path="../etc"))
    with pytest.raises(KernelError, match="host application x"):
        Sampler(node.settings(host_applications=(app,)), ManualClock())


@V1
async def test_fake_host_application_below_kubepods_is_read_without_pods(node: FakeNode) -> None:
    cgroup_path = HostApplicationCgroup(base="Kubepods", relative_path="web")
    app = HostApplication(name="web", cgroup_path=cgroup_path)
    node.cgroup("kubepods.slice/web", 0)
    reader = Reader(node, node.settings(host_applications=(app,)))
    for _ in range(2):
        assert "web" in ids(await reader.read())


@V1
async def test_fake_file_that_appears_is_read_within_a_minute(node: FakeNode) -> None:
    node.pod("a", 0)
    for controller in ("memory", "cpu"):
        for file in (node.cgroups / controller / node.path("a")).iterdir():
            file.unlink()
    reader = Reader(node)
    assert usage_of(await reader.read(), "a").memory_bytes is None
    assert "memory" in reader.sampler.unsupported
    node.pod("a", 0)
    for _ in range(6):
        later = await reader.read(after=10)
    assert usage_of(later, "a").memory_bytes == 100
    assert not {"memory", "throttling"} & reader.sampler.unsupported


@V1
async def test_fake_hot_page_cache_is_known_with_kidled_and_unsupported_otherwise(
    node: FakeNode, reader: Reader
) -> None:
    """Hot page cache needs kidled; without it the policy falls back to the default."""
    node.pod("a", 0)
    first = await reader.read()
    assert usage_of(first, "a").memory_with_hot_page_cache_bytes is None
    assert "hot_page_cache" in reader.sampler.unsupported
    policy: MemoryCollectPolicy = "usageWithHotPageCache"
    assert exporter_metrics.memory_by_policy(usage_of(first, "a"), policy) == 100

    ages = "0 0 0 0 0 10 0 0\n"
    rows = "".join(f"{row} {ages}" for row in ("cfei", "dfei", "cfui", "dfui"))
    for path in ("", node.path("b")):
        node.file("memory", path, "memory.idle_page_stats", rows)
    node.pod("b", 0)
    reader = Reader(node)
    second = await reader.read()
    assert usage_of(second, "b").memory_with_hot_page_cache_bytes == 200 - 40
    assert usage_of(second, "").memory_with_hot_page_cache_bytes == 2000 * 1024 - 40
    assert exporter_metrics.memory_by_policy(usage_of(second, "b"), policy) == 160
    assert exporter_metrics.memory_by_policy(usage_of(second, "b"), "usageWithPageCache") == 200
    assert "hot_page_cache" not in reader.sampler.unsupported


async def test_fake_missing_kernel_features_are_unsupported(node: FakeNode) -> None:
    shutil.rmtree(node.proc / "pressure")
    reader = Reader(node)
    node.pod("a", 0)
    await reader.read()
    expected = {"hot_page_cache", "node_pressure", "pod_pressure", "network", "disk"}
    if node.version == 2:
        expected.add("throttling")
    assert reader.sampler.unsupported == expected


async def test_system_usage_is_known_while_every_part_is_fresh(node: FakeNode) -> None:
    """A part older than `system_outdated_seconds` makes the system usage unknown."""
    reader = Reader(node, node.settings(host_applications=(APP,), system_outdated_seconds=3.0))

    def use(seconds: int) -> None:
        node.node(200 * seconds)
        node.cgroup("web/nginx", seconds * SECOND_NS // 2, 1024)
        node.pod("a", seconds * SECOND_NS, 2048)
        node.cgroup("kubepods/besteffort", seconds * SECOND_NS, 4096)  # its pods count already

    use(1)
    assert system_usage(await reader.read()) == (None, 1024 * 1000 - 3072)
    use(2)
    assert system_usage(await reader.read()) == (0.5, 1024 * 1000 - 3072)
    cpu = ("cpuacct", "cpuacct.usage") if node.version == 1 else ("", "cpu.stat")
    for age in range(1, 6):  # the last value of an unreadable part is valid for three seconds
        use(2 + age)
        node.file(cpu[0], node.path("a"), cpu[1], "broken")
        assert system_usage(await reader.read())[0] == (0.5 if age <= 3 else None)
    use(8)
    assert system_usage(await reader.read())[0] == 0.5


async def test_system_usage_is_never_negative(node: FakeNode, reader: Reader) -> None:
    for second in range(2):
        node.node(10 * second)
        node.pod("a", second * SECOND_NS, 1 << 40)
        collection = await reader.read()
    assert system_usage(collection) == (0.0, 0)


@V1
async def test_fake_rates_and_pressure_are_growth_between_slow_readings(node: FakeNode) -> None:
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
    assert len(slow) == 2  # the first of three readings has no previous one
    assert slow[1].rates == Rates(5.0, Traffic(2500, 250), Traffic(25600, 2560))
    assert (usage_of(slow[1], "").stall or ())[:3] == (5.0, 5_000_000, 5_000_000)
    use(0)  # all counters go backwards
    for _ in range(5):
        after = await reader.read()
    assert after.rates is None or (after.rates.network, after.rates.disk) == (None, None)
    assert usage_of(after, NODE.id).stall is None


@pytest.mark.parametrize("interval", [0.1, 0.3, 0.7, 0.9, 1.0, 7.0, 60.0])
@V1
async def test_fake_slow_readings_happen_with_any_interval(node: FakeNode, interval: float) -> None:
    (node.proc / "1/net/dev").write_text("Inter\n face\neth0: 1 0 0 0 0 0 0 0 2\n")
    sampler = Sampler(node.settings(collect_interval_seconds=interval), clock := ManualClock())
    rates_per_tick = []
    for tick in range(round(60 / interval) + 1):
        at_ms = round(tick * interval * 1000)
        # Readings are some milliseconds early or late.
        await clock.advance(tick * interval + 0.004 * (tick % 3) - clock.monotonic())
        rates_per_tick.append(sampler.collect(at_ms).rates)
    spans = [rates.seconds for rates in rates_per_tick if rates is not None]
    assert max(spans) <= max(5.0, interval) + interval / 2 + 0.01
    assert sum(spans) == pytest.approx(60, abs=max(6.0, interval))
    if interval < 5:
        assert len(spans) <= 14  # not more often than necessary
