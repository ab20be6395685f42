"""`springtide top --accuracy` over a real broker: violations appear, and follow new judgements."""

import asyncio
import signal
import subprocess
from functools import partial
from pathlib import Path

import msgspec

from pipeline.clock import SystemClock
from pipeline.local.process_guard import die_with_parent
from pipeline.table import NODE_AND_POD_TOPICS
from pipeline.times import format_time
from pipeline.topics.accuracy import AccuracyRecord
from pipeline.topics.codec import encode_json
from pipeline.topics.registry import ACCURACY
from tests.integration.test_extender import PARTITIONS, Cluster, cluster, fresh
from tests.processes import eventually, springtide
from tests.processors.accuracy.test_judged_peaks import record

__all__ = ["cluster"]


def judged(node: str, seconds_ago: float, highest: float) -> tuple[str, bytes]:
    """A peak of 500 of 1000 millicores whose horizon of a day was over so long ago."""
    end = SystemClock().now() - seconds_ago
    peak: AccuracyRecord = msgspec.structs.replace(
        record((500.0, 0.0), (highest, 0.0), node=node),
        as_of=format_time(end), made_at=format_time(end - 86_400),
    )  # fmt: skip
    return node, encode_json(peak)


def shows(path: Path, node: str, violation: str) -> bool:
    """Whether the last line of a node has this in VIOL%."""
    lines = [line.split() for line in path.read_text().splitlines()]
    header = next((line for line in lines if line[:1] == ["NODE"]), None)
    own = [line for line in lines if line[:1] == [node]]
    return bool(header and own and violation in own[-1])


def test_violations_of_nodes_follow_new_judgements(cluster: Cluster, tmp_path: Path) -> None:
    asyncio.run(cluster.create(*NODE_AND_POD_TOPICS, ACCURACY))
    asyncio.run(
        cluster.states(*(fresh(name, predictor="percentile") for name in ("good", "old", "new")))
    )
    past = [judged("good", 60, 400.0), judged("old", 5 * 3600, 900.0)]
    asyncio.run(cluster.send(ACCURACY, *past, ("bad", b"\xff{")))
    shown, said = tmp_path / "stdout", tmp_path / "stderr"
    with (
        shown.open("w") as stdout,
        said.open("w") as stderr,
        subprocess.Popen(
            springtide("top", "--watch", "--accuracy", "--sort", "violation",
                       "--partitions", str(PARTITIONS), *cluster.flags),
            stdout=stdout, stderr=stderr, preexec_fn=die_with_parent,
        ) as watching,
    ):  # fmt: skip
        assert eventually(partial(shows, shown, "good", "0.0/0.0")), said.read_text()
        assert eventually(partial(shows, shown, "old", "100.0/0.0"))
        assert " 5h " in next(line for line in shown.read_text().splitlines() if "old" in line)
        assert not shows(shown, "new", "0.0/0.0")
        asyncio.run(cluster.send(ACCURACY, judged("good", 0, 900.0)))
        assert eventually(partial(shows, shown, "good", "50.0/0.0")), said.read_text()
        watching.send_signal(signal.SIGINT)
        assert watching.wait(60) == 0
    assert "warning: skipped a record" in said.read_text()
    assert "Traceback" not in said.read_text()
