"""An import is in force from the next load or not at all, and changes nothing else."""

import itertools
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
from tests.agents.logs import CONFIG, LogWriter, make_log
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
    broker, log = make_log(4, *NODES)
    owner = await Owner(broker, "x").load()
    await owner.round()
    log.windows(2, *NODES)
    return broker, log, owner


async def without_an_owner() -> MemoryBroker:
    """Return the broker of `with_a_round` after the end of the worker."""
    broker, _, owner = await with_a_round()
    owner.die()
    return broker


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
    expected, imported = content(undisturbed(broker)), content(second.model)
    assert expected | {"a": imported["a"]} == imported
    assert imported["a"][1] == expected["a"][1]  # counters
    assert [samples(second, node) for node in "ab"] == [4 + 2 + 1000, 4 + 2]
    raw = second.model.bank.peaks(["a"])[0].predictors["percentile"].raw
    assert raw[0, 0] == CPU_LAYOUT.ends[60]
    assert before.items() <= broker.live("t.checkpoints").items()
    log.windows(1, *NODES)
    await second.apply()
    await second.round()
    assert samples(await Owner(broker, "z").load(), "a") == 4 + 3 + 1000


async def test_a_worker_with_kept_models_loads_the_import() -> None:
    """A worker suspended beyond its session returns with the models it had."""
    broker, _, first = await with_a_round()
    first.model.ownership.owned = False
    await importing(broker, "node")
    await first.load(first.shard)
    assert samples(first, "a") == 4 + 2 + 1000
    assert len(first.recovery.bank.store.models) == len(first.model.bank.store.models)
    bank = first.model.bank
    first.model.ownership.owned = False
    await first.load(first.shard)
    assert first.model.bank is bank


async def test_a_round_after_the_import_deletes_older_epochs() -> None:
    broker = await without_an_owner()
    await importing(broker, "node")
    second = await Owner(broker, "y").load()
    await second.round()
    assert {parse_key(key)[2] for key in broker.live("t.checkpoints")} == {second.epoch, -1}


async def test_an_import_hides_no_unreadable_and_no_missing_checkpoint() -> None:
    broker, _, owner = await with_a_round()
    owner.die()
    log = broker.logs["t.checkpoints", 0]
    (offset,) = (each.offset for each in log if each.key == node_key("b", owner.epoch))
    log[offset] = log[offset]._replace(value=b"of another release")
    broker.put("t.checkpoints", 0, node_key("c", owner.epoch), None)
    await importing(broker, "node")
    second = await Owner(broker, "y").load()
    assert {node: second.model.counters[node].lost for node in "abc"} == {
        "a": 0, "b": 12, "c": 4,  # published results count 4 windows of c; b is damaged
    }  # fmt: skip


async def test_after_an_import_a_recreated_topic_is_still_recognized() -> None:
    broker = await without_an_owner()
    await importing(broker, "node")
    broker.recreate("t.windows")
    with pytest.raises(StateError, match="recreated"):
        await Owner(broker, "y").load()


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
    restored = content(third.model)
    assert content(undisturbed(broker)) | {"a": restored["a"]} == restored
    assert samples(third, "a") == 4 + 2 + 1000


async def test_a_second_import_adds_again_and_unknown_pods_are_skipped() -> None:
    broker = await without_an_owner()
    assert await importing(broker, "node", "gone") == {"node"}
    assert await importing(broker, "node") == {"node"}
    assert samples(await Owner(broker, "y").load(), "a") == 4 + 2 + 2000


async def test_an_import_that_decayed_to_nothing_is_not_written() -> None:
    broker = await without_an_owner()
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
        node, replace_models(node, data, CONFIG, clock, may_be_older=True), topic_partition=PLACE,
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
    assert {node: second.model.bank.encode_state(node) for node in NODES} == {
        **newer, "a": exported["a"],
    }  # fmt: skip
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
    broker.put("t.checkpoints", 0, key, encode_pack(replace(intact, state=intact.state[:-1])))
    assert await replace_state(broker, "a", exported) is None
    second = await Owner(broker, "y").load()
    assert content(second.model)["a"][:2] == content(undisturbed(broker))["a"][:2]


async def refused(
    broker: MemoryBroker, error: type[Exception], message: str, **options: object
) -> None:
    """Expect that the import is refused and the next owner is unaffected."""
    with pytest.raises(error, match=message):
        await importing(broker, "node", **options)  # type: ignore[arg-type]
    assert content((await Owner(broker, "y").load()).model) == content(undisturbed(broker))


async def test_an_import_is_refused_while_workers_run() -> None:
    broker, _, _ = await with_a_round()
    written = len(broker.records("t.checkpoints"))
    await refused(broker, StateError, "workers of the group tide are running", idle=False)
    assert len(broker.records("t.checkpoints")) == written + 1  # the claim of the second


async def test_an_import_is_refused_without_a_complete_round_of_the_node() -> None:
    await refused(make_log(4, *NODES)[0], NotReadyError, "no complete round")
    await refused(await without_an_owner(), NotReadyError, "has node 'zebra'", node="zebra")


async def test_models_of_another_layout_are_refused() -> None:
    broker = await without_an_owner()
    other = ModelConfig(profile=Profile(half_life_seconds=(1.0, 1.0)))
    await refused(broker, CheckpointLayoutError, "is of model", config=other)


async def import_with_a_claim(broker: MemoryBroker, after: int, before: int = -1) -> None:
    """Import while a worker claims the partition, after or before a record of the import."""
    claim = encode_pack(Claim(member="late", claimed_at="2023-11-14T22:14:00Z"))
    put, numbers = broker.put, itertools.count(1)

    def put_with_claim(topic: str, partition: int, key: bytes | None, value: bytes | None) -> int:
        number = next(numbers)
        if number == before:
            put(topic, partition, claim_key("late"), claim)
        offset = put(topic, partition, key, value)
        if number == after:
            put(topic, partition, claim_key("late"), claim)
        return offset

    broker.put = put_with_claim  # type: ignore[method-assign]
    try:
        await importing(broker, "node")
    finally:
        broker.put = put  # type: ignore[method-assign]


MARKER = 2 + len(NODES)
"""The import writes its claim, a checkpoint of each node, then the marker."""


@pytest.mark.parametrize(
    ("after", "before"), [*((number, -1) for number in range(1, MARKER)), (-1, MARKER)]
)
async def test_a_claim_during_the_import_raises_and_undoes_it(after: int, before: int) -> None:
    """The last claim comes between the last check and the marker."""
    broker = await without_an_owner()
    with pytest.raises(StateError, match="claimed the partition during the import"):
        await import_with_a_claim(broker, after, before)
    assert content((await Owner(broker, "y").load()).model) == content(undisturbed(broker))


async def test_a_worker_that_claims_after_the_marker_has_the_import() -> None:
    broker = await without_an_owner()
    await import_with_a_claim(broker, MARKER)
    assert samples(await Owner(broker, "y").load(), "a") == 4 + 2 + 1000


async def test_a_load_that_fails_after_an_import_leaves_no_rows() -> None:
    broker, _, owner = await with_a_round()
    await importing(broker, "node")
    owner.model.ownership.owned = False
    owner.output.refuses = lambda topic: topic == "t.node-state"
    with pytest.raises(ConnectionError):
        await owner.load(owner.shard)
    assert len(owner.recovery.bank.store.models) == 0
