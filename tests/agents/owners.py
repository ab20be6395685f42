"""Owners of one partition over a broker in memory, with the real recovery, model and rounds."""

import asyncio
from typing import Any

import msgspec

from pipeline.agents.checkpoint_rounds import CheckpointRounds
from pipeline.agents.cluster_state import ClusterStateTopics
from pipeline.agents.fleet_topic import FleetTopic
from pipeline.agents.join_agent import JoinRules
from pipeline.agents.model_agent import ModelCursor, apply_batches
from pipeline.agents.ownership import Ownership
from pipeline.agents.partition_models import ModelRules
from pipeline.agents.recovery import Recovery
from pipeline.agents.refusals import Refused
from pipeline.agents.shard import Shard
from pipeline.agents.window_handover import WindowHandover
from pipeline.clock import ManualClock
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.model_config import ModelConfig
from pipeline.topics.nodes import Strategy
from tests.agents.fakes import MemoryBroker, MemoryProducer
from tests.agents.logs import CONFIG

MODEL_RULES = ModelRules(prefix="t", statistic="p90")
JOIN_RULES = JoinRules("t", 1, future_tolerance_seconds=60, strategy=Strategy())


class Owner:
    """A worker that owns partition 0."""

    def __init__(self, broker: MemoryBroker, member: str, config: ModelConfig = CONFIG) -> None:
        self.broker = broker
        output: Any = MemoryProducer(broker)
        self.output = output
        self.clock = ManualClock()
        self.refused: list[tuple[str, int, str]] = []
        self.recovery = Recovery(
            member=member, group="workers", output=self.output, open_reader=broker.open_reader,
            cluster_state_topics=ClusterStateTopics("t", self._refuse),
            fleet=FleetTopic("t", self._refuse, 60.0), join_rules=JOIN_RULES,
            model_rules=MODEL_RULES, bank=Bank(config), handover=WindowHandover(), clock=self.clock,
        )  # fmt: skip
        self.shard: Shard
        self._round: asyncio.Task[None] | None = None

    async def _refuse(self, topic: str, refused: Refused) -> None:
        self.refused += [(topic, record.offset, error.reason) for record, error in refused]

    async def load(self, previous: Shard | None = None) -> "Owner":
        """Load the partition, reusing the shard `previous`."""
        shards = {} if previous is None else {0: previous}
        [self.shard] = [shard async for shard in self.recovery.load_all([0], shards)]
        self.rounds = CheckpointRounds(
            self.shard, self.recovery.output, "t.checkpoints", self.clock
        )
        return self

    @property
    def model(self) -> ModelCursor:
        return self.shard.model

    @property
    def epoch(self) -> int:
        return self.model.ownership.epoch

    async def apply(self, count: int | None = None) -> None:
        """Apply the next `count` windows of the log, by default all."""
        log = self.broker.records("t.windows")
        ahead = [record for record in log if record.offset >= self.model.next_offset]
        if ahead[:count]:
            await self.model.process(ahead[:count])

    async def round(self) -> None:
        """Write a whole round of checkpoints."""
        await self.rounds.write()

    async def step_round(self) -> None:
        """Start a round, or write its next slice (after the last slice its marker)."""
        if self._round is None or self._round.done():
            self._round = asyncio.create_task(self.rounds.write(1.0))
            await self.clock.advance(0)
        else:
            await self.clock.advance(1.0)
        await settle()

    def die(self) -> None:
        """Stop as by kill -9: nothing more is written."""
        self.output.refuses = lambda topic: True
        self.model.ownership.owned = False
        if self._round is not None:
            self._round.cancel()


async def settle() -> None:
    """Run other tasks until they wait."""
    for _ in range(20):
        await asyncio.sleep(0)


def undisturbed(broker: MemoryBroker, end: int | None = None) -> ModelCursor:
    """Apply the log once from its first record, up to the offset `end`."""
    no_output: Any = None
    cursor = ModelCursor(Ownership(0, epoch=0), 0, Bank(CONFIG), no_output, MODEL_RULES)
    log = broker.logs.get(("t.windows", 0), [])[:end]
    if log:
        apply_batches([(cursor, log)])
    return cursor


def content(model: ModelCursor) -> dict[str, Any]:
    """Return state and results of each node, without epochs."""
    return {
        node: (
            model.bank.encode_state(node),
            model.counters[node],
            canonical(report.prediction)
            if (report := model.reports.get(node)) and report.prediction
            else None,
            canonical(report.node_state) if report else None,
        )
        for node in model.bank.nodes
    }


def canonical(value: bytes) -> dict[str, Any]:
    """Decode a result without the epoch of its writer."""
    result: dict[str, Any] = msgspec.json.decode(value)
    del result["epoch"]
    return result


def published(broker: MemoryBroker, topic: str) -> dict[str, Any]:
    """Return the newest result by node, ordered by generation and offset as readers do."""
    newest: dict[str, Any] = {}
    for record in broker.records(topic):
        node = (record.key or b"").decode()
        if record.value is None:
            newest.pop(node, None)
        else:
            result = canonical(record.value)
            position = (result["generation"], result["offset"])
            if node not in newest or position >= (
                newest[node]["generation"],
                newest[node]["offset"],
            ):
                newest[node] = result
    return newest
