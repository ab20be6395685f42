"""`springtide top --accuracy` over a real broker: violations appear, and follow new judgements."""

import asyncio
import subprocess

import msgspec

from pipeline.clock import SystemClock
from pipeline.table import NODE_AND_POD_TOPICS
from pipeline.times import format_time
from pipeline.topics.accuracy import AccuracyRecord
from pipeline.topics.codec import encode_json
from pipeline.topics.registry import ACCURACY
from tests.integration.test_extender import PARTITIONS, Cluster, cluster, fresh
from tests.processes import springtide
from tests.processors.accuracy.test_judged_peaks import record
from tests.pseudo_terminal import on_terminal

__all__ = ["cluster"]


def judged(node: str, seconds_ago: float, highest: float) -> tuple[str, bytes]:
    """A peak of 500 of 1000 millicores whose horizon of a day was over so long ago."""
    end = SystemClock().now() - seconds_ago
    peak: AccuracyRecord = msgspec.structs.replace(
        record((500.0, 0.0), (highest, 0.0), node=node),
        as_of=format_time(end), made_at=format_time(end - 86_400),
    )  # fmt: skip
    return node, encode_json(peak)


def test_violations_of_nodes_follow_new_judgements(cluster: Cluster) -> None:
    asyncio.run(cluster.create(*NODE_AND_POD_TOPICS, ACCURACY))
    asyncio.run(
        cluster.states(*(fresh(name, predictor="percentile") for name in ("good", "old", "new")))
    )
    past = [judged("good", 60, 400.0), judged("old", 5 * 3600, 900.0)]
    asyncio.run(cluster.send(ACCURACY, *past, ("bad", b"\xff{")))
    command = springtide("top", "--accuracy", "--sort", "violation",
                         "--partitions", str(PARTITIONS), *cluster.flags)  # fmt: skip
    with on_terminal(command, columns=240) as terminal:
        assert terminal.shows("0.0/0.0", "100.0/0.0 5h"), terminal.text()
        before = len(terminal.written)
        asyncio.run(cluster.send(ACCURACY, judged("good", 0, 900.0)))
        assert terminal.shows("50.0/0.0", since=before), terminal.text()
        terminal.press("q")
        assert terminal.ended() == 0
    assert "Traceback" not in terminal.text()
    printed = subprocess.run(
        [*command, "--once"], capture_output=True, text=True, timeout=120, check=True
    )
    rates = {line.split()[0]: "/0.0" in line for line in printed.stdout.splitlines()[1:]}
    assert rates == {"old": True, "good": True, "new": False}
    assert "warning: skipped a record" in printed.stderr
