"""Changes of alerts are published whatever happens: none is lost, repeats change nothing."""

import asyncio
import itertools
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.agents import model_agent, node_events
from pipeline.agents.model_agent import ModelCursor
from pipeline.agents.ownership import Ownership
from pipeline.processors.model.bank import Bank
from pipeline.topics.alerts import AlertRecord
from tests.agents.fakes import MemoryBroker, MemoryProducer
from tests.agents.hot_logs import HotLog, hot_log, published_alerts, without_repeats
from tests.agents.logs import CONFIG
from tests.agents.owners import MODEL_RULES, Owner, published

TRANSITIONS = ["opened", "escalated", "eased", "closed"]


def cursor_over(broker: MemoryBroker) -> tuple[ModelCursor, Any]:
    output: Any = MemoryProducer(broker)
    return ModelCursor(Ownership(0, 3), 0, Bank(CONFIG), output, MODEL_RULES), output


def undisturbed(broker: MemoryBroker) -> dict[str, list[AlertRecord]]:
    """The alerts of the log, applied once and one by one."""
    copy = MemoryBroker(logs={key: list(log) for key, log in broker.logs.items()})
    copy.logs.pop(("t.alerts", 0), None)
    asyncio.run(process_cut(copy, range(len(copy.records("t.windows")) + 1)))
    return without_repeats(published_alerts(copy))


async def process_cut(broker: MemoryBroker, cuts: Iterable[int]) -> None:
    """Apply the log in batches between these offsets."""
    model, _ = cursor_over(broker)
    for start, end in itertools.pairwise(cuts):
        await model.process(broker.records("t.windows")[start:end])


def test_every_transition_of_a_backlog_is_published(monkeypatch: pytest.MonkeyPatch) -> None:
    """In bounded appends, although only the newest node state is."""
    monkeypatch.setattr(node_events, "EVENTS_AT_ONCE", 3)
    broker, _ = hot_log(4, "a", "b")
    expected = undisturbed(broker)
    model, output = cursor_over(broker)
    sizes: list[int] = []
    append = output.append

    async def counted(topic: str, partition: int, records: Any, headers: Any = ()) -> list[int]:
        if topic == "t.alerts":
            sizes.append(len(records))
        offsets: list[int] = await append(topic, partition, records, headers)
        return offsets

    output.append = counted
    asyncio.run(model.process(broker.records("t.windows")))
    found = without_repeats(published_alerts(broker))
    assert found == expected
    assert [record.transition for record in found["a"]] == TRANSITIONS * 4
    assert (max(sizes), sum(sizes), model.events) == (3, 32, {})


def eventful_log() -> MemoryBroker:
    """Two nodes with all transitions, duplicates, a policy that ends, and a node that is deleted
    twice."""
    broker, log = hot_log(1, "a", "b")
    for cpu in (90.0,) * 4:
        log.window("a", cpu)
        log.window("b", cpu)
    log.window("b", 90.0, policy=None)
    log.retract("a")
    for cpu in (90.0,) * 3:
        log.window("a", cpu, again=True)
        log.window("a", cpu)
    log.depart("a")
    for cpu in (99.0,) * 4:
        log.window("b", cpu)
    return broker


@cache
def expected_alerts() -> dict[str, list[AlertRecord]]:
    """Those of the eventful log, applied once and one by one."""
    return undisturbed(eventful_log())


@settings(max_examples=10, deadline=None)
@given(cuts=st.lists(st.integers(0, 44), max_size=8))
def test_alerts_do_not_depend_on_batches(cuts: list[int]) -> None:
    broker, expected = eventful_log(), expected_alerts()
    asyncio.run(process_cut(broker, sorted({0, *cuts, len(broker.records("t.windows"))})))
    assert without_repeats(published_alerts(broker)) == expected
    reasons = [record.reason for record in expected["a"] if record.reason]
    assert reasons == ["cooled", "node deleted", "node deleted"]


async def test_node_state_has_the_open_alerts() -> None:
    broker, _ = hot_log(1, "a")
    model, _ = cursor_over(broker)
    seen = []
    for record in broker.records("t.windows"):
        await model.process([record])
        (state,) = published(broker, "t.node-state").values()
        seen.append([alert["severity"] for alert in state["alerts"]])
    warning, critical = ["warning"], ["critical"]
    assert seen == [[], [], *[warning] * 3, *[critical] * 2, *[warning] * 2, []]


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_no_transition_is_lost_in_crashes_at_any_point(data: st.DataObject) -> None:
    """Workers apply, write rounds, and die before, while or after they publish."""
    asyncio.run(_crashes(data))


async def _crashes(data: st.DataObject) -> None:
    broker = MemoryBroker()
    ahead = deque(eventful_log().records("t.windows"))
    owner = await Owner(broker, "first").load()
    while ahead:
        action = data.draw(st.sampled_from(["apply", "apply", "round", "step", "die", "refuse"]))
        if action in ("apply", "refuse"):
            for _ in range(min(data.draw(st.integers(1, 9)), len(ahead))):
                record = ahead.popleft()
                broker.put("t.windows", 0, record.key, record.value)
        if action == "apply":
            await owner.apply()
        elif action == "round":
            await owner.round()
        elif action == "step":
            await owner.step_round()
        else:
            if action == "refuse":  # it dies while it publishes, perhaps after a round
                deliveries, left = itertools.count(), data.draw(st.integers(0, 12))
                owner.output.refuses = lambda _, n=deliveries, left=left: next(n) >= left
                with suppress(ConnectionError):
                    await owner.apply()
                with suppress(ConnectionError):
                    await owner.round()
            owner.die()
            owner = await Owner(broker, f"worker-{len(ahead)}").load()
    assert without_repeats(published_alerts(broker)) == expected_alerts()


async def test_no_checkpoint_covers_an_alert_that_is_not_delivered() -> None:
    """A node departs, and the worker dies before the end of its alert is delivered: a checkpoint
    after the departure would hide it from every replay."""
    broker = MemoryBroker()
    log = HotLog(broker)
    log.window("b", 10.0)
    for _ in range(3):
        log.window("a", 90.0)
    owner = await Owner(broker, "first").load()
    await owner.round()
    log.depart("a")
    log.window("b", 10.0)
    owner.output.refuses = lambda topic: topic == "t.alerts"
    with pytest.raises(ConnectionError):
        await owner.apply()
    await owner.round()
    owner.die()
    assert [record.transition for record in published_alerts(broker)] == ["opened"]
    await Owner(broker, "second").load()
    found = [(record.transition, record.reason) for record in published_alerts(broker)]
    assert found[-1] == ("closed", "node deleted")


async def test_round_waits_for_alerts_that_are_being_published() -> None:
    broker = MemoryBroker()
    owner = await Owner(broker, "first").load()
    HotLog(broker).waves(1, "a")
    broker.latency = lambda: 50
    applying = asyncio.create_task(owner.apply())
    await asyncio.sleep(0)
    assert owner.model.events
    await owner.rounds.write(1e-9)
    assert len(published_alerts(broker)) == 4
    await applying


async def test_kept_partition_publishes_alerts_that_it_had_not_delivered() -> None:
    """Ownership ends while a batch is published, and the worker gets the partition again."""
    broker = MemoryBroker()
    owner = await Owner(broker, "first").load()
    HotLog(broker).waves(1, "a")
    model = owner.model
    model.ownership.owned = False
    model_agent.apply_batches([(model, broker.records("t.windows"))])
    assert model.events.keys() == {"a"}
    again = await Owner(broker, "first").load(previous=owner.shard)
    assert [record.transition for record in published_alerts(broker)] == TRANSITIONS
    assert again.model.events == {}


async def test_window_that_fails_leaves_no_alert() -> None:
    broker, _ = hot_log(1, "a")
    model, _ = cursor_over(broker)
    records = broker.records("t.windows")
    await model.process(records[:2])
    saved = model.save("a")
    model_agent.apply_batches([(model, records[2:3])])
    assert model.events.keys() == {"a"}
    model.restore("a", saved)
    assert model.events == {}
    model.next_offset = 2
    await model.process(records[2:])
    assert [record.transition for record in published_alerts(broker)] == TRANSITIONS


def test_a_repeat_is_the_same_record_but_for_the_epoch() -> None:
    broker, _ = hot_log(1, "a")
    first, second = (undisturbed(broker) for _ in range(2))
    assert first == second
    assert msgspec.json.encode(first["a"][0])
