"""A running worker notices that a log lost its last records, and leaves the right positions.

How it continues: tests/agents/test_recovery.py. With a broker: tests/system/test_truncation.py.
"""

import asyncio
from collections.abc import Mapping

import pytest

from pipeline.agents.truncated_logs import CHECK_SECONDS, check_topics, watch_ends
from pipeline.errors import BrokerUnavailableError, StateError
from tests.agents.fakes import MemoryBroker
from tests.agents.logs import LogWriter, make_log
from tests.agents.owners import Owner, settle

SAMPLES, WINDOWS = "t.samples", "t.windows"
NODES = ("a", "b")


class Watching:
    """`watch_ends` over the logs of an owner in memory."""

    def __init__(self, broker: MemoryBroker, owner: Owner) -> None:
        self.is_away = False
        self.log: LogWriter | None = None
        self._broker, self._owner = broker, owner
        shards = [owner.shard]
        self.task = asyncio.create_task(
            watch_ends(shards, self._ends, owner.recovery.save, owner.clock)
        )

    async def _ends(self) -> tuple[Mapping[int, int], Mapping[int, int]]:
        if self.is_away:
            raise BrokerUnavailableError("away")
        samples, windows = (self._broker.logs[topic, 0] for topic in (SAMPLES, WINDOWS))
        ends = {0: len(samples)}, {0: len(windows)}
        if self.log is not None:  # joined and applied while the answer is on its way
            self.log.windows(1, "a")
            self._owner.model.next_offset += 1
            self._owner.shard.join.next_offset += 1
        return ends

    async def look(self) -> None:
        await settle()
        await self._owner.clock.advance(CHECK_SECONDS)
        await settle()


async def test_logs_that_grow_or_cannot_be_read_are_left_alone() -> None:
    broker, log = make_log(4, *NODES)
    watching = Watching(broker, await Owner(broker, "x").load())
    watching.log = log
    for is_away in (False, True, False):
        watching.is_away = is_away
        await watching.look()
        assert not watching.task.done()
    watching.task.cancel()


@pytest.mark.parametrize("new_samples", [0, 50])
async def test_positions_of_truncated_samples_are_saved_before_the_worker_stops(
    new_samples: int,
) -> None:
    broker, _ = make_log(4, *NODES)
    owner = await Owner(broker, "x").load()
    await owner.round()
    watching = Watching(broker, owner)
    broker.truncate(SAMPLES, 0, 5)
    await watching.look()
    with pytest.raises(StateError, match="samples end at offset 5 and 8 was next"):
        await watching.task
    for _ in range(new_samples):
        broker.put(SAMPLES, 0, b"a", b"new")
    assert (await Owner(broker, "y").load()).shard.join.next_offset == 5


async def test_truncated_windows_stop_the_worker() -> None:
    broker, _ = make_log(4, *NODES)
    watching = Watching(broker, await Owner(broker, "x").load())
    broker.truncate(WINDOWS, 0, 7)
    await watching.look()
    with pytest.raises(StateError, match="windows end at 7 and 8 was next"):
        await watching.task


def test_only_a_known_other_id_is_a_recreated_topic() -> None:
    check_topics({"a": "1"}, [{}, {"a": "1"}, {"b": "2"}])
    check_topics({}, [{"a": "1"}])  # an older broker tells no ids
    with pytest.raises(StateError, match="a was recreated"):
        check_topics({"a": "2"}, [{}, {"a": "1"}])
