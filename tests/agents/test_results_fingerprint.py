"""A recorded log gives the same predictions, node states, resources and models as before.

The input is in `tests/agents/recorded_log.py`. Every window goes through the join, the codec of the
windows topic and the model agent. `tests/data/fingerprint/expected.json` holds SHA-256 digests by
settings, node and kind of record, and `records.json.gz` a short digest of each record and the last
record of each node. Floats are rounded to 10 significant digits before they are hashed: `pow` and
numpy's logarithm may differ in the last bit between CPUs. A relative change of 1e-9 still shows.
Between batchings of one run results must be equal to the last bit.

The model state is hashed field by field. Two hashes of texts are left out because names are in
them: the bank's fingerprint, and the column that marks changed settings (`published_terms`).

To accept new results on purpose: `python -m tests.agents.test_results_fingerprint`.
"""

import asyncio
import difflib
import gzip
import hashlib
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest

from pipeline.agents.bank_settings import model_config
from pipeline.agents.model_agent import ModelCursor, process_batches
from pipeline.agents.ownership import Ownership
from pipeline.agents.partition_models import ModelRules
from pipeline.kafka.partition_log import LogRecord
from pipeline.processors.join.pod_facts import pod_row
from pipeline.processors.join.sample_join import NodeObjects, join
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.column_store import Column, Columns
from pipeline.processors.model.state_codec import decode as decode_state
from pipeline.processors.predictors.registry import PREDICTORS
from pipeline.settings import Settings
from pipeline.settings.base import MemoryCollectPolicy
from pipeline.topics.nodes import KnownNode, Strategy
from pipeline.topics.pods import PodFacts
from pipeline.topics.sample_rows import read_rows
from pipeline.topics.samples import SampleBatch, SampleHeader, encode_samples
from pipeline.topics.windows import departure, encode_window
from tests.agents.recorded_log import DIRECTORY, Event, read_events, sample_rows

ACCEPT = "python -m tests.agents.test_results_fingerprint"
EXPECTED = DIRECTORY / "expected.json"
RECORDS = DIRECTORY / "records.json.gz"
PARTITIONS = 2
DIGITS = 10

SETTINGS: dict[str, dict[str, Any]] = {
    "usual": {"predictors": (*PREDICTORS.points,)},
    "changed": {
        "predictors": (*PREDICTORS.points,),
        "predictor": "max",
        "predictor_options": {
            "percentile": {"cpu": 0.99},
            "hourly-nsigma": {"history_seconds": 3600.0},
        },
        "training_statistic": "p95",
        "drift": "shorten",
        "classes": {
            "batch": {"histogram": {"preset": "vpa"}, "horizon_seconds": 3600.0},
            "prod": {"half_life_seconds": {"cpu": 7200.0}},
        },
        "minimum_coverage": 0.8,
        "expiration_seconds": 7200.0,
        "cold_start_seconds": 1800.0,
    },
}

MEMORY_POLICIES: dict[str, MemoryCollectPolicy] = {
    "usual": "usageWithoutPageCache", "changed": "usageWithPageCache"
}  # fmt: skip
"""Of the nodes of the log, by settings."""

BATCHES = {"usual": (1, 7, 60), "changed": (60, 400)}
"""Batch sizes by settings; expected are the results of the first."""

# Fields of a node's state with their types: per node, per entity and pod, and per listed pod.
_STATE = {
    "allocatable": "<f8", "listed": "<u4", "classes": "<i1", "requests": "<f8", "ages": "<f8",
    "active": "<u1", "ended": "<u1", "weight": "<f8", "mean": "<f8", "squares": "<f8",
    "samples": "<i8", "first_ms": "<i8", "last_ms": "<i8", "seen_ms": "<i8", "profile": "<i1",
}  # fmt: skip
_HISTOGRAMS = {"bucket_counts": "<u2", "buckets": "<u2", "bucket_weights": "<f8"}
_COLUMNS = {
    "recent": Column((2, 288), "<u2"), "recent_slot": Column((), "<i8"),
    "hourly_7": Column((24, 3, 2), "<f4"), "hourly_7_missed": Column((24, 2), "<u2"),
    "hourly_7_at": Column((), "<i4"),
}  # fmt: skip
_NODE_COLUMNS = {
    "points": Column((2, 1800)), "points_second": Column((), "<i8"),
    "published": Column((4, 2)), "published_ms": Column((), "<i8"),
    "eased_ms": Column((4, 2), "<i8"),
    "relaxed_ms": Column((4, 2), "<i8"), "hold_ms": Column((4, 2), "<i8"),
    "drift_buckets": Column((8, 2, 55)), "drift_total": Column((8, 2)),
    "drift_squares": Column((8, 2)), "drift_values": Column((8, 2), "<i4"),
    "drift_scale": Column((2,)), "drift_ms": Column((8, 2), "<i8"),
    "drift_count": Column((8, 2), "<i4"),
}  # fmt: skip
_VALUES = (
    "node", "machine_id", "epoch", "end_ms", "window_ms", "coverage", "strategy", "applied", "gaps",
    "reference_ms", "uids",
)  # fmt: skip


class Results(NamedTuple):
    """What one pass over the log gave.

    `published` has all values by node and kind in order, None for a tombstone; `states` the exact
    state of each node that has models at the end.
    """

    published: dict[str, dict[str, list[bytes | None]]]
    states: dict[str, bytes]

    @property
    def last(self) -> dict[str, dict[str, bytes | None]]:
        return {
            node: {kind: values[-1] for kind, values in kinds.items()}
            for node, kinds in self.published.items()
        }


class _Output:
    """Collects what model cursors publish."""

    def __init__(self) -> None:
        self.published: dict[str, dict[str, list[bytes | None]]] = {}

    async def append(
        self, topic: str, partition: int, records: Any, headers: Any = ()
    ) -> list[int]:
        for key, value in records:
            kinds = self.published.setdefault(key.decode(), {})
            kinds.setdefault(topic.removeprefix("t."), []).append(value)
        return list(range(len(records)))

    async def dead_letters(self, topic: str, partition: int, letters: Any) -> None:
        raise AssertionError(f"the worker refused records of the log: {letters}")


def recorded_windows(name: str) -> list[LogRecord]:
    """The log as records of the windows topic: nodes in turn to `PARTITIONS` partitions, with the
    memory policy of these settings."""
    strategy = Strategy(memory_collect_policy=MEMORY_POLICIES[name])
    nodes: dict[str, KnownNode] = {}
    pods: dict[str, dict[str, Any]] = {}
    partitions: dict[str, int] = {}
    offsets = [0] * PARTITIONS
    log = []
    for event in read_events():
        node = event["node"]
        if event["type"] == "node":
            nodes[node] = msgspec.convert(event["record"], KnownNode)
        elif event["type"] == "pods":
            known = pods.setdefault(node, {})
            for uid, record in event["set"].items():
                known[uid] = pod_row(msgspec.convert(record, PodFacts))
            for uid in event["drop"]:
                del known[uid]
        else:
            partition = partitions.setdefault(node, len(partitions) % PARTITIONS)
            offset = offsets[partition]
            offsets[partition] += 1
            view = NodeObjects(nodes.get(node), dict(pods.get(node, {})))
            value = _encoded(event, view, offset, strategy)
            log.append(LogRecord(partition, offset, node.encode(), value, event["appended_ms"]))
    return log


def _encoded(event: Event, view: NodeObjects, offset: int, strategy: Strategy) -> bytes:
    """The record that the join agent writes for a `window` or `departure` event."""
    if event["type"] == "departure":
        return encode_window(departure(event["node"], event["appended_ms"]))
    rows = [
        {name: float(value) if type(value) is int else value for name, value in row.items()}
        for row in sample_rows(event)
    ]
    header = SampleHeader(node=event["node"], **event["header"])
    sample = read_rows(encode_samples(SampleBatch(header, rows)))
    window = join(
        sample, view, strategy, sample_offset=offset, appended_ms=event["appended_ms"]
    )  # fmt: skip
    return encode_window(window)


def results(log: list[LogRecord], settings: dict[str, Any], batch_size: int) -> Results:
    """What the model agent makes of the log, in batches of so many records."""
    config = model_config(msgspec.convert({"model": settings}, Settings))
    rules = ModelRules(prefix="t", statistic=config.training_statistic)
    output: Any = _Output()
    bank = Bank(config)
    banks = [bank, *(bank.sibling() for _ in range(PARTITIONS - 1))]
    cursors = [
        ModelCursor(Ownership(partition, epoch=3), 0, own, output, rules)
        for partition, own in enumerate(banks)
    ]

    async def run() -> None:
        for start in range(0, len(log), batch_size):
            batch = log[start : start + batch_size]
            await process_batches(
                [
                    (cursor, [record for record in batch if record.partition == partition])
                    for partition, cursor in enumerate(cursors)
                ]
            )

    asyncio.run(run())
    states = {node: own.encode_state(node) for own in banks for node in own.nodes}
    return Results(output.published, states)


def canonical(value: bytes | None) -> Any:
    """A published record as plain values with rounded floats; None for a tombstone."""
    return None if value is None else _rounded(json.loads(value))


def state_values(state: bytes) -> Any:
    """All that a node's state holds by name, as plain values with rounded floats."""
    read = decode_state(state)
    values: dict[str, Any] = {name: getattr(read, name) for name in _VALUES}
    for name, dtype in _STATE.items():
        values[name] = np.frombuffer(getattr(read, name), dtype).tolist()
    for name, dtype in _HISTOGRAMS.items():
        values[name] = [np.frombuffer(data, dtype).tolist() for data in getattr(read, name)]
    values |= _column_values(_COLUMNS, read.columns, len(values["profile"]))
    values |= _column_values(_NODE_COLUMNS, read.node_columns, 1)
    return _rounded(msgspec.to_builtins(values))


def _column_values(columns: dict[str, Column], packed: Any, rows: int) -> dict[str, Any]:
    values = Columns(columns).unpack(packed, rows)
    return {name: array.ravel().tolist() for name, array in values.items()}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value + 0.0:.{DIGITS - 1}e}")
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    return value


def _digest(values: Any) -> str:
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def fingerprint(found: Results) -> tuple[dict[str, Any], dict[str, Any]]:
    """Digests by node and kind, and by node and kind a short digest of each record and the last
    record. The kinds are the topics and `models`, one digest for each field of the state."""
    digests: dict[str, Any] = {}
    records: dict[str, Any] = {}
    for node, kinds in sorted(found.published.items()):
        digests[node], records[node] = {}, {}
        for kind, values in sorted(kinds.items()):
            each = [canonical(value) for value in values]
            digests[node][kind] = {"records": len(each), "sha256": _digest(each)}
            short = [_digest(record)[:8] for record in each]
            records[node][kind] = {"digests": short, "last": each[-1]}
        if node in found.states:
            values = state_values(found.states[node])
            fields = {name: _digest(value)[:16] for name, value in values.items()}
            digests[node]["models"] = {"fields": fields}
    return digests, records


def _differences(name: str, found: Results) -> Iterator[str]:
    """What differs from the expected results with these settings: node, kind, first record."""
    digests, records = fingerprint(found)
    expected = json.loads(EXPECTED.read_text())[name]
    recorded = json.loads(gzip.decompress(RECORDS.read_bytes()))[name]
    for node in sorted(expected.keys() | digests.keys()):
        kinds, known = digests.get(node, {}), expected.get(node, {})
        for kind in sorted(kinds.keys() | known.keys()):
            if kinds.get(kind) == known.get(kind):
                continue
            yield f"{name}: {kind} of {node} differ"
            if kind == "models" and kind in kinds and kind in known:
                now, then = kinds[kind]["fields"], known[kind]["fields"]
                fields = sorted(n for n in now.keys() | then.keys() if now.get(n) != then.get(n))
                yield f"  fields that differ: {', '.join(fields)}"
            elif kind in kinds and kind in known:
                yield from _first_difference(
                    found.published[node][kind], records[node][kind], recorded[node][kind]
                )


def _assert_expected(name: str, found: Results) -> None:
    differences = list(_differences(name, found))
    advice = f"if the new results are right, accept them: {ACCEPT}"
    assert not differences, "\n".join([advice, *differences])


def _first_difference(values: list[bytes | None], now: Any, then: Any) -> Iterator[str]:
    counts = len(now["digests"]), len(then["digests"])
    both = zip(now["digests"], then["digests"], strict=False)
    first = next((i for i, (new, old) in enumerate(both) if new != old), min(counts))
    yield f"  {counts[0]} records, {counts[1]} expected; the first that differs is number {first}"
    if first < counts[0]:
        yield f"  it is now {json.dumps(canonical(values[first]), sort_keys=True)}"
    if now["last"] != then["last"]:
        old, new = (
            json.dumps(r["last"], indent=1, sort_keys=True).split("\n") for r in (then, now)
        )
        yield from difflib.unified_diff(old, new, "last, expected", "last, now", n=2, lineterm="")


@pytest.fixture(scope="module")
def log() -> list[LogRecord]:
    return recorded_windows("usual")


@pytest.fixture(scope="module")
def usual(log: list[LogRecord]) -> Results:
    return reference("usual", log)


def reference(name: str, log: list[LogRecord]) -> Results:
    """The results with these settings that the expected ones are compared with.

    Of windows that share a batch the agent publishes the newest of each node, so that only window
    by window every record is defined; else the last records are taken.
    """
    size = BATCHES[name][0]
    found = results(log, SETTINGS[name], size)
    if size == 1:
        return found
    last = {n: {kind: [value] for kind, value in kinds.items()} for n, kinds in found.last.items()}
    return found._replace(published=last)


def test_results_window_by_window_are_as_expected(usual: Results) -> None:
    _assert_expected("usual", usual)


def test_last_results_with_other_settings_are_as_expected() -> None:
    log = recorded_windows("changed")
    found = reference("changed", log)
    _assert_expected("changed", found)
    for size in BATCHES["changed"][1:]:
        _assert_same_end(results(log, SETTINGS["changed"], size), found)


@pytest.mark.parametrize("size", BATCHES["usual"][1:])
def test_batches_end_in_the_same_bits(size: int, log: list[LogRecord], usual: Results) -> None:
    _assert_same_end(results(log, SETTINGS["usual"], size), usual)


def _assert_same_end(found: Results, other: Results) -> None:
    """Final models and last records are equal byte by byte."""
    states = found.states.keys() | other.states.keys()
    assert [n for n in sorted(states) if found.states.get(n) != other.states.get(n)] == []
    nodes = found.last.keys() | other.last.keys()
    assert [n for n in sorted(nodes) if found.last.get(n) != other.last.get(n)] == []


def test_the_log_has_every_case(usual: Results) -> None:
    last = {node: canonical(kinds["node-state"][-1]) for node, kinds in usual.published.items()}
    assert [node for node, state in last.items() if not state] == ["sim-00006", "never-seen"]
    counters = [state["counters"] for state in last.values() if state]
    for name in ("duplicate", "late", "second_exporter", "gaps", "untrained", "bad_values"):
        assert sum(counter[name] for counter in counters), name
    published = [kinds["predictions"] for kinds in usual.published.values()]
    predictions = [canonical(value) for values in published for value in values if value]
    classes = {name for prediction in predictions for name in prediction["classes"]}
    assert classes == {"prod", "mid", "batch", "free", "none", "unknown"}
    records = [event["record"] for event in read_events() if event["type"] == "node"]
    named = {record["strategy"]["predictor"] for record in records if record["strategy"]}
    # borg-default has no peak of Prod and cannot decide; percentile is the default.
    deciding = {prediction["predictor"] for prediction in predictions}
    assert deciding == named - {"borg-default"} | {"percentile"}
    assert any(sum(p["node_peaks"]["model"]["drifts"].values()) for p in predictions)


def write_expected() -> None:
    """Take the present results for right."""
    made = {name: fingerprint(reference(name, recorded_windows(name))) for name in SETTINGS}
    digests = {name: found[0] for name, found in made.items()}
    records = {name: found[1] for name, found in made.items()}
    EXPECTED.write_text(json.dumps(digests, indent=1) + "\n")
    RECORDS.write_bytes(gzip.compress(json.dumps(records).encode(), 9, mtime=0))


if __name__ == "__main__":
    write_expected()
