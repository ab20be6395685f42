"""The annotation of usage thresholds follows the clock; on a fake API server."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from actuators.cluster.feature import Context
from actuators.cluster.usage_thresholds import UsageThresholds
from actuators.cluster.write_queue import WriteQueue
from actuators.rate_limit import RateLimit
from pipeline.clock import ManualClock
from pipeline.errors import SettingsError
from pipeline.processors.kubernetes.object_records import USAGE_THRESHOLDS, WRITTEN_THRESHOLDS
from pipeline.settings import ActuatorSettings, ExtenderSettings, Settings
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.registry import NODES
from tests.actuators.contexts import FeatureWorld, make_context

NIGHT = {"from": "22:00", "to": "06:00", "usageThresholds": {"cpu": 85, "memory": 95}}
SHARED = {"matchLabels": {"pool": "shared"}}
HOUR = 3600.0


def config(**args: Any) -> str:
    """A scheduler configuration, which is YAML because it is JSON."""
    names = ("LoadAwareScheduling", "TimeSharedThresholds")
    return json.dumps(
        {
            "plugins": {"filter": {"enabled": [{"name": name} for name in names]}},
            "pluginConfig": [{"name": "TimeSharedThresholds", "args": {"windows": [NIGHT]} | args}],
        }
    )


class World(FeatureWorld):
    """The Nodes `n` of the pool `shared` and `other`; it is 21:00."""

    def __init__(self, file: Path | None, mode: str = "act") -> None:
        super().__init__()
        self.clock = ManualClock(datetime(2026, 11, 20, 21, tzinfo=UTC).timestamp())
        self.api.clock = self.clock
        self.queue = WriteQueue(RateLimit(20.0, self.clock), self.clock, lambda: True)
        extender = ExtenderSettings(scheduler_config_file=None if file is None else str(file))
        settings = Settings(actuator=ActuatorSettings(mode=mode), extender=extender)  # type: ignore[arg-type]
        base = make_context(self.clock, self.api)
        context = Context(base.api, self.queue, self.clock, settings, base.report)
        self.decider = self.feature = UsageThresholds(context)
        for name in ("n", "other"):
            self.observe(name)
        if self.feature.is_on:
            self.learn("n", {"pool": "shared"})
            self.learn("other", {})

    def learn(self, name: str, labels: dict[str, str]) -> None:
        self.feature.learn(NODES, name, NodeRecord(node=name, labels=labels))

    def observe(self, name: str, **annotations: str) -> None:
        """Set these annotations of a Node, and show the Node to the feature."""
        metadata = {"annotations": {**self.annotations(name), **annotations}}
        self.feature.observed(self.api.put(name, metadata=metadata))

    def annotations(self, name: str = "n") -> dict[str, str]:
        metadata = self.api.objects.get(name, {"metadata": {}})["metadata"]
        return dict(metadata.get("annotations", {}))

    def thresholds(self, name: str = "n") -> Any:
        text = self.annotations(name).get(USAGE_THRESHOLDS)
        return None if text is None else json.loads(text)

    async def at(self, clock_time: str) -> None:
        """Let the clock go on to this time of day, and let what is due be written and seen."""
        now = datetime.fromtimestamp(self.clock.now(), UTC)
        hours, minutes = map(int, clock_time.split(":"))
        seconds = (hours - now.hour) * HOUR + (minutes - now.minute) * 60 - now.second
        self.clock.jump(seconds % (24 * HOUR))
        await self.settle(1.0)
        for name in ("n", "other"):
            self.observe(name)


@pytest.fixture
def file(tmp_path: Path) -> Callable[..., Path]:
    def write(**args: Any) -> Path:
        path = tmp_path / "scheduler.yaml"
        path.write_text(config(**args))
        return path

    return write


async def test_the_annotation_of_selected_nodes_follows_the_windows(
    file: Callable[..., Path],
) -> None:
    world = World(file(annotateNodes=SHARED))
    await world.at("21:59")
    assert world.annotations() == {}
    await world.at("22:00")
    assert world.thresholds() == {"usageThresholds": {"cpu": 85, "memory": 95}}
    assert world.annotations("other") == {}
    await world.at("05:58")
    assert await world.settle(60.0, sweep=True) == []
    await world.at("06:00")
    assert world.annotations() == {}


async def test_a_node_that_is_no_longer_selected_loses_the_annotation(
    file: Callable[..., Path],
) -> None:
    world = World(file(annotateNodes=SHARED))
    await world.at("23:00")
    world.learn("n", {"pool": "own"})
    world.learn("other", {"pool": "shared"})
    await world.at("23:01")
    assert (world.annotations(), world.thresholds("other")) == (
        {}, {"usageThresholds": {"cpu": 85, "memory": 95}},
    )  # fmt: skip
    world.feature.learn(NODES, "other", None)
    await world.at("23:02")
    assert world.annotations("other") == {}


async def test_an_annotation_of_somebody_else_stays(file: Callable[..., Path]) -> None:
    world = World(file(annotateNodes={}))
    own = '{"usageThresholds":{"cpu":40}}'
    world.observe("n", **{USAGE_THRESHOLDS: own})
    await world.at("23:00")
    assert world.annotations() == {USAGE_THRESHOLDS: own}
    assert world.thresholds("other") == {"usageThresholds": {"cpu": 85, "memory": 95}}
    # One that replaces ours stays, too, and is not ours from then on.
    world.observe("other", **{USAGE_THRESHOLDS: own})
    await world.at("23:01")
    assert world.annotations("other") == {USAGE_THRESHOLDS: own}
    await world.at("06:00")
    assert world.annotations("other") == {USAGE_THRESHOLDS: own}


@pytest.mark.parametrize("without", ["file", "selector", "act"])
async def test_without_configuration_or_mode_act_what_was_written_is_removed(
    without: str, file: Callable[..., Path]
) -> None:
    path = file(**({} if without == "selector" else {"annotateNodes": SHARED}))
    mode = "observe" if without == "act" else "act"
    world = World(None if without == "file" else path, mode)
    text = '{"usageThresholds":{"cpu":85}}'
    world.observe("n", **{USAGE_THRESHOLDS: text, WRITTEN_THRESHOLDS: text})
    world.observe("other", **{USAGE_THRESHOLDS: text})
    await world.at("23:00")
    assert (world.annotations(), world.annotations("other")) == ({}, {USAGE_THRESHOLDS: text})


def test_an_invalid_file_is_an_error_at_the_start(file: Callable[..., Path]) -> None:
    with pytest.raises(SettingsError, match="unknown field `matchLabel`"):
        World(file(annotateNodes={"matchLabel": {"pool": "shared"}}))
