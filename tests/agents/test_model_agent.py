"""The model cursor: results are a function of the log and do not depend on batches."""

import asyncio
import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.agents import apply_windows, published_models
from pipeline.agents import model_agent as module
from pipeline.agents.model_agent import ModelCursor
from pipeline.agents.ownership import Ownership
from pipeline.agents.partition_models import NodeReport
from pipeline.processors.model.bank import Bank
from pipeline.topics.result_header import position_of
from pipeline.topics.windows import decode_window
from tests.agents.fakes import MemoryBroker, MemoryProducer
from tests.agents.logs import CONFIG, LogWriter, make_log, window
from tests.agents.owners import MODEL_RULES, canonical, content, published, undisturbed
from tests.metric_values import value_of


def cursor_over(broker: MemoryBroker, epoch: int = 3) -> tuple[ModelCursor, Any]:
    output: Any = MemoryProducer(broker)
    return ModelCursor(Ownership(0, epoch), 0, Bank(CONFIG), output, MODEL_RULES), output


def busy_log() -> MemoryBroker:
    """Write two nodes with duplicates, late windows, gaps, a second exporter, a departure."""
    broker, log = make_log(4, "a", "b")
    log.window("a", skip=-1)
    log.window("b", skip=-3)
    log.window("b", skip=5, cpu_cores_p90=-1.0)
    log.window("a", skip=-1, epoch=2)
    log.windows(2, "a", "b")
    log.depart("a")
    log.windows(2, "b")
    log.windows(3, "a")
    log.depart("b")
    return broker


@settings(max_examples=12, deadline=None)
@given(cuts=st.lists(st.integers(0, 23), max_size=6))
def test_results_do_not_depend_on_batches(cuts: list[int]) -> None:
    broker = busy_log()
    records = broker.records("t.windows")
    model, _ = cursor_over(broker)
    for start, end in itertools.pairwise(sorted({0, *cuts, len(records)})):
        asyncio.run(model.process(records[start:end]))
    expected = undisturbed(broker)
    assert content(model) == content(expected)
    assert (model.next_offset, model.joined) == (expected.next_offset, expected.joined)
    # A departed node is forgotten after its tombstones were delivered.
    assert set(model.reports) == set(model.bank.nodes) == set(expected.bank.nodes)
    for topic, field in (("t.predictions", 2), ("t.node-state", 3)):
        assert published(broker, topic) == {
            node: values[field] for node, values in content(expected).items()
        }


def offsets(broker: MemoryBroker, topic: str) -> dict[str, list[int]]:
    """Return the offsets of published results by node, in order."""
    published_offsets: dict[str, list[int]] = {"a": [], "b": []}
    for record in broker.records(topic):
        offset = canonical(record.value or b"")["offset"]
        published_offsets[(record.key or b"").decode()].append(offset)
    return published_offsets


async def test_every_applied_window_has_its_own_node_state_in_order() -> None:
    """The state has the whole node at every window."""
    broker, _ = make_log(5, "a", "b")
    model, _ = cursor_over(broker)
    for record in broker.records("t.windows"):
        await model.process([record])
    assert offsets(broker, "t.node-state") == {"a": [0, 2, 4, 6, 8], "b": [1, 3, 5, 7, 9]}


async def test_the_newest_results_of_windows_applied_at_once_are_published() -> None:
    """With a backlog, results that would be replaced at once are not written."""
    one_by_one, at_once = (make_log(40, "a", "b")[0] for _ in range(2))
    for broker, step in ((one_by_one, 1), (at_once, 20)):
        model, _ = cursor_over(broker)
        records = broker.records("t.windows")
        for start in range(0, len(records), step):
            await model.process(records[start : start + step])
    assert offsets(at_once, "t.node-state") == {"a": [18, 38, 58, 78], "b": [19, 39, 59, 79]}
    for topic in ("t.predictions", "t.node-state"):
        assert published(at_once, topic) == published(one_by_one, topic)
    every, some = (offsets(broker, "t.predictions") for broker in (one_by_one, at_once))
    for node, observed in some.items():
        # The last due prediction of each call.
        assert observed == list({offset // 20: offset for offset in every[node]}.values())


async def test_a_prediction_is_published_only_when_due() -> None:
    """Early if the peak changed, else after the force interval."""
    broker, _ = make_log(150, "a", "b")
    model, _ = cursor_over(broker)
    for record in broker.records("t.windows"):
        await model.process([record])
    for node, observed in offsets(broker, "t.predictions").items():
        assert observed[0] == "ab".index(node)
        assert 5 < len(observed) < 60
        # Windows of 5 s of two nodes: 600 s are 240 offsets.
        assert all(later - earlier <= 240 for earlier, later in itertools.pairwise(observed))
        _, _, prediction, node_state = content(model)[node]
        assert (prediction["offset"], node_state["offset"]) == (observed[-1], 298 + observed[0])


async def test_counts_of_skipped_windows_are_published_with_the_next_state() -> None:
    broker, log = make_log(3, "a")
    log.window("a", skip=-1)  # the last one again
    log.window("a", skip=-2)  # the one before it
    log.window("a", skip=0, epoch=9)  # again the last, from somebody else
    log.window("a", skip=4)  # four are missing
    model, output = cursor_over(broker)
    await model.process(broker.records("t.windows"))
    counters = model.counters["a"]
    assert (counters.applied, counters.gaps) == (4, 4)
    state = published(broker, "t.node-state")["a"]
    assert (counters.last_gap_at, counters.last_bad_value_at) == (state["as_of"], None)
    assert (counters.duplicate, counters.late, counters.second_exporter) == (1, 1, 1)
    assert (state["counters"]["late"], output.letters) == (1, [])


async def test_the_times_of_the_last_gap_and_invalid_value_are_published() -> None:
    broker = MemoryBroker()
    log, (model, _) = LogWriter(broker), cursor_over(broker)
    observed = []
    invalid: dict[str, Any] = {"cpu_cores_avg": -1.0}
    for usage in ({}, {"skip": 2}, invalid, {}):
        log.window("a", **usage)
        await model.process(broker.records("t.windows")[-1:])
        state = published(broker, "t.node-state")["a"]
        times = ("last_gap_at", "last_bad_value_at")
        observed.append((state["as_of"], *(state["counters"][name] for name in times)))
    ends = [end for end, _, _ in observed]
    assert [times for _, *times in observed] == [
        [None, None], [ends[1], None], [ends[1], ends[2]], [ends[1], ends[2]],
    ]  # fmt: skip
    # A window that is not applied does not change the state.
    log.window("a", skip=-1, cpu_cores_avg=-1.0)
    await model.process(broker.records("t.windows")[-1:])
    counters = model.counters["a"]
    assert (counters.bad_values, counters.last_bad_value_at) == (2, ends[2])


async def test_a_departure_publishes_only_tombstones() -> None:
    broker, log = make_log(2, "a", "b")
    log.depart("a")
    model, _ = cursor_over(broker)
    await model.process(broker.records("t.windows"))
    results = [published(broker, topic) for topic in ("t.predictions", "t.node-state")]
    assert [set(nodes) for nodes in (model.bank.nodes, model.counters, *results)] == [{"b"}] * 4


@pytest.mark.parametrize("late_by_ms", [0, 1])
async def test_a_departure_from_before_the_last_window_is_ignored(late_by_ms: int) -> None:
    """A worker that was paused appends what it knew before the node returned."""
    broker, log = make_log(2, "a")
    last = decode_window(broker.records("t.windows")[-1].value or b"")
    began_ms = last.appended_ms - 5000
    log.depart("a", began_ms - late_by_ms)
    model, _ = cursor_over(broker)
    before = value_of(apply_windows.OLD_DEPARTURES)
    await model.process(broker.records("t.windows"))
    assert model.bank.nodes == (("a",) if late_by_ms else ())
    assert value_of(apply_windows.OLD_DEPARTURES) - before == late_by_ms
    assert model.next_offset == 3


async def test_tombstones_state_where_in_the_log_results_end() -> None:
    broker, log = make_log(2, "a", "b")
    departed = log.depart("a")
    model, output = cursor_over(broker)
    await model.process(broker.records("t.windows"))
    for topic in ("t.predictions", "t.resources", "t.node-state"):
        positions = {
            record.key: position_of(output.headers.get((topic, 0, record.offset), ()))
            for record in broker.records(topic)
            if record.key == b"a" or record.value is not None
        }
        expected: dict[bytes, Any] = {b"a": (1, departed)}
        if topic != "t.resources":
            expected[b"b"] = None
        assert positions == expected


async def test_the_departure_of_an_unknown_node_is_harmless() -> None:
    broker, log = make_log(0)
    log.depart("a")
    model, _ = cursor_over(broker)
    await model.process(broker.records("t.windows"))
    assert (model.next_offset, published(broker, "t.predictions")) == (1, {})


async def test_an_invalid_window_becomes_a_dead_letter_and_the_position_advances() -> None:
    broker, log = make_log(1, "a")
    broker.put("t.windows", 0, b"a", b"junk")
    broker.put("t.windows", 0, b"b", window("a", 7, sample_offset=5))
    log.window("a")
    model, output = cursor_over(broker)
    await model.process(broker.records("t.windows"))
    assert output.reasons == ["undecodable", "key_mismatch"]
    assert model.counters["a"].applied == 2
    # A refused window does not advance the join.
    assert (model.next_offset, model.joined) == (4, 1)


async def test_models_and_position_advance_even_if_publishing_fails() -> None:
    broker, _ = make_log(2, "a")
    model, output = cursor_over(broker)
    output.refuses = lambda topic: topic == "t.node-state"
    with pytest.raises(ConnectionError):
        await model.process(broker.records("t.windows"))
    assert model.next_offset == 2
    output.refuses = lambda topic: False
    await model.publish(model.reports.items())
    assert published(broker, "t.node-state")["a"] == content(undisturbed(broker))["a"][3]


def test_a_replay_skips_the_windows_covered_by_a_nodes_checkpoint() -> None:
    broker, _ = make_log(3, "a", "b")
    model, _ = cursor_over(broker)
    model.replay(broker.records("t.windows"), {"a": 4, "b": 6})
    assert model.reports == {}
    assert not model.encode_replayed(10)
    assert list(model.reports) == ["a"]
    assert {node: counters.applied for node, counters in model.counters.items()} == {"a": 1}
    assert (model.next_offset, model.joined) == (6, 5)


@settings(max_examples=10, deadline=None)
@given(cut=st.integers(0, 23), limit=st.integers(1, 3))
def test_a_replay_gives_the_models_and_reports_of_live_processing(cut: int, limit: int) -> None:
    broker = busy_log()
    records = broker.records("t.windows")
    model, _ = cursor_over(broker)
    for part in (records[:cut], records[cut:]):
        if part:
            model.replay(part, {})
    while model.encode_replayed(limit):
        pass
    expected = undisturbed(broker)
    assert content(model) == content(expected)
    assert (model.next_offset, model.joined) == (expected.next_offset, expected.joined)
    assert {node for node, report in model.reports.items() if report is None} == {"b"}


async def test_a_replay_skips_invalid_records() -> None:
    broker, log = make_log(1, "a")
    broker.put("t.windows", 0, b"a", b"junk")
    broker.put("t.windows", 0, b"\xff", window("b", 7, sample_offset=1))
    log.window("a")
    model, output = cursor_over(broker)
    model.replay(broker.records("t.windows"), {})
    model.encode_replayed(50)
    assert (model.bank.nodes, model.counters["a"].applied) == (("a",), 2)
    assert (model.next_offset, output.letters) == (4, [])


async def test_a_revoked_partition_is_neither_applied_nor_published() -> None:
    broker, log = make_log(2, "a")
    model, output = cursor_over(broker)
    append = output.append

    async def lose(*arguments: Any) -> Any:
        model.ownership.owned = False
        return await append(*arguments)

    output.append = lose
    await model.process(broker.records("t.windows"))
    assert offsets(broker, "t.predictions") == {"a": [1], "b": []}
    assert broker.records("t.node-state") == []
    log.windows(1, "a")
    await model.process(broker.records("t.windows")[2:])
    assert (model.next_offset, model.counters["a"].applied) == (2, 2)


async def test_only_an_oversized_result_is_not_published(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, _ = make_log(1, "a", "b")
    model, _ = cursor_over(broker)
    reports = module.apply_batches([(model, broker.records("t.windows"))])[0][model]
    largest = max(len(report.node_state) for _, report in reports if report)
    due = [report.prediction for _, report in reports if report and report.prediction]
    assert min(map(len, due)) > largest
    monkeypatch.setattr(published_models, "LARGEST_VALUE_BYTES", largest)
    before = value_of(published_models.OVERSIZED.labels("predictions"))
    await model.publish(reports)
    assert broker.records("t.predictions") == []
    assert offsets(broker, "t.node-state") == {"a": [0], "b": [1]}
    assert value_of(published_models.OVERSIZED.labels("predictions")) - before == len(due)


async def test_a_departure_is_remembered_until_its_tombstones_are_delivered() -> None:
    broker, log = make_log(1, "a", "b")
    log.depart("a")
    model, output = cursor_over(broker)
    output.refuses = lambda topic: topic == "t.node-state"
    with pytest.raises(ConnectionError):
        await model.process(broker.records("t.windows"))
    assert model.reports["a"] is None
    output.refuses = lambda topic: False
    await model.publish(list(model.reports.items()))
    assert set(model.reports) == {"b"}


@pytest.mark.parametrize("prediction", [None, b"", b'{"node": "a"}', bytes(30_000)])
def test_a_packed_report_returns_its_content(prediction: bytes | None) -> None:
    report = NodeReport(prediction, b"old")
    newer = report.with_newer(b"new", None)
    for _ in range(2):
        assert (report.prediction, report.node_state) == (prediction, b"old")
        assert (newer.prediction, newer.node_state) == (prediction, b"new")
        assert report.with_newer(b"last", b"some").prediction == prediction
        report.pack()
