"""A recorded log of windows, as decoded values that do not depend on how records are encoded.

`log.jsonl.gz` holds one event a line: `node` replaces what is known of a node, `pods` adds pods of
a node and removes others, `window` is a sample with the log's append time, `departure` removes a
node. Values are in the units of the topics; NaN and infinities are invalid on purpose.

To record the log again, for instance with more cases: `python -m tests.agents.recorded_log`.
All expected results change with it (`tests/agents/test_results_fingerprint.py`).
"""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from pipeline.processors.predictors.registry import PREDICTORS

DIRECTORY = Path(__file__).parent.parent / "data" / "fingerprint"
LOG = DIRECTORY / "log.jsonl.gz"

Event = dict[str, Any]
_POINTS = ("points_offset_seconds", "points_cpu_cores", "points_memory_bytes")
_START = 1_760_400_000  # a whole number of every window length
# Pods, window length in seconds, number of windows.
_NODES = (
    (10, 600, 150), (8, 60, 130), (12, 30, 90), (6, 300, 120), (9, 600, 120), (11, 120, 125),
    (5, 600, 24),
)  # fmt: skip
_OVERCOMMIT: tuple[dict[str, Any] | None, ...] = (
    {},
    None,
    {"cpu_calculate_policy": "maxUsageRequest", "memory_calculate_policy": "request"},
    {"mid_unallocated_percent": 20, "promise_once": False, "buffer_percent": 5,
     "mid_cpu_threshold_percent": 40, "batch_cpu_threshold_percent": 80},
    {"mid_formula": "v1.3", "mid_reclaim_percent": 70, "memory_reclaim_threshold_percent": 75},
    {"mid_reclaim_mode": "static", "mid_static_cpu_reserved_percent": 15,
     "mid_static_memory_reserved_percent": 10},
)  # fmt: skip


def read_events() -> list[Event]:
    """The recorded events in order."""
    with gzip.open(LOG, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def sample_rows(event: Event) -> list[dict[str, Any]]:
    """The rows of a `window` event, a mapping from column to value each; the node row is first."""
    columns = event["columns"]
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    rows[0] |= event["points"]
    return rows


def write_events() -> None:
    """Record the log again."""
    lines = [json.dumps(event, separators=(",", ":")) + "\n" for event in _record()]
    DIRECTORY.mkdir(exist_ok=True)
    LOG.write_bytes(gzip.compress("".join(lines).encode(), 9, mtime=0))


def _record() -> Iterator[Event]:
    """Windows of all nodes, one of each node in turn."""
    streams = [_node_events(index, *shape) for index, shape in enumerate(_NODES)]
    while streams:
        for stream in list(streams):
            events = next(stream, None)
            if events is None:
                streams.remove(stream)
            else:
                yield from events
    yield {"type": "departure", "node": "never-seen", "appended_ms": 1000 * _START}


def _node_events(index: int, places: int, length: int, count: int) -> Iterator[list[Event]]:
    """The events of one node, a list for each of its windows."""
    from pipeline.sources.simulated_nodes import (
        SimulatedNode,  # only recording needs the simulation
    )

    node = SimulatedNode(seed=20_251, index=index, pods=places)
    random = np.random.default_rng([20_251, index])
    known: dict[str, Event] = {}
    sent: list[Event] = []
    for i in range(count):
        events: list[Event] = []
        if i % 25 == 0 and index != 3:  # of node 3 no source knows anything
            events.append(_node_record(node.record, index, i // 25))
        start = _START + i * length
        pods, hidden = _pods(node.pods(start, start + length), index, i)
        gone = [uid for uid in known if uid not in pods and known[uid]["phase"] != "Gone"]
        changed = {uid: pod for uid, pod in pods.items() if known.get(uid) != pod}
        for uid in gone:  # the join knows deleted pods for a while
            changed[uid] = known[uid] | {"phase": "Gone", "deleted_at": "2025-10-14T00:00:00Z"}
        dropped = [uid for uid in known if known[uid]["phase"] == "Gone"] if i % 5 == 0 else []
        known = {uid: pod for uid, pod in (known | changed).items() if uid not in dropped}
        if (changed or dropped) and index != 3:
            events.append({"type": "pods", "node": node.name, "set": changed, "drop": dropped})
        silent = (index == 1 and 85 <= i < 105) or random.random() < 0.02
        if not silent:
            epoch = 2 if index == 5 and i >= 100 else 1
            sample = node.sample(start, start + length, epoch=epoch, sequence=i)
            window = _window(sample, hidden, index, i, random)
            sent.append(window)
            events.append(window)
            events += _again(sent, index, i, random)
        if (index == 4 and i == 60) or (index == 6 and i == count - 1):
            departure = {"type": "departure", "node": node.name}
            events.append(departure | {"appended_ms": 1000 * (start + length)})
        yield events


def _again(sent: list[Event], index: int, i: int, random: np.random.Generator) -> list[Event]:
    """Duplicates, late windows and windows of a second exporter."""
    repeated: list[Event] = []
    if random.random() < 0.02:
        repeated.append(sent[-1])
    if random.random() < 0.02:
        repeated.append(sent[-min(3, len(sent))])
    if random.random() < 0.01:
        repeated.append(sent[-1] | {"header": sent[-1]["header"] | {"epoch": 9}})
    if index == 2 and 60 <= i < 66:  # another machine sends under the same name
        header = sent[-1]["header"]
        shifted = {"window_end_ms": header["window_end_ms"] + 7000, "machine_id": "other"}
        repeated.append(sent[-1] | {"header": header | shifted})
    return repeated


def _window(
    sample: Any, hidden: set[str], index: int, i: int, random: np.random.Generator
) -> Event:
    header = {name: getattr(sample.header, name) for name in sample.header.__slots__}
    header |= {"boot_id": "boot", "machine_id": f"machine-{index}", "simulated": index == 0}
    if index == 1 and i >= 105:  # replaced while it was silent
        header["machine_id"] = "machine-new"
    if index == 3 and i < 50:  # a provider, which does not know the machine
        header["machine_id"] = ""
    rows = [dict(row) for row in sample.rows if row["id"] not in hidden]
    points = {name: rows[0].pop(name) for name in _POINTS}
    rows += _other_rows(rows, index, i, random)
    _disturb(rows, points, i, random)
    names = [name for name in dict.fromkeys(n for row in rows for n in row) if _has(index, name)]
    columns = {name: [_rounded(name, row.get(name)) for row in rows] for name in names}
    return {
        "type": "window",
        "node": header.pop("node"),
        "header": header,
        "appended_ms": header["window_end_ms"] + int(random.integers(20, 900)),
        "columns": columns,
        "points": {
            name: [_rounded(name, value) for value in values]
            for name, values in points.items()
            if index in (0, 1, 2, 5)
        },
    }


def _has(index: int, name: str) -> bool:
    """Whether the source of this node measures a column; kernels and providers differ."""
    if name.startswith("memory_with_page_cache"):
        return index in (0, 4) and name.endswith(("_avg", "_p90"))
    if name.startswith("memory_with_hot_page_cache"):
        return index == 2 and name.endswith("_avg")
    if index == 3:
        return not name.endswith(("_p90", "_p95", "_last", "_second"))
    if name.endswith("_last"):
        return index == 5
    return index != 1 or not name.endswith("_p90")


def _other_rows(rows: list[Event], index: int, i: int, random: np.random.Generator) -> list[Event]:
    """Host applications, the system remainder and the best-effort tier."""
    if index not in (1, 4, 5):
        return []
    names = {"host_app": ["log-agent", "sync", "orphan"][: 1 + i // 30 % 3], "tier": ["besteffort"]}
    if index != 4:
        names["tier"].append("system")
    other = []
    for kind, ids in names.items():
        for name in ids:
            scale = random.lognormal(-2.5, 0.5) * (8.0 if name == "system" else 1.0)
            usage = {
                column: value * scale / 4.0
                for column, value in rows[0].items()
                if column.startswith(("cpu_cores", "memory_")) and value is not None
            }
            coverage = float(random.choice([1.0, 1.0, 0.95, 0.4]))
            other.append({"kind": kind, "id": name, "coverage": coverage, **usage})
    return other


def _disturb(
    rows: list[Event], points: dict[str, list[Any]], i: int, random: np.random.Generator
) -> None:
    """Partly covered windows, unknown and invalid values; some levels change for good."""
    luck = random.random(8)
    if luck[0] < 0.10:
        share = float(random.choice([0.2, 0.49, 0.5, 0.8, 0.93]))
        for row in rows:
            row["coverage"] = min(row["coverage"], share)
    row = rows[int(random.integers(len(rows)))]
    if luck[1] < 0.05:
        for name in row:
            if name.startswith(("cpu_", "memory_")):
                row[name] = None
    if luck[2] < 0.03:
        rows[0]["cpu_cores_p90"] = rows[0]["memory_bytes_avg"] = None
    if luck[3] < 0.05:
        row["cpu_cores_avg"] = float(random.choice([np.nan, -1.0, np.inf, 1e30]))
        row["memory_bytes_max"] = float(random.choice([np.nan, -0.0, -np.inf, 1e300]))
    if luck[4] < 0.02:
        row["coverage"] = None
    if luck[5] < 0.10:
        points["points_cpu_cores"][3] = None
        points["points_memory_bytes"][5] = -1.0
        points["points_offset_seconds"][-1] *= 1.5
    if luck[6] < 0.03:
        for values in points.values():
            del values[2:]
    if 70 <= i < 110:
        for row in rows:
            for name in ("cpu_cores_avg", "cpu_cores_p90", "cpu_cores_p95", "cpu_cores_max"):
                if row.get(name) is not None:
                    row[name] *= 2.5


def _rounded(name: str, value: Any) -> Any:
    """A value with few digits: the log is to stay small."""
    if not isinstance(value, float) or not np.isfinite(value) or abs(value) > 1e18:
        return value
    if "memory" in name:
        return round(value / 2**18) * 2**18
    return round(value, 3 if "cpu" in name or "pressure" in name else 2)


def _node_record(record: Any, index: int, phase: int) -> Event:
    """What is known of a node in one phase; allocatable, strategy and overcommit change."""
    turn, predictors = index + phase, [*PREDICTORS.points]
    cpu, memory = record.allocatable.cpu_millicores, record.allocatable.memory_bytes
    strategy: dict[str, Any] = {
        "predictor": predictors[(3 * index + phase) % len(predictors)],
        "safety_margin_percent": (0.0, 10.0, 25.0)[turn % 3],
        "cold_start_seconds": (600.0, 3600.0, 86_400.0)[turn % 3],
        "nsigma_multiplier": (3.0, 2.0, 5.0, 0.5)[turn % 4],
        "resource_diff_threshold_percent": (5.0, 0.0, 20.0)[turn % 3],
        "report_interval_seconds": (60.0, 300.0)[turn % 2],
    }
    annotations = {}
    if turn % 4 == 1:
        annotations["node.koordinator.sh/reservation"] = '{"resources":{"cpu":"1","memory":"1Gi"}}'
    if turn % 4 == 2:
        annotations["node.koordinator.sh/raw-allocatable"] = f'{{"cpu":"{cpu * 9 // 10}m"}}'
    return {
        "type": "node",
        "node": record.node,
        "record": {
            "node": record.node,
            "uid": f"uid-{index}",
            "allocatable": {
                "cpu_millicores": cpu * (10 - phase) // 10,
                "memory_bytes": None if turn == 6 else memory * (10 - phase % 2) // 10,
            },
            "capacity": msgspec.to_builtins(record.capacity),
            "annotations": annotations,
            "strategy": strategy if turn % 5 else None,
            "strategy_hash": f"hash-{turn}",
            "overcommit": _OVERCOMMIT[turn % len(_OVERCOMMIT)],
            "host_apps": {"log-agent": "prod", "sync": "batch"},
        },
    }


def _pods(pods: Any, index: int, i: int) -> tuple[dict[str, Event], set[str]]:
    """Records of the pods of a window by the uid in their cgroup's name, and the pods among them
    that have no row. Which class a pod has follows from its uid."""
    found: dict[str, Event] = {}
    hidden: set[str] = set()
    for uid, pod in pods.items():
        turn = int(uid[:8], 16) % 12
        phase = "Running"
        if turn % 3 == 0:  # comes and goes: pending, running, ended, deleted
            step = (i + 7 * turn) % 45
            if step < 14:
                hidden.add(uid)
            if step < 10:
                continue
            phase = "Pending" if step < 14 else "Succeeded" if step > 41 else "Running"
        if turn == 11:  # measured, but no source knows it
            continue
        record = msgspec.to_builtins(pod)
        found[uid] = {
            name: record.get(name)
            for name in ("node", "uid", "namespace", "name", "owner", "pod_class", "qos")
        } | {
            "cgroup_uid": uid, "phase": phase, "requests": record.get("requests", {}),
            "limits": {"cpu_millicores": 2000, "memory_bytes": 2**31} if turn % 2 else {},
            "created_at": None if turn == 8 else pod.created_at,
            "deleted_at": "2025-10-14T00:00:00Z" if phase == "Running" and turn == 9 else None,
        }  # fmt: skip
        if turn == 4:
            found[uid] |= {"pod_class": "none", "qos": ""}
        elif turn == 7:
            found[uid] |= {"pod_class": "free", "qos": "BE"}
        elif turn == 10:
            found[uid] |= {"pod_class": "prod", "qos": "LSE"}
        elif turn == 6 and i % 30 > 25:  # its class is not known for a while
            found[uid] |= {"pod_class": "unknown", "qos": ""}
    return found, hidden


if __name__ == "__main__":
    write_events()
