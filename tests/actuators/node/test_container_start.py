"""Limits of containers before they start, on a described tree: what is answered, and when not."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from actuators.node.nri_messages import ContainerResources
from node_exporter.kernel.cgroup_paths import Driver, KubeQOS
from pipeline.errors import ContainerRuntimeError
from pipeline.processors.kubernetes.pod_classes import LABEL_QOS_CLASS
from pipeline.processors.node_qos.cgroup_values import UNLIMITED, Knob, Place
from pipeline.topics.pods import Container
from pipeline.topics.resource_amounts import BATCH
from tests.actuators.node.starts import (
    AMOUNTS,
    ID,
    MIB,
    UID,
    Starting,
    batch_pod,
    event,
    extended,
)
from tests.actuators.node.test_node_reading import World

NOTHING = ContainerResources()
LIMITS = ContainerResources(
    cpu_shares=512, cpu_quota_us=50_000, cpu_period_us=100_000, memory_limit_bytes=64 * MIB
)
MEMORY = {"resourceQOSStrategy": {"beClass": {"memoryQOS": {"enable": True, "minLimitPercent": 100,
          "lowLimitPercent": 100, "throttlingPercent": 80}}}}  # fmt: skip

Start = Callable[..., Starting]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    made: list[Starting] = []

    def started(version: int = 1, driver: Driver = Driver.CGROUPFS, **section: Any) -> Starting:
        world = World(tmp_path, version, driver)
        world.make(UID, KubeQOS.BEST_EFFORT)
        pod = world.node.cgroups / ("cpu" if version == 1 else "")
        for path in pod.glob("**/*pod*"):
            describe_limits(world.node.cgroups, str(path.relative_to(pod)), version)
        made.append(Starting(world.node.settings(), tmp_path, **section))
        return made[-1]

    yield started
    for starting in made:
        starting.close()


def describe_limits(root: Path, path: str, version: int) -> None:
    """The files of a cgroup of a best-effort pod."""
    texts = {
        1: {"cpu/cpu.shares": "2", "cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000",
            "memory/memory.limit_in_bytes": "9223372036854771712"},
        2: {"/cpu.weight": "1", "/cpu.max": "max 100000", "/memory.max": "max", "/memory.min": "0",
            "/memory.low": "0", "/memory.high": "max"},
    }[version]  # fmt: skip
    for name, text in texts.items():
        controller, _, file = name.partition("/")
        directory = root / controller / path
        directory.mkdir(parents=True, exist_ok=True)
        (directory / file).write_text(f"{text}\n")


@pytest.mark.parametrize("driver", Driver)
async def test_a_container_of_the_view_gets_what_it_states(start: Start, driver: Driver) -> None:
    starting = start(driver=driver)
    starting.show(batch_pod())
    assert starting.answer(event()) == NOTHING  # before the first round nothing is known
    await starting.actuator.round()
    scope = f"kubepods-besteffort-pod.slice:cri-containerd:{ID}"
    paths = {Driver.CGROUPFS: f"/kubepods/besteffort/pod{UID}/{ID}", Driver.SYSTEMD: scope}
    assert starting.answer(event(cgroups_path=paths[driver])) == LIMITS


async def test_what_the_runtime_would_write_anyway_is_not_answered(start: Start) -> None:
    starting = start()
    starting.show(batch_pod())
    await starting.actuator.round()
    assert starting.answer(event(LIMITS)) == NOTHING
    other_period = LIMITS._replace(cpu_quota_us=5_000, cpu_period_us=20_000)
    answer = starting.answer(event(other_period))
    assert answer == ContainerResources(cpu_quota_us=10_000, cpu_period_us=20_000)


async def test_memory_stays_below_its_limit_with_swap(start: Start) -> None:
    """A runtime refuses to create a container whose limit with swap is lower."""
    starting = start()
    starting.show(batch_pod())
    await starting.actuator.round()
    for swap, limit in ((32 * MIB, None), (128 * MIB, 64 * MIB), (-1, 64 * MIB)):
        answer = starting.answer(event(ContainerResources(memory_swap_bytes=swap)))
        assert answer.memory_limit_bytes == limit


async def test_on_v2_protection_of_memory_is_answered_too(start: Start) -> None:
    starting = start(2)
    starting.show(batch_pod(), slo=MEMORY)
    await starting.actuator.round()
    assert starting.answer(event()).unified == {
        "memory.min": str(64 * MIB), "memory.low": str(64 * MIB), "memory.high": str(64 * MIB),
    }  # fmt: skip


async def test_what_the_kernel_lacks_is_not_answered(start: Start) -> None:
    """A runtime fails to create a container if it cannot write a limit."""
    starting = start(2)
    pod = Path(starting.starts._layout.cpu, f"kubepods/besteffort/pod{UID}")
    (pod / "memory.low").unlink()
    starting.show(batch_pod(), slo=MEMORY)
    await starting.actuator.round()
    assert starting.answer(event()).unified.keys() == {"memory.min", "memory.high"}


@pytest.mark.parametrize("cut", [False, True])
async def test_a_pod_that_no_view_details_is_known_by_the_runtime(start: Start, cut: bool) -> None:
    starting = start(2)
    pods = [batch_pod(cut=True, labels={}, containers=())] if cut else []
    starting.show(*pods, slo=MEMORY)
    await starting.actuator.round()
    labels = {LABEL_QOS_CLASS: "BE"}
    answer = starting.answer(event(labels=labels, annotations=extended()))
    # Native requests are not known, so that nothing is protected or throttled.
    assert answer == LIMITS


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"labels": {LABEL_QOS_CLASS: "XX"}},
        {"labels": {LABEL_QOS_CLASS: "BE"}},  # without amounts
        {"annotations": extended(), "pod_uid": "no-such-pod"},
        {"annotations": extended(), "pod_uid": "../../besteffort"},
        {"annotations": extended(), "id": "b2" * 32},  # its cgroup has another name
        {"annotations": extended(), "cgroups_path": ""},
        {"annotations": extended("other")},
    ],
)
async def test_what_nobody_knows_is_left_alone(start: Start, fields: Any) -> None:
    starting = start()
    starting.show()
    await starting.actuator.round()
    assert starting.answer(event(**fields)) == NOTHING


async def test_in_modes_observe_and_off_nothing_is_answered(start: Start) -> None:
    starting = start(mode="observe", features={"batch_resources": "off"})
    starting.show(batch_pod())
    await starting.actuator.round()
    assert starting.answer(event()) == NOTHING


async def test_in_mode_observe_the_log_has_what_would_be_answered(start: Start) -> None:
    starting = start(mode="observe")
    starting.show(batch_pod())
    await starting.actuator.round()
    copy = starting.actuator.copy()
    assert copy is not None
    answer = starting.starts.answer(event(), copy, is_update=False)
    assert answer is not None
    assert answer.adjustment.resources == NOTHING
    assert {place.knob: d.value for place, d in answer.observed.items()} == {
        Knob.CPU_SHARES: 512, Knob.CPU_QUOTA: 50_000, Knob.MEMORY_LIMIT: 64 * MIB,
    }  # fmt: skip


async def test_an_update_keeps_what_it_does_not_state(start: Start) -> None:
    """The kubelet resizes a container, or gives it other CPUs."""
    starting = start()
    starting.show(batch_pod(ID))
    await starting.actuator.round()
    update = ContainerResources(cpu_shares=100, cpu_quota_us=0, memory_limit_bytes=0)
    assert starting.answer(event(update), is_update=True) == ContainerResources(cpu_shares=512)
    assert starting.answer(event(NOTHING), is_update=True) == NOTHING


async def test_no_quota_is_above_that_of_a_parent(start: Start) -> None:
    """The kernel of v1 refuses it, and the runtime would not start the container."""
    starting = start()
    root = Path(starting.starts._layout.cpu).parent
    describe_limits(root, "kubepods/besteffort", 1)
    (root / "cpu/kubepods/besteffort/cpu.cfs_quota_us").write_text("30000\n")
    starting.show(batch_pod())
    await starting.actuator.round()
    assert starting.answer(event()) == LIMITS._replace(cpu_quota_us=30_000)


async def test_a_stale_view_widens_nothing_in_an_update(start: Start) -> None:
    starting = start()
    path = f"kubepods/besteffort/pod{UID}/{ID}"
    root = Path(starting.starts._layout.cpu).parent
    describe_limits(root, path, 1)
    (root / "cpuacct" / path).mkdir()
    starting.show(batch_pod(ID))
    await starting.actuator.round()
    update = event(ContainerResources(cpu_shares=100))
    more = (Container(name="main", scalars={**AMOUNTS, BATCH[0]: 1000}),)
    for confirmed, shares in ((False, 512), (True, 1024)):
        starting.show(batch_pod(ID, containers=more), confirmed=confirmed)
        answer = starting.answer(update, is_update=True)
        assert answer == ContainerResources(cpu_shares=shares)


@pytest.mark.parametrize("resources", [{"cpus": "0-"}, {"cpus": "x"}, {"cpu_period_us": 1_000_001}])
async def test_resources_that_are_none_are_a_protocol_error(start: Start, resources: Any) -> None:
    starting = start()
    starting.show(batch_pod())
    await starting.actuator.round()
    with pytest.raises(ContainerRuntimeError):
        starting.answer(event(ContainerResources(**resources)))


async def test_the_runtimes_value_is_original_once_a_round_decides(start: Start) -> None:
    """The view has the id of a container seconds after its start."""
    starting = start()
    starting.show(batch_pod())
    await starting.actuator.round()
    starting.answer(event())
    path = f"kubepods/besteffort/pod{UID}/{ID}"
    quota = Place(path, Knob.CPU_QUOTA)
    await starting.actuator.round()
    root = Path(starting.starts._layout.cpu).parent
    describe_limits(root, path, 1)
    (root / "cpuacct" / path).mkdir()  # where pods are found
    (root / "cpu" / path / "cpu.cfs_quota_us").write_text("50000\n")
    for pods in ((batch_pod(),), (), (batch_pod(ID),)):
        assert quota not in starting.originals.values
        starting.show(*pods)
        await starting.actuator.round()
        assert starting.files.read(quota) == 50_000
    assert starting.originals.values[quota].text == "-1 100000"
    assert starting.originals.values[quota].features == ("batch_resources",)
    starting.writer.undo()
    assert starting.files.read(quota) == UNLIMITED


async def test_a_container_that_never_starts_is_forgotten(start: Start) -> None:
    starting = start()
    starting.show(batch_pod())
    await starting.actuator.round()
    starting.answer(event())
    assert len(starting.replaced._replaced) == 3
    await starting.actuator.round()
    assert len(starting.replaced._replaced) == 3
    await starting.clock.advance(61)
    await starting.actuator.round()
    assert starting.replaced._replaced == {}
