"""An import is in force from the next load or not at all, and changes nothing else."""

from collections.abc import Collection

import pytest
from msgspec.structs import replace

from pipeline.agents.model_import_round import add_models, change_models, replace_models
from pipeline.clock import ManualClock
from pipeline.errors import CheckpointLayoutError, NotReadyError, StateError
from pipeline.processors.exchange.import_models import Histogram, ImportedModel
from pipeline.processors.model import state_codec
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.histogram import CPU_LAYOUT
from pipeline.processors.model.model_config import ModelConfig, Profile
from pipeline.topics.checkpoints import Claim, NodeCheckpoint, claim_key, node_key, parse_key
from pipeline.topics.codec import decode_pack, encode_pack
from tests.agents.fakes import APPENDED_MS, MemoryBroker, MemoryProducer
from tests.agents.logs import CONFIG, LogWriter
from tests.agents.owners import Owner, content, undisturbed

PLACE = ("t.checkpoints", 0)
NODES = ("a", "b", "c")


def learned(*names: str, reference_ms: int = APPENDED_MS) -> dict[str, ImportedModel]:
    """Return models with 1000 samples in the 60th CPU bucket for each name."""
    weights = CPU_LAYOUT.starts * 0.0
    weights[60] = 1000.0
    histogram = Histogram(CPU_LAYOUT, weights, reference_ms, 43_200_000)
    return {name: ImportedModel(name, (histogram, None), APPENDED_MS) for name in names}


async def importing(
    broker: MemoryBroker,
    *names: str,
    node: str = "a",
    config: ModelConfig = CONFIG,
    idle: bool = True,
    reference_ms: int = APPENDED_MS,
    dry_run: bool = False,
) -> set[str]:
    async def find_running(claimed: Collection[str]) -> tuple[str, ...]:
        return () if idle else ("tide",)

    output = MemoryProducer(broker)
    change = add_models(node, learned(*names, reference_ms=reference_ms), config)
    taken = await change_models(
        node, change, topic_partition=PLACE, output=None if dry_run else output,  # type: ignore[arg-type]
        open_reader=broker.open_reader, find_running=find_running, clock=ManualClock(),
    )  # fmt: skip
    return {name for name, (cpu, _) in taken.items() if cpu and cpu.buckets}


async def with_a_round() -> tuple[MemoryBroker, LogWriter, Owner]:
    broker = MemoryBroker()
    log = LogWriter(broker)
    log.windows(4, *NODES)
    owner = await Owner(broker, "x").load()
    await owner.round()
    log.windows(2, *NODES)
    return broker, log, owner


def samples(owner: Owner, node: str) -> int:
    """Return the weights of the CPU histogram of the node."""
    state = state_codec.decode(owner.model.bank.encode_state(node))
    return int(state_codec.unpack(state.samples, "<i8", 8 + len(state.uids), 2)[0, 0])


async def test_the_next_owner_has_the_import_and_the_whole_log() -> None:
    broker, log, first = await with_a_round()
    first.die()
    before = dict(broker.live("t.checkpoints"))
    assert await importing(broker, "node", "system") == {"node", "system"}
    second = await Owner(broker, "y").load()
    expected = content(undisturbed(broker))
    imported = content(second.model)
    assert {node: imported[node] for node in "bc"} == {node: expected[node] for node in "bc"}
    assert imported["a"][1:2] == expected["a"][1:2]  # counters
    assert samples(second, "a") == 4 + 2 + 1000
    assert samples(second, "b") == 4 + 2
    raw = second.model.bank.peaks(["a"])[0].predictors["percentile"].raw
    assert raw[0, 0] == CPU_LAYOUT.ends[60]
    assert before.items() <= broker.live("t.checkpoints").items()
    log.windows(1, *NODES)
    await second.apply()
    await second.round()
    third = await Owner(broker, "z").load()
    assert samples(third, "a") == 4 + 3 + 1000


async def test_a_worker_with_kept_models_loads_the_import() -> None:
    """A worker suspended beyond its session returns with the models it had."""
    broker, _, first = await with_a_round()
    shard = first.shard
    assert shard is not None
    shard.ownership.owned = False
    await importing(broker, "node")
    await first.load(shard)
    assert samples(first, "a") == 4 + 2 + 1000
    assert len(first.recovery.bank.learner.models) == len(first.model.bank.learner.models)
    shard = first.shard
    assert shard
    shard.ownership.owned = False
    await first.load(shard)
    assert first.model.bank is shard.model.bank


async def test_a_round_after_the_import_deletes_older_epochs() -> None:
    broker, _, first = await with_a_round()
    first.die()
    await importing(broker, "node")
    second = await Owner(broker, "y").load()
    await second.round()
    epochs = {parse_key(key)[2] for key in broker.live("t.checkpoints")}
    assert epochs == {second.epoch, -1}


async def test_the_import_uses_an_older_checkpoint_if_the_newest_is_damaged() -> None:
    broker, _, first = await with_a_round()
    second = await Owner(broker, "y").load()
    live = broker.live("t.checkpoints")
    for node in "ab":
        older = decode_pack(NodeCheckpoint, live[node_key(node, first.epoch)])
        newer = replace(older, epoch=second.epoch, covers=older.covers + 1, state=older.state[:-1])
        broker.put("t.checkpoints", 0, node_key(node, second.epoch), encode_pack(newer))
    second.die()
    assert await importing(broker, "node") == {"node"}
    third = await Owner(broker, "z").load()
    expected = content(undisturbed(broker))
    assert {node: content(third.model)[node] for node in "bc"} == {
        node: expected[node] for node in "bc"
    }
    assert samples(third, "a") == 4 + 2 + 1000


async def test_a_second_import_adds_again_and_unknown_pods_are_skipped() -> None:
    broker, _, first = await with_a_round()
    first.die()
    assert await importing(broker, "node", "gone") == {"node"}
    assert await importing(broker, "node") == {"node"}
    second = await Owner(broker, "y").load()
    assert samples(second, "a") == 4 + 2 + 2000


async def test_an_import_that_decayed_to_nothing_is_not_written() -> None:
    broker, _, first = await with_a_round()
    first.die()
    before = len(broker.records("t.checkpoints"))
    assert await importing(broker, "node", reference_ms=APPENDED_MS - 60 * 43_200_000) == set()
    assert len(broker.records("t.checkpoints")) == before


async def test_a_dry_run_returns_the_same_and_writes_nothing() -> None:
    broker, _, _ = await with_a_round()
    before = list(broker.records("t.checkpoints"))
    assert await importing(broker, "node", idle=False, dry_run=True) == {"node"}
    with pytest.raises(NotReadyError, match="has node 'zebra'"):
        await importing(broker, "node", node="zebra", dry_run=True)
    assert list(broker.records("t.checkpoints")) == before


async def replace_state(
    broker: MemoryBroker, node: str, data: bytes
) -> state_codec.ModelState | None:
    async def find_running(claimed: Collection[str]) -> tuple[str, ...]:
        return ()

    clock = ManualClock(APPENDED_MS / 1000)
    return await change_models(
        node, replace_models(node, data, CONFIG, clock), topic_partition=PLACE,
        output=MemoryProducer(broker),  # type: ignore[arg-type]
        open_reader=broker.open_reader, find_running=find_running, clock=clock,
    )  # fmt: skip


async def test_the_next_owner_continues_from_replaced_models_bit_for_bit() -> None:
    """The log continues between the export and its import."""
    broker, log, first = await with_a_round()
    exported = {node: first.model.bank.encode_state(node) for node in NODES}
    await first.apply()
    await first.round()
    newer = {node: first.model.bank.encode_state(node) for node in NODES}
    first.die()
    assert exported["a"] != newer["a"]
    replaced = await replace_state(broker, "a", exported["a"])
    assert replaced is not None
    assert state_codec.encode(replaced) == newer["a"]
    second = await Owner(broker, "y").load()
    assert second.model.bank.encode_state("a") == exported["a"]
    assert {node: second.model.bank.encode_state(node) for node in "bc"} == {
        node: newer[node] for node in "bc"
    }
    peaks = second.model.bank.peaks(["a"])[0].predictors["percentile"].raw
    bank = Bank(CONFIG)
    bank.restore("a", exported["a"])
    assert peaks.tobytes() == bank.peaks(["a"])[0].predictors["percentile"].raw.tobytes()
    log.windows(1, *NODES)
    await second.apply()
    assert samples(second, "a") == 4 + 1


async def test_an_export_replaces_a_damaged_checkpoint() -> None:
    broker, _, first = await with_a_round()
    exported = first.model.bank.encode_state("a")
    first.die()
    key = node_key("a", first.epoch)
    intact = decode_pack(NodeCheckpoint, broker.live("t.checkpoints")[key])
    damaged = replace(intact, state=intact.state[:-1])
    broker.put("t.checkpoints", 0, key, encode_pack(damaged))
    assert await replace_state(broker, "a", exported) is None
    second = await Owner(broker, "y").load()
    assert content(second.model)["a"][:2] == content(undisturbed(broker))["a"][:2]


async def refused(
    broker: MemoryBroker, error: type[Exception], message: str, **options: object
) -> None:
    """Expect that the import is refused and the next owner is unaffected."""
    with pytest.raises(error, match=message):
        await importing(broker, "node", **options)  # type: ignore[arg-type]
    second = await Owner(broker, "y").load()
    assert content(second.model) == content(undisturbed(broker))


async def test_an_import_is_refused_while_workers_run() -> None:
    broker, _, _ = await with_a_round()
    written = len(broker.records("t.checkpoints"))
    await refused(broker, StateError, "workers of the group tide are running", idle=False)
    assert len(broker.records("t.checkpoints")) == written + 1  # the claim of the second


async def test_an_import_is_refused_without_a_complete_round_of_the_node() -> None:
    broker = MemoryBroker()
    LogWriter(broker).windows(4, *NODES)
    await refused(broker, NotReadyError, "no complete round")
    broker, _, first = await with_a_round()
    first.die()
    await refused(broker, NotReadyError, "has node 'zebra'", node="zebra")


async def test_models_of_another_layout_are_refused() -> None:
    broker, _, first = await with_a_round()
    first.die()
    other = ModelConfig(profile=Profile(half_life_seconds=(1.0, 1.0)))
    await refused(broker, CheckpointLayoutError, "is of model", config=other)


async def import_with_a_claim(broker: MemoryBroker, place: int) -> None:
    """Import while a worker claims the partition after `place` records of the import."""
    claim = encode_pack(Claim(member="late", claimed_at="2023-11-14T22:14:00Z"))
    put, written = broker.put, 0

    def put_and_claim(topic: str, partition: int, key: bytes | None, value: bytes | None) -> int:
        nonlocal written
        offset = put(topic, partition, key, value)
        written += 1
        if written == place:
            put(topic, partition, claim_key("late"), claim)
        return offset

    broker.put = put_and_claim  # type: ignore[method-assign]
    try:
        await importing(broker, "node")
    finally:
        broker.put = put  # type: ignore[method-assign]


# The import writes its claim, a checkpoint of each node, then the marker.
@pytest.mark.parametrize("place", range(1, 2 + len(NODES)))
async def test_a_claim_during_the_import_raises_and_undoes_it(place: int) -> None:
    broker, _, first = await with_a_round()
    first.die()
    with pytest.raises(StateError, match="claimed the partition during the import"):
        await import_with_a_claim(broker, place)
    second = await Owner(broker, "y").load()
    assert content(second.model) == content(undisturbed(broker))


async def test_a_worker_that_claims_after_the_marker_has_the_import() -> None:
    broker, _, first = await with_a_round()
    first.die()
    await import_with_a_claim(broker, 2 + len(NODES))
    second = await Owner(broker, "y").load()
    assert samples(second, "a") == 4 + 2 + 1000


async def test_a_claim_between_the_last_check_and_the_marker_undoes_the_import() -> None:
    broker, _, first = await with_a_round()
    first.die()
    claim = encode_pack(Claim(member="late", claimed_at="2023-11-14T22:14:00Z"))
    put = broker.put

    def claim_and_put(topic: str, partition: int, key: bytes | None, value: bytes | None) -> int:
        if key is not None and value is not None and parse_key(key)[0] == "marker":
            put(topic, partition, claim_key("late"), claim)
        return put(topic, partition, key, value)

    broker.put = claim_and_put  # type: ignore[method-assign]
    with pytest.raises(StateError, match="claimed the partition during the import"):
        await importing(broker, "node")
    broker.put = put  # type: ignore[method-assign]
    second = await Owner(broker, "y").load()
    assert content(second.model) == content(undisturbed(broker))


async def test_a_load_that_fails_after_an_import_leaves_no_rows() -> None:
    broker, _, owner = await with_a_round()
    await importing(broker, "node")
    previous = owner.shard
    assert previous is not None
    previous.ownership.owned = False
    owner.output.refuses = lambda topic: topic == "t.node-state"
    with pytest.raises(ConnectionError):
        await owner.load(previous)
    assert len(owner.recovery.bank.learner.models) == 0
