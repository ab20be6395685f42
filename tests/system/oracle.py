"""What an undisturbed run over the same windows log gives, and how another run differs from it.

The log is read once, from its first record, in one process without Kafka, failures or checkpoints.
Canonical is a result or a checkpoint without who wrote it and when: without epoch, round and the
offset that a checkpoint covers.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from pipeline.agents.bank_settings import model_config
from pipeline.agents.learn_windows import learn, report, segments
from pipeline.agents.model_agent import ModelCursor
from pipeline.agents.ownership import Ownership
from pipeline.agents.partition_models import ModelRules, PartitionWindow
from pipeline.kafka.partition_log import LogRecord
from pipeline.kafka.producer import Producer
from pipeline.processors.model.bank import Bank
from pipeline.settings import Settings
from pipeline.topics.checkpoints import NodeCheckpoint, parse_key
from pipeline.topics.codec import decode_pack
from pipeline.topics.node_state import Counters
from pipeline.topics.windows import decode_window
from tests.system.harness import Logs, Record

_AT_A_TIME = 61
_encode = msgspec.json.Encoder(order="sorted")


class Canonical(NamedTuple):
    """All that is said of a node, without who said it."""

    prediction: bytes
    node_state: bytes
    checkpoint: bytes


@dataclass
class Expected:
    """An undisturbed run: nodes with models, those that have departed, and the counters. `said`
    has what follows from each window, by kind of result, partition and offset."""

    said: dict[tuple[str, int, int], bytes] = field(default_factory=dict)
    nodes: dict[str, Canonical] = field(default_factory=dict)
    departed: set[str] = field(default_factory=set)
    counters: dict[str, Counters] = field(default_factory=dict)


def undisturbed(windows: Mapping[int, Sequence[Record]], settings: Settings) -> Expected:
    """One pure pass over the log."""
    expected = Expected()
    model = settings.model
    rules = ModelRules(
        prefix="none", statistic=model.training_statistic, memory_policy=model.memory_collect_policy
    )
    for at, records in windows.items():
        nobody: Producer = None  # type: ignore[assignment]
        cursor = ModelCursor(Ownership(at, epoch=0), 0, Bank(model_config(settings)), nobody, rules)
        log = [LogRecord(at, r.offset, r.key, r.value, round(r.at * 1000)) for r in records]
        for start in range(0, len(log), _AT_A_TIME):
            placed, refused = cursor.decode(log[start : start + _AT_A_TIME])
            assert not refused
            for kind, offset, value in _every_result(placed):
                expected.said[kind, at, offset] = canonical_result(value)
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
                    node, cursor.bank.state_of(node), cursor.counters[node],
                    last.prediction, last.node_state,
                ),
            )  # fmt: skip
    return expected


def _every_result(placed: Sequence[PartitionWindow]) -> Iterator[tuple[str, int, bytes]]:
    """Of each window its node state, and its prediction if it is due: not only the newest."""
    for run in segments(placed):
        if run[0].window.type == "departure":
            run[0].models.forget(run[0].node)
            continue
        told = [applied.pending() for applied in learn(run)]
        for (of, _, _, prediction), reported in zip(told, report(told), strict=True):
            yield "node-state", of.offset, reported.node_state
            if prediction is not None:
                yield "predictions", of.offset, prediction


def differences(logs: Logs, expected: Expected) -> list[str]:
    """How what lies in the result topics and checkpoints differs from `expected`."""
    found: list[str] = []
    predictions, states = newest(logs["predictions"]), newest(logs["node-state"])
    checkpoints = newest_checkpoints(logs["checkpoints"])
    for kind, have in (
        ("prediction", predictions), ("node state", states), ("checkpoint", checkpoints)
    ):  # fmt: skip
        found += [f"{node}: no {kind}" for node in sorted(expected.nodes.keys() - have.keys())]
        found += [
            f"{node}: a {kind} that nobody should have written"
            for node in sorted(have.keys() - expected.nodes.keys())
        ]
    for node, want in sorted(expected.nodes.items()):
        for kind, have, wanted in (
            ("prediction", predictions, want.prediction),
            ("node state", states, want.node_state),
            ("checkpoint", checkpoints, want.checkpoint),
        ):
            if node in have and have[node] != wanted:
                found.append(f"{node}: {kind} differs{_where(have[node], wanted)}")
    return found + never_so(logs, expected)


def never_so(logs: Logs, expected: Expected) -> list[str]:
    """Results, the overwritten ones too, that do not follow from the window that they name."""
    found: list[str] = []
    for kind in ("predictions", "node-state"):
        for at, records in logs[kind].items():
            for record in records:
                if record.value is None:
                    continue
                have = canonical_result(record.value)
                offset = msgspec.json.decode(have)["offset"]
                want = expected.said.get((kind, at, offset))
                if have != want:
                    where = "" if want is None else _where(have, want)
                    found.append(f"{record.key!r}: {kind} of offset {offset} never was so{where}")
    return found


def newest(partitions: Mapping[int, Iterable[Record]]) -> dict[str, bytes]:
    """Canonical newest result of each node, as a reader must find it: ordered by generation and
    offset, the older dropped, gone with its tombstone."""
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


def newest_anywhere(partitions: Mapping[int, Iterable[Record]]) -> dict[str, dict[str, Any]]:
    """What `newest` gives, without where in the log it comes from."""
    found = {node: msgspec.json.decode(value) for node, value in newest(partitions).items()}
    return {
        node: {name: value for name, value in result.items() if name != "offset"}
        for node, result in found.items()
    }


def newest_checkpoints(partitions: Mapping[int, Iterable[Record]]) -> dict[str, bytes]:
    """Canonical checkpoint of each node of its highest epoch."""
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
            assert made.prediction is not None
            assert made.node_state is not None
            found[node] = _canonical_state(
                node, made.state, made.counters, made.prediction, made.node_state
            )
    return found


def canonical_result(value: bytes) -> bytes:
    """A prediction or node state without the epoch of its writer."""
    result = msgspec.json.decode(value)
    del result["epoch"]
    return _encode.encode(result)


def _canonical_state(
    node: str, state: bytes, counters: Counters, prediction: bytes, node_state: bytes
) -> bytes:
    return _encode.encode(
        {
            "node": node,
            "state": state.hex(),
            "counters": counters,
            "prediction": canonical_result(prediction).decode(),
            "node_state": canonical_result(node_state).decode(),
        }
    )


def _where(have: bytes, want: bytes) -> str:
    first: dict[str, Any] = msgspec.json.decode(have)
    second: dict[str, Any] = msgspec.json.decode(want)
    fields = [name for name in second if first.get(name) != second[name]]
    return "".join(f" [{n}: {first.get(n)!s:.60} != {second[n]!s:.60}]" for n in fields[:3])


# -- the log itself


def sample_problems(
    logs: Logs, samples: Iterable[tuple[int, int, str]], ignore: set[str] | frozenset[str]
) -> list[str]:
    """Samples that are missing in the log, or whose windows are not in the order of the samples."""
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
        # Of a node that departs, a worker that does not know it yet may join what others left out.
        order = [offset for offset in seen if offsets.get(offset) not in ignore]
        if order != sorted(order):
            found.append(f"partition {at}: samples first appear out of order")
    return found


def applied_twice(logs: Logs, expected: Expected) -> list[str]:
    """Nodes whose newest state counts other windows than a naive reading of the log."""
    last_end: dict[str, int] = {}
    machines: dict[str, str] = {}
    applied: Counter[str] = Counter()
    for records in logs["windows"].values():
        for record in records:
            window = decode_window(record.value or b"")
            node, end = window.header.node, window.header.window_end_ms
            if window.type == "departure":
                last_end.pop(node, None)
                applied.pop(node, None)
            elif end > last_end.get(node, -1):
                start, machine = window.header.window_start_ms, window.header.machine_id
                # All windows are of one length: another machine waits for one without any.
                silent = start - last_end[node] >= end - start if node in last_end else True
                if machine != machines.get(node) and not silent:
                    continue
                last_end[node], machines[node] = end, machine
                applied[node] += 1
    reported = {
        node: msgspec.json.decode(value)["counters"]["applied"]
        for node, value in newest(logs["node-state"]).items()
    }
    return [
        f"{node}: counts {reported.get(node)} windows, the log has {count}"
        for node, count in sorted(applied.items())
        if reported.get(node) != count or expected.counters[node].applied != count
    ]


def fresh_after(logs: Logs, moment: float) -> float | None:
    """Seconds from `moment` (Unix time) until every partition had a node state of a window that
    nobody had reported of before it; None if one has none."""
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
    """All that is wrong with a run; empty if it is as good as undisturbed."""
    expected = undisturbed(logs["windows"], settings)
    return [
        *sample_problems(logs, samples, ignore),
        *differences(logs, expected),
        *applied_twice(logs, expected),
        *(f"dead letter: {r.headers}" for p in logs["dead-letters"].values() for r in p),
    ]
