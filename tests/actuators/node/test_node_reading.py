"""The state of a node from view, usage and cgroups: described trees of both versions, and the real
kernel with a real exporter."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actuators.node import node_metrics
from actuators.node.cgroup_files import CgroupFiles, detect_hierarchies
from actuators.node.cgroup_inotify import CgroupInotify
from actuators.node.cpu_manager_state import CpuManagerState
from actuators.node.live_usage import LiveUsage
from actuators.node.newest_view import NewestView
from actuators.node.node_reading import NodeReading
from actuators.node.pod_cgroups import PodCgroups
from node_exporter.collection import NODE, Collection, ContainerGrowth, Entity, Usage
from node_exporter.kernel.cgroup import detect_layout
from node_exporter.kernel.cgroup_paths import Driver, KubeQOS, container_dir, pod_dir
from node_exporter.kernel.parse_files import Throttling
from node_exporter.live_socket import LiveServer
from node_exporter.sampler import Sampler
from pipeline.clock import Clock, ManualClock, SystemClock
from pipeline.processors.node_qos.cgroup_values import UNLIMITED, Knob, Place
from pipeline.processors.node_qos.node_state import NodeState, PodState
from pipeline.settings import ExporterSettings, HostApplication, HostApplicationCgroup
from pipeline.topics.node_views import ViewPod
from pipeline.topics.pods import Container
from pipeline.topics.resource_amounts import Resources
from tests.actuators.node.limit_tree import write_value
from tests.actuators.node.test_cpu_topology import TWO_NODES_A_SOCKET, describe
from tests.actuators.node.views import NODE as NAME
from tests.actuators.node.views import view
from tests.cgroup_tree import CGROUP_ROOT, cgroup_tree
from tests.metric_values import value_of
from tests.node_exporter.fake_node import FakeNode

SECOND_NS = 10**9
IDS = {"main": "a1" * 32, "side": "b2" * 32}


def listed(uid: str, qos: str = "LS", **fields: Any) -> ViewPod:
    containers = tuple(Container(name=name) for name in fields.get("container_ids", {}))
    return ViewPod(
        uid=f"object-{uid}", cgroup_uid=uid, namespace="d", name=f"pod-{uid}", qos=qos,
        phase="Running", containers=containers, **fields,
    )  # fmt: skip


class World:
    """A described node with an exporter's socket, and a reading of it."""

    def __init__(self, folder: Path, version: int, driver: Driver, **settings: Any) -> None:
        self.node, self.clock, self.driver = FakeNode(folder, version), ManualClock(), driver
        if version == 1:
            (self.node.cgroups / "cpuset").mkdir()
        describe(self.node.sys, TWO_NODES_A_SOCKET)
        self.news = asyncio.Event()
        self.server = LiveServer(folder / "exporter.sock", NAME)
        self.view = NewestView(NAME, self.clock, self.news)
        self.reading = reading_of(
            self.node.settings(**settings), self.server.path, self.view, self.clock
        )
        self._generation = 0

    def show(self, *pods: ViewPod, confirmed: bool = True, **fields: Any) -> None:
        """A newer view, of which its source says that it is the newest."""
        self._generation += 1
        assert self.view.receive(view(self._generation, pods=pods, **fields))
        if confirmed:
            self.view.confirm(self.clock.monotonic())

    def make(self, uid: str, kube_qos: KubeQOS = KubeQOS.BURSTABLE, *ids: str) -> str:
        """The cgroups of a pod and of its containers; the pod's path."""
        path = pod_dir(self.driver, kube_qos, uid)
        self.node.cgroup(path, 0)
        for id in ids:
            self.node.cgroup(f"{path}/{container_dir(self.driver, 'containerd', id)}", 0)
        return path

    async def collect(self, *usages: Usage, seconds: float = 1.0) -> None:
        """The exporter's collection of now, and then some time."""
        node = Usage(NODE, 3 * SECOND_NS, 1.0, 5000, 6000, None)
        self.server.add(Collection(round(self.clock.now() * 1000), (node, *usages), None))
        await self.clock.advance(seconds)

    async def state(self) -> NodeState:
        state = await self.reading.read()
        assert state is not None
        return state


def reading_of(
    settings: ExporterSettings, socket: Path, newest: NewestView, clock: Clock,
    changed: Callable[[str], bool | None] = lambda _: None,
) -> NodeReading:  # fmt: skip
    root = settings.cgroup_root
    files = CgroupFiles(detect_hierarchies(str(root)))
    usage = LiveUsage(socket, NAME, clock)
    manager = CpuManagerState(root.parent / "cpu_manager_state", clock)
    layout = detect_layout(str(root))
    pods = PodCgroups(layout, settings.cgroup_parent, changed, clock)
    return NodeReading(settings, layout, files, newest, usage, manager, pods, clock)


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    worlds: list[World] = []

    async def started(version: int = 1, driver: Driver = Driver.CGROUPFS, **more: Any) -> World:
        worlds.append(World(tmp_path, version, driver, **more))
        await worlds[-1].server.start()
        return worlds[-1]

    yield started
    for world in worlds:
        world.reading.close()
        await world.server.stop()


def pod_usage(uid: str, cores: float | None, qos: str = "Burstable", **more: Any) -> Usage:
    cpu_ns = None if cores is None else round(cores * SECOND_NS)
    return Usage(Entity("pod", uid, qos), cpu_ns, 1.0, 100, 200, None, **more)


def by_uid(state: NodeState) -> dict[str, PodState]:
    return {pod.uid: pod for pod in state.pods}


async def test_there_is_no_state_before_the_first_view_and_without_pods(make: Any) -> None:
    world = await make()
    assert await world.reading.read() is None
    world.show()
    assert await world.reading.read() is None
    world.make("a")
    assert (await world.state()).node == NAME


@pytest.mark.parametrize(
    ("version", "driver", "kubepods"),
    [(1, Driver.CGROUPFS, "kubepods"), (2, Driver.CGROUPFS, "kubepods"),
     (1, Driver.SYSTEMD, "kubepods.slice"), (2, Driver.SYSTEMD, "kubepods.slice")],
)  # fmt: skip
async def test_pods_and_containers_that_have_a_cgroup_are_in_the_state(
    make: Any, version: int, driver: Driver, kubepods: str
) -> None:
    world = await make(version, driver)
    path = world.make("a", KubeQOS.BURSTABLE, IDS["main"], "e0" * 32)
    other = world.make("b", KubeQOS.BEST_EFFORT, "f0" * 32)
    throttling = Throttling(10, 4, 1)
    usage = pod_usage("a", 1.5, throttling=throttling, containers={
        IDS["main"]: ContainerGrowth(SECOND_NS, 1.0, throttling)})  # fmt: skip
    await world.collect(usage, pod_usage("b", 0.5, "BestEffort"))
    requests = Resources(cpu_millicores=2000)
    world.show(
        listed("a", requests=requests, container_ids=IDS), listed("ended"),
        capacity=Resources(cpu_millicores=8000), allocatable=Resources(cpu_millicores=7000),
    )  # fmt: skip
    state = await world.state()
    assert (state.cgroup_version, state.kubepods_path) == (version, kubepods)
    assert state.best_effort_path == other.rpartition("/")[0]
    assert (state.capacity.cpu_millicores, state.allocatable.cpu_millicores) == (8000, 7000)
    assert (state.cpus, state.cpu_cores, state.memory_bytes) == (TWO_NODES_A_SOCKET, 3.0, 5000)
    assert state.at == world.clock.now() - 1
    pods = by_uid(state)
    assert pods.keys() == {"object-a", "b"}
    a, b = pods["object-a"], pods["b"]
    assert (a.path, a.kube_qos, a.listed, a.name) == (path, "Burstable", True, "pod-a")
    assert (a.requests, a.cpu_cores, a.memory_bytes, a.throttled_ratio) == (
        requests, 1.5, 100, 0.4,
    )  # fmt: skip
    (container,) = a.containers  # the other one has not started
    assert (container.name, container.cpu_cores, container.throttled_ratio) == ("main", 1.0, 0.4)
    assert container.path == f"{path}/{container_dir(driver, 'containerd', IDS['main'])}"
    assert (b.path, b.kube_qos, b.listed, b.cpu_cores, b.containers) == (
        other, "BestEffort", False, 0.5, (),
    )  # fmt: skip


async def test_a_container_is_noticed_when_the_view_or_its_pod_has_it(make: Any) -> None:
    world = await make()
    path = world.make("a", KubeQOS.BURSTABLE, "c0" * 32)

    async def names() -> list[str]:
        await world.collect()
        return [container.name for container in (await world.state()).pods[0].containers]

    world.show(listed("a"))
    assert await names() == []
    world.show(listed("a", container_ids={"main": IDS["main"]}))
    assert await names() == []
    world.make("a", KubeQOS.BURSTABLE, IDS["main"])
    assert await names() == ["main"]
    world.show(listed("a", container_ids=IDS))
    world.make("a", KubeQOS.BURSTABLE, IDS["side"])
    assert await names() == ["main", "side"]
    # The runtime starts a container again under another id: the old one goes within seconds.
    for directory in world.node.cgroups.glob(f"*/{path}/{IDS['main']}"):
        directory.rename(directory.with_name("d0" * 32))
    await world.clock.advance(5)
    assert await names() == ["side"]


async def test_what_is_watched_is_listed_when_something_was_made_or_removed_in_it(
    make: Any,
) -> None:
    world = await make()
    inotify = CgroupInotify(str(world.node.cgroups / "cpuacct"), world.news)
    world.reading = reading_of(
        world.node.settings(), world.server.path, world.view, world.clock, inotify.changed
    )
    world.show(listed("a", container_ids=IDS), listed("b", container_ids={"b": "b0" * 32}))

    async def names() -> dict[str, list[str]]:
        state: NodeState = await world.state()
        inotify.follow(state)
        await asyncio.sleep(0.05)  # the events arrive
        return {pod.uid: [c.name for c in pod.containers] for pod in state.pods}

    try:
        path = world.make("a", KubeQOS.BURSTABLE, IDS["main"])
        assert await names() == {"object-a": ["main"]}
        assert await names() == {"object-a": ["main"]}
        world.make("a", KubeQOS.BURSTABLE, IDS["side"])
        world.make("b", KubeQOS.BEST_EFFORT, "b0" * 32)
        await asyncio.sleep(0.05)
        assert await names() == {"object-a": ["main", "side"], "object-b": ["b"]}
        shutil.rmtree(world.node.cgroups / "cpuacct" / path / IDS["main"])
        await asyncio.sleep(0.05)
        assert await names() == {"object-a": ["side"], "object-b": ["b"]}
        shutil.rmtree(world.node.cgroups / "cpuacct" / path)
        await asyncio.sleep(0.05)
        assert await names() == {"object-b": ["b"]}
    finally:
        inotify.close()


async def test_a_revision_ends_when_anything_but_usage_changes(make: Any) -> None:
    world = await make()
    path = world.make("a", KubeQOS.BURSTABLE, IDS["main"])
    pod = listed("a", container_ids={"main": IDS["main"]})
    world.show(pod)
    revisions: list[int] = []

    async def read(cores: float = 1.0) -> NodeState:
        await world.collect(pod_usage("a", cores), seconds=6)  # lists containers again
        state: NodeState = await world.state()
        assert state.revision is not None
        revisions.append(state.revision)
        return state

    first, second = await read(), await read(2.0)
    assert first.pods[0].cpu_cores != second.pods[0].cpu_cores
    world.show(pod, capacity=Resources(cpu_millicores=8000))
    await read()
    world.make("b", KubeQOS.BEST_EFFORT)
    await read()
    for directory in world.node.cgroups.glob(f"*/{path}/{IDS['main']}"):
        directory.rename(directory.with_name("d0" * 32))
    await read()
    await read()
    assert [revision - revisions[0] for revision in revisions] == [0, 0, 1, 2, 3, 3]


async def test_usage_that_is_stale_is_unknown(make: Any) -> None:
    world = await make()
    world.make("a", KubeQOS.BURSTABLE, IDS["main"])
    world.show(listed("a", container_ids=IDS))
    await world.collect(pod_usage("a", 1.0), seconds=11)
    state = await world.state()
    assert (state.at, state.cpu_cores, state.pods[0].cpu_cores) == (world.clock.now(), None, None)
    assert state.pods[0].containers[0].cpu_cores is None
    assert world.reading.usage_age_seconds() == 11


async def test_block_devices_are_read_again_from_time_to_time(make: Any) -> None:
    world = await make()
    world.show()
    world.make("a")
    assert (await world.state()).block_devices is None
    (world.node.sys / "dev/block/8:0").mkdir(parents=True)
    (world.node.sys / "dev/block/8:0/uevent").write_text("DEVNAME=sda\n")
    await world.clock.advance(29)
    assert (await world.state()).block_devices is None
    await world.clock.advance(1)
    devices = (await world.state()).block_devices
    assert devices is not None
    assert devices.devices == {"sda": "8:0", "8:0": "8:0"}


async def test_an_invalid_policy_leaves_the_last_one_in_force(make: Any) -> None:
    world = await make()
    world.make("a")
    bad = msgspec.Raw(b'{"hostApplications": 1}')
    good = msgspec.Raw(b'{"systemStrategy": {"watermarkScaleFactor": 150}}')
    world.show(slo=bad)
    assert (await world.state()).slo is None
    world.show(slo=good)
    policy = (await world.state()).slo
    assert policy is not None
    world.show(listed("a"), slo=bad)
    state = await world.state()
    assert (state.slo, state.pods[0].listed) == (policy, True)
    world.show()
    assert (await world.state()).slo is None  # the policy was withdrawn


async def test_the_kubelets_own_file_has_the_cpu_manager_policy(make: Any) -> None:
    world = await make()
    world.make("a")
    file = world.node.cgroups.parent / "cpu_manager_state"

    async def policy(text: str | None) -> str:
        file.unlink() if text is None else file.write_text(text)
        await world.clock.advance(31)
        return str((await world.state()).cpu_manager_policy)

    annotation = {"kubelet.koordinator.sh/cpu-manager-policy": '{"policy":"static"}'}
    world.show(annotations=annotation)
    # Without the file the annotation of the Node counts.
    assert (await world.state()).cpu_manager_policy == "static"
    of_kubelet = '{"policyName":"none","defaultCpuSet":"","checksum":1353318690}'
    assert await policy(of_kubelet) == "none"
    revision = (await world.state()).revision
    assert await policy(of_kubelet.replace("none", "static")) == "static"
    assert (await world.state()).revision != revision
    world.show()
    for odd in ("", "{", '{"policyName":"other"}', "[" * 9000, "\0" * 9000, None):
        assert await policy(odd) == "static"


async def test_a_pod_that_the_view_cut_keeps_its_details_or_is_not_known(make: Any) -> None:
    world = await make()
    for uid in ("a", "b"):
        world.make(uid, KubeQOS.BURSTABLE, IDS["main"])
    ids = {"main": IDS["main"]}
    world.show(listed("a", annotations={"koordinator.sh/cpuBurst": "{}"}, container_ids=ids))
    await world.state()
    for _ in range(2):
        world.show(listed("a", cut=True), listed("b", cut=True))
        pods = by_uid(await world.state())
        a, b = pods["object-a"], pods["object-b"]
        assert (a.listed, [c.name for c in a.containers]) == (True, ["main"])
        assert a.annotations == {"koordinator.sh/cpuBurst": "{}"}
        assert (b.listed, b.qos, b.containers) == (False, "LS", ())
        assert value_of(node_metrics.CUT_PODS) == 2
    world.show(listed("a"), listed("b"))
    pods = by_uid(await world.state())
    assert (pods["object-a"].annotations, pods["object-b"].listed) == ({}, True)


async def test_host_applications_of_settings_and_policy_that_have_a_cgroup(make: Any) -> None:
    own = HostApplication(
        name="own", qos="LS", cgroup_path=HostApplicationCgroup(relative_path="own")
    )
    world = await make(host_applications=(own,))
    world.make("a")
    for path in ("own", "kubepods/besteffort/crawler", "host-best-effort/backup"):
        world.node.cgroup(path, 0)
    crawler = {"base": "KubepodsBesteffort", "relativePath": "crawler"}
    applications = [
        {"name": "crawler", "qos": "BE", "cgroupPath": crawler},
        {"name": "backup", "qos": "BE"}, {"name": "away", "qos": "LS"},
        {"name": "../x", "cgroupPath": {"relativePath": "../.."}},
    ]  # fmt: skip
    world.show(slo=msgspec.Raw(msgspec.json.encode({"hostApplications": applications})))
    await world.collect(Usage(Entity("host_app", "own", "LS"), SECOND_NS, 1.0, 7, 8, None))
    apps = {app.name: app for app in (await world.state()).host_apps}
    assert {name: app.in_best_effort for name, app in apps.items()} == {
        "own": False, "crawler": True, "backup": False,
    }  # fmt: skip
    assert (apps["own"].cpu_cores, apps["own"].memory_bytes) == (1.0, 7)
    assert apps["crawler"].path == "kubepods/besteffort/crawler"


async def test_recent_cpu_is_that_of_all_that_is_not_best_effort(make: Any) -> None:
    world = await make()
    world.make("a")
    requests = Resources(cpu_millicores=3000)
    world.show(listed("a", requests=requests), listed("batch", qos="BE"))
    for second in range(70):
        # A pod that was read once only counts with its request, one that is unknown with nothing.
        cores = None if second == 69 else second / 100
        await world.collect(
            pod_usage("a", cores), pod_usage("batch", 5.0), pod_usage("be", 5.0, "BestEffort"),
            pod_usage("x", 0.5),
        )  # fmt: skip
    recent = (await world.state()).recent_prod_cores
    assert recent == pytest.approx([*(0.5 + second / 100 for second in range(10, 69)), 3.5])
    await world.clock.advance(30)
    await world.collect(pod_usage("a", 1.0))
    assert (await world.state()).recent_prod_cores[-2:] == (3.5, 1.0)
    await world.clock.advance(61)
    assert (await world.state()).recent_prod_cores == ()


CPUS = (CGROUP_ROOT / "cpuset/cpuset.cpus").read_text().strip()


@pytest.mark.cgroups
async def test_a_real_exporter_and_the_real_kernel_give_the_state_of_a_node(tmp_path: Path) -> None:
    clock = SystemClock()
    with cgroup_tree("reading", ("cpu", "cpuacct", "memory", "cpuset")) as tree:
        prod = pod_dir(Driver.CGROUPFS, KubeQOS.BURSTABLE, "a")
        batch = pod_dir(Driver.CGROUPFS, KubeQOS.BEST_EFFORT, "b")
        ended = pod_dir(Driver.CGROUPFS, KubeQOS.BURSTABLE, "c")
        limited, sandbox = f"{prod}/{IDS['main']}", f"{batch}/{'e0' * 32}"
        for path in (limited, sandbox, ended):
            tree.make(path)
        for path in ("", "kubepods", "kubepods/besteffort", "kubepods/burstable", prod, batch,
                     limited, sandbox):  # fmt: skip
            tree.write("cpuset", path, "cpuset.cpus", CPUS)
            tree.write("cpuset", path, "cpuset.mems", "0")
        tree.write("cpu", "", "cpu.shares", 100_000)  # it gets its quota on a busy machine, too
        tree.write("cpu", limited, "cpu.cfs_quota_us", 20_000)
        tree.python(limited, "while True: pass")
        settings = ExporterSettings(cgroup_parent=tree.name)
        sampler, server = Sampler(settings, clock), LiveServer(tmp_path / "exporter.sock", NAME)
        await server.start()
        newest = NewestView(NAME, clock, asyncio.Event())
        reading = reading_of(settings, server.path, newest, clock)
        thresholds = {
            "cpuEvictBESatisfactionLowerPercent": 40, "cpuEvictBESatisfactionUpperPercent": 60,
        }  # fmt: skip
        slo = msgspec.Raw(msgspec.json.encode({"resourceUsedThresholdWithBE": thresholds}))
        newest.receive(view(1, pods=(listed("a", container_ids=IDS),), slo=slo))
        state = None
        # All containers are read every five seconds, and those that have been limited every second.
        for _ in range(8):
            server.add(sampler.collect(round(clock.now() * 1000)))
            state = await reading.read()
            await asyncio.sleep(1)
        assert state is not None
        pods = by_uid(state)
        assert pods.keys() == {"object-a", "b", "c"}
        (container,) = pods["object-a"].containers
        assert container.path == f"{tree.name}/{limited}"
        assert container.cpu_cores == pytest.approx(0.2, abs=0.1)
        assert container.throttled_ratio is not None
        assert container.throttled_ratio > 0.3
        assert pods["object-a"].cpu_cores == pytest.approx(container.cpu_cores, abs=0.1)
        assert pods["b"].cpu_cores == pytest.approx(0, abs=0.01)
        assert len(state.recent_prod_cores) == 8
        assert state.best_effort_cgroups == (f"{tree.name}/{batch}", f"{tree.name}/{sandbox}")
        assert state.best_effort_limit_millicores == 1000 * len(state.cpus)
        quota = Place(state.best_effort_path, Knob.CPU_QUOTA)
        files = CgroupFiles(detect_hierarchies(str(CGROUP_ROOT)))
        assert files.read(quota) == UNLIMITED
        write_value(files, quota, 30_000)
        files.close()
        tree.remove(ended)
        state = await reading.read()
        assert state is not None
        assert state.best_effort_limit_millicores == 300
        assert by_uid(state).keys() == {"object-a", "b"}
        assert state.cpu_pressure is not None
        reading.close()
        await server.stop()
        sampler.close()
