"""Compute what an undisturbed run over the same log gives, and compare another run with it.

The log is read once from its first record, in one process, without Kafka, failures or checkpoints.
A canonical result or checkpoint has no epoch, no round and no covered offset, so it does not depend
on its writer.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from pipeline.agents.apply_windows import apply_distinct, apply_end, encode_reports, segments
from pipeline.agents.bank_settings import model_config
from pipeline.agents.model_agent import ModelCursor
from pipeline.agents.ownership import Ownership
from pipeline.agents.partition_models import ModelRules, PartitionWindow
from pipeline.kafka.partition_log import LogRecord
from pipeline.kafka.producer import Producer
from pipeline.processors.model.bank import Bank
from pipeline.settings import Settings
from pipeline.topics.alerts import RULES, AlertRecord
from pipeline.topics.checkpoints import NodeCheckpoint, parse_key
from pipeline.topics.codec import decode_pack, encode_json
from pipeline.topics.node_state import Counters
from pipeline.topics.windows import decode_window
from tests.system.harness import Logs, Record

_AT_A_TIME = 61
_encode = msgspec.json.Encoder(order="sorted")


class Canonical(NamedTuple):
    """The canonical records of a node."""

    prediction: bytes
    node_state: bytes
    checkpoint: bytes


EVENT_TOPICS = {"alerts": "changes of alerts", "accuracy": "judged peaks"}
"""Topics of events of nodes, and what problems call these."""


@dataclass
class Expected:
    """The results of an undisturbed run.

    `results` has the canonical result of each window by kind, partition and offset, `events` the
    canonical events of each node by topic, in order.
    """

    results: dict[tuple[str, int, int], bytes] = field(default_factory=dict)
    nodes: dict[str, Canonical] = field(default_factory=dict)
    departed: set[str] = field(default_factory=set)
    retracted: set[str] = field(default_factory=set)
    counters: dict[str, Counters] = field(default_factory=dict)
    events: dict[str, dict[str, list[bytes]]] = field(
        default_factory=lambda: {topic: {} for topic in EVENT_TOPICS}
    )


def undisturbed(windows: Mapping[int, Sequence[Record]], settings: Settings) -> Expected:
    """Apply the log once."""
    expected = Expected()
    model = settings.model
    rules = ModelRules(prefix="none", statistic=model.training_statistic)
    for partition, records in windows.items():
        no_output: Producer = None  # type: ignore[assignment]
        ownership, bank = Ownership(partition, epoch=0), Bank(model_config(settings))
        cursor = ModelCursor(ownership, 0, bank, no_output, rules)
        log = [LogRecord(partition, r.offset, r.key, r.value, round(r.at * 1000)) for r in records]
        for start in range(0, len(log), _AT_A_TIME):
            decoded, refused = cursor.decode(log[start : start + _AT_A_TIME])
            assert not refused
            for kind, offset, value in _every_result(decoded):
                expected.results[kind, partition, offset] = canonical_result(value)
        expected.retracted |= cursor.retracted.keys()
        for node, own in cursor.events.items():
            for event in own:
                events = expected.events["alerts" if isinstance(event, AlertRecord) else "accuracy"]
                events.setdefault(node, []).append(canonical_result(encode_json(event)))
        for node, last in cursor.reports.items():
            if last is None:
                expected.departed.add(node)
                continue
            assert last.prediction is not None
            expected.counters[node] = cursor.counters[node]
            expected.nodes[node] = Canonical(
                canonical_result(last.prediction),
                canonical_result(last.node_state),
                _canonical_state(
                    node, cursor.bank.encode_state(node), cursor.counters[node],
                    last.prediction, last.node_state,
                ),
            )  # fmt: skip
    return expected


def _every_result(windows: Sequence[PartitionWindow]) -> Iterator[tuple[str, int, bytes]]:
    """Yield (kind, offset, value) of each window: its node state, its offers if the policy makes
    any, and its prediction if due."""
    for run in segments(windows):
        if run[0].window.type != "window":
            apply_end(run[0])
            continue
        pending = [applied.pending() for applied in apply_distinct(run)]
        reports = encode_reports(pending)
        for each, reported in zip(pending, reports, strict=True):
            yield "node-state", each.source.offset, reported.node_state
            if reported.resources is not None:
                yield "resources", each.source.offset, reported.resources
            if each.prediction is not None:
                yield "predictions", each.source.offset, each.prediction


def differences(logs: Logs, expected: Expected) -> list[str]:
    """Describe how result topics and checkpoints differ from `expected`."""
    found: list[str] = []
    predictions, states = newest(logs["predictions"]), newest(logs["node-state"])
    checkpoints = newest_checkpoints(logs["checkpoints"])
    for kind, have in (
        ("prediction", predictions), ("node state", states), ("checkpoint", checkpoints)
    ):  # fmt: skip
        found += [f"{node}: no {kind}" for node in sorted(expected.nodes.keys() - have.keys())]
        found += [
            f"{node}: a {kind} that no_output should have written"
            for node in sorted(have.keys() - expected.nodes.keys())
            if kind != "checkpoint" or node not in expected.retracted
        ]
    for node, want in sorted(expected.nodes.items()):
        for kind, have, wanted in (
            ("prediction", predictions, want.prediction),
            ("node state", states, want.node_state),
            ("checkpoint", checkpoints, want.checkpoint),
        ):
            if node in have and have[node] != wanted:
                found.append(f"{node}: {kind} differs{_first_difference(have[node], wanted)}")
    return found + impossible_results(logs, expected) + event_differences(logs, expected)


def impossible_results(logs: Logs, expected: Expected) -> list[str]:
    """Describe results, also overwritten ones, that do not follow from their window."""
    found: list[str] = []
    for kind in ("predictions", "node-state", "resources"):
        for at, records in logs.get(kind, {}).items():
            for record in records:
                if record.value is None:
                    continue
                have = canonical_result(record.value)
                offset = msgspec.json.decode(have)["offset"]
                want = expected.results.get((kind, at, offset))
                if have != want:
                    where = "" if want is None else _first_difference(have, want)
                    found.append(f"{record.key!r}: {kind} of offset {offset} never was so{where}")
    return found


def event_differences(logs: Logs, expected: Expected) -> list[str]:
    """Describe nodes whose events, without repeats, are not those of one pass in order.

    The planner's alerts, which do not follow from windows, are left out.
    """
    found: list[str] = []
    for topic, words in EVENT_TOPICS.items():
        published: dict[str, dict[bytes, None]] = {}
        for records in logs.get(topic, {}).values():
            for record in records:
                event = msgspec.json.decode(record.value or b"")
                if topic != "alerts" or event["rule"] in RULES:
                    events = published.setdefault(event["node"], {})
                    events.setdefault(canonical_result(record.value or b""))
        wanted = expected.events[topic]
        for node in sorted(wanted.keys() | published.keys()):
            problems = _differences([*published.get(node, ())], wanted.get(node, []), words)
            found += [f"{node}: {problem}" for problem in problems]
    return found


def _differences(have: list[bytes], want: list[bytes], words: str) -> list[str]:
    found = []
    if missing := [event for event in want if event not in have]:
        count = f"all {len(want)}" if missing == want else f"{len(missing)} of {len(want)}"
        found.append(f"{count} {words} missing, first {missing[0]!r}")
    if invented := [event for event in have if event not in want]:
        found.append(f"{len(invented)} {words} that never were so, first {invented[0]!r}")
    if not missing and not invented and have != want:
        found.append(f"{words} are out of order")
    return found


def newest(partitions: Mapping[int, Iterable[Record]]) -> dict[str, bytes]:
    """Return the newest canonical result by node, as readers see it.

    Results are ordered by generation and offset; a tombstone removes the result.
    """
    found: dict[str, bytes] = {}
    position: dict[str, tuple[int, int]] = {}
    for records in partitions.values():
        for record in records:
            node = record.key.decode()
            if record.value is None:
                found.pop(node, None)
                position.pop(node, None)
                continue
            result = msgspec.json.decode(record.value)
            at = (result["generation"], result["offset"])
            if at >= position.get(node, at):
                position[node], found[node] = at, canonical_result(record.value)
    return found


def newest_by_node(partitions: Mapping[int, Iterable[Record]]) -> dict[str, dict[str, Any]]:
    """Return `newest` without offsets."""
    found = {node: msgspec.json.decode(value) for node, value in newest(partitions).items()}
    return {
        node: {name: value for name, value in result.items() if name != "offset"}
        for node, result in found.items()
    }


def newest_checkpoints(partitions: Mapping[int, Iterable[Record]]) -> dict[str, bytes]:
    """Return the canonical checkpoint of the highest epoch by node."""
    live: dict[str, dict[int, bytes]] = {}
    for records in partitions.values():
        for record in records:
            kind, node, epoch = parse_key(record.key)
            if kind != "node":
                continue
            if record.value is None:
                live.get(node, {}).pop(epoch, None)
            else:
                live.setdefault(node, {})[epoch] = record.value
    found = {}
    for node, by_epoch in live.items():
        if by_epoch:
            made = decode_pack(NodeCheckpoint, by_epoch[max(by_epoch)])
            found[node] = _canonical_state(
                node, made.state, made.counters, made.prediction or b"{}", made.node_state or b"{}"
            )
    return found


def canonical_result(value: bytes) -> bytes:
    """Return a prediction or node state without the epoch of its writer."""
    result = msgspec.json.decode(value)
    result.pop("epoch", None)
    return _encode.encode(result)


def _canonical_state(
    node: str, state: bytes, counters: Counters, prediction: bytes, node_state: bytes
) -> bytes:
    return _encode.encode(
        {"node": node, "state": state.hex(), "counters": counters,
         "prediction": canonical_result(prediction).decode(),
         "node_state": canonical_result(node_state).decode()}
    )  # fmt: skip


def _first_difference(have: bytes, want: bytes) -> str:
    first: dict[str, Any] = msgspec.json.decode(have)
    second: dict[str, Any] = msgspec.json.decode(want)
    fields = [name for name in second if first.get(name) != second[name]]
    return "".join(f" [{n}: {first.get(n)!s:.60} != {second[n]!s:.60}]" for n in fields[:3])


# -- the log itself


def sample_problems(
    logs: Logs, samples: Iterable[tuple[int, int, str]], ignore: set[str] | frozenset[str]
) -> list[str]:
    """Describe samples that are missing in the log or whose windows are out of order."""
    found: list[str] = []
    produced: dict[int, dict[int, str]] = {}
    for at, offset, node in samples:
        produced.setdefault(at, {})[offset] = node
    for at, offsets in produced.items():
        seen: dict[int, None] = {}
        for record in logs["windows"].get(at, ()):
            window = decode_window(record.value or b"")
            if window.type == "window":
                seen.setdefault(window.sample_offset)
        needed = {offset for offset, node in offsets.items() if node not in ignore}
        missing = sorted(needed.difference(seen))
        if missing:
            found.append(f"partition {at}: {len(missing)} samples missing, first {missing[:5]}")
        # A worker that does not know of a deletion yet may join samples that another one dropped.
        order = [offset for offset in seen if offsets.get(offset) not in ignore]
        if order != sorted(order):
            found.append(f"partition {at}: samples first appear out of order")
    return found


def applied_twice(logs: Logs, expected: Expected) -> list[str]:
    """Describe nodes whose newest state counts other windows than a simple pass over the log."""
    last_end: dict[str, int] = {}
    appended: dict[str, int] = {}
    began: dict[str, int] = {}
    machines: dict[str, str] = {}
    applied: Counter[str] = Counter()
    for records in logs["windows"].values():
        for record in records:
            window = decode_window(record.value or b"")
            node, end = window.header.node, window.header.window_end_ms
            if window.type == "retraction":
                continue
            if window.type == "departure":
                if window.appended_ms < began.get(node, 0):  # a paused worker wrote it late
                    continue
                last_end.pop(node, None)
                applied.pop(node, None)
                appended.pop(node, None)
                began.pop(node, None)
            elif end > last_end.get(node, -1):
                start, machine = window.header.window_start_ms, window.header.machine_id
                # All windows have one length: another machine waits for one missing window, by the
                # broker's clock.
                silent_ms = window.appended_ms - appended.get(node, 0)
                if machine != machines.get(node) and silent_ms < 2 * (end - start):
                    continue
                appended[node] = max(appended.get(node, 0), window.appended_ms)
                began[node] = appended[node] - (end - start)
                last_end[node], machines[node] = end, machine
                applied[node] += 1
    reported = {
        node: msgspec.json.decode(value)["counters"]["applied"]
        for node, value in newest(logs["node-state"]).items()
    }
    found: list[str] = []
    for node, count in sorted(applied.items()):
        if node in expected.retracted:
            continue
        if (more := reported.get(node, 0) - count) != 0:
            found.append(f"{node}: counts {abs(more)} windows too {'many' if more > 0 else 'few'}")
        if expected.counters[node].applied != count:
            found.append(f"{node}: the log has {count} windows, one pass applies another number")
    return found


def fresh_after(logs: Logs, moment: float) -> float | None:
    """Return the seconds from `moment` (Unix time) until every partition had a new node state.

    A node state is new if its window had no result before `moment`. None if a partition has none.
    """
    found = []
    for records in logs["node-state"].values():
        highest = -1
        for record in records:
            if record.value is None:
                continue
            offset = msgspec.json.decode(record.value)["offset"]
            if record.at > moment and offset > highest:
                found.append(record.at - moment)
                break
            highest = max(highest, offset)
        else:
            return None
    return max(found, default=None)


def problems(logs: Logs, samples: Sequence[tuple[int, int, str]], ignore: set[str],
             settings: Settings) -> list[str]:  # fmt: skip
    """Describe all differences of a run from an undisturbed one."""
    expected = undisturbed(logs["windows"], settings)
    return [
        *sample_problems(logs, samples, ignore),
        *differences(logs, expected),
        *applied_twice(logs, expected),
        *(f"dead letter: {r.headers}" for p in logs["dead-letters"].values() for r in p),
    ]
