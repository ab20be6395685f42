"""Usage thresholds of Nodes follow the clock of the actuator, on the real API server."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from pipeline.local.control_plane import ControlPlane
from pipeline.processors.kubernetes.object_records import USAGE_THRESHOLDS, WRITTEN_THRESHOLDS
from pipeline.settings import Settings
from tests.cluster.objects import apply, named, node
from tests.cluster.roles import Role, in_step
from tests.processes import until

pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(1800)]

HOUR = 3600.0
NIGHT, LATE = ({"usageThresholds": {"cpu": percent}} for percent in (85, 75))


def configuration(first_hour: int) -> str:
    """Two windows of one hour each, UTC, the first from this hour on; a gap, and the second."""
    names = ("LoadAwareScheduling", "TimeSharedThresholds")
    hours = [f"{(first_hour + hour) % 24:02d}:00" for hour in range(4)]
    windows = [
        {"from": hours[0], "to": hours[1], **NIGHT},
        {"from": hours[2], "to": hours[3], **LATE},
    ]
    args = {"annotateNodes": {"matchLabels": {"pool": "shared"}}, "windows": windows}
    return json.dumps(
        {
            "plugins": {"filter": {"enabled": [{"name": name} for name in names]}},
            "pluginConfig": [{"name": "TimeSharedThresholds", "args": args}],
        }
    )


async def test_the_annotation_changes_when_the_clock_crosses_a_window(
    plane: ControlPlane, settings: Settings, tmp_path: Path
) -> None:
    apply(plane, node("t1", labels={"pool": "shared"}), node("t2"))
    file, clock_file = tmp_path / "scheduler.yaml", tmp_path / "ahead"
    first_hour = int(time.time() // HOUR + 2) % 24
    file.write_text(configuration(first_hour))

    def step_to(hour: float) -> None:
        """Set the clock to this many hours after the start of the first window."""
        seconds = ((first_hour + hour) * HOUR - time.time()) % (24 * HOUR)
        whole = clock_file.with_suffix(".new")
        whole.write_text(str(seconds))
        whole.replace(clock_file)

    def annotation(name: str) -> Any:
        annotations = named(plane, "nodes")[name]["metadata"].get("annotations", {})
        assert (USAGE_THRESHOLDS in annotations) is (WRITTEN_THRESHOLDS in annotations)
        return json.loads(annotations.get(USAGE_THRESHOLDS, "null"))

    flags = ("--mode", "act", "--scheduler-config-file", str(file))
    with Role("watcher", settings):
        await until(lambda: in_step(plane, settings))
        with Role("actuator", settings, *flags, clock_file=clock_file) as actuator:
            await actuator.logs("ready")
            assert annotation("t1") is None
            for hour, expected in ((0.5, NIGHT), (1.5, None), (2.5, LATE)):
                step_to(hour)
                await until(lambda expected=expected: annotation("t1") == expected)
                assert annotation("t2") is None
            assert actuator.stop() == 0
        assert annotation("t1") == LATE
        with Role("actuator", settings):
            await until(lambda: annotation("t1") is None, 60)
