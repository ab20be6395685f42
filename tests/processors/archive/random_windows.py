"""Random windows with all that a log may hold: any statistics in any order, nulls, NaN, gauges, raw
points, pods with and without facts, and the ends of nodes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.processors.archive.archive_rows import LoggedWindow
from pipeline.topics.hot_node_policy import HotNodePolicy
from pipeline.topics.nodes import Strategy
from pipeline.topics.overcommit_policy import Overcommit
from pipeline.topics.pod_columns import CLASSES, DecodedPods, encode_pod_columns
from pipeline.topics.resource_amounts import Resources
from pipeline.topics.sample_rows import Listing, encode_arrays, read_rows
from pipeline.topics.samples import NUMBER_COLUMNS, SampleHeader
from pipeline.topics.windows import (
    NodeFacts,
    Window,
    WindowRows,
    decode_window,
    departure,
    encode_window,
    retraction,
)

DAY_MS = 86_400_000
START_MS = 1_764_374_400_000  # midnight, 29 November 2025

_NODES = ("a", "b", "node-1.example")
_GAUGES = ("example.com/conntrack", "example.com/Threads")
_VALUES = (0.0, -0.0, 5e-324, 2.0**53 + 2, float("nan"), float("inf"), -1.5)
_TEXTS = ("", "x", "a/b", "Gone", "LSE", 'ü"\\', "null")
_AMOUNTS = (None, 0, 1500, 2**53)
_TEXT_FACTS = ("namespace", "name", "koordinator_qos", "phase", "owner_kind", "owner_name")
_NUMBER_FACTS = (
    "request_cpu_millicores", "request_memory_bytes", "limit_cpu_millicores", "limit_memory_bytes",
    "created_seconds",
)  # fmt: skip


def random_log(random: np.random.Generator, count: int = 8, days: int = 2) -> list[LoggedWindow]:
    """Records of two partitions in the order of their offsets. Some repeat facts of others, and
    windows start in any order within some days."""
    made = [random_window(random, days) for _ in range(count)]
    repeated = [made[random.integers(len(made))] for _ in range(count // 2)]
    return [
        LoggedWindow(int(random.integers(2)), offset, window)
        for offset, window in enumerate([*made, *repeated])
    ]


def random_window(random: np.random.Generator, days: int = 2) -> Window:
    """A record of the log, as `decode_window` returns it."""
    if random.random() < 0.1:
        end = departure if random.random() < 0.5 else retraction
        appended_ms = START_MS + int(random.integers(days * DAY_MS))
        return decode_window(encode_window(end(_choice(random, _NODES), appended_ms)))
    kinds = [_choice(random, ("pod", "pod", "tier", "host_app")) for _ in range(random.integers(6))]
    kinds.insert(random.integers(len(kinds) + 1), "node")
    names = random.permutation([*NUMBER_COLUMNS, *_GAUGES])[: random.integers(37)].tolist()
    sample = read_rows(
        encode_arrays(
            _header(random, days),
            kinds=kinds,
            ids=["" if kind == "node" else f"{kind}-{i}" for i, kind in enumerate(kinds)],
            qos=[_choice(random, ("", "Burstable")) for _ in kinds],
            statistics={name: _numbers(random, len(kinds)) for name in names},
            points=_numbers(random, 3 * int(random.integers(4))),
            containers=_containers(random, kinds),
        )
    )
    window = Window(
        type="window",
        header=sample.header,
        rows=WindowRows(sample, encode_pod_columns(_pods(random, sample.listing))),
        node=_facts(random),
        sample_offset=int(random.integers(-1, 2**53)),
        appended_ms=sample.header.window_end_ms + 500,
        bad_values={"cpu_cores_avg": 3, "é": 1} if random.random() < 0.3 else {},
    )
    return decode_window(encode_window(window))


def _header(random: np.random.Generator, days: int) -> SampleHeader:
    start_ms = START_MS + int(random.integers(days * DAY_MS))
    machine_id = _choice(random, ("", "m1", "m2"))
    return SampleHeader(
        node=_choice(random, _NODES),
        machine_id=machine_id,
        boot_id=_choice(random, ("", "b1")),
        epoch=int(random.integers(2**53)),
        sequence=int(random.integers(2**53)),
        window_start_ms=start_ms,
        window_end_ms=start_ms + int(random.integers(1, DAY_MS)),
        simulated=bool(random.integers(2)),
        source="" if machine_id else "prometheus",
    )


def _facts(random: np.random.Generator) -> NodeFacts:
    def amounts() -> Resources:
        return Resources(
            cpu_millicores=_choice(random, _AMOUNTS), memory_bytes=_choice(random, _AMOUNTS)
        )

    return NodeFacts(
        known=bool(random.integers(2)),
        # An amount that no column of whole numbers can hold.
        allocatable=Resources(cpu_millicores=2**70) if random.random() < 0.1 else amounts(),
        capacity=amounts(),
        strategy=Strategy(safety_margin_percent=float(random.random())),
        strategy_hash=_choice(random, _TEXTS),
        overcommit=_choice(random, (None, Overcommit(cpu_reclaim_threshold_percent=51))),
        host_apps={_choice(random, _TEXTS): "prod"},
        unmeasured={"batch": amounts()},
        hot_nodes=_choice(random, (None, HotNodePolicy(high_percent={"cpu": 70.0}))),
    )


def _containers(random: np.random.Generator, kinds: Sequence[str]) -> pa.ListArray | None:
    """Up to three containers of each pod, or none of any."""
    if random.random() < 0.5:
        return None
    counts = [int(random.integers(4)) if kind == "pod" else 0 for kind in kinds]
    ids = pa.array([f"{place:064x}" for count in counts for place in range(count)], pa.string())
    values = (random.choice((0.0, 0.25, 3e9), len(ids)) for _ in range(2))
    columns = [pa.array(each, mask=random.random(len(ids)) < 0.2) for each in values]
    structs = pa.StructArray.from_arrays([ids, *columns], names=["id", "cpu_cores", "memory_bytes"])
    return pa.ListArray.from_arrays(pa.array(np.cumsum([0, *counts]), pa.int32()), structs)


def _pods(random: np.random.Generator, listing: Listing) -> DecodedPods:
    count = len(listing.uids)

    def names(ids: Sequence[str]) -> tuple[str | None, ...]:
        return tuple(_choice(random, ("main", "mesh", None)) for _ in ids) or ("only",)

    def column(values: Sequence[Any]) -> tuple[Any, ...]:
        drawn = tuple(_choice(random, (None, *values)) for _ in range(count))
        # As the join writes it, a column of unknown values is missing.
        return drawn if any(value is not None for value in drawn) else ()

    named = tuple(_choice(random, (None, names(ids))) for ids in listing.container_ids)
    return DecodedPods(
        pod_class=tuple(_choice(random, (None, "new", *CLASSES)) for _ in range(count)),
        **{name: column(_TEXTS) for name in _TEXT_FACTS},
        **{name: column((0.0, 0.5, 1e300, np.pi)) for name in _NUMBER_FACTS},
        deleting=column((True, False)),
        container_names=named if any(named) else (),
    )


def _numbers(random: np.random.Generator, count: int) -> pa.DoubleArray:
    values = np.where(
        random.random(count) < 0.5, random.choice(_VALUES, count), random.normal(size=count)
    )
    return pa.array(values, mask=random.random(count) < 0.2)


def _choice(random: np.random.Generator, values: Sequence[Any]) -> Any:
    return values[int(random.random() * len(values))]
