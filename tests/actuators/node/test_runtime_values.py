"""What a runtime would have written is restored in the end, whatever happens after its answer."""

import errno
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from actuators.node.nri_messages import ContainerResources
from node_exporter.kernel.cgroup_paths import Driver, KubeQOS
from pipeline.processors.node_qos.cgroup_values import UNLIMITED, Knob, Place
from pipeline.topics.pods import Container
from pipeline.topics.resource_amounts import BATCH
from tests.actuators.node.starts import AMOUNTS, ID, UID, Starting, batch_pod, event
from tests.actuators.node.test_container_start import describe_limits
from tests.actuators.node.test_node_reading import World

PATH = f"kubepods/besteffort/pod{UID}/{ID}"
QUOTA, SHARES = Place(PATH, Knob.CPU_QUOTA), Place(PATH, Knob.CPU_SHARES)


class Node(Starting):
    """A node with a best-effort pod, whose container has no cgroup yet."""

    def __init__(self, folder: Path, version: int = 1) -> None:
        world = World(folder, version, Driver.CGROUPFS)
        pod = world.make(UID, KubeQOS.BEST_EFFORT)
        describe_limits(world.node.cgroups, pod, version)
        super().__init__(world.node.settings(), folder)
        self.root, self._version = world.node.cgroups, version

    def start_container(self) -> None:
        """What a runtime does with an answer: the cgroup with the quota that is decided."""
        describe_limits(self.root, PATH, self._version)
        if self._version == 1:
            (self.root / "cpuacct" / PATH).mkdir()  # where pods are found
            (self.root / "cpu" / PATH / "cpu.cfs_quota_us").write_text("50000\n")
        else:
            (self.root / PATH / "cpu.max").write_text("50000 100000\n")


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    made = Node(tmp_path)
    made.show(batch_pod())
    await made.actuator.round()
    yield made
    made.close()


async def test_a_full_disk_does_not_lose_the_runtimes_value(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.answer(event())
    node.start_container()
    node.show(batch_pod(ID))

    def refuse(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(node.originals, "_write", refuse)
        await node.actuator.round()
    await node.actuator.round()
    node.writer.undo()
    assert node.files.read(QUOTA) == UNLIMITED


async def test_a_limit_that_no_round_decides_is_taken_back(node: Node) -> None:
    """The policy or the pod changed between the answer and the view that has the container."""
    node.answer(event())
    node.start_container()
    native = batch_pod(ID, qos="LS", labels={}, containers=(Container(name="main"),))
    for confirmed, quota in ((False, 50_000), (True, UNLIMITED)):
        node.show(native, confirmed=confirmed)
        for _ in range(6):
            await node.actuator.round()
        assert node.files.read(QUOTA) == quota
    await node.clock.advance(11)
    await node.actuator.round()
    assert node.replaced._replaced == {}


async def test_on_v2_a_cgroup_without_its_files_yet_has_not_lost_the_runtimes_value(
    tmp_path: Path,
) -> None:
    """systemd makes a cgroup before it enables the controllers in it."""
    node = Node(tmp_path, version=2)
    node.show(batch_pod())
    await node.actuator.round()
    node.answer(event())
    (node.root / PATH).mkdir()
    node.show(batch_pod(ID))
    await node.actuator.round()
    node.files.close_unused()
    node.files.close_unused()
    node.start_container()
    for _ in range(5):
        await node.actuator.round()
    node.writer.undo()
    assert node.files.read(QUOTA) == UNLIMITED
    node.close()


@pytest.mark.parametrize("before", ["", "a round", "a round that was under way"])
async def test_the_answer_to_an_update_is_no_change_by_another_process(
    node: Node, before: str
) -> None:
    """The runtime writes the answer after any round, or before."""
    node.start_container()
    node.show(batch_pod(ID))
    for _ in range(4):
        await node.actuator.round()
    assert (node.files.read(SHARES), node.originals.values[SHARES].text) == (512, "2")
    more = (Container(name="main", scalars={**AMOUNTS, BATCH[0]: 1000}),)
    node.show(batch_pod(ID, containers=more))
    update = event(ContainerResources(cpu_shares=100))
    assert node.answer(update, is_update=True).cpu_shares == 1024
    if before == "a round":
        await node.actuator.round()
    elif before:
        copy = node.actuator.copy()
        assert copy is not None
        node.actuator._act(dict(copy.written), copy.state, held=False)
    (node.root / "cpu" / PATH / "cpu.shares").write_text("1024\n")
    for _ in range(6):
        await node.actuator.round()
    assert node.originals.values[SHARES].text == "100"
    node.writer.undo()
    assert node.files.read(SHARES) == 100


async def test_values_of_the_next_answer_are_not_dropped_with_those_of_the_last(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers come while a round adopts, in a thread."""
    node.answer(event())
    node.start_container()
    node.show(batch_pod(ID))
    replace = node.originals.replace

    def update_meanwhile(values: Any) -> None:
        replace(values)
        monkeypatch.setattr(node.originals, "replace", replace)
        assert node.replaced.add({SHARES: 100})

    monkeypatch.setattr(node.originals, "replace", update_meanwhile)
    for _ in range(2):
        await node.actuator.round()
    assert node.originals.values[SHARES].text == "100"
