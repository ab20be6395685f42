"""State = checkpoint + log: selection, replay and publishing, over a broker in memory."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from pipeline.agents import checkpoint_rounds, model_recovery, restored_nodes
from pipeline.agents.checkpoint_selection import PartitionCheckpoints, replay_start
from pipeline.agents.recovery import Recovery, join_start
from pipeline.errors import StateError
from pipeline.kafka.producer import Keyed
from pipeline.processors.model.model_config import Profile
from pipeline.topics.checkpoints import (
    NodeCheckpoint,
    RoundMarker,
    claim_key,
    marker_key,
    node_key,
    parse_key,
)
from pipeline.topics.codec import decode_pack, encode_json, encode_pack
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.result_header import position_of
from tests.agents.fakes import MemoryBroker
from tests.agents.logs import CONFIG, LogWriter, make_log
from tests.agents.owners import Owner, content, published, undisturbed
from tests.agents.simulation import simulate
from tests.metric_values import value_of

CHECKPOINTS, WINDOWS, SAMPLES = "t.checkpoints", "t.windows", "t.samples"
NODE_STATE, NODES_TOPIC = "t.node-state", "t.nodes"
NODES = ("a", "b", "c", "d", "e")
OTHER_LAYOUT = dataclasses.replace(CONFIG, profile=Profile(half_life_seconds=(600.0, 600.0)))


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_rounds, "SLICE", 2)


async def after_a_round() -> tuple[MemoryBroker, LogWriter, Owner]:
    """Return four windows of each node, and their owner after a round of checkpoints."""
    broker, log = make_log(4, *NODES)
    owner = await Owner(broker, "x").load()
    await owner.round()
    return broker, log, owner


# -- claim and selection


async def test_the_claim_is_written_first_and_its_offset_is_the_epoch() -> None:
    broker, _, first = await after_a_round()
    claimed = len(broker.records(CHECKPOINTS))
    assert (first.epoch, (await Owner(broker, "y").load()).epoch) == (0, claimed)
    assert broker.records(CHECKPOINTS)[claimed].key == claim_key("y")


@pytest.mark.parametrize(("complete", "replayed"), [(False, 25), (True, 5)])
async def test_a_replay_starts_at_the_last_complete_round_else_at_the_first_window(
    complete: bool, replayed: int
) -> None:
    broker, log = make_log(4, *NODES)
    first = await Owner(broker, "x").load()
    await (first.round() if complete else first.step_round())
    log.windows(1, *NODES)
    before = value_of(model_recovery.REPLAYED)
    assert content((await Owner(broker, "y").load()).model) == content(undisturbed(broker))
    assert value_of(model_recovery.REPLAYED) - before == replayed


async def test_an_interrupted_round_is_ignored() -> None:
    broker, log, first = await after_a_round()
    for _ in range(2):
        log.windows(1, *NODES)
        await first.apply()
        await first.step_round()
    first.die()
    assert content((await Owner(broker, "y").load()).model) == content(undisturbed(broker))


def checkpoint(node: str, epoch: int, covers: int) -> NodeCheckpoint:
    return NodeCheckpoint(
        node=node, epoch=epoch, round=1, generation=1, covers=covers, state=b"%d" % covers
    )


def choose(markers: dict[int, int], nodes: dict[str, dict[int, int]]) -> dict[str, tuple[int, int]]:
    """Return (epoch, covers) selected by node; `markers` is epoch -> X, `nodes` epoch -> covers."""
    content_of = PartitionCheckpoints(
        markers={
            epoch: RoundMarker(epoch=epoch, round=1, generation=1, resume=x, joined=0, nodes=1)
            for epoch, x in markers.items()
        },
        nodes={
            node: {epoch: checkpoint(node, epoch, covers) for epoch, covers in epochs.items()}
            for node, epochs in nodes.items()
        },
    )
    return {
        node: (usable[0].epoch, usable[0].covers) for node, usable in content_of.usable().items()
    }


@pytest.mark.parametrize(
    ("markers", "nodes", "chosen"),
    [
        ({}, {"a": {3: 50}}, {}),
        ({3: 40}, {"a": {3: 50}, "b": {3: 41}}, {"a": (3, 50), "b": (3, 41)}),
        # An owner without a complete round covers more, or less.
        ({3: 40}, {"a": {3: 50, 7: 60}, "b": {3: 55, 7: 45}}, {"a": (7, 60), "b": (3, 55)}),
        # Two complete rounds: X of the higher epoch applies, and checkpoints from that epoch on.
        ({3: 40, 7: 30}, {"a": {3: 90, 7: 35}, "b": {7: 31}}, {"a": (7, 35), "b": (7, 31)}),
        # The node departed before the round: its record must not restore it.
        ({3: 40}, {"a": {3: 39}, "b": {3: 40}}, {"b": (3, 40)}),
        ({3: 40}, {"a": {3: 20, 7: 39}}, {}),
        ({3: 40}, {"a": {2: 99}}, {}),
    ],
)
def test_checkpoints_are_selected_by_epoch_and_coverage(
    markers: dict[int, int], nodes: dict[str, dict[int, int]], chosen: dict[str, tuple[int, int]]
) -> None:
    assert choose(markers, nodes) == chosen


async def test_owners_that_overlapped_leave_the_exact_state() -> None:
    """The first resumes after the second has started its round, and both write."""
    broker, log, first = await after_a_round()
    log.windows(2, *NODES)
    second = await Owner(broker, "y").load()
    await second.step_round()
    log.windows(2, *NODES)
    await first.apply()
    await first.round()
    await second.step_round()
    second.die()
    first.die()
    assert content((await Owner(broker, "z").load()).model) == content(undisturbed(broker))


async def test_an_old_checkpoint_does_not_restore_a_departed_node() -> None:
    broker, log, first = await after_a_round()
    log.depart("b")
    log.windows(1, "a")
    await first.apply()
    # Killed after the marker of the next round, before the tombstone of the node's record.
    first.output.refuses = lambda topic: (
        topic == CHECKPOINTS and marker(broker, first.epoch).resume == 22
    )
    with pytest.raises(ConnectionError):
        await first.round()
    assert node_key("b", first.epoch) in broker.live(CHECKPOINTS)
    restored = content((await Owner(broker, "y").load()).model)
    assert restored == content(undisturbed(broker))
    assert restored.keys() == published(broker, "t.predictions").keys() == {"a", "c", "d", "e"}


async def test_tombstones_of_a_deleted_node_are_published_again() -> None:
    """A paused worker may have written results after the first tombstones."""
    broker, log = make_log(4, *NODES)
    first = await Owner(broker, "x").load()
    late = first.model.reports["b"]
    broker.put("t.nodes", 0, b"b", None)
    log.depart("b")
    await first.apply()
    await first.model.publish([("b", late)])
    assert "b" in published(broker, "t.node-state")
    await Owner(broker, "y").load()
    assert "b" not in published(broker, "t.node-state")
    assert "b" not in published(broker, "t.predictions")


def marker(broker: MemoryBroker, epoch: int) -> RoundMarker:
    return decode_pack(RoundMarker, broker.live(CHECKPOINTS)[marker_key(epoch)])


async def test_an_older_owner_does_not_delete_records_of_a_newer_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The older owner claims, is paused while the newer one writes a round, and continues."""
    broker, _ = make_log(4, *NODES)
    older, newer = Owner(broker, "older"), Owner(broker, "newer")
    claim = Recovery.claim

    async def pause_after_claim(self: Recovery, partition: int, ids: Any) -> int:
        epoch = await claim(self, partition, ids)
        if self is older.recovery:
            await newer.load()
            await newer.round()
        return epoch

    monkeypatch.setattr(Recovery, "claim", pause_after_claim)
    await older.load()
    assert older.epoch < newer.epoch
    await older.round()
    remaining = {key for key in broker.live(CHECKPOINTS) if parse_key(key)[2] == newer.epoch}
    assert remaining == {*(node_key(node, newer.epoch) for node in NODES), marker_key(newer.epoch)}
    assert claim_key("newer") in broker.live(CHECKPOINTS)


# -- replay and publishing


async def test_recovery_publishes_each_nodes_last_results_once() -> None:
    broker, log, _ = await after_a_round()
    log.windows(3, *NODES)
    log.depart("c")
    starts = {topic: len(broker.records(topic)) for topic in ("t.predictions", "t.node-state")}
    second = await Owner(broker, "y").load()
    expected = content(undisturbed(broker))
    for field, (topic, start) in enumerate(starts.items(), 2):
        keys = [record.key or b"" for record in broker.records(topic)[start:]]
        assert sorted(keys) == [node.encode() for node in NODES]
        assert published(broker, topic) == {node: row[field] for node, row in expected.items()}
    assert second.model.ownership.epoch > 0


async def test_an_empty_partition_is_loaded() -> None:
    owner = await Owner(MemoryBroker(), "x").load()
    assert (owner.model.next_offset, owner.shard.join.next_offset) == (0, 0)


async def test_a_kept_partition_keeps_its_models_and_catches_up() -> None:
    broker, log, owner = await after_a_round()
    previous, bank, epoch = owner.shard, owner.model.bank, owner.epoch
    previous.ownership.owned = False
    log.windows(2, *NODES)
    log.depart("a")
    before = value_of(model_recovery.REPLAYED)
    await owner.load(previous)
    assert owner.model.bank is bank
    assert owner.epoch > epoch
    assert content(owner.model) == content(undisturbed(broker))
    assert value_of(model_recovery.REPLAYED) - before == 11
    assert owner.shard.join.cluster_state is previous.join.cluster_state
    # Its own older records are older all the same.
    assert node_key("a", epoch) in owner.shard.stale_keys


async def test_a_returned_partition_applies_missed_changes_of_nodes() -> None:
    broker, _ = make_log(4, *NODES)
    owner = await Owner(broker, "x").load()
    broker.put("t.nodes", 0, b"a", None)
    broker.put("t.nodes", 0, b"a", encode_json(NodeRecord(node="a")))
    broker.put("t.nodes", 0, b"b", None)
    await owner.load(owner.shard)
    assert owner.shard.join.cluster_state.deleted_nodes.keys() == {"b"}
    assert owner.shard.cluster_state_ends["t.nodes"] == 3


async def test_a_returned_partition_reads_recreated_nodes_from_their_begin() -> None:
    """The recreated topic is longer than the former one."""
    broker, _ = make_log(4, *NODES)
    broker.put(NODES_TOPIC, 0, b"a", encode_json(NodeRecord(node="a")))
    owner = await Owner(broker, "x").load()
    broker.recreate(NODES_TOPIC)
    for name in ("b", "c", "d"):
        broker.put(NODES_TOPIC, 0, name.encode(), encode_json(NodeRecord(node=name)))
    await owner.load(owner.shard)
    assert set(owner.shard.join.cluster_state.nodes) == {"b", "c", "d"}


async def test_nodes_with_models_and_without_a_record_may_send_samples() -> None:
    broker, log = make_log(4, *NODES)
    for name in ("a", "b", "c"):
        broker.put(NODES_TOPIC, 0, name.encode(), encode_json(NodeRecord(node=name)))
    broker.put(NODES_TOPIC, 0, b"b", None)
    log.retract("c")
    broker.put(NODES_TOPIC, 0, b"c", None)
    owner = await Owner(broker, "x").load()
    assert owner.shard.join.unknown_nodes == {"d", "e"}


async def test_the_cluster_state_is_read_to_its_end() -> None:
    broker, _ = make_log(4, *NODES)
    for name in NODES:
        broker.put("t.nodes", 0, name.encode(), encode_json(NodeRecord(node=name)))
    broker.put("t.nodes", 0, b"b", None)
    owner = await Owner(broker, "x").load()
    assert set(owner.shard.join.cluster_state.nodes) == set(NODES) - {"b"}
    assert owner.shard.join.cluster_state.deleted_nodes.keys() == {"b"}
    assert owner.shard.cluster_state_ends == {"t.nodes": 6, "t.pods": 0}


# -- position of the join


async def test_the_join_resumes_after_the_highest_sample_in_the_log() -> None:
    broker, log = make_log(4, *NODES)
    for _ in range(5):
        broker.put(SAMPLES, 0, b"a", b"not joined yet")
    first = await Owner(broker, "x").load()
    assert first.shard.join.next_offset == log.samples == 20
    # If X is the end of the log nothing is replayed: the marker has the position.
    await first.round()
    assert (await Owner(broker, "y").load()).shard.join.next_offset == 20


async def test_without_windows_the_join_starts_at_the_first_sample() -> None:
    broker = MemoryBroker()
    for _ in range(5):
        broker.put(SAMPLES, 0, b"a", b"sample")
    broker.trim(SAMPLES, 0, 3)
    assert (await Owner(broker, "x").load()).shard.join.next_offset == 3


@pytest.mark.parametrize("topic", [SAMPLES, WINDOWS])
@pytest.mark.parametrize("records", [1, 100])
async def test_a_recreated_topic_raises_a_state_error_whatever_its_end_is(
    topic: str, records: int
) -> None:
    broker, _, _ = await after_a_round()
    broker.recreate(topic)
    for _ in range(records):
        broker.put(topic, 0, b"a", b"record")
    for member in ("y", "z"):  # the claim of the first does not make it acceptable
        with pytest.raises(StateError, match=f"{topic} was recreated"):
            await Owner(broker, member).load()


async def test_after_a_truncation_of_the_windows_models_stay_and_are_marked() -> None:
    broker, log, first = await after_a_round()
    before = content(first.model)
    broker.truncate(WINDOWS, 0, 15)
    second = await Owner(broker, "y").load()
    assert second.model.next_offset == 15
    assert [second.model.counters[node].lost for node in NODES] == [5] * 5
    assert {node: state for node, (state, *_) in content(second.model).items()} == {
        node: state for node, (state, *_) in before.items()
    }
    # The offsets of the lost windows belong to new ones, which every later owner applies.
    log.windows(2, *NODES)
    third = await Owner(broker, "z").load()
    for owner in (second, third):
        await owner.apply()
        assert owner.model.next_offset == 25
        counters = [owner.model.counters[node] for node in NODES]
        assert [(each.applied, each.lost) for each in counters] == [(6, 5)] * 5
    assert content(third.model) == content(second.model)


async def test_after_a_truncation_of_the_windows_readers_take_all_new_results() -> None:
    broker, log, _ = await after_a_round()
    broker.truncate(WINDOWS, 0, 10)
    owner = await Owner(broker, "y").load()
    log.windows(1, *NODES)
    log.retract("b")
    await owner.apply()
    third = await Owner(broker, "z").load()
    log.windows(1, "a")
    await third.apply()
    newest = published(broker, NODE_STATE)
    positions = {node: (newest[node]["generation"], newest[node]["offset"]) for node in "acde"}
    assert positions == {"a": (2, 16), "c": (2, 12), "d": (2, 13), "e": (2, 14)}
    tombstones = [each.offset for each in broker.records(NODE_STATE) if each.value is None]
    headers = owner.output.headers | third.output.headers
    assert {position_of(headers[NODE_STATE, 0, offset]) for offset in tombstones} == {(2, 15)}


async def test_a_kept_partition_is_loaded_again_after_another_owner_saw_a_truncation() -> None:
    broker, log, first = await after_a_round()
    broker.truncate(WINDOWS, 0, 10)
    await Owner(broker, "y").load()
    log.windows(4, *NODES)
    await first.load(first.shard)
    assert (first.model.next_offset, first.model.generation) == (30, 2)
    assert [first.model.counters[node].applied for node in NODES] == [8] * 5


async def test_windows_that_were_truncated_before_a_round_contained_them_are_joined_again() -> None:
    broker, log, _ = await after_a_round()
    log.windows(1, *NODES)
    broker.truncate(WINDOWS, 0, 22)
    owner = await Owner(broker, "y").load()
    assert (owner.model.next_offset, owner.shard.join.next_offset) == (22, 22)
    assert {owner.model.counters[node].lost for node in NODES} == {0}


async def test_after_a_truncation_of_windows_that_no_round_has_readers_take_new_results() -> None:
    broker, log, first = await after_a_round()
    log.windows(2, *NODES)
    await first.apply()
    broker.truncate(WINDOWS, 0, 22)
    owner = await Owner(broker, "y").load()
    log.windows(1, *NODES)
    await owner.apply()
    newest = published(broker, NODE_STATE)
    positions = {node: (newest[node]["generation"], newest[node]["offset"]) for node in NODES}
    assert positions == {node: (2, 22 + number) for number, node in enumerate(NODES)}
    for member in ("z", "zz"):
        assert (await Owner(broker, member).load()).model.generation == 2


@pytest.mark.parametrize("new_samples", [0, 1, 30])
async def test_after_a_truncation_of_the_samples_no_owner_skips_new_ones(new_samples: int) -> None:
    broker, _, _ = await after_a_round()
    broker.truncate(SAMPLES, 0, 17)
    owner = await Owner(broker, "y").load()
    assert owner.shard.join.next_offset == 17
    for _ in range(new_samples):
        broker.put(SAMPLES, 0, b"a", b"new")
    assert (await Owner(broker, "z").load()).shard.join.next_offset == 17


async def test_a_kept_partition_continues_at_the_ends_of_truncated_logs() -> None:
    broker, log = make_log(4, *NODES)
    owner = await Owner(broker, "x").load()
    broker.truncate(WINDOWS, 0, 18)
    broker.truncate(SAMPLES, 0, 18)
    await owner.load(owner.shard)
    assert (owner.model.next_offset, owner.shard.join.next_offset) == (18, 18)
    assert [owner.model.counters[node].lost for node in NODES] == [2] * 5
    log.windows(1, *NODES)
    other = await Owner(broker, "y").load()
    assert other.model.next_offset == 23
    assert [other.model.counters[node].applied for node in NODES] == [5] * 5


async def test_refused_samples_are_not_refused_again_after_a_restart() -> None:
    broker, _ = make_log(4, *NODES)
    owner = await Owner(broker, "x").load()
    for _ in range(3):
        broker.put(SAMPLES, 0, b"a", b"rubbish")
    owner.shard.join.next_offset += 3
    await owner.round()
    assert (await Owner(broker, "y").load()).shard.join.next_offset == owner.shard.join.next_offset


def test_the_start_of_a_replay() -> None:
    marker = RoundMarker(epoch=1, round=1, generation=1, resume=7, joined=3, nodes=0)
    assert (replay_start(marker, 2), replay_start(None, 2)) == (7, 2)
    models: list[Any] = [SimpleNamespace(joined=joined) for joined in (-1, 0)]
    assert [join_start(model, 4) for model in models] == [4, 1]


# -- lost windows and invalid checkpoints


@pytest.mark.parametrize(
    ("windows", "first", "lost"),
    [(3, 27, 7), (1, 20, 0), (1, 25, 5)],
    ids=["unapplied windows", "applied windows", "all records"],
)
async def test_unapplied_windows_removed_by_retention_are_counted_and_mark_the_models(
    windows: int, first: int, lost: int
) -> None:
    broker, log, _ = await after_a_round()
    log.windows(windows, *NODES)
    expected = content(undisturbed(broker))
    broker.trim(WINDOWS, 0, first)
    before = value_of(model_recovery.LOST)
    owner = await Owner(broker, "y").load()
    assert value_of(model_recovery.LOST) - before == lost
    assert (content(owner.model) == expected) is (lost == 0)
    assert owner.model.next_offset == 20 + 5 * windows
    await owner.round()
    for each in (owner, await Owner(broker, "z").load()):
        assert [each.model.counters[node].lost for node in NODES] == [lost] * 5


async def test_a_kept_partition_counts_missed_windows() -> None:
    broker, log = make_log(4, *NODES)
    owner = await Owner(broker, "x").load()
    log.windows(2, *NODES)
    broker.trim(WINDOWS, 0, 24)
    await owner.load(owner.shard)
    assert [owner.model.counters[node].lost for node in NODES] == [4] * 5


def copy_of(broker: MemoryBroker) -> MemoryBroker:
    """Return a broker with the same samples and windows alone."""
    return MemoryBroker(logs={(name, 0): broker.records(name) for name in (WINDOWS, SAMPLES)})


async def test_models_of_another_layout_are_rebuilt_from_the_log() -> None:
    broker, log, _ = await after_a_round()
    log.windows(2, *NODES)
    before = value_of(restored_nodes.REBUILT)
    owner = await Owner(broker, "y", config=OTHER_LAYOUT).load()
    assert value_of(restored_nodes.REBUILT) - before == 5
    fresh = await Owner(copy_of(broker), "z", config=OTHER_LAYOUT).load()
    assert content(owner.model) == content(fresh.model)
    assert content(owner.model) != content(undisturbed(broker))


async def test_lost_windows_of_a_rebuilt_node_are_counted() -> None:
    """A layout change must not reset models silently, or leave results without updates."""
    broker, _, first = await after_a_round()
    await first.model.publish(first.model.reports.items())
    assert {first.model.counters[node].applied for node in NODES} == {4}
    broker.trim(WINDOWS, 0, 18)
    owner = await Owner(broker, "y", config=OTHER_LAYOUT).load()
    lost = {node: counters.lost for node, counters in owner.model.counters.items()}
    shown = {
        node: state["counters"]["lost"] for node, state in published(broker, NODE_STATE).items()
    }
    assert lost == shown == {"d": 3, "e": 3}


async def test_lost_windows_mark_nodes_beside_one_of_another_layout() -> None:
    broker, log, first = await after_a_round()
    copied = copy_of(broker)
    await (await Owner(copied, "x", config=OTHER_LAYOUT).load()).round()
    key = node_key("c", first.epoch)
    broker.put(CHECKPOINTS, 0, key, copied.live(CHECKPOINTS)[key])
    log.windows(3, *NODES)
    broker.trim(WINDOWS, 0, 27)
    owner = await Owner(broker, "y").load()
    intact = [node for node in NODES if node != "c"]
    assert [owner.model.counters[node].lost for node in intact] == [7] * 4
    assert owner.model.counters["c"].lost > 0


async def test_a_damaged_checkpoint_resets_and_marks_the_models_of_its_node() -> None:
    broker, log, first = await after_a_round()
    key = node_key("c", first.epoch)
    written = decode_pack(NodeCheckpoint, broker.live(CHECKPOINTS)[key])
    broken = msgspec.structs.replace(written, state=written.state[:-9])
    broker.put(CHECKPOINTS, 0, key, encode_pack(broken))
    log.windows(1, *NODES)
    before = value_of(restored_nodes.REBUILT)
    second = await Owner(broker, "y").load()
    assert value_of(restored_nodes.REBUILT) - before == 1
    rebuilt, expected = content(second.model), content(undisturbed(broker))
    assert expected | {"c": rebuilt["c"]} == rebuilt
    assert (rebuilt["c"][1].applied, rebuilt["c"][1].lost) == (1, written.covers)


async def test_invalid_checkpoints_become_dead_letters() -> None:
    broker, *_ = await after_a_round()
    start = len(broker.records(CHECKPOINTS))
    for key, value in (
        (b"junk", b""), (b"\xff@1", b""), (node_key("zz", 5), b"junk"), (marker_key(99), b"junk"),
        (None, b"x"),
    ):  # fmt: skip
        broker.put(CHECKPOINTS, 0, key, value)
    second = await Owner(broker, "y").load()
    assert [(topic, offset) for topic, offset, _ in second.refused] == [
        (CHECKPOINTS, start + n) for n in range(5)
    ]
    assert content(second.model) == content(undisturbed(broker))


# -- random owners


@pytest.mark.parametrize("zombies", [False, True], ids=["killed", "paused and woken up"])
def test_models_equal_the_log_after_random_takeovers(zombies: bool) -> None:
    assert [problem for seed in range(10) if (problem := simulate(seed, zombies=zombies))] == []


def test_the_simulation_detects_an_early_marker(monkeypatch: pytest.MonkeyPatch) -> None:
    write = checkpoint_rounds.CheckpointRounds.write

    async def marker_first(self: Any, pause_seconds: float = 0.0) -> None:
        model = self._model
        early = RoundMarker(
            epoch=model.ownership.epoch, round=self._number + 1, generation=1,
            resume=model.next_offset, joined=model.joined, nodes=0,
        )  # fmt: skip
        await self._send([Keyed(marker_key(model.ownership.epoch), encode_pack(early))])
        await write(self, pause_seconds)

    monkeypatch.setattr(checkpoint_rounds.CheckpointRounds, "write", marker_first)
    assert any(simulate(seed, zombies=False) for seed in range(25))


def test_the_simulation_detects_a_late_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        model_recovery,
        "replay_start",
        lambda marker, first: first if marker is None else marker.resume + 1,
    )
    assert any(simulate(seed, zombies=False) for seed in range(25))


async def test_a_checkpoint_under_another_key_is_refused() -> None:
    broker, _, first = await after_a_round()
    written = decode_pack(NodeCheckpoint, broker.live(CHECKPOINTS)[node_key("c", first.epoch)])
    forged = msgspec.structs.replace(written, node="other", state=b"\x80", covers=written.covers)
    broker.put(CHECKPOINTS, 0, node_key("c", 2**40), encode_pack(forged))
    second = await Owner(broker, "y").load()
    assert [reason for _, _, reason in second.refused] == ["key_mismatch"]
    assert content(second.model) == content(undisturbed(broker))


@pytest.mark.parametrize("beyond", [0, 10])
async def test_a_damaged_checkpoint_is_replaced_by_the_next_best(beyond: int) -> None:
    broker, _, first = await after_a_round()
    written = decode_pack(NodeCheckpoint, broker.live(CHECKPOINTS)[node_key("c", first.epoch)])
    later = first.epoch + 1
    forged = msgspec.structs.replace(
        written, epoch=later, state=written.state[:-9], covers=written.covers + beyond
    )
    broker.put(CHECKPOINTS, 0, node_key("c", later), encode_pack(forged))
    assert content((await Owner(broker, "y").load()).model) == content(undisturbed(broker))


async def test_a_cancelled_load_leaves_no_rows() -> None:
    """Partitions share columns: rows that are not cleared stay as long as the worker."""
    owner = Owner(make_log(4, "a", "b")[0], "first")
    owner.output.refuses = lambda topic: topic == "t.node-state"
    with pytest.raises(ConnectionError):
        await owner.load()
    assert len(owner.recovery.bank.store.models) == 0
    owner.output.refuses = lambda topic: False
    await owner.load()
    assert len(owner.recovery.bank.store.models) == len(owner.model.bank.store.models) > 0
    assert owner.recovery.bank.nodes == ()
    owner.model.ownership.owned = False
    owner.output.refuses = lambda topic: topic == "t.checkpoints"
    with pytest.raises(ConnectionError):
        await owner.load(owner.shard)
    assert len(owner.recovery.bank.store.models) == 0


async def test_a_shard_loaded_before_a_cancellation_only_catches_up_next_time() -> None:
    """A rebalance during a long load must not restart it from the beginning."""
    broker, log = make_log(4, *NODES)
    owner = await Owner(broker, "x").load()
    owner.model.ownership.owned = False
    owner.output.refuses = lambda topic: topic == "t.checkpoints"
    released = {0: owner.shard}
    with pytest.raises(ConnectionError):
        async for _ in owner.recovery.load_all([-1, 0], released):
            pass
    assert released == {0: owner.shard}
    owner.output.refuses = lambda topic: False
    log.windows(2, *NODES)
    before = value_of(model_recovery.REPLAYED)
    [shard] = [loaded async for loaded in owner.recovery.load_all([0], released)]
    assert (released, value_of(model_recovery.REPLAYED) - before) == ({}, 2 * len(NODES))
    assert content(shard.model) == content(undisturbed(broker))


async def test_a_node_with_an_oversized_checkpoint_is_marked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker, log = make_log(4, *NODES)
    first = await Owner(broker, "x").load()
    applied = first.model.counters["c"].applied
    monkeypatch.setattr(checkpoint_rounds, "fits", lambda record: not record.key.startswith(b"c@"))
    await first.round()
    assert marker(broker, first.epoch).left_out["c"].applied == applied
    log.windows(2, *NODES)
    before = value_of(model_recovery.REPLAYED)
    second = await Owner(broker, "y").load()
    assert value_of(model_recovery.REPLAYED) - before == 2 * len(NODES)
    restored = content(second.model)
    assert (restored["c"][1].applied, restored["c"][1].lost) == (2, applied)
    assert content(undisturbed(broker)) | {"c": restored["c"]} == restored


async def test_an_oversized_node_without_windows_in_the_log_departs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker, log = make_log(4, *NODES)
    first = await Owner(broker, "x").load()
    applied = first.model.counters["c"].applied
    monkeypatch.setattr(checkpoint_rounds, "fits", lambda record: not record.key.startswith(b"c@"))
    await first.round()
    second = await Owner(broker, "y").load()
    assert "c" not in published(broker, "t.predictions")
    log.windows(1, "c")
    await second.apply()
    assert second.model.counters["c"].lost == applied
    assert "c" in published(broker, "t.predictions")


# -- checkpoints that are not readable, or not there any more


def corrupt(broker: MemoryBroker, key: bytes, value: bytes) -> None:
    """Replace the value of the only record of a key, as it is after compaction."""
    log = broker.logs[CHECKPOINTS, 0]
    (offset,) = (record.offset for record in log if record.key == key)
    log[offset] = log[offset]._replace(value=value)


async def test_an_unreadable_checkpoint_marks_its_node_and_is_never_deleted() -> None:
    broker, log, first = await after_a_round()
    key = node_key("c", first.epoch)
    corrupt(broker, key, b"of another release")
    log.windows(1, *NODES)
    before = value_of(restored_nodes.UNREADABLE)
    second = await Owner(broker, "y").load()
    assert value_of(restored_nodes.UNREADABLE) - before == 1
    resume = marker(broker, first.epoch).resume
    assert resume == 20
    counters = second.model.counters["c"]
    assert (counters.applied, counters.lost) == (1, resume)
    rebuilt, expected = content(second.model), content(undisturbed(broker))
    assert expected | {"c": rebuilt["c"]} == rebuilt
    assert published(broker, NODE_STATE)["c"]["counters"]["lost"] == resume
    await second.round()
    third = await Owner(broker, "z").load()
    await third.round()
    assert broker.live(CHECKPOINTS)[key] == b"of another release"
    assert node_key("a", first.epoch) not in broker.live(CHECKPOINTS)
    # A later owner has its own checkpoint, and does not refuse the record again.
    assert (len(second.refused), third.refused) == (1, [])
    assert content(third.model) == rebuilt


async def test_the_mark_of_an_unreadable_checkpoint_outlives_rounds_without_its_node() -> None:
    broker, log, first = await after_a_round()
    corrupt(broker, node_key("c", first.epoch), b"of another release")
    for member in ("y", "z"):
        await (await Owner(broker, member).load()).round()
    log.window("c")
    last = await Owner(broker, "last").load()
    assert (last.model.counters["c"].applied, last.model.counters["c"].lost) == (1, 20)


async def test_a_deleted_node_without_models_needs_no_mark() -> None:
    broker, log, first = await after_a_round()
    corrupt(broker, node_key("c", first.epoch), b"of another release")
    second = await Owner(broker, "y").load()
    log.retract("c")
    await second.apply()
    await second.round()
    assert marker(broker, second.epoch).left_out == {}


async def test_an_unreadable_checkpoint_of_an_interrupted_round_costs_nothing() -> None:
    broker, log, first = await after_a_round()
    log.windows(1, *NODES)
    broker.put(CHECKPOINTS, 0, node_key("c", first.epoch + 1), b"junk")
    assert content((await Owner(broker, "y").load()).model) == content(undisturbed(broker))


async def test_a_damaged_checkpoint_is_not_deleted() -> None:
    broker, _, first = await after_a_round()
    key = node_key("c", first.epoch)
    written = decode_pack(NodeCheckpoint, broker.live(CHECKPOINTS)[key])
    damaged = msgspec.structs.replace(written, state=written.state[:-9])
    corrupt(broker, key, encode_pack(damaged))
    for member in ("y", "z"):
        await (await Owner(broker, member).load()).round()
    assert key in broker.live(CHECKPOINTS)


async def test_an_unreadable_marker_is_replaced_by_its_checkpoints() -> None:
    broker, log, first = await after_a_round()
    log.windows(2, *NODES)
    log.depart("b")
    corrupt(broker, marker_key(first.epoch), b"junk")
    broker.trim(WINDOWS, 0, 18)
    second = await Owner(broker, "y").load()
    whole = MemoryBroker(logs=broker.logs)
    assert content(second.model) == content(undisturbed(whole))
    assert {counters.lost for counters in second.model.counters.values()} == {0}


async def test_missing_checkpoints_mark_the_nodes_that_start_empty() -> None:
    broker, log, first = await after_a_round()
    log.windows(1, *NODES)
    broker.put(CHECKPOINTS, 0, node_key("c", first.epoch), None)
    before = value_of(restored_nodes.UNREADABLE)
    second = await Owner(broker, "y").load()
    assert value_of(restored_nodes.UNREADABLE) - before == 1
    lost = {node: counters.lost for node, counters in second.model.counters.items()}
    assert lost == dict.fromkeys(NODES, 0) | {"c": 4}


@pytest.mark.parametrize("rounds", [0, 1, 3])
async def test_a_missing_checkpoint_of_a_silent_node_marks_it_when_it_returns(rounds: int) -> None:
    broker, log, first = await after_a_round()
    log.windows(1, *NODES[:4], "new")
    await first.apply()
    broker.put(CHECKPOINTS, 0, node_key("e", first.epoch), None)
    owner = await Owner(broker, "y").load()
    for number in range(rounds):
        await owner.round()
        owner = await Owner(broker, f"y{number}").load()
    log.window("e")
    await owner.apply()
    lost = {node: counters.lost for node, counters in owner.model.counters.items()}
    assert lost == dict.fromkeys((*NODES, "new"), 0) | {"e": 4}


async def test_missing_checkpoints_without_published_results_mark_all_that_start_empty() -> None:
    broker, log, first = await after_a_round()
    log.windows(1, *NODES)
    broker.put(CHECKPOINTS, 0, node_key("c", first.epoch), None)
    broker.recreate(NODE_STATE)
    lost = (await Owner(broker, "y").load()).model.counters["c"].lost
    assert lost == 20


async def test_a_node_that_departs_during_a_round_is_not_missing() -> None:
    broker, log, first = await after_a_round()
    await first.step_round()
    log.depart("a")
    await first.apply()
    for _ in range(3):
        await first.step_round()
    assert node_key("a", first.epoch) not in broker.live(CHECKPOINTS)
    log.window("f")
    second = await Owner(broker, "y").load()
    assert content(second.model) == content(undisturbed(broker))
