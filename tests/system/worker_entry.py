"""Run the product's worker for tests: `python -m tests.system.worker_entry BUG worker ...`.

It differs from the product in two points. A slice of a round of checkpoints has two nodes, so the
few nodes of a test make a round that can be interrupted. BUG, unless it is `none`, puts one known
mistake into one function, which the comparison must detect.
"""

import random
import sys
from collections.abc import Callable, Mapping
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaTimeoutError

from pipeline.agents import checkpoint_rounds, model_recovery, recovery
from pipeline.agents.model_agent import ModelCursor
from pipeline.kafka.producer import Keyed, Producer
from pipeline.processors.model.learner import Learner
from pipeline.processors.model.training_batch import TrainingBatch
from pipeline.topics.checkpoints import RoundMarker, marker_key
from pipeline.topics.codec import encode_pack

checkpoint_rounds.SLICE = 2

FAILING_NODE = "node-3"

_committed: dict[tuple[str, int], int] = {}


def replay_left_out() -> None:
    """Do not replay the windows after the checkpoints."""

    async def skip(
        self: Any, reader: Any, model: ModelCursor, start: int, end: int, covers: Any
    ) -> None:
        model.next_offset = end

    model_recovery.ModelRecovery.apply_log = skip  # type: ignore[method-assign]


def join_trusts_commits() -> None:
    """Resume the join at Faust's commit in `samples`."""
    _ask_for_commits()

    def join_start(model: ModelCursor, first: int) -> int:
        return _commit("samples", model.ownership.partition, first)

    recovery.join_start = join_start


def marker_too_early() -> None:
    """Write the marker of a round before its checkpoints."""
    write = checkpoint_rounds.CheckpointRounds.write

    async def marker_first(self: Any, pause_seconds: float = 0.0) -> None:
        model = self._model
        epoch = model.ownership.epoch
        marker = RoundMarker(
            epoch=epoch, round=self._number + 1, generation=model.generation,
            resume=model.next_offset, joined=model.joined, nodes=len(model.bank.nodes),
        )  # fmt: skip
        await self._send([Keyed(marker_key(epoch), encode_pack(marker))])
        await write(self, pause_seconds)

    checkpoint_rounds.CheckpointRounds.write = marker_first  # type: ignore[method-assign]


def deliveries_fail() -> None:
    """Fail one delivery in thirty, after it has arrived in half of the cases. Not a bug."""
    rng = random.Random()

    def failing(write: Any) -> Any:
        async def now_and_then(self: Any, *arguments: Any) -> Any:
            fails, arrives = rng.random() < 1 / 30, rng.random() < 0.5
            result = await write(self, *arguments) if arrives or not fails else None
            if fails:
                raise KafkaTimeoutError("seeded: the broker did not answer")
            return result

        return now_and_then

    Producer.append = failing(Producer.append)  # type: ignore[method-assign]


def windows_fail() -> None:
    """Fail while every seventh window of one node is applied, as a predictor may."""
    learn = Learner.learn

    def learn_or_fail(self: Learner, batch: TrainingBatch, nodes: Any) -> None:
        learn(self, batch, nodes)
        for head in batch.heads:
            if head.node == FAILING_NODE and head.end_ms // 5000 % 7 == 0:
                raise ZeroDivisionError("seeded: a predictor failed")

    Learner.learn = learn_or_fail  # type: ignore[method-assign]


BUGS: Mapping[str, Callable[[], None]] = {
    "none": lambda: None, "replay_left_out": replay_left_out,
    "join_trusts_commits": join_trusts_commits, "marker_too_early": marker_too_early,
    "deliveries_fail": deliveries_fail, "windows_fail": windows_fail,
}  # fmt: skip


def _ask_for_commits() -> None:
    load_all = recovery.Recovery.load_all

    async def ask_first(self: Any, partitions: Any, released: Any) -> Any:
        options = dict(zip(sys.argv, sys.argv[1:], strict=False))
        group = f"{options['--topic-prefix']}.{options['--id']}"
        admin = AIOKafkaAdminClient(bootstrap_servers=options["--bootstrap-servers"])
        await admin.start()
        try:
            for tp, commit in (await admin.list_consumer_group_offsets(group)).items():
                _committed[tp.topic.rpartition(".")[2], tp.partition] = commit.offset
        finally:
            await admin.close()
        async for loaded in load_all(self, partitions, released):
            yield loaded

    recovery.Recovery.load_all = ask_first  # type: ignore[method-assign]


def _commit(topic: str, partition: int, first: int) -> int:
    return max(first, _committed.get((topic, partition), first))


def main() -> None:
    """Install the bug, and run the command line."""
    from pipeline.cli.main import main as springtide

    bug = sys.argv.pop(1)
    BUGS[bug]()
    springtide()


if __name__ == "__main__":
    main()
