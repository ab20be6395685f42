"""Windows that cannot be applied: no half-changed model is saved, and the rest goes on."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from pipeline.agents import apply_windows, failed_windows
from pipeline.agents.model_agent import ModelCursor, apply_batches
from pipeline.agents.ownership import Ownership
from pipeline.errors import StateError
from pipeline.kafka.partition_log import LogRecord
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.learner import Learner
from pipeline.processors.model.model_config import Profile
from pipeline.processors.model.result_records import encode_node_states
from pipeline.processors.model.training_batch import TrainingBatch
from pipeline.topics.checkpoints import SkippedWindow, skip_key
from pipeline.topics.codec import encode_pack
from pipeline.topics.windows import decode_window
from tests.agents.fakes import MemoryBroker
from tests.agents.logs import CONFIG, LogWriter, make_log
from tests.agents.owners import MODEL_RULES, Owner, content, published, undisturbed
from tests.metric_values import value_of

NODES = ("a", "b", "c")
OTHER_LAYOUT = dataclasses.replace(CONFIG, profile=Profile(half_life_seconds=(600.0, 600.0)))
Break = Callable[[Callable[[TrainingBatch], bool]], None]


@pytest.fixture
def break_if(monkeypatch: pytest.MonkeyPatch) -> Break:
    """Let the learner fail in the midst of a batch for which a condition holds."""
    learn = Learner.learn

    def set_condition(condition: Callable[[TrainingBatch], bool]) -> None:
        def learn_and_fail(self: Learner, batch: TrainingBatch, nodes: Any) -> None:
            learn(self, batch, nodes)
            if condition(batch):
                raise RuntimeError("a bug of a predictor")

        monkeypatch.setattr(Learner, "learn", learn_and_fail)

    return set_condition


async def owner_of_a_log() -> tuple[LogWriter, Owner]:
    broker, log = make_log(4, *NODES)
    owner = await Owner(broker, "x").load()
    await owner.round()
    return log, owner


async def test_half_changed_models_are_not_saved_and_not_used_again(break_if: Break) -> None:
    log, owner = await owner_of_a_log()
    log.windows(1, *NODES)
    broken = [True]
    break_if(lambda _: broken[0])
    with pytest.raises(RuntimeError):
        await owner.apply()
    written = len(owner.broker.records("t.checkpoints"))
    await owner.round()
    assert len(owner.broker.records("t.checkpoints")) == written
    broken.clear()
    broken.append(False)
    # A rebalance before the worker ends may assign the partition again.
    await owner.load(owner.shard)
    assert content(owner.model) == content(undisturbed(owner.broker))


# -- windows that fail again and again


async def load_again(owner: Owner, member: str) -> Owner:
    """Load the partition in another worker, after `owner` has ended."""
    owner.die()
    return await Owner(owner.broker, member).load()


def without(broker: MemoryBroker, *skipped: int) -> dict[str, Any]:
    """Return the content after one pass over the log without the windows at these offsets."""
    no_output: Any = None
    cursor = ModelCursor(Ownership(0, 0), 0, Bank(CONFIG), no_output, MODEL_RULES)
    for record in broker.records("t.windows"):
        if record.offset in skipped:
            cursor.skip(record)
        else:
            apply_batches([(cursor, [record])])
    return content(cursor)


def end_of(broker: MemoryBroker, offset: int) -> int:
    window = decode_window(broker.records("t.windows")[offset].value or b"")
    return window.header.window_end_ms


def ends_of(batch: TrainingBatch) -> dict[str, int]:
    return {head.node: head.end_ms for head in batch.heads}


def skips(broker: MemoryBroker) -> list[bytes]:
    return [key for key in broker.live("t.checkpoints") if key.startswith(b"@skip@")]


@pytest.mark.parametrize("node", ["a", "b", "c"])
async def test_a_window_that_fails_three_times_is_skipped_in_every_replay(
    node: str, break_if: Break
) -> None:
    log, owner = await owner_of_a_log()
    log.windows(2, *NODES)
    poison = 12 + NODES.index(node)
    end_ms = end_of(owner.broker, poison)
    attempts: list[int] = []

    def is_poison(batch: TrainingBatch) -> bool:
        if ends_of(batch).get(node) != end_ms:
            return False
        attempts.append(len(batch.heads))
        return True

    break_if(is_poison)
    with pytest.raises(RuntimeError):
        await owner.apply()
    before = value_of(failed_windows.SKIPPED)
    second = await load_again(owner, "y")
    assert value_of(failed_windows.SKIPPED) - before == 1
    assert second.output.reasons == ["failed"]
    assert attempts == [3, 3, 1, 1, 1]  # alive, in the replay, then alone
    expected = without(owner.broker, poison)
    assert content(second.model) == expected
    assert expected[node][1].lost == 1
    assert published(owner.broker, "t.node-state")["b"] == expected["b"][3]
    break_if(lambda _: False)
    third = await load_again(second, "z")
    assert (content(third.model), third.output.reasons) == (expected, [])
    await third.round()
    assert skips(owner.broker) == [skip_key(third.epoch, poison)]
    last = await load_again(third, "last")
    assert content(last.model) == expected
    # The log has the window no longer.
    owner.broker.trim("t.windows", 0, poison + 1)
    last = await load_again(last, "trimmed")
    await last.round()
    assert skips(owner.broker) == []


async def test_later_windows_of_a_node_that_failed_fail_alone(break_if: Break) -> None:
    """The worker does not end again, and other nodes are not affected."""
    log, owner = await owner_of_a_log()
    log.windows(1, *NODES)
    break_if(lambda batch: "c" in ends_of(batch))
    with pytest.raises(RuntimeError):
        await owner.apply()
    second = await load_again(owner, "y")
    log.windows(3, *NODES)
    await second.apply()
    break_if(lambda _: False)
    offsets = [14, 17, 20, 23]
    expected = without(owner.broker, *offsets)
    assert content(second.model) == expected
    assert (second.model.counters["c"].lost, second.model.owned) == (4, True)
    assert published(owner.broker, "t.node-state")["a"] == expected["a"][3]
    keys = [skip_key(second.epoch, offset) for offset in offsets]
    assert [key for key in owner.broker.live("t.checkpoints") if key in keys] == keys
    log.windows(1, *NODES)
    await second.apply()
    expected = without(owner.broker, *offsets)
    assert content(second.model) == expected
    await second.round()
    assert skips(owner.broker) == keys
    assert content((await load_again(second, "z")).model) == expected


async def test_a_worker_that_was_paused_skips_no_window(break_if: Break) -> None:
    """Its successor has applied the window."""
    log, first = await owner_of_a_log()
    log.windows(1, *NODES)
    second = await Owner(first.broker, "y").load()
    skipped = SkippedWindow(node="c", epoch=first.epoch, offset=14, error="a bug")
    key = skip_key(first.epoch, 14)
    first.broker.put("t.checkpoints", 0, key, encode_pack(skipped))
    third = await load_again(second, "z")
    assert content(third.model) == content(undisturbed(first.broker))
    await third.round()
    assert key not in first.broker.live("t.checkpoints")


async def test_a_round_of_a_paused_worker_keeps_the_skips_of_its_predecessor(
    break_if: Break,
) -> None:
    """It deletes the skips that it has written again, after its successor has read them."""
    log, owner = await owner_of_a_log()
    log.windows(1, *NODES)
    break_if(lambda batch: "c" in ends_of(batch))
    paused = await load_again(await load_again(owner, "y"), "paused")
    break_if(lambda _: False)
    assert paused.model.failures.skipped == {14: "c"}
    successor = await Owner(paused.broker, "successor").load()
    await paused.round()
    last = await load_again(successor, "last")
    assert last.model.failures.skipped == {14: "c"}
    await last.round()
    assert skips(last.broker) == [skip_key(last.epoch, 14)]


async def test_a_window_whose_results_cannot_be_encoded_is_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log, owner = await owner_of_a_log()
    log.windows(2, *NODES)
    encode = encode_node_states

    def encode_or_fail(batch: Any, *more: Any) -> Any:
        if any(window.sample_offset == 16 for window in batch.windows):
            raise ValueError("not a number")
        return encode(batch, *more)

    monkeypatch.setattr(apply_windows, "encode_node_states", encode_or_fail)
    with pytest.raises(ValueError, match="not a number"):
        await owner.apply()
    second = await load_again(owner, "y")
    assert content(second.model) == without(owner.broker, 16)
    assert second.output.reasons == ["failed"]


async def test_a_kept_partition_whose_windows_fail_is_loaded_from_its_checkpoints(
    break_if: Break,
) -> None:
    log, owner = await owner_of_a_log()
    owner.model.ownership.owned = False
    log.windows(2, *NODES)
    end_ms = end_of(owner.broker, 15)
    break_if(lambda batch: ends_of(batch).get("a") == end_ms)
    await owner.load(owner.shard)
    assert content(owner.model) == without(owner.broker, 15)


async def test_a_worker_that_cannot_apply_windows_of_many_nodes_ends(break_if: Break) -> None:
    nodes = [f"n{number:02}" for number in range(failed_windows.MAX_NODES + 1)]
    broker, _ = make_log(1, *nodes)
    break_if(lambda _: True)
    owner = Owner(broker, "x")
    with pytest.raises(StateError, match="more than 10 nodes of partition 0 cannot be applied"):
        await owner.load()
    assert len(owner.output.reasons) == failed_windows.MAX_NODES
    break_if(lambda _: False)
    again = await Owner(broker, "y").load()
    assert again.model.bank.nodes == ("n10",)


async def test_windows_of_many_nodes_that_failed_over_months_do_not_stop_a_rebuild(
    break_if: Break,
) -> None:
    nodes = [f"n{number:02}" for number in range(14)]
    broker, log = make_log(1, *nodes)
    owner = await Owner(broker, "x").load()
    await owner.round()
    poison: set[tuple[str, int]] = set()
    break_if(lambda batch: not poison.isdisjoint(ends_of(batch).items()))
    for first in (0, 4, 8):  # three bugs, of four nodes each
        start = len(broker.records("t.windows"))
        log.windows(1, *nodes)
        poison |= {(nodes[first + i], end_of(broker, start + first + i)) for i in range(4)}
        owner = await load_again(owner, f"after {first}")
        await owner.round()
    owner.die()
    other = await Owner(broker, "other", OTHER_LAYOUT).load()
    assert other.output.reasons == []
    assert sum(counters.lost for counters in other.model.counters.values()) == 12
    # In one process, too, only nodes that failed since the last complete round count.
    log.window("n12")
    log.window("n13")
    poison |= {("n12", end_of(broker, 56)), ("n13", end_of(broker, 57))}
    other.model.failures.nodes |= {"n12", "n13"}
    await other.round()
    other.model.failures.nodes |= {"n12", "n13"}
    await other.apply()
    assert (other.model.owned, other.output.reasons) == (True, ["failed", "failed"])


async def test_the_skip_of_a_truncated_window_does_not_skip_its_successor(break_if: Break) -> None:
    log, owner = await owner_of_a_log()
    log.windows(1, *NODES)
    end_ms = end_of(owner.broker, 14)
    break_if(lambda batch: ends_of(batch).get("c") == end_ms)
    second = await load_again(owner, "y")
    assert skips(owner.broker) == [skip_key(second.epoch, 14)]
    break_if(lambda _: False)
    owner.broker.truncate("t.windows", 0, 12)
    third = await load_again(second, "z")
    assert skips(owner.broker) == []
    log.windows(1, *NODES)
    await third.apply()
    assert (third.model.counters["c"].applied, third.model.counters["c"].lost) == (5, 0)


def test_the_number_of_remembered_skips_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failed_windows, "MAX_SKIPPED", 2)
    failures = failed_windows.FailedWindows()
    for offset in range(3):
        failures.add(LogRecord(0, offset, b"a", b"", 0))
    assert list(failures.skipped) == [1, 2]
    assert failures.take_records(7) == [(skip_key(7, 0), None)]
    assert failures.take_records(7) == []


async def test_lack_of_memory_is_no_fault_of_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    log, owner = await owner_of_a_log()
    log.windows(1, *NODES)
    learn = Learner.learn

    def run_out_of_memory(self: Learner, batch: TrainingBatch, nodes: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(Learner, "learn", run_out_of_memory)
    with pytest.raises(MemoryError):
        await owner.apply()
    with pytest.raises(MemoryError):
        await load_again(owner, "y")
    monkeypatch.setattr(Learner, "learn", learn)
    assert content((await load_again(owner, "z")).model) == content(undisturbed(owner.broker))
