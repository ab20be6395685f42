"""Windows that a real worker cannot apply: it ends once, then skips them, and no node notices."""

from collections import Counter
from pathlib import Path

import pytest

from pipeline.local.local_kafka import LocalKafka
from pipeline.topics.checkpoints import parse_key
from pipeline.topics.registry import DEAD_LETTERS
from tests.broker import messages
from tests.processes import until
from tests.system import oracle
from tests.system.harness import Stage, Worker, create_stage, feed, gather
from tests.system.load import Load
from tests.system.worker_entry import FAILING_NODE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


async def has_letters(stage: Stage, count: int) -> bool:
    return len(await messages(stage.settings.kafka, DEAD_LETTERS)) >= count


async def test_a_node_whose_windows_fail_ends_a_worker_once(
    broker: LocalKafka, tmp_path: Path
) -> None:
    stage = await create_stage(broker.bootstrap_servers, 2)
    worker = Worker(stage, tmp_path, bug="windows_fail")
    async with feed(stage, Load(7, nodes=8, pods=3)) as made:
        worker.start()
        await worker.loaded()
        async with made.running(0.2):
            await until(lambda: not worker.is_running(), 120, worker.tail)
            worker.start()
            await worker.loaded()
            # Not the worker's log, which has one line a minute about dead letters.
            await until(lambda: has_letters(stage, 2), 120, worker.tail)
        logs = await gather(stage, made.samples, ignore=made.load.departing)
        assert worker.is_running()
        assert worker.stop() == 0
    letters = [record for partition in logs["dead-letters"].values() for record in partition]
    assert Counter(record.headers["reason"] for record in letters) == {b"failed": len(letters)}
    assert {record.key for record in letters} == {FAILING_NODE.encode()}
    assert len(letters) >= 2
    kinds = {
        parse_key(record.key)[0] for partition in logs["checkpoints"].values()
        for record in partition
    }  # fmt: skip
    assert "skip" in kinds
    problems = oracle.problems(logs, made.samples, made.load.departing, stage.settings)
    assert [each for each in problems if FAILING_NODE not in each and "letter" not in each] == []
