"""Rounds of the node actuator on a described tree of v2: modes, failures, stale views, restarts."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actuators.action_log import Actions
from actuators.node import node_metrics, resctrl_step
from actuators.node.cgroup_files import CgroupFiles, detect_hierarchies
from actuators.node.cgroup_inotify import CgroupInotify
from actuators.node.cgroup_writer import CgroupWriter
from actuators.node.newest_view import NewestView
from actuators.node.node_actuator import LEAST_SECONDS, SETTLE_SECONDS, NodeActuator
from actuators.node.node_service import GATES, feature_modes, run
from actuators.node.original_values import OriginalValues
from actuators.node.runtime_values import RuntimeValues
from node_exporter.kernel.cgroup_paths import Driver, KubeQOS
from pipeline import tracing
from pipeline.clock import ManualClock
from pipeline.errors import SettingsError
from pipeline.processors.node_qos.cgroup_values import Knob, Place, Value
from pipeline.processors.node_qos.claims import Claim
from pipeline.processors.node_qos.features import built_features
from pipeline.processors.node_qos.node_state import NodeState
from pipeline.settings import ExporterSettings, KafkaSettings, NodeActuatorSettings, Settings
from pipeline.spans import Span, SpanContext
from pipeline.tasks import cancel_tasks
from pipeline.topics.actions import ActionRecord
from pipeline.topics.resource_amounts import Resources
from tests.actuators.node.test_node_reading import World, reading_of
from tests.actuators.node.views import NODE, view
from tests.metric_values import sum_of, value_of
from tests.processes import until

BEST_EFFORT = "kubepods/besteffort"
QUOTA = Place(BEST_EFFORT, Knob.CPU_QUOTA)


class Quota:
    """A feature that wants a quota, or fails."""

    name = "quota"
    reads_usage = True

    def __init__(self) -> None:
        self.wanted: int | None = 50_000
        self.place = QUOTA
        self.former: Mapping[Place, Value] = {}
        self.fails = False
        self.calls = 0

    def claims(self, state: NodeState, former: Mapping[Place, Value]) -> list[Claim]:
        self.former = former
        self.calls += 1
        if self.fails:
            raise ZeroDivisionError
        return [] if self.wanted is None else [Claim(self.place, self.wanted, self.name, "a test")]


class Rounds:
    """A node actuator with one feature, on files."""

    def __init__(self, folder: Path) -> None:
        self.world = World(folder, 2, Driver.CGROUPFS)
        self.world.make("a", KubeQOS.BEST_EFFORT)
        (self.world.node.cgroups / BEST_EFFORT / "cpu.max").write_text("max 100000\n")
        self.folder, self.feature = folder, Quota()
        self.records: list[ActionRecord] = []
        self.steps: list[Callable[[NodeState], None]] = []
        self.followed: list[NodeState] = []
        self.inotify: CgroupInotify | None = None
        self.originals: OriginalValues | None = None

    def start(self, mode: str = "act", **settings: Any) -> NodeActuator:
        if self.originals is not None:
            self.originals.close()
        section = NodeActuatorSettings(mode=mode, **settings)  # type: ignore[arg-type]
        files = CgroupFiles(detect_hierarchies(str(self.world.node.cgroups)))
        self.originals = OriginalValues(self.folder / "state.json", "boot", files.value_of)
        actions = Actions(KafkaSettings(), node_metrics.ACTIONS_LOST)
        return NodeActuator(
            section, feature_modes(section, [self.feature.name]), [self.feature],
            self.world.reading, CgroupWriter(files, self.originals),
            RuntimeValues(files, self.originals, self.world.clock), self.follow,
            self.steps, actions, self.world.clock, self.world.news,
        )  # fmt: skip

    def follow(self, state: NodeState) -> None:
        self.followed.append(state)
        if self.inotify is not None:
            self.inotify.follow(state)

    def quota(self) -> str:
        return (self.world.node.cgroups / BEST_EFFORT / "cpu.max").read_text().split()[0]


async def turns(clock: ManualClock, seconds: float) -> None:
    """Let time pass, and rounds write in their threads, until the next one is waited for."""
    await clock.advance(seconds)
    await asyncio.sleep(0.02)
    await until(lambda: any(not wake.done() for *_, wake in clock.sleepers))


@pytest.fixture
def rounds(tmp_path: Path) -> Rounds:
    return Rounds(tmp_path)


async def test_nothing_is_written_before_the_first_view(rounds: Rounds) -> None:
    actuator = rounds.start()
    await actuator.round()
    assert rounds.quota() == "max"
    rounds.world.show()
    await actuator.round()
    assert rounds.quota() == "50000"


@pytest.mark.parametrize("mode", ["observe", "off"])
async def test_other_modes_write_nothing_and_restore_what_act_wrote(
    rounds: Rounds, mode: str
) -> None:
    rounds.world.show()
    await rounds.start().round()
    assert rounds.quota() == "50000"
    before = sum_of(node_metrics.CHANGES, feature="quota", outcome="observed")
    actuator = rounds.start(mode)
    for _ in range(2):
        await actuator.round()
    assert rounds.quota() == "max"
    # What would be written is counted once.
    after = sum_of(node_metrics.CHANGES, feature="quota", outcome="observed")
    assert after - before == (mode == "observe")


async def test_a_feature_that_fails_keeps_its_limits(rounds: Rounds) -> None:
    rounds.world.show()
    actuator = rounds.start()
    await actuator.round()
    rounds.feature.fails = True
    await actuator.round()
    assert rounds.quota() == "50000"
    rounds.feature.fails, rounds.feature.wanted = False, None
    await actuator.round()
    assert rounds.quota() == "max"


async def test_a_restart_goes_on_from_what_was_written(rounds: Rounds) -> None:
    rounds.world.show()
    await rounds.start().round()
    await rounds.start().round()
    assert rounds.feature.former == {QUOTA: 50_000}


async def test_a_feature_without_usage_decides_when_something_else_changes(rounds: Rounds) -> None:
    rounds.feature.reads_usage = False
    rounds.world.show()
    actuator = rounds.start()
    for _ in range(3):
        await actuator.round()
    assert rounds.feature.calls == 1
    rounds.feature.wanted = 60_000
    rounds.world.show(capacity=Resources(cpu_millicores=8000))
    await actuator.round()
    assert (rounds.feature.calls, rounds.quota()) == (2, "60000")
    rounds.feature.fails = True
    rounds.world.make("b")
    for calls in (3, 4):  # until it succeeds
        await actuator.round()
        assert (rounds.feature.calls, rounds.quota()) == (calls, "60000")


async def test_a_stale_view_widens_and_restores_nothing(rounds: Rounds) -> None:
    rounds.world.show()
    rounds.world.view.confirm(rounds.world.clock.monotonic())
    seen: list[NodeState] = []
    rounds.steps.append(seen.append)
    actuator = rounds.start(view_max_age_seconds=60.0)
    await actuator.round()
    assert len(seen) == 1
    await rounds.world.clock.advance(61)
    for wanted, quota in ((80_000, "50000"), (20_000, "20000"), (None, "20000")):
        rounds.feature.wanted = wanted
        await actuator.round()
        assert rounds.quota() == quota
    assert value_of(node_metrics.HELD) == 1
    assert len(seen) == 1  # nor is an eviction asked for
    rounds.world.view.confirm(rounds.world.clock.monotonic())
    await actuator.round()
    assert rounds.quota() == "max"


async def test_a_stale_view_holds_no_cgroups_that_have_ended(rounds: Rounds) -> None:
    """Pods come and go while the view stays stale for days."""
    rounds.world.show()
    rounds.world.view.confirm(rounds.world.clock.monotonic())
    actuator = rounds.start(view_max_age_seconds=60.0)
    await rounds.world.clock.advance(61)
    for number in range(10):
        path = f"{BEST_EFFORT}/pod{number}"
        directory = rounds.world.node.cgroups / path
        directory.mkdir()
        (directory / "cpu.max").write_text("max 100000\n")
        rounds.feature.place = Place(path, Knob.CPU_QUOTA)
        await actuator.round()
        (directory / "cpu.max").unlink()
        directory.rmdir()
        actuator._writer._files.close()  # of a real cgroup, open files end with it
    rounds.feature.wanted = None
    for _ in range(6):
        await actuator.round()
    copy = actuator.copy()
    assert copy is not None
    assert copy.is_held
    assert copy.written == {}


async def test_a_view_of_unknown_age_counts_as_stale(rounds: Rounds) -> None:
    """The newest one of a topic may be days old."""
    rounds.world.show()
    await rounds.start().round()
    rounds.world.view = NewestView(NODE, rounds.world.clock, rounds.world.news)
    rounds.world.reading = reading_of(
        rounds.world.node.settings(), rounds.world.server.path, rounds.world.view,
        rounds.world.clock,
    )  # fmt: skip
    rounds.world.show(confirmed=False)
    rounds.feature.wanted = 80_000
    actuator = rounds.start()
    await actuator.round()
    assert rounds.quota() == "50000"
    rounds.world.view.confirm(rounds.world.clock.monotonic())
    await actuator.round()
    assert rounds.quota() == "80000"


async def test_a_stale_view_does_not_hold_what_the_operator_switched_off(rounds: Rounds) -> None:
    rounds.world.show()
    rounds.world.view.confirm(rounds.world.clock.monotonic())
    await rounds.start(view_max_age_seconds=60.0).round()
    await rounds.world.clock.advance(61)
    await rounds.start("off", view_max_age_seconds=60.0).round()
    assert rounds.quota() == "max"


async def test_a_step_that_fails_stops_no_other(rounds: Rounds) -> None:
    def fail(state: NodeState) -> None:
        raise ZeroDivisionError

    seen: list[NodeState] = []
    rounds.steps += [fail, seen.append]
    rounds.world.show()
    await rounds.start().round()
    assert len(seen) == 1


async def test_news_have_an_early_round_once_they_have_settled(rounds: Rounds) -> None:
    clock, news = rounds.world.clock, rounds.world.news
    rounds.world.show()
    news.clear()
    running = asyncio.create_task(rounds.start().run())
    try:
        await turns(clock, 0.5)
        assert [s.is_early for s in rounds.followed] == [False]
        rounds.followed.clear()
        news.set()
        await turns(clock, SETTLE_SECONDS / 2)
        assert rounds.followed == []
        await turns(clock, SETTLE_SECONDS)
        assert [s.is_early for s in rounds.followed] == [True]
    finally:
        await cancel_tasks(running)


async def test_the_cgroup_of_a_new_pod_is_read_before_the_next_second(rounds: Rounds) -> None:
    world = rounds.world
    rounds.inotify = CgroupInotify(str(world.node.cgroups), world.news)
    world.show()
    running = asyncio.create_task(rounds.start().run())
    try:
        for _ in range(20):  # the watches of the first round are news, too
            await turns(world.clock, 0.05)
        rounds.followed.clear()
        world.make("new", KubeQOS.BEST_EFFORT)
        await turns(world.clock, 0)
        await turns(world.clock, SETTLE_SECONDS)
        assert [pod.uid for pod in rounds.followed[-1].pods] == ["a", "new"]
        assert rounds.followed[-1].is_early
    finally:
        await cancel_tasks(running)
        rounds.inotify.close()


async def test_a_storm_of_news_has_a_few_rounds_a_second(rounds: Rounds) -> None:
    clock, news = rounds.world.clock, rounds.world.news
    rounds.world.show()
    running = asyncio.create_task(rounds.start().run())
    try:
        for _ in range(150):
            news.set()
            await turns(clock, 0.02)
        early = [s.is_early for s in rounds.followed].count(True)
        assert len(rounds.followed) - early == 3
        assert 6 <= early <= 3 / LEAST_SECONDS
    finally:
        await cancel_tasks(running)


def test_a_mode_of_an_unknown_feature_is_refused() -> None:
    section = NodeActuatorSettings(features={"cpu_supression": "act"})
    with pytest.raises(SettingsError, match="there is no feature 'cpu_supression'") as caught:
        feature_modes(section, ["cpu_suppression"])
    assert caught.value.message.startswith("node_actuator.features: ")
    assert "cpu_suppression" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("gates", "mode"),
    [("", "act"), ("CPUBurst=false", "act"), ("BECPUSuppress=true", "act"),
     ("BECPUSuppress=false", "off")],
)  # fmt: skip
def test_a_closed_gate_switches_its_feature_off(gates: str, mode: str) -> None:
    section = NodeActuatorSettings(features={"cpu_suppression": "act"}, feature_gates=gates)
    modes = feature_modes(section, ["cpu_suppression", "cpu_idle"])
    assert (modes["cpu_suppression"], modes["cpu_idle"]) == (mode, "observe")


def test_every_gate_has_a_feature() -> None:
    every = [feature.name for feature in built_features(None, None)]
    closed = ",".join(f"{gate}=false" for gate in GATES)
    section = NodeActuatorSettings(mode="act", feature_gates=closed)
    modes = feature_modes(section, [*every, resctrl_step.NAME])
    assert [*modes.values()].count("off") == len(GATES)
    with pytest.raises(SettingsError, match="there is no gate 'AuditEvents'") as caught:
        feature_modes(NodeActuatorSettings(feature_gates="AuditEvents=true"), every)
    assert "BECPUSuppress, CPUBurst" in (caught.value.hint or "")


async def test_without_the_path_of_a_socket_the_error_names_its_setting() -> None:
    settings = Settings(exporter=ExporterSettings(socket_path=None, node_name="n"))
    with pytest.raises(SettingsError, match=r"^exporter\.socket_path: ") as caught:
        await run(settings, {})
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("is_off", [False, True])
async def test_the_round_that_takes_up_a_traced_view_has_a_span(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch, is_off: bool
) -> None:
    spans: list[Span] = []
    if not is_off:
        monkeypatch.setattr(tracing, "_export", SimpleNamespace(put=spans.append))
    context = SpanContext(5, 6)
    rounds.world.show()
    actuator = rounds.start()
    await actuator.round()
    assert spans == []
    rounds.feature.wanted = 60_000
    assert rounds.world.view.receive(view(9), context.headers)
    await actuator.round()
    rounds.feature.wanted = 70_000  # by usage
    await actuator.round()
    assert rounds.quota() == "70000"
    if is_off:
        assert spans == []
        return
    (span,) = spans
    assert (span.name, span.parent, span.context.trace_id) == ("hold", context, 5)
    assert span.began <= span.ended
    assert span.attributes == {
        "k8s.node.name": NODE, "springtide.actuator": "node-actuator", "springtide.changes": 1,
        "springtide.features": ["quota done=1"], "springtide.before": [f"{QUOTA}=50000"],
        "springtide.after": [f"{QUOTA}=60000"],
    }  # fmt: skip
    assert span.error == ""


async def test_a_span_tells_of_a_value_that_is_not_written(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans: list[Span] = []
    monkeypatch.setattr(tracing, "_export", SimpleNamespace(put=spans.append))
    (rounds.world.node.cgroups / BEST_EFFORT / "cpu.max").write_text("garbage")
    assert rounds.world.view.receive(view(1), SpanContext(5, 6).headers)
    rounds.world.view.confirm(rounds.world.clock.monotonic())
    await rounds.start().round()
    (span,) = spans
    assert span.attributes["springtide.features"] == ["quota failed=1"]
    assert span.error
