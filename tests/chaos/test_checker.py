"""The checker accepts a sound run, and finds one seeded violation of each guarantee; no broker."""

from collections.abc import Callable
from itertools import islice
from typing import Any, cast

import msgspec
import pytest

from pipeline.processors.archive.archive_rows import LoggedWindow
from pipeline.settings import Settings
from pipeline.topics.checkpoints import NodeCheckpoint, node_key
from pipeline.topics.codec import encode_json, encode_pack
from pipeline.topics.node_state import Counters
from pipeline.topics.windows import decode_window, encode_window
from tests.chaos.archived_log import Archived, ArchivedLog
from tests.chaos.checker import Injected, Observation, Offer, problems
from tests.chaos.node_limits import NodeLimits
from tests.chaos.schedule import TARGETS, Fault, faults
from tests.chaos.test_eviction_monitor import Log
from tests.processors.joined import GIB, NODE_ROW, header, joined, pod_row
from tests.system.harness import Record
from tests.system.oracle import Expected, undisturbed
from tests.topics.golden import ALERT

START = 1_700_000_000.0
FAULT = Fault("kill", "worker-0", 5.0)


def sound_run() -> Observation:
    """A run of one node with five windows, without a violation."""
    windows = [
        joined(NODE_ROW, pod_row("a", cpu_cores_p90=0.5, memory_bytes_p90=GIB), of=header(end=end))
        for end in range(5)
    ]
    values = [
        encode_window(msgspec.structs.replace(window, sample_offset=offset))
        for offset, window in enumerate(windows)
    ]
    log = [Record(0, at, b"node-1", value, 0.0, {}) for at, value in enumerate(values)]
    expected = undisturbed({0: log}, Settings())
    of_pool = encode_json(msgspec.structs.replace(ALERT, rule="all_nodes_hot"))
    alerts = [Record(0, 0, b"pool", of_pool, START, {})]
    logs = {"windows": {0: log}, "resources": {}, "alerts": {0: alerts}} | {
        kind: {0: results(expected, kind)} for kind in ("predictions", "node-state")
    }
    return Observation(
        settings=Settings(), logs=logs | {"checkpoints": {0: checkpoints(expected)}},
        samples=[(0, offset, "node-1") for offset in range(5)],
        faults=[Injected(FAULT, START, START + 5)], signs={"worker": [START, START + 20]},
        offers=[Offer(START + 10, "node-1", (1000, 5))],
        allowed=[Offer(START, "node-1", (2000, 5)), Offer(START + 9, "node-1", (500, 5))],
        evictions=sound_evictions().observed(),
        node_limits=[NodeLimits("n", {"quota": "-1"}, {"quota": "5"}, {"quota": "-1"})],
        memory={"worker": [(START + 60 * minute, 100.0 + minute % 2) for minute in range(60)]},
        archived=ArchivedLog(
            {(0, at): value for at, value in enumerate(values)} | {(0, len(values)): b"hostile"},
            [Archived("archive-0", [logged(value, at) for at, value in enumerate(values)], 1)],
        ),
    )  # fmt: skip


def logged(value: bytes, offset: int) -> LoggedWindow:
    return LoggedWindow(0, offset, decode_window(value))


def sound_evictions() -> Log:
    log = Log()
    log.evicted(1.0, "0", "1")
    return log


def results(expected: Expected, kind: str) -> list[Record]:
    found = [value for (of, _, _), value in sorted(expected.results.items()) if of == kind]
    return [
        record(at, value | {"epoch": 7}) for at, value in enumerate(map(msgspec.json.decode, found))
    ]


def record(offset: int, value: Any) -> Record:
    return Record(0, offset, b"node-1", msgspec.json.encode(value), START, {})


def checkpoints(expected: Expected) -> list[Record]:
    canonical = msgspec.json.decode(expected.nodes["node-1"].checkpoint)
    checkpoint = NodeCheckpoint(
        node="node-1", epoch=7, round=1, generation=1, covers=5,
        state=bytes.fromhex(canonical["state"]),
        counters=msgspec.convert(canonical["counters"], Counters),
        prediction=canonical["prediction"].encode(), node_state=canonical["node_state"].encode(),
    )  # fmt: skip
    return [Record(0, 0, node_key("node-1", 7), encode_pack(checkpoint), START, {})]


def without_a_window(run: Observation) -> None:
    """The join loses a sample."""
    del run.logs["windows"][0][2]


def with_a_window_twice(run: Observation) -> None:
    """A worker applies a window of its log again after a restart."""
    states = run.logs["node-state"][0]
    state = msgspec.json.decode(states[-1].value or b"")
    state["counters"]["applied"] += 1
    states[-1] = record(states[-1].offset, state)


def with_another_result(run: Observation) -> None:
    """A worker publishes a peak that does not follow from the log."""
    states = run.logs["node-state"][0]
    state = msgspec.json.decode(states[-1].value or b"")
    state["cpu_cores"] = {"avg": 1.0}
    states.insert(0, record(0, state))


def with_an_alert_of_no_window(run: Observation) -> None:
    """A worker publishes a change of an alert that does not follow from the log."""
    run.logs["alerts"][0].append(Record(0, 1, b"node-1", encode_json(ALERT), START, {}))


def with_a_high_offer(run: Observation) -> None:
    """An actuator offers by a record that was replaced a minute ago."""
    run.offers = [Offer(START + 60, "node-1", (1000, 5))]


def with_an_offer_of_no_record(run: Observation) -> None:
    """An actuator offers what no record of the node allows."""
    run.offers = [Offer(START + 10, "node-2", (1000, 5))]


def with_an_eviction_by_name(run: Observation) -> None:
    """An evictor names a pod by its name alone."""
    log = sound_evictions()
    log.evicted(2.0, "2", uid="")
    run.evictions = log.observed()


def with_a_window_not_archived(run: Observation) -> None:
    """The archive counts a window that it did not write."""
    del archived_windows(run)[2]


def with_a_window_archived_twice(run: Observation) -> None:
    """The archive goes on before the end of its newest segment."""
    archived_windows(run).append(archived_windows(run)[4])


def with_an_archived_window_changed(run: Observation) -> None:
    """The archive gives a window the offset of another one."""
    windows = archived_windows(run)
    windows[1:3] = [LoggedWindow(0, 1, windows[2].window), LoggedWindow(0, 2, windows[1].window)]


def with_a_hostile_record_not_counted(run: Observation) -> None:
    """The archive skips a record that is no window, and does not state it."""
    (archive,) = run.archived.archives
    run.archived = run.archived._replace(archives=[archive._replace(unreadable=0)])


def with_a_gap(run: Observation) -> None:
    """The archive gives up a part of the log that the topic still has."""
    (archive,) = run.archived.archives
    run.archived = run.archived._replace(archives=[archive._replace(gaps=1)])


def with_a_damaged_archive(run: Observation) -> None:
    """The archive writes a file that is not one of an archive."""
    archive = Archived("archive-0", [], damage="columns are not those of an archive")
    run.archived = run.archived._replace(archives=[archive])


def archived_windows(run: Observation) -> list[LoggedWindow]:
    (archive,) = run.archived.archives
    return cast(list[LoggedWindow], archive.windows)


def with_a_late_role(run: Observation) -> None:
    """A worker does nothing until half a minute after the fault has ended."""
    run.signs = {"worker": [START, START + 36]}


def with_a_role_that_ended(run: Observation) -> None:
    """A watcher ends because of an error."""
    run.exit_codes = {"watcher-0": [1]}


def with_a_limit_left(run: Observation) -> None:
    """A node actuator does not save what a cgroup had."""
    run.node_limits = [NodeLimits("n", {"quota": "-1"}, {"quota": "5"}, {"quota": "5"})]


def with_an_undo_that_fails(run: Observation) -> None:
    """Undo restores everything, and ends with an error."""
    run.node_limits = [NodeLimits("n", {"quota": "-1"}, {"quota": "5"}, {"quota": "-1"}, 1)]


def without_a_limit(run: Observation) -> None:
    """A node actuator does nothing."""
    run.node_limits = [NodeLimits("n", *3 * ({"quota": "-1"},))]


def without_an_offer(run: Observation) -> None:
    """An actuator renews its lease, and writes nothing."""
    run.offers = []


def with_a_leak_at_faults(run: Observation) -> None:
    """A provider leaks in all quarters of an hour but one, in which no fault meets it."""
    run.memory = {"provider": [(START + 60 * m, 100.0 + max(m - 22, 0)) for m in range(60)]}


def with_a_leak(run: Observation) -> None:
    """A worker leaks a third of a megabyte a minute."""
    run.memory = {"worker": [(START + 60 * m, 100.0 + m / 3) for m in range(60)]}


BUGS = {
    "samples missing": without_a_window,
    "node-1: counts 1 windows too many": with_a_window_twice,
    "never was so": with_another_result,
    "1 changes of alerts that never were so": with_an_alert_of_no_window,
    "offers (1000, 5), above": with_a_high_offer,
    "no record allows any": with_an_offer_of_no_record,
    "UID: b/2 is named alone": with_an_eviction_by_name,
    "archive-0: 1 windows of the log are missing, such as (0, 2)": with_a_window_not_archived,
    "archive-0: 1 windows are archived twice, such as (0, 4)": with_a_window_archived_twice,
    "archive-0: cannot be read: columns are not those of an archive": with_a_damaged_archive,
    "archive-0: 2 windows differ from the log, such as (0, 1)": with_an_archived_window_changed,
    "archive-0: counts 0 of 1 invalid records": with_a_hostile_record_not_counted,
    "archive-0: states 1 gaps": with_a_gap,
    "worker: not back within 30 s after kill: worker-0": with_a_late_role,
    "watcher-0: ended by itself with 1": with_a_role_that_ended,
    "n: quota is 5 after undo, and was -1": with_a_limit_left,
    "n: undo of limits failed with 1": with_an_undo_that_fails,
    "n: no limit was held": without_a_limit,
    "no offers: a guarantee was not put to the test": without_an_offer,
    "grows by 20.0 MiB an hour": with_a_leak,
    "provider: grows by": with_a_leak_at_faults,
}


def test_a_sound_run_has_no_problem() -> None:
    assert problems(sound_run()) == []


def test_memory_that_takes_a_step_is_flat() -> None:
    run = sound_run()
    run.memory = {"actuator": [(START + 60 * m, 100.0 + 50 * (m > 30) + m % 2) for m in range(60)]}
    assert problems(run) == []


def test_less_than_an_hour_shows_no_growth_of_a_few_mib() -> None:
    run = sound_run()
    slow = [(START + 60 * m, 100.0 + m / 4) for m in range(61)]  # 15 MiB an hour
    run.memory = {"worker": slow[:36]}
    assert problems(run) == []
    run.memory = {"worker": slow}
    assert problems(run) == ["worker: grows by 15.0 MiB an hour"]


@pytest.mark.parametrize(
    ("says", "seed_bug"), BUGS.items(), ids=[b.__name__ for b in BUGS.values()]
)
def test_a_seeded_bug_is_found(says: str, seed_bug: Callable[[Observation], None]) -> None:
    run = sound_run()
    seed_bug(run)
    assert any(says in problem for problem in problems(run)), problems(run)


def test_the_same_seed_gives_the_same_faults() -> None:
    assert [*islice(faults(7), 40)] == [*islice(faults(7), 40)]
    assert [*islice(faults(7), 40)] != [*islice(faults(8), 40)]


def test_every_kind_occurs_before_one_occurs_again() -> None:
    drawn = [fault.kind for fault in islice(faults(3), 2 * len(TARGETS))]
    assert {*drawn[: len(TARGETS)]} == {*drawn[len(TARGETS) :]} == {*TARGETS}
