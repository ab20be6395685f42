"""Result records: a golden example in full, what is unknown, equal bytes for equal input."""

import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.processors.join.sample_join import NodeObjects
from pipeline.processors.kubernetes.pod_classes import CLASSES
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.model_config import ModelConfig
from pipeline.processors.model.result_records import encode_node_states, encode_prediction
from pipeline.processors.model.window_batch import WindowBatch
from pipeline.settings.base import MemoryCollectPolicy
from pipeline.topics.codec import decode_json, encode_json
from pipeline.topics.node_state import (
    AGGREGATIONS,
    AggregatedUsage,
    Counters,
    Fractions,
    NodeStateRecord,
    UsageDeviation,
)
from pipeline.topics.nodes import NodeRecord, NodeStrategy
from pipeline.topics.predictions import CountColumns, Counts, PredictionRecord
from pipeline.topics.resource_amounts import Resources, Usage
from pipeline.topics.windows import Window
from tests.processors.joined import (
    GIB,
    NODE_ROW,
    NOTHING,
    VIEWS,
    Row,
    counting,
    header,
    joined,
    known_pod,
    logged,
    pod_row,
    rows,
    view_of,
)

PLAIN: MemoryCollectPolicy = "usageWithoutPageCache"
WITH: MemoryCollectPolicy = "usageWithPageCache"
COUNTERS = Counters(applied=1, bad_values=2)
POSITION = {"generation": 3, "offset": 77, "epoch": 9}


def reports(
    window: Window, *, policy: MemoryCollectPolicy = PLAIN, bank: Bank | None = None, **changes: int
) -> tuple[PredictionRecord, NodeStateRecord]:
    """Both records after `window`, applied to `bank` or to a new one, as read."""
    prediction, state = encoded(window, policy=policy, bank=bank, **changes)
    return decode_json(PredictionRecord, prediction), decode_json(NodeStateRecord, state)


def encoded(
    window: Window, *, policy: MemoryCollectPolicy = PLAIN, bank: Bank | None = None, **changes: int
) -> tuple[bytes, bytes]:
    """Both records as they are written."""
    bank = bank or Bank(ModelConfig())
    window = logged(window)
    batch = WindowBatch([counting(window, policy)])
    bank.apply(batch.training("p90"))
    node, position = window.header.node, POSITION | changes
    peaks, recent = bank.peaks([node]), bank.recent_usage([node])
    (state,) = encode_node_states(
        batch, [peaks.summaries[0]], recent, [COUNTERS], [None], [()], [{}], [position]
    )
    return encode_prediction(window, peaks[0], position), state


def state(*found: Row, view: NodeObjects = NOTHING) -> NodeStateRecord:
    return reports(joined(NODE_ROW, *found, view=view))[1]


def used(uid: str, cpu: float | None, memory: float | None = 0.0) -> Row:
    return pod_row(uid, cpu_cores_avg=cpu, memory_bytes_avg=memory)


# -- a golden example: every number follows from the formulas, by plain arithmetic


def bucket_end(value: float, first: float) -> float:
    """Where the bucket of `value` ends in buckets that start at `first` and grow by 1.05; what
    never used any is known to need none."""
    if value == 0.0:
        return 0.0
    i = 0
    while first * (1.05**i - 1) / 0.05 <= value:
        i += 1
    return first * (1.05**i - 1) / (1.05 - 1)


def bucket_terms(value: float, first: float) -> dict[str, Any]:
    """The terms of the bucket of `value`; no bucket decides if none was ever used."""
    i, end = 0, bucket_end(value, first)
    while value and first * (1.05**i - 1) / (1.05 - 1) < end:
        i += 1
    used = {"bucket": float(i - 1), "first": first, "ratio": 1.05, "end": end,
            "start": first * (1.05 ** (i - 1) - 1) / (1.05 - 1)}  # fmt: skip
    return used if value else dict.fromkeys(used)


def percentile_terms(value: float) -> dict[str, Any]:
    """Of a quantile of cpu, and of one of as many GiB."""
    cpu = {"fraction": 0.95, **bucket_terms(value, 0.025)}
    memory = {"fraction": 0.98, **bucket_terms(value * GIB, 5.0 * (1 << 20))}
    return {name: {"cpu": cpu[name], "memory": memory[name]} for name in cpu}


def cores(value: float) -> float:
    return bucket_end(value, 0.025)


def memory(value: float) -> float:
    return bucket_end(value, 5.0 * (1 << 20))


def row_of(kind: str, uid: str, avg: float, p90: float) -> Row:
    """A row that uses so many cores, and as many GiB."""
    return {
        "kind": kind, "id": uid, "coverage": 1.0, "cpu_cores_avg": avg, "cpu_cores_p90": p90,
        "memory_bytes_avg": avg * GIB, "memory_bytes_p90": p90 * GIB,
    }  # fmt: skip


RECORD = NodeRecord(
    node="node-1",
    allocatable=Resources(cpu_millicores=15_000, memory_bytes=30 << 30),
    capacity=Resources(cpu_millicores=16_000, memory_bytes=32 << 30),
    strategy=NodeStrategy(safety_margin_percent=25.0, nsigma_multiplier=2.0, cold_start_samples=1),
)
VIEW = view_of(
    known_pod(
        "a", pod_class="prod", created_at="2023-11-01T00:00:00Z",
        requests=Resources(cpu_millicores=8_000, memory_bytes=16 << 30),
    ),
    known_pod(
        "b", pod_class="batch", created_at="2023-11-14T22:13:00Z",
        requests=Resources(cpu_millicores=500),
    ),
    record=RECORD,
)  # fmt: skip
GOLDEN = joined(
    row_of("node", "", 4.0, 5.0),
    row_of("pod", "c", 0.25, 0.25),
    row_of("pod", "b", 0.5, 0.75),
    row_of("pod", "a", 1.0, 1.5),
    row_of("tier", "besteffort", 0.5, 0.75),
    row_of("host_app", "nginx", 0.25, 0.25),
    view=VIEW,
)
P90 = {"node": 5.0, "system": 2.0, "prod": 1.5, "batch": 0.75, "unknown": 0.25}
IDLE = ("mid", "free", "none")


def usage(cpu: Any, memory_bytes: Any) -> dict[str, Any]:
    return {"cpu_cores": cpu, "memory_bytes": memory_bytes}


NOT_KNOWN = usage(None, None)
NO_FRACTIONS = {"cpu": None, "memory": None}


def gib(value: float) -> dict[str, Any]:
    return usage(value, value * GIB)


def entity(value: float) -> dict[str, Any]:
    end = "2023-11-14T22:14:00Z"
    return {
        "peaks": {
            "percentile": usage(1.25 * cores(value), 1.25 * memory(value * GIB)),
            "nsigma-v1": usage(1.25 * value, 1.25 * value * GIB),
        },
        "raw": {
            "percentile": usage(cores(value), memory(value * GIB)), "nsigma-v1": gib(value),
        },
        "terms": {
            "percentile": percentile_terms(value),
            "nsigma-v1": {
                "mean": {"cpu": value, "memory": value * GIB}, "stdev": {"cpu": 0.0, "memory": 0.0},
            },
        },
        "model": {
            "samples": {"cpu": 1, "memory": 1},
            "first_at": end,
            "last_at": end,
            "drift_at": {"cpu": None, "memory": None},
            "drifts": {"cpu": 0, "memory": 0},
        },
    }  # fmt: skip


def reclaimable() -> dict[str, Any]:
    """The pair of views: pods, then classes; amounts in whole millicores and bytes."""

    def view(quantile: Any, scale: float, unit: float, request: int, room: int) -> list[int]:
        def whole(value: float) -> int:
            return int(quantile(value * scale) * unit)

        pods = int(1.25 * whole(1.5)), int(1.25 * whole(0.25))
        pods_amount = min(room - sum(pods), request - pods[0])
        peak = int(1.25 * (whole(2.0) + whole(1.5) + whole(0.0) + whole(0.25)))
        system = int(1.25 * whole(2.0))
        classes_amount = min(max(room - peak, 0), max(request - peak, 0))
        least, most = min(pods_amount, classes_amount), max(sum(pods) + system, peak)
        pods_view, classes_view = (pods_amount, sum(pods)), (classes_amount, peak)
        return [least, most, 0, request, *pods_view, *classes_view, 0, 0, system]

    cpu = view(cores, 1.0, 1000.0, 8_000, 15_000)
    mem = view(memory, GIB, 1.0, 16 << 30, 30 << 30)
    assert min(cpu[0], mem[0]) > 0
    names = ("amount", "peak", "unpredicted", "requests", "pods_amount", "pods_peak",
             "classes_amount", "classes_peak", "surplus", "held", "system")  # fmt: skip
    return {
        "pair": True,
        **{
            name: usage(millicores / 1000, float(size))
            for name, millicores, size in zip(names, cpu, mem, strict=True)
        },
        "left_out": {"cpu": 0.0, "memory": 0.0},
    }


COMMON = {
    "version": 1, "node": "node-1", "as_of": "2023-11-14T22:14:00Z", **POSITION,
    "simulated": False, "allocatable": usage(15.0, 30 * GIB),
}  # fmt: skip


def near(found: Any, expected: Any, path: str = "") -> None:
    """The same keys, texts and whole numbers; floats to 1e-12."""
    if isinstance(expected, dict):
        assert isinstance(found, dict)
        assert found.keys() == expected.keys(), path
        for key in expected:
            near(found[key], expected[key], f"{path}.{key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), path
        for at, value in enumerate(expected):
            near(found[at], value, f"{path}[{at}]")
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-12, abs=0.0), path
    else:
        assert found == expected, path


def test_the_prediction_of_the_golden_example() -> None:
    prediction, _ = reports(GOLDEN)
    found = msgspec.json.decode(encode_json(prediction))
    found["reclaimable"].pop("nsigma-v1")
    near(
        found,
        {
            **COMMON, "safety_margin_percent": 25.0, "cold_start_seconds": 86_400.0,
            "cold_start_samples": 1, "nsigma_multiplier": 2.0, "predictor": "percentile",
            "node_peaks": entity(P90["node"]),
            "system": entity(P90["system"]),
            "classes": {name: entity(P90[name]) for name in ("prod", "batch", "unknown")}
            | {name: entity(0.0) for name in IDLE},
            "pods": {
                "uid": ["a", "b", "c"],
                "pod_class": ["prod", "batch", "unknown"],
                "cold": [False, True, True],
                "active": [True, True, True],
                "ended": [False, False, False],
                "samples": {"cpu": [1, 1, 1], "memory": [1, 1, 1]},
                "age_seconds": [13.0 * 86_400 + 22 * 3600 + 14 * 60, 60.0, None],
                "request": usage([8.0, 0.5, None], [16 * GIB, 0.0, None]),
                "raw": {
                    "percentile": usage(
                        [cores(v) for v in (1.5, 0.75, 0.25)],
                        [memory(v * GIB) for v in (1.5, 0.75, 0.25)],
                    ),
                    "nsigma-v1": usage([1.5, 0.75, 0.25], [v * GIB for v in (1.5, 0.75, 0.25)]),
                },
            },
            "cold_pods": ["b", "c"],
            "reclaimable": {"percentile": reclaimable()},
            "outcomes": None,
        },
    )  # fmt: skip


def test_a_predictor_of_classes_alone_has_cold_pods_count_their_request() -> None:
    """N-sigma knows what Prod used, and of cold pods only what they asked for."""
    prediction, _ = reports(GOLDEN)
    found = prediction.reclaimable["nsigma-v1"]
    assert not found.pair
    # system, prod and unknown; the cold pods are batch, or ask for nothing that is known
    assert found.peak.cpu_cores == found.classes_peak.cpu_cores == int(1.25 * 3750) / 1000
    assert found.amount.cpu_cores == (8_000 - 4_687) / 1000
    assert found.unpredicted == Usage(cpu_cores=0.0, memory_bytes=0.0)


def test_the_node_state_of_the_golden_example() -> None:
    _, found = reports(GOLDEN)
    terms = reclaimable()
    near(
        msgspec.json.decode(encode_json(found)),
        {
            **COMMON, "window_seconds": 30.0, "coverage": 1.0, "node_known": True,
            "source": "", "dispute": None, "gauges": {},
            "skew_seconds": 0.25,
            "capacity": usage(16.0, 32 * GIB),
            "usage": gib(4.0),
            "system_usage": gib(2.0),
            "host_app_usage": gib(0.25),
            "rates": {},
            "class_usage": {"prod": gib(1.0), "batch": gib(0.5), "unknown": gib(0.25)},
            "pods": 3, "unknown_pods": 1, "predictor": "percentile",
            "young_pods": {"a": gib(1.0), "b": gib(0.5), "c": gib(0.25)},
            "aggregated": dict.fromkeys(
                ("5m", "10m", "30m"), dict.fromkeys(AGGREGATIONS, NOT_KNOWN)
            ),
            "deviation": dict.fromkeys(
                ("5m", "10m", "15m"),
                dict.fromkeys(("mean", "stdev"), NOT_KNOWN)
                | dict.fromkeys(("mean_fractions", "stdev_fractions"), NO_FRACTIONS),
            ),
            "peaks": entity(P90["node"])["peaks"],
            "peak_counts_requests": False,
            "prod_reclaimable": terms["amount"], "prod_peak": terms["peak"],
            "counters": {
                "applied": 1, "duplicate": 0, "late": 0, "second_exporter": 0, "gaps": 0,
                "untrained": 0, "bad_values": 2, "lost": 0,
                "last_gap_at": None, "last_bad_value_at": None,
            },
            "alerts": [], "compared_percent": {},
        },
    )  # fmt: skip


@pytest.mark.parametrize(
    ("predictor", "counts_requests"),
    [("percentile", False), ("nsigma-v1", False), ("nsigma-v2", True), ("pods-nsigma", True),
     ("max", True)],
)  # fmt: skip
def test_node_state_states_whether_its_peak_counts_requests(
    predictor: str, counts_requests: bool
) -> None:
    bank = Bank(ModelConfig(predictors=(*{"percentile", predictor},)))
    node = NodeRecord(node="node-1", strategy=NodeStrategy(predictor=predictor))
    _, found = reports(joined(NODE_ROW, used("a", 1.0), view=view_of(record=node)), bank=bank)
    assert (found.predictor, found.peak_counts_requests) == (predictor, counts_requests)


def test_node_state_has_the_usage_of_young_pods() -> None:
    """By its first window: how old it is otherwise does not matter, it may have waited for long."""
    bank, told = Bank(ModelConfig()), []
    for minute in (0, 29, 30):
        pods = [used("old", 1.0), *([used("new", 0.5)] if minute else [])]
        start = header().window_start_ms + minute * 60_000
        of = header(window_start_ms=start, window_end_ms=start + 30_000)
        told.append(reports(joined(NODE_ROW, *pods, of=of), bank=bank)[1].young_pods)
    assert [sorted(pods) for pods in told] == [["old"], ["new", "old"], ["new"]]
    assert told[-1]["new"].cpu_cores == 0.5


def test_node_state_has_statistics_by_span() -> None:
    row = {
        **NODE_ROW, "points_offset_seconds": [float(s) for s in range(1, 601)],
        "points_cpu_cores": [1.0, 2.0, 3.0, 6.0] * 150, "points_memory_bytes": [GIB] * 600,
    }  # fmt: skip
    of = header(window_start_ms=header().window_end_ms - 600_000)
    _, found = reports(joined(row, of=of, view=view_of(record=RECORD)))
    assert found.aggregated == {
        "5m": AggregatedUsage(avg=Usage(cpu_cores=3.0, memory_bytes=GIB), **{
            name: Usage(cpu_cores=cpu, memory_bytes=GIB)
            for name, cpu in {"p50": 2.0, "p90": 6.0, "p95": 6.0, "p99": 6.0}.items()
        }),
        "10m": found.aggregated["5m"],
        "30m": AggregatedUsage(),
    }  # fmt: skip
    stdev = math.sqrt((4 + 1 + 0 + 9) / 4)
    assert found.deviation["5m"] == found.deviation["10m"] == UsageDeviation(
        mean=Usage(cpu_cores=3.0, memory_bytes=GIB),
        stdev=Usage(cpu_cores=stdev, memory_bytes=0.0),
        mean_fractions=Fractions(cpu=3.0 / 15.0, memory=1 / 30),
        stdev_fractions=Fractions(cpu=stdev / 15.0, memory=0.0),
    )  # fmt: skip
    assert found.deviation["15m"].mean.cpu_cores == 3.0  # 599 s apart, more than half of it
    assert reports(joined(row, of=of))[1].deviation["5m"].mean_fractions.cpu == 3.0 / 16.0


def test_without_allocatable_there_are_no_fractions() -> None:
    row = {
        "kind": "node", "id": "", "coverage": 1.0,
        "points_offset_seconds": [float(s) for s in range(1, 601)],
        "points_cpu_cores": [1.0] * 600,
    }  # fmt: skip
    of = header(window_start_ms=header().window_end_ms - 600_000)
    found = reports(joined(row, of=of))[1].deviation["10m"]
    assert found == UsageDeviation(mean=Usage(cpu_cores=1.0), stdev=Usage(cpu_cores=0.0))


# -- what is unknown


def test_missing_usage_is_unknown_and_not_zero() -> None:
    window = joined({"kind": "node", "id": "", "coverage": 0.2}, pod_row("a"))
    prediction, found = reports(window)
    amounts = (found.usage, found.system_usage, found.allocatable, found.capacity,
               found.prod_reclaimable, found.prod_peak)  # fmt: skip
    assert [*amounts] == [Usage()] * 6
    assert (found.coverage, found.node_known, found.unknown_pods) == (0.2, False, 1)
    assert (found.class_usage, prediction.classes) == ({"unknown": Usage()}, {})
    node, pods = prediction.node_peaks, prediction.pods
    assert found.peaks == node.peaks == {"percentile": Usage(), "nsigma-v1": Usage()}
    assert (node.model.samples, node.model.first_at, node.model.last_at) == (Counts(), None, None)
    assert pods.raw["percentile"].cpu_cores == pods.request.memory_bytes == [None]
    assert pods.samples == CountColumns(cpu=[0], memory=[0])


def test_a_node_without_pods() -> None:
    prediction, found = reports(joined(NODE_ROW))
    assert (found.system_usage, found.host_app_usage) == (
        Usage(cpu_cores=4.0, memory_bytes=8 * GIB), Usage(cpu_cores=0.0, memory_bytes=0.0),
    )  # fmt: skip
    assert (found.class_usage, found.pods, found.unknown_pods) == ({}, 0, 0)
    pods = prediction.pods
    assert (pods.uid, prediction.cold_pods, pods.samples) == ([], (), CountColumns())
    assert decode_json(PredictionRecord, encode_json(prediction)) == prediction


@pytest.mark.parametrize(
    ("found", "cpu", "memory_bytes"),
    [
        ([used("a", 1.0, GIB), used("b", None, GIB)], None, 6 * GIB),
        ([used("a", 1.0, GIB), used("b", 2.0, None)], 1.0, None),
        ([used("a", None, None)], None, None),
        ([used("a", 1.0, GIB), used("b", math.nan, -1.0)], None, None),
        ([used("a", 9.0, GIB), used("b", 2.0, GIB)], 0.0, 6 * GIB),
        ([{"kind": "host_app", "id": "x", "cpu_cores_avg": 1.0}], 3.0, None),
        ([{"kind": "tier", "id": "x"}], 4.0, 8 * GIB),
    ],
)
def test_system_usage_is_unknown_where_a_part_of_it_is(
    found: list[Row], cpu: float | None, memory_bytes: float | None
) -> None:
    assert state(*found).system_usage == Usage(cpu_cores=cpu, memory_bytes=memory_bytes)


def test_system_usage_is_unknown_where_that_of_the_node_is() -> None:
    _, found = reports(joined({**NODE_ROW, "cpu_cores_avg": None}, used("a", 1.0, GIB)))
    assert [amount.cpu_cores for amount in (found.system_usage, found.usage)] == [None, None]
    assert found.system_usage.memory_bytes == 7 * GIB


def test_class_usage_sums_the_known_usage_of_its_pods() -> None:
    pods = [known_pod(uid, pod_class="prod") for uid in "abc"]
    found = state(
        used("a", 1.0, None), used("b", None, None), used("c", 0.5, None), used("d", None, 0.0),
        view=view_of(*pods),
    )  # fmt: skip
    assert found.class_usage == {
        "prod": Usage(cpu_cores=1.5, memory_bytes=None),
        "unknown": Usage(cpu_cores=None, memory_bytes=0.0),
    }
    assert (found.pods, found.unknown_pods) == (4, 1)


def test_every_class_has_its_usage_under_its_name() -> None:
    pods = [known_pod(name, pod_class=name) for name in CLASSES]
    found = state(
        *(used(name, 0.25 * i, float(i)) for i, name in enumerate(CLASSES)), view=view_of(*pods)
    )
    assert found.class_usage == {
        name: Usage(cpu_cores=0.25 * i, memory_bytes=float(i)) for i, name in enumerate(CLASSES)
    }


def test_usage_follows_the_memory_policy() -> None:
    row = {**NODE_ROW, "memory_with_page_cache_bytes_avg": 20 * GIB}
    assert reports(joined(row), policy=WITH)[1].usage.memory_bytes == 20 * GIB
    assert reports(joined(row))[1].usage.memory_bytes == 8 * GIB


def test_skew_may_be_negative_and_windows_of_any_length() -> None:
    window = joined(NODE_ROW, of=header(window_start_ms=1_700_000_035_000))
    window = msgspec.structs.replace(window, appended_ms=window.header.window_end_ms - 1500)
    _, found = reports(window)
    assert (found.window_seconds, found.skew_seconds) == (5.0, -1.5)


def test_times_to_the_millisecond() -> None:
    prediction, found = reports(joined(NODE_ROW, of=header(window_end_ms=1_700_000_040_001)))
    assert prediction.as_of == found.as_of == "2023-11-14T22:14:00.001Z"


def test_simulated_nodes_are_marked() -> None:
    of = (header(simulated=True), header())
    records = [record for each in of for record in reports(joined(NODE_ROW, of=each))]
    assert [record.simulated for record in records] == [True, True, False, False]


def test_models_have_the_times_of_first_and_last_training() -> None:
    bank = Bank(ModelConfig(minimum_coverage=0.5))
    first = {**NODE_ROW, "cpu_cores_p90": 1.0}
    reports(joined(first, pod_row("a")), bank=bank)
    reports(joined(first, pod_row("a", cpu_cores_p90=1.0), of=header(end=1)), bank=bank)
    low = {**first, "coverage": 0.4}
    prediction, _ = reports(joined(low, pod_row("a"), of=header(end=2)), bank=bank)
    model = prediction.node_peaks.model
    assert (model.samples, model.first_at, model.last_at, prediction.as_of) == (
        Counts(cpu=2, memory=2),
        "2023-11-14T22:14:00Z",
        "2023-11-14T22:14:30Z",
        "2023-11-14T22:15:00Z",
    )
    assert prediction.pods.samples == CountColumns(cpu=[1], memory=[0])


def test_samples_are_counted_by_resource() -> None:
    row = {"kind": "node", "id": "", "coverage": 1.0, "memory_bytes_p90": 1.0}
    prediction, _ = reports(joined(row, pod_row("a", cpu_cores_p90=1.0), pod_row("b")))
    assert prediction.node_peaks.model.samples == Counts(memory=1)
    assert prediction.node_peaks.peaks["percentile"].cpu_cores is None
    assert prediction.pods.samples == CountColumns(cpu=[1, 0], memory=[0, 0])


# -- laws

LAWS = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=80)


@given(rows(), VIEWS)
@LAWS
def test_equal_windows_give_equal_readable_bytes(sample: list[Row], view: NodeObjects) -> None:
    window = joined(*sample, view=view)
    one, two = encoded(window), encoded(logged(window))
    assert one == two
    assert encode_json(decode_json(PredictionRecord, one[0])) == one[0]
    assert encode_json(decode_json(NodeStateRecord, one[1])) == one[1]


@given(rows(), VIEWS, st.integers(0, 2**40))
@LAWS
def test_the_epoch_is_all_that_two_writers_differ_in(
    sample: list[Row], view: NodeObjects, epoch: int
) -> None:
    window = joined(*sample, view=view)
    for one, two in zip(reports(window), reports(window, epoch=epoch), strict=True):
        assert two.epoch == epoch
        assert encode_json(msgspec.structs.replace(two, epoch=one.epoch)) == encode_json(one)


@given(rows(), VIEWS)
@LAWS
def test_published_values_are_finite_and_not_negative(sample: list[Row], view: NodeObjects) -> None:
    prediction, found = reports(joined(*sample, view=view))
    reported = [
        found.usage, found.system_usage, found.host_app_usage, *found.class_usage.values(),
        found.allocatable, found.capacity, found.prod_reclaimable, found.prod_peak,
        *found.peaks.values(), *prediction.system.peaks.values(),
    ]  # fmt: skip
    for amount in reported:
        for value in (amount.cpu_cores, amount.memory_bytes):
            assert value is None or (np.isfinite(value) and value >= 0)
