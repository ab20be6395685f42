"""`springtide alerts --watch` over a real broker: alerts appear, change and disappear."""

import asyncio
import signal
import subprocess
from functools import partial
from pathlib import Path

import pytest

from pipeline.clock import SystemClock
from pipeline.local.process_guard import die_with_parent
from pipeline.table import NODE_AND_POD_TOPICS
from pipeline.times import format_time
from pipeline.topics.alerts import SEVERITIES, OpenAlert, Severity
from tests.integration.test_extender import Cluster, cluster, fresh
from tests.processes import eventually, springtide

__all__ = ["cluster"]


def opened(severity: Severity) -> OpenAlert:
    since = format_time(SystemClock().now() - 600)
    return OpenAlert(
        rule="node_cpu", severity=severity, since=since, usage_percent=91.4, threshold_percent=70.0
    )


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_watch_follows_the_alerts_until_a_signal(
    cluster: Cluster, tmp_path: Path, end: signal.Signals
) -> None:
    asyncio.run(cluster.create(*NODE_AND_POD_TOPICS))
    shown, said = tmp_path / "stdout", tmp_path / "stderr"
    command = springtide("alerts", "--watch", *cluster.flags)
    with (
        shown.open("w") as stdout,
        said.open("w") as stderr,
        subprocess.Popen(
            command, stdout=stdout, stderr=stderr, preexec_fn=die_with_parent
        ) as watching,
    ):
        # Before the first window, too: someone who watches waits for an alert.
        assert eventually(lambda: "no alert" in said.read_text()), said.read_text()
        for offset, severity in enumerate(SEVERITIES, 1):
            asyncio.run(
                cluster.states(
                    fresh("calm", offset=offset),
                    fresh("busy", cpu=3.9, offset=offset, alerts=(opened(severity),)),
                )
            )
            threshold = "85%" if severity == "critical" else "70%"
            row = ["busy", "node_cpu", severity, "10m", "91%", threshold]
            assert eventually(partial(is_shown, shown, row)), shown.read_text()
        before = said.read_text().count("no alert")
        asyncio.run(cluster.states(fresh("busy", offset=3)))
        assert eventually(lambda: said.read_text().count("no alert") > before)
        watching.send_signal(end)
        assert watching.wait(60) == 0
    assert "Traceback" not in said.read_text()
    assert "calm" not in shown.read_text()


def is_shown(path: Path, row: list[str]) -> bool:
    """Whether a line begins with these columns."""
    return row in [line.split()[: len(row)] for line in path.read_text().splitlines()]
