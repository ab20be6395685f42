"""The group of the life of models: expiry, checkpoints and restores through `Bank` and `Rounds`."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import numpy as np

from pipeline.agents.checkpoint_rounds import CheckpointRounds
from pipeline.agents.departed_nodes import DepartedNodes
from pipeline.agents.failed_windows import FailedWindows
from pipeline.agents.shard import Shard
from pipeline.clock import ManualClock
from pipeline.errors import CheckpointError
from pipeline.kafka.producer import Keyed, Producer
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.model_config import ENTITIES, ModelConfig
from pipeline.processors.model.node_peaks import NodePeaks
from pipeline.processors.model.state_codec import decode
from pipeline.processors.model.training_batch import NodeWindow
from pipeline.topics.checkpoints import NodeCheckpoint, parse_key
from pipeline.topics.codec import decode_pack
from pipeline.topics.node_state import Counters
from tests.vectors.cases import Case, plain
from tests.vectors.prediction import MODEL_IDS, START_MS
from tests.vectors.runner import Difference, group

BY_NODE = (
    "models of node, system and classes live as long as their node, not by the age of samples",
    "an agent that was down for half an hour finds its models again",
)
TOGETHER = (
    "all models of a node are saved together, and are due together",
    "a restored node has models of one moment",
)
AS_A_WHOLE = (
    "the models of a node are one checkpoint: if it cannot be read, none is restored",
    "after a corrupt checkpoint a node learns again, from the log of windows",
)
WHOLE = tuple(MODEL_IDS.values())


def _window(at_seconds: float, pods: Sequence[str], *, coverage: float = 1.0) -> NodeWindow:
    end_ms = START_MS + round(at_seconds * 1000)
    return NodeWindow(
        node="n", machine_id="m", epoch=1, start_ms=end_ms - 30_000, end_ms=end_ms,
        coverage=coverage, node_usage=np.array([1.0, 1e9]), pod_uids=pods,
        pod_classes=np.zeros(len(pods), np.int8), pod_usage=np.full((len(pods), 2), 0.5),
        requests=np.zeros((len(pods), 2)), pod_ages=np.zeros(len(pods)),
        pod_active=np.ones(len(pods), np.bool_),
    )  # fmt: skip


def _models(peaks: NodePeaks) -> set[str]:
    """Ids of the models of a node and its classes that hold something."""
    has_samples: Any = peaks.samples.any(axis=1)
    begun = zip(ENTITIES, has_samples, strict=True)
    return {MODEL_IDS[entity] for entity, some in begun if some and entity in MODEL_IDS}


def _gc(case: Case) -> object:
    """Windows that end at the moments given; the last one shows who is gone."""
    ages = case["last_updated_age"]
    pods = {uid: age for uid, age in ages.items() if uid not in WHOLE}
    bank = Bank(ModelConfig(expiration_seconds=case["expiration_seconds"]))
    oldest = max([*ages.values(), 0])
    removed: set[str] = set()
    for age in sorted({*ages.values(), 0}, reverse=True):
        # Nobody measured the node since its models were last fed.
        fed = age >= max([ages[uid] for uid in WHOLE if uid in ages], default=0)
        listed = [uid for uid in pods if pods[uid] <= age]
        (outcome,) = bank.apply([_window(oldest - age, listed, coverage=float(fed))])
        removed.update(outcome.expired)
    gone = (WHOLE if not len(bank.node_models) else ()) or {
        uid for uid in WHOLE if uid in ages and uid not in _models(bank.peaks(["n"])[0])
    }
    return {"removed": sorted({*removed, *gone})}


def _checkpoint(case: Case) -> object:
    """Rounds of checkpoints of a node with these models; a round has no limit of models."""
    plain(case["max_per_step"])
    return {"saved": asyncio.run(_saved(case["last_checkpointed_age"], case["interval_seconds"]))}


async def _saved(ages: Mapping[str, float | None], interval_seconds: float) -> list[str]:
    bank = Bank()
    bank.apply([_window(0, sorted(ages))])
    written: list[Keyed] = []

    async def append(_topic: str, _partition: int, records: Sequence[Keyed]) -> None:
        written.extend(records)

    model = SimpleNamespace(
        ownership=SimpleNamespace(epoch=1, partition=0), owned=True, next_offset=1, joined=0,
        bank=bank, reports={}, counters={"n": Counters()}, retracted={}, failures=FailedWindows(),
        generation=1, rejoined_from=0, departed=DepartedNodes(), events={}, busy=asyncio.Lock(),
        idle=AsyncMock(),
    )  # fmt: skip
    join = SimpleNamespace(next_offset=1)
    shard = cast(
        Shard, SimpleNamespace(model=model, join=join, stale_keys=(), saving=asyncio.Lock())
    )
    clock = ManualClock()
    rounds = CheckpointRounds(shard, cast(Producer, SimpleNamespace(append=append)), "t", clock)
    running = asyncio.create_task(rounds.run(interval_seconds, 0.0))
    await clock.advance(0.0)
    known = [age for age in ages.values() if age is not None]
    if len(known) == len(ages):
        written.clear()
        await clock.advance(max(known, default=0.0))
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    saved = [
        decode_pack(NodeCheckpoint, record.value)
        for record in written
        if record.value is not None and parse_key(record.key)[0] == "node"
    ]
    return sorted({uid for checkpoint in saved for uid in decode(checkpoint.state).uids})


def _restore(case: Case) -> object:
    """The state of a node with these models, taken over; then windows without the other pods."""
    stored = [checkpoint["uid"] for checkpoint in case["checkpoints"]]
    is_corrupt = True in [checkpoint.get("parse_error") for checkpoint in case["checkpoints"]]
    pods, listed = [uid for uid in stored if uid not in WHOLE], case["pod_uids"]
    before, after = Bank(), Bank()
    before.apply([_window(0, pods)])
    state = before.encode_state("n")
    try:
        after.restore("n", state[:-1] if is_corrupt else state)
    except CheckpointError:
        plain(case)
        return {"restored": [], "removed": sorted(stored)}
    (peaks,) = after.peaks(["n"])
    there = {*_models(peaks), *peaks.pod_uids}
    expired: set[str] = set()
    for at in (30, after.config.expiration_seconds + 60):
        (outcome,) = after.apply([_window(at, listed)])
        expired.update(outcome.expired)
    if not case["node_known"]:
        after.forget("n")
    left = there - expired if len(after.node_models) else set()
    return {
        "restored": sorted(uid for uid in stored if uid in left),
        "removed": sorted(uid for uid in stored if uid in expired or uid not in left),
    }


def _lives_with_its_node(given: Case, expected: Case) -> Difference | None:
    if given["op"] == "gc":
        pods = [uid for uid in expected["removed"] if uid not in WHOLE]
        return None if pods == expected["removed"] else Difference(*BY_NODE, {"removed": pods})
    if given["op"] == "checkpoint":
        ages = given["last_checkpointed_age"]
        known = [age for age in ages.values() if age is not None]
        due = len(known) < len(ages) or max(known, default=0.0) >= given["interval_seconds"]
        saved = sorted(ages) if due else []
        return None if saved == expected["saved"] else Difference(*TOGETHER, {"saved": saved})
    if any(checkpoint.get("parse_error") for checkpoint in given["checkpoints"]):
        stored = sorted(checkpoint["uid"] for checkpoint in given["checkpoints"])
        return Difference(*AS_A_WHOLE, {"restored": [], "removed": stored})
    return None


@group("Bank.apply, encode_state, restore, forget; CheckpointRounds", differs=_lives_with_its_node)
def model_lifecycle(case: Case) -> object:
    """Pods that expire, rounds of checkpoints, and a node that is restored from one."""
    match case["op"]:
        case "gc":
            return _gc(case)
        case "checkpoint":
            return _checkpoint(case)
        case "restore":
            return _restore(case)
    raise LookupError(case["op"])
