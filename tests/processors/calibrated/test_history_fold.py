"""Histories of workloads: from states of nodes to records that are due."""

from dataclasses import replace
from functools import cache
from itertools import permutations

import numpy as np
import pytest

from pipeline.errors import CheckpointError
from pipeline.processors.calibrated import history_fold
from pipeline.processors.calibrated.history_fold import (
    RENEWAL_MS,
    WorkloadHistories,
    due_histories,
)
from pipeline.processors.calibrated.node_pools import NodePools
from pipeline.processors.calibrated.workload_history import HourlyPeaks, stated
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.state_codec import decode, encode
from pipeline.processors.model.training_batch import NodeWindow
from pipeline.topics.codec import decode_json, encode_json
from pipeline.topics.workload_histories import (
    HOUR_MS,
    LONGEST_MS,
    MOST_HOURS,
    WorkloadHistoryRecord,
    history_key,
)
from pipeline.topics.workloads import Workload
from tests.processors.predictors.test_calibrated import MIDNIGHT_MS, learned_risk, prod
from tests.processors.windows import GIB, Pod, window

WEB = Workload("shop", "Deployment", "web")
HOUR = MIDNIGHT_MS // HOUR_MS
REQUEST = (1000.0, GIB)


def record(
    hours: int = 24, end_hour: int = HOUR, usage: float = 100.0, workload: Workload = WEB
) -> WorkloadHistoryRecord:
    hourly = stated(HourlyPeaks(end_hour, np.full(hours, usage)), 1e-3)
    return WorkloadHistoryRecord(**workload._asdict(), cpu=hourly)


def windows(
    node: str, hours: int, cores: float, first_hour: int = 0, workload: Workload | None = WEB
) -> list[NodeWindow]:
    """Windows of five minutes of a node with one pod of a workload."""
    made = []
    for number in range(12 * first_hour + 1, 12 * (first_hour + hours) + 1):
        end_ms = MIDNIGHT_MS + number * 300_000
        pods = [Pod(f"{node}-1", (cores, GIB / 4), requests=REQUEST)]
        own = window(0, pods, node=node, usage=(cores, GIB))
        made.append(
            replace(own, start_ms=end_ms - 300_000, end_ms=end_ms, pod_workloads=[workload])
        )
    return made


def bank_of(made: list[NodeWindow]) -> Bank:
    return learned_risk(made, 0.1)


@cache
def states() -> dict[str, bytes]:
    """States of nodes that ran the workload for 8, 30 and 3 hours, and of one without it."""
    nodes = {"a": (8, 0.1), "b": (30, 0.2), "c": (3, 0.3)}
    made = {
        node: bank_of(windows(node, hours, cores, first_hour=40 - hours)).encode_state(node)
        for node, (hours, cores) in nodes.items()
    }
    return made | {"d": bank_of(windows("d", 8, 0.4, 32, None)).encode_state("d")}


def folded(*own: tuple[str, bytes]) -> WorkloadHistories:
    histories = WorkloadHistories()
    for node, state in own:
        histories.add(node, state)
    return histories


def test_the_longest_history_of_all_nodes_counts_in_any_order() -> None:
    results = {
        tuple(map(encode_json, folded(*order).records.values()))
        for order in permutations(states().items())
    }
    ((value,),) = results
    assert len(value) < 700
    history = decode_json(WorkloadHistoryRecord, value)
    assert history.workload == WEB
    assert history.cpu is not None
    assert history.memory is not None
    assert (len(history.cpu.hours), history.cpu.until_ms) == (30, MIDNIGHT_MS + 40 * HOUR_MS)
    assert history.cpu.highest == pytest.approx(0.2, rel=1e-6)
    assert history.memory.highest == pytest.approx(GIB / 4)
    assert folded(*states().items()).newest_ms == MIDNIGHT_MS + 40 * HOUR_MS


def test_a_full_record_has_less_than_800_bytes() -> None:
    hours = stated(HourlyPeaks(HOUR, np.linspace(1.0, 123.456, MOST_HOURS)), 1e-3)
    full = WorkloadHistoryRecord(**WEB._asdict(), cpu=hours, memory=hours)
    assert len(encode_json(full)) < 800


def test_a_node_that_begins_with_a_history_predicts_as_one_that_knows_the_workload() -> None:
    known = folded(("b", states()["b"])).records[WEB]
    come = windows("n", 1, 0.2, 41)
    told = [replace(come[0], workload_histories=[known]), *come[1:]]
    stranger, newcomer, resident = (
        prod(learned_risk([replace(one, node="node-a") for one in made], 0.1))["share"]
        for made in (come, told, windows("n", 31, 0.2, 10))
    )
    assert newcomer == pytest.approx(resident, rel=0.1)
    assert newcomer < 0.7 * stranger


def test_a_history_waits_for_its_pod_and_is_then_forgotten() -> None:
    pools = NodePools(21_600.0, 0.1)
    first, none = HOUR * 12, np.zeros(1, np.bool_)
    pools.remember([record(), record(workload=Workload("shop", "Deployment", "other"))])

    def close(step: int, usage: float) -> None:
        pools.open_step = step
        used = np.array([[usage, GIB]])
        pools.close(("p",), (WEB,), ~none, none, np.array([[1000.0, GIB]]), used)

    close(first, np.nan)  # its usage is unknown: it does not count yet
    assert [own.workload for own in pools._elsewhere.values()] == [WEB]
    again = NodePools.restored(pools.pack())
    assert again.pack() == pools.pack()
    close(first + 1, 0.05)
    assert pools._elsewhere == {}
    assert pools._pools[0].highest_usage(pools._ids_of(("p",)))[0] == pytest.approx(100.0, rel=0.01)


@pytest.mark.parametrize("apart_ms", [LONGEST_MS + HOUR_MS, -LONGEST_MS - HOUR_MS])
def test_a_history_of_long_ago_or_of_another_clock_is_not_used(apart_ms: int) -> None:
    come = windows("n", 1, 0.2)
    old = record(end_hour=HOUR + apart_ms // HOUR_MS)
    told = [replace(come[0], workload_histories=[old]), *come[1:]]
    assert prod(bank_of(renamed(told))) == prod(bank_of(renamed(come)))


def renamed(made: list[NodeWindow]) -> list[NodeWindow]:
    return [replace(one, node="node-a") for one in made]


def test_a_history_is_no_part_of_a_pod_that_is_known() -> None:
    made = windows("node-a", 8, 0.2)
    told = [*made[:50], replace(made[50], workload_histories=[record(168)]), *made[51:]]
    assert bank_of(told).encode_state("node-a") == bank_of(made).encode_state("node-a")


@pytest.mark.parametrize("name", ["web/1", "w" * 254])
def test_a_workload_whose_record_readers_would_refuse_has_none(name: str) -> None:
    state = bank_of(windows("n", 8, 0.1, workload=WEB._replace(name=name))).encode_state("n")
    assert folded(("n", state)).records == {}


def test_damaged_states_are_refused_and_add_nothing() -> None:
    histories, state = WorkloadHistories(), decode(states()["b"])
    for packed in (b"\xc1", b"\x91\xc4\x01\x00", b"\x90"):
        columns = dict(state.node_columns) | {"calibrated_pools": packed}
        with pytest.raises(CheckpointError):
            histories.add("b", encode(type(state)(**{
                name: getattr(state, name) for name in state.__struct_fields__
                if name != "node_columns"
            }, node_columns=columns)))  # fmt: skip
    assert histories.records == {}


# -- what is due


def due(
    known: WorkloadHistoryRecord | None, new: WorkloadHistoryRecord | None, newest_hour: int = HOUR
) -> list[WorkloadHistoryRecord | None]:
    histories = WorkloadHistories()
    histories.newest_ms = newest_hour * HOUR_MS
    if new is not None:
        histories.records[WEB] = new
    return [*due_histories({} if known is None else {WEB: known}, histories).values()]


def test_a_new_workload_is_due_at_once_and_then_after_six_hours() -> None:
    assert due(None, record()) == [record()]
    for hours in range(30):
        newer = record(24 + hours, HOUR + hours)
        is_due = hours * HOUR_MS >= RENEWAL_MS
        assert due(record(), newer) == ([newer] if is_due else [])


def test_a_shorter_history_replaces_a_longer_one_after_a_day() -> None:
    for hours in range(23, 26):
        newer = record(20, HOUR + hours)
        assert due(record(), newer) == ([newer] if hours >= 24 else [])


def test_a_workload_without_pods_keeps_its_record_for_seven_days() -> None:
    assert due(record(), None, HOUR + 168) == []
    assert due(record(), None, HOUR + 169) == [None]


def test_without_any_readable_checkpoint_records_stay() -> None:
    assert due_histories({WEB: record()}, WorkloadHistories()) == {}


def test_surplus_workloads_that_run_do_not_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_fold, "MOST_WORKLOADS", 3)
    running = [WEB._replace(name=f"web-{number}") for number in range(5)]
    known: dict[Workload, WorkloadHistoryRecord] = {}
    counts = []
    for hour in range(HOUR, HOUR + 8):
        histories = WorkloadHistories()
        # Nodes report at different times.
        for number, own in enumerate(running):
            histories.records[own] = record(168, hour - (hour + number) % 2, workload=own)
        histories.newest_ms = hour * HOUR_MS
        changed = due_histories(known, histories)
        counts.append([each is not None for each in changed.values()])
        merged = (known | changed).items()
        known = {own: each for own, each in merged if each is not None}
        assert len(known) == 3
    assert counts[0] == [True] * 3
    assert not any(False in of_hour for of_hour in counts)
    assert sum(len(of_hour) for of_hour in counts[1:]) == 3


def test_a_record_from_the_future_is_replaced() -> None:
    assert due(record(end_hour=HOUR + 200), record()) == [record()]
    assert due(record(end_hour=HOUR + 200), None) == [None]


def test_jobs_with_ever_new_names_have_a_bounded_number_of_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(history_fold, "MOST_WORKLOADS", 3)
    jobs = [Workload("shop", "Job", f"job-{number}") for number in range(5)]
    known = {own: record(end_hour=HOUR + i, workload=own) for i, own in enumerate(jobs[:3])}
    histories = WorkloadHistories()
    histories.newest_ms = (HOUR + 10) * HOUR_MS
    histories.records = {
        own: record(end_hour=HOUR + 5 + i, workload=own) for i, own in enumerate(jobs[3:])
    }
    changed = due_histories(known, histories)
    assert changed == dict.fromkeys(jobs[:2]) | histories.records
    left = {own: each for own, each in (known | changed).items() if each is not None}
    assert due_histories(left, histories) == {}
    assert history_key(jobs[3]) == b"workloads/shop/Job/job-3"
