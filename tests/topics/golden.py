"""Golden files: the bytes of every record type as some release wrote them.

`python -m tests.topics.golden` compares the bytes written today with the newest file of each type
and ends with 1 if they differ; with `--write` it adds what differs as the next revision. A file
that was released is never changed nor deleted: tests/topics/test_golden.py reads them all. (One
that no release has contained may be deleted before `--write`.)
"""

import base64
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from pipeline.errors import InvalidRecordError
from pipeline.topics import windows
from pipeline.topics.accuracy import (
    AccuracyRecord,
    Judgement,
    PeakAmounts,
    PredictorJudgement,
)
from pipeline.topics.actions import ActionRecord
from pipeline.topics.alerts import AlertRecord, Evidence, LevelChange, OpenAlert, Pressure
from pipeline.topics.checkpoints import (
    Claim,
    DepartedNode,
    NodeCheckpoint,
    RoundMarker,
    SkippedWindow,
)
from pipeline.topics.codec import Record, decode_json, decode_pack, encode_json, encode_pack
from pipeline.topics.dead_letters import DeadLetter, dead_letter
from pipeline.topics.eviction_plans import EvictionPlanRecord, LeavingPod, WaitingPod
from pipeline.topics.eviction_requests import EvictionRequestRecord
from pipeline.topics.heartbeats import HeartbeatRecord
from pipeline.topics.hot_node_policy import HotNodePolicy
from pipeline.topics.hourly_usage import HourlyUsageRecord
from pipeline.topics.node_resources import BatchTerms, MidTerms, NodeResourcesRecord
from pipeline.topics.node_state import (
    AggregatedUsage,
    Counters,
    Dispute,
    Fractions,
    NodeStateRecord,
    UsageDeviation,
)
from pipeline.topics.node_views import NodeViewRecord, ViewPod
from pipeline.topics.nodes import Condition, NodeRecord, NodeStrategy, Strategy, Taint
from pipeline.topics.overcommit_policy import Overcommit
from pipeline.topics.pod_columns import DecodedPods, encode_pod_columns
from pipeline.topics.pods import Container, Owner, PodRecord
from pipeline.topics.pool_means import PoolMeansRecord, RuleMean
from pipeline.topics.pool_outcomes import (
    PROBABILITIES,
    NodeOutcomes,
    OutcomeQuantiles,
    PooledOutcomes,
    PoolOutcomesRecord,
    ResourceOutcomes,
)
from pipeline.topics.predictions import (
    CountColumns,
    Counts,
    DriftTimes,
    EntityPeaks,
    ModelTerms,
    PodPeaks,
    PredictionRecord,
    Reclaimable,
    UsageColumns,
)
from pipeline.topics.recommendations import (
    ContainerRecommendation,
    OomKills,
    PodRecommendation,
    RecommendationRecord,
)
from pipeline.topics.resource_amounts import ByResource, Resources, Usage
from pipeline.topics.sample_rows import read_rows, read_samples
from pipeline.topics.samples import (
    CONTAINERS,
    LIST_COLUMNS,
    NUMBER_COLUMNS,
    SampleBatch,
    SampleContainer,
    SampleHeader,
    encode_samples,
)
from pipeline.topics.wake_ups import WakeUpRecord
from pipeline.topics.what_if import WhatIfMeasure, WhatIfRecord, WhatIfTrace
from pipeline.topics.workload_histories import HistoryHours, WorkloadHistoryRecord
from pipeline.topics.workloads import Budget, WorkloadRecord

FOLDER = Path(__file__).parent.parent / "data" / "golden"

HEADER = SampleHeader(
    node="node-1.example", machine_id="0123456789abcdef0123456789abcdef",
    boot_id="6f1f4c1e-2b3a-4c5d-8e9f-0a1b2c3d4e5f", epoch=1_700_000_000_123, sequence=42,
    window_start_ms=1_700_000_010_000, window_end_ms=1_700_000_040_000,
)  # fmt: skip
STATIC_POD = "1f9a6a5f0f5b4e8f8f2c7d1f3b2a4c6e"
POD = "0b5d8c2e-6f0a-4a53-9c3e-d1f2a3b4c5d6"


OUTCOMES = OutcomeQuantiles(
    weight=12.25, quantiles=tuple(round(p - 0.5, 4) for p in PROBABILITIES)
)  # fmt: skip
POOL_OUTCOMES = PoolOutcomesRecord(
    pool="gold", at="2023-11-14T22:14:00Z", nodes=12, horizon_seconds=86_400, risk=0.02,
    cpu=PooledOutcomes(distribution=OUTCOMES, level=0.0175), memory=PooledOutcomes(),
)  # fmt: skip
WORKLOAD_HISTORY = WorkloadHistoryRecord(
    namespace="shop", kind="Deployment", name="web",
    cpu=HistoryHours(until="2023-11-14T22:00:00Z", highest=0.75, hours=bytes(range(0, 255, 5))),
)  # fmt: skip


class Golden(NamedTuple):
    """A record type: what today's release writes of one record, and how it is read."""

    name: str
    suffix: str
    record: Any
    write: Callable[[Any], bytes]
    read: Callable[[bytes], Any]

    def files(self) -> list[Path]:
        """Every revision, oldest first."""
        return sorted(FOLDER.glob(f"{self.name}.[0-9][0-9][0-9].{self.suffix}"))


def sample_rows() -> list[dict[str, Any]]:
    """A node row with every column, a pod, a static pod, the best-effort tier and a host
    application."""
    numbers = {name: index + 0.25 for index, name in enumerate(NUMBER_COLUMNS)}
    points = {name: [0.0, 1.0, None, 2.5] for name in LIST_COLUMNS}
    usage = {name: value for name, value in numbers.items() if not name.startswith("capacity")}
    return [
        {"kind": "node", "id": "", **numbers, **points},
        {
            "kind": "pod",
            "id": POD,
            "qos": "Burstable",
            **usage,
            CONTAINERS: [
                SampleContainer("9f" * 32, None, 2.0**27),
                SampleContainer("a0" * 32, 0.25, 2.0**28),
            ],
        },
        {"kind": "pod", "id": STATIC_POD, "qos": "Guaranteed", "coverage": 0.5},
        {"kind": "tier", "id": "besteffort", "cpu_cores_avg": 0.125},
        {"kind": "host_app", "id": "nginx", "cpu_cores_avg": float("nan"), "coverage": 1.0},
    ]


def window_record() -> windows.Window:
    """The sample above as the join writes it."""
    rows = sample_rows()
    rows[4]["cpu_cores_avg"] = None
    pods = DecodedPods(
        pod_class=("prod", "unknown"), namespace=("shop", None), name=("cart-0", None),
        koordinator_qos=("LS", None), phase=("Running", None), owner_kind=("StatefulSet", None),
        owner_name=("cart", None), request_cpu_millicores=(500.0, None),
        request_memory_bytes=(2.0**30, None), limit_cpu_millicores=(1000.0, None),
        created_seconds=(1_699_996_439.5, None), deleting=(False, None),
        container_names=(("mesh", None), None),
    )  # fmt: skip
    return windows.Window(
        type="window",
        header=HEADER,
        rows=windows.WindowRows(
            read_rows(encode_samples(SampleBatch(HEADER, rows))), encode_pod_columns(pods)
        ),
        node=windows.NodeFacts(
            known=True, allocatable=Resources(cpu_millicores=3_800, memory_bytes=15 * 2**30),
            capacity=Resources(cpu_millicores=4_000, memory_bytes=16 * 2**30),
            strategy=Strategy(safety_margin_percent=12.5), strategy_hash="9a0364b9",
            hot_nodes=HotNodePolicy(
                high_percent={"cpu": 20.0}, use_deviation_thresholds=True,
                mean_percent={"node_cpu": 45.5},
            ),
            pool_outcomes=POOL_OUTCOMES,
            workload_histories=(WORKLOAD_HISTORY,),
            oom_kills=(
                windows.OomKill(
                    pod=POD, killed_ms=1_699_999_805_000, request_bytes=2.0**28,
                    container="cart", container_request_bytes=2.0**27,
                ),
            ),
        ),
        sample_offset=1234,
        appended_ms=1_700_000_040_250,
        bad_values={"cpu_cores_avg": 1},
    )  # fmt: skip


_LARGE = Resources(cpu_millicores=4_000, memory_bytes=16 * 2**30)
_SMALL = Resources(cpu_millicores=250, memory_bytes=256 * 2**20)
_USAGE = Usage(cpu_cores=1.25, memory_bytes=3.5 * 2**30)

NODE = NodeRecord(
    node=HEADER.node,
    uid="7c4c0b4f-8c39-4f6f-a2d7-0e6f9b1a2c3d",
    allocatable=Resources(cpu_millicores=3_800, memory_bytes=15 * 2**30),
    capacity=_LARGE,
    labels={"zone": "b", "kubernetes.io/os": "linux"},
    annotations={"note": "grün"},
    taints=(Taint(key="dedicated", value="shop", effect="NoSchedule"),),
    unschedulable=True,
    conditions=(Condition(type="Ready", status="True", reason="KubeletReady"),),
    strategy=NodeStrategy(safety_margin_percent=15.0),
    strategy_hash="9a0364b9",
    overcommit=Overcommit(
        cpu_calculate_policy="maxUsageRequest", resource_diff_threshold=0.2,
        batch_cpu_threshold_percent=80, mid_formula="source", promise_once=False,
    ),
    colocation={"enable": True, "cpuCalculatePolicy": "maxUsageRequest"},
    springtide={"midFormula": "source", "promiseOnce": False},
    host_apps={"nginx": "prod"},
    hot_nodes=HotNodePolicy(
        pool="gold", high_percent={"cpu": 75.0, "memory": 80.0}, low_percent={"cpu": 45.0},
        prod_high_percent={"cpu": 60.0}, prod_low_percent={"cpu": 30.0}, usage="p95",
        span_seconds=600, open_windows=4, close_windows=2, hysteresis_percent=3.0,
    ),
    scalars={"ephemeral-storage": 100 * 2**30, "nvidia.com/gpu": 2, "pods": 110},
    slo=msgspec.Raw(b'{"cpuBurstStrategy":{"policy":"auto"}}'),
    cpu_normalization=msgspec.Raw(b'{"enable":false}'),
    amplification=msgspec.Raw(b'{"enable":true,"resourceAmplificationRatio":{"cpu":1.5}}'),
)  # fmt: skip
POD_RECORD = PodRecord(
    node=HEADER.node,
    uid=POD,
    cgroup_uid=POD,
    namespace="shop",
    name="cart-0",
    owner=Owner(kind="StatefulSet", name="cart"),
    labels={"app": "cart"},
    annotations={"b": "2", "a": "1"},
    priority=9500,
    pod_class="prod",
    qos="LS",
    requests=_SMALL,
    limits=Resources(cpu_millicores=1_000),
    scalars={"nvidia.com/gpu": 1, "ephemeral-storage": 1 << 30},
    scalar_limits={"nvidia.com/gpu": 1, "ephemeral-storage": 4 << 30},
    overhead=Resources(cpu_millicores=10),
    scalar_overhead={"ephemeral-storage": 64 << 20},
    containers=(
        Container(
            name="cart", requests=_SMALL, scalars={"nvidia.com/gpu": 1},
            scalar_limits={"nvidia.com/gpu": 1, "ephemeral-storage": 3 << 30},
        ),
    ),
    init_containers=(Container(name="mesh", limits=_SMALL, restartable=True),),
    container_ids={"mesh": "9f" * 32, "cart": "a0" * 32},
    oom_killed_at={"cart": "2023-11-14T22:10:05Z"},
    node_selector={"zone": "b"},
    affinity={"podAntiAffinity": {"z": 1, "a": [1, 2.5, None, True]}},
    tolerations=({"operator": "Exists"},),
    phase="Running",
    created_at="2023-11-14T21:13:30Z",
    scheduled_at="2023-11-14T21:13:31Z",
    initialized_at="2023-11-14T21:13:32Z",
    started_at="2023-11-14T21:13:33Z",
)  # fmt: skip
WORKLOAD = WorkloadRecord(
    namespace="shop",
    kind="PodDisruptionBudget",
    name="cart",
    uid="0d6bd3b4-4b53-4a3a-9f0e-1f7b2a2f6f10",
    owner=Owner(kind="Cart", name="cart"),
    selector={"matchLabels": {"app": "cart"}},
    replicas=3,
    ready_replicas=2,
    budget=Budget(
        min_available="50%", max_unavailable="1", disruptions_allowed=1, current_healthy=2,
        desired_healthy=2, expected_pods=3,
    ),
)  # fmt: skip
NODE_RESOURCES = NodeResourcesRecord(
    node=HEADER.node, as_of="2023-11-14T22:14:00Z", generation=1, offset=42, epoch=7,
    strategy=Overcommit(mid_unallocated_percent=20), predictor="percentile", mid=_SMALL,
    mid_lower_bound=Resources(cpu_millicores=0, memory_bytes=0),
    batch=Resources(cpu_millicores=4_000, memory_bytes=2**30),
    mid_terms=MidTerms(allocatable=_LARGE, allocated=_SMALL, limit=_LARGE),
    batch_terms=BatchTerms(capacity=_LARGE, used=_SMALL, promised=_SMALL),
)  # fmt: skip
NODE_VIEW = NodeViewRecord(
    node=HEADER.node,
    generation=(7 << 24) + 3,
    allocatable=_SMALL,
    capacity=_LARGE,
    annotations={"node.koordinator.sh/reservation": "{}"},
    strategy_hash="9a0364b9",
    overcommit=Overcommit(mid_unallocated_percent=20),
    colocation={"enable": True},
    springtide={"promiseOnce": True},
    host_apps={"nginx": "prod"},
    resources=NODE_RESOURCES,
    pods=(
        ViewPod(
            uid=POD, cgroup_uid=POD, namespace="shop", name="web-0", pod_class="batch", qos="BE",
            priority=5500, phase="Running", deleting=True, requests=_SMALL, limits=_LARGE,
            containers=(Container(name="main", requests=_SMALL),),
            container_ids={"main": "a0" * 32},
            labels={"koordinator.sh/qosClass": "BE"},
            annotations={"koordinator.sh/cpuBurst": "{}"},
        ),
    ),
)  # fmt: skip
ACTION = ActionRecord(
    node=HEADER.node, at="2023-11-14T22:14:00Z", actuator="cluster", action="offer", outcome="done",
    why="as of 2023-11-14T22:13:30Z", before={"kubernetes.io/mid-cpu": None},
    after={"kubernetes.io/mid-cpu": "4000"},
)  # fmt: skip
ALERT = AlertRecord(
    node="node-1.example", as_of="2023-11-14T22:14:00Z", generation=1, offset=1234, epoch=42,
    id="node-1.example/node_cpu/2023-11-14T22:12:00Z", rule="node_cpu", transition="escalated",
    severity="critical", since="2023-11-14T22:12:00Z", duration_seconds=120.0, pool="batch-nodes",
    evidence=Evidence(
        usage="p95", span_seconds=300, usage_percent=91.25, threshold_percent=70.0,
        critical_percent=85.0, pool_mean_percent=45.5, series=(60.5, None, 91.25),
        pressure=Pressure(cpu_some=0.25, memory_full=0.0),
    ),
)  # fmt: skip
LEVEL_ALERT = AlertRecord(
    node="", as_of="2023-11-14T22:14:00Z", generation=0, offset=1700000040000, epoch=0,
    id="Deployment/shop/web/workload_cpu_level/2023-11-14T22:14:00Z", rule="workload_cpu_level",
    transition="closed", severity="warning", since="2023-11-14T16:14:00Z", duration_seconds=21600.0,
    reason="returned", pool="gold", workload="Deployment/shop/web",
    change=LevelChange(
        since="2023-11-14T11:00:00Z", before=0.25, after=0.5, detector="ratio held",
    ),
    why="cpu usage rose",
)  # fmt: skip
EVICTION_PLAN = EvictionPlanRecord(
    node=HEADER.node, id=f"{POD}/{HEADER.node}", at="2023-11-14T22:14:00Z",
    valid_until="2023-11-14T22:14:30Z", planner="extender", why="shop/web-0 of prod fits nowhere",
    pods=(LeavingPod(uid=STATIC_POD, pod_class="mid", cpu_millicores=1500, memory_bytes=2**30),),
    waiting=WaitingPod(namespace="shop", name="web-0", uid=POD, priority=9500),
)  # fmt: skip
PREDICTION = PredictionRecord(
    node=HEADER.node,
    as_of="2023-11-14T22:14:00Z",
    generation=0,
    offset=777,
    epoch=12,
    safety_margin_percent=10.0,
    cold_start_seconds=86_400.0,
    cold_start_samples=10,
    nsigma_multiplier=3.0,
    predictor="percentile",
    allocatable=Usage(cpu_cores=3.8, memory_bytes=15.0 * 2**30),
    node_peaks=EntityPeaks(
        peaks={"percentile": _USAGE, "nsigma-v1": Usage(cpu_cores=float("nan"))},
        raw={"percentile": _USAGE, "nsigma-v1": Usage(cpu_cores=float("nan"))},
        terms={"nsigma-v1": {"mean": ByResource(cpu=1.0, memory=2.0**30), "stdev": ByResource()}},
        model=ModelTerms(
            samples=Counts(cpu=9, memory=7), first_at="2023-11-14T22:10:00Z",
            drift_at=DriftTimes(cpu="2023-11-14T22:12:00Z"), drifts=Counts(cpu=2),
        ),
    ),
    system=EntityPeaks(peaks={"percentile": Usage(cpu_cores=0.1)}),
    classes={"prod": EntityPeaks(peaks={"percentile": _USAGE}), "batch": EntityPeaks()},
    pods=PodPeaks(
        uid=[POD, STATIC_POD], pod_class=["prod", "unknown"], cold=[False, True],
        active=[True, True], ended=[False, False], samples=CountColumns(cpu=[9, 1], memory=[7, 0]),
        age_seconds=[3600.5, None],
        request=UsageColumns(cpu_cores=[0.25, None], memory_bytes=[2.0**28, float("nan")]),
        raw={"percentile": UsageColumns(cpu_cores=[0.5, 0.25], memory_bytes=[2.0**29, None])},
    ),
    reclaimable={
        "percentile": Reclaimable(
            amount=_USAGE, peak=_USAGE, unpredicted=_USAGE, requests=_USAGE, pods_amount=_USAGE,
            pods_peak=_USAGE, classes_amount=_USAGE, classes_peak=_USAGE, surplus=_USAGE,
            held=_USAGE, system=_USAGE, left_out=ByResource(cpu=2.0, memory=0.0),
        ),
    },
    cold_pods=(STATIC_POD,),
    outcomes=NodeOutcomes(
        horizon_seconds=86_400, risk=0.02,
        cpu=ResourceOutcomes(distribution=OUTCOMES, judged_days=3.5, unspent_days=-0.0125),
    ),
)  # fmt: skip
NODE_STATE = NodeStateRecord(
    node=HEADER.node,
    as_of="2023-11-14T22:14:00Z",
    generation=0,
    offset=777,
    epoch=12,
    window_seconds=30.0,
    coverage=1.0,
    node_known=True,
    source="prometheus",
    dispute=Dispute(source="metrics-server", usage=_USAGE, since="2023-11-14T22:13:00Z"),
    skew_seconds=0.25,
    allocatable=Usage(cpu_cores=3.8, memory_bytes=15.0 * 2**30),
    capacity=Usage(cpu_cores=4.0, memory_bytes=16.0 * 2**30),
    rates={"springtide.io/network-receive": 2e6},
    gauges={"example.com/conntrack": 1200.5},
    young_pods={"0f9d2c1e-61b5-4f6b-9a43-6c1f1b9e4a77": _USAGE},
    usage=_USAGE,
    class_usage={"prod": _USAGE, "batch": Usage(cpu_cores=0.0, memory_bytes=0.0)},
    pods=2,
    unknown_pods=1,
    aggregated={"5m": AggregatedUsage(avg=_USAGE, p99=_USAGE), "30m": AggregatedUsage()},
    deviation={
        "15m": UsageDeviation(
            mean=_USAGE, stdev=Usage(cpu_cores=0.0), mean_fractions=Fractions(cpu=0.25, memory=0.5),
            stdev_fractions=Fractions(cpu=0.0),
        )
    },
    predictor="percentile",
    peaks={"percentile": _USAGE},
    counters=Counters(
        applied=9, gaps=2, bad_values=1, last_gap_at="2023-11-14T22:13:30Z",
        last_bad_value_at="2023-11-14T22:14:00Z",
    ),
    alerts=(
        OpenAlert(
            rule="prod_memory", severity="warning", since="2023-11-14T22:12:00Z",
            usage_percent=82.5, threshold_percent=80.0,
        ),
    ),
    compared_percent={"node_cpu": 61.5},
)  # fmt: skip
HEARTBEAT = HeartbeatRecord(source="cluster", at="2023-11-14T22:14:00Z")
POOL_MEANS = PoolMeansRecord(
    pool="gold", at="2023-11-14T22:14:00Z", nodes=12, usage="p95", span_seconds=600,
    means={
        "node_cpu": RuleMean(percent=41.25, known_nodes=11), "prod_cpu": RuleMean(known_nodes=5),
    },
)  # fmt: skip
HOURLY_USAGE = HourlyUsageRecord(
    hour="2023-11-14T22:00:00Z",
    usage={
        "pool/gold": (0.4125, 0.5),
        "workload/Deployment/shop/web": (0.25, 268435456.0),
        "workload/StatefulSet/shop/db": (None, None),
    },
)
EVICTION_REQUEST = EvictionRequestRecord(
    node="node-1", id="node-1/memory/1", at="2023-11-14T22:14:00Z",
    valid_until="2023-11-14T22:17:00Z", requester="agent", why="memory is reclaimed",
    memory_bytes=1 << 30, classes=("batch", "free"),
)  # fmt: skip
WAKE_UP = WakeUpRecord(node="node-1", at="2023-11-14T22:14:00Z", pod="shop/web-0")
_TARGET = {"cpu": "500m", "memory": "262144000"}
RECOMMENDATION = RecommendationRecord(
    namespace="shop", kind="Deployment", name="web", as_of="2023-11-14T22:13:30Z", pods=3,
    pods_seen=12, samples=2880, history_days=0.5, replicas=2, requested={"cpu": "2000m"},
    recommendation=PodRecommendation(container_recommendations=(
        ContainerRecommendation(
            target=_TARGET, lower_bound={"cpu": "250m", "memory": "262144000"},
            upper_bound={"cpu": "1500m"}, uncapped_target=_TARGET,
        ),
    )),
    oom_kills=OomKills(last_at="2023-11-14T21:00:05Z", peak="671088640", kills=3),
    containers=(
        ContainerRecommendation(
            container_name="main", target=_TARGET, lower_bound={}, upper_bound={},
            uncapped_target=_TARGET,
        ),
    ),
)  # fmt: skip
WHAT_IF = WhatIfRecord(
    name="target-70", policy="new.yaml", against="old.yaml",
    difference=("--- old.yaml", "+++ new.yaml", "@@ -1 +1 @@", "-a: 60", "+a: 70"),
    traces=(
        WhatIfTrace(
            dataset="live", scenario="live", days=7.0, nodes=2, notes=("nothing was assumed",),
            measures=(
                WhatIfMeasure(
                    key="batch_cpu_millicores", label="batch cpu", unit="millicores", old=1000.0,
                    new=1500.5, old_by_node=(400.0, 600.0), new_by_node=(700.0, 800.5),
                ),
                WhatIfMeasure(
                    key="cpu_violation", label="cpu violation", unit="share", old=None, new=0.02
                ),
            ),
        ),
    ),
)  # fmt: skip
CHECKPOINT = NodeCheckpoint(
    node=HEADER.node, epoch=12, round=3, generation=0, covers=778,
    state=bytes(range(256)), prediction=b"{}", node_state=b"",
)  # fmt: skip
MARKER = RoundMarker(epoch=12, round=3, generation=0, resume=640, joined=1234, nodes=20)
SKIPPED = SkippedWindow(node=HEADER.node, epoch=12, offset=641, error="a predictor failed")
DEPARTED = DepartedNode(node=HEADER.node, end_ms=HEADER.window_end_ms, state=bytes(range(256)))
CLAIM = Claim(member="worker-0", claimed_at="2023-11-14T22:14:00.250Z")
ACCURACY = AccuracyRecord(
    node=HEADER.node, as_of="2023-11-15T22:14:00Z", generation=1, offset=900, epoch=12,
    made_at="2023-11-14T22:14:00Z", horizon_seconds=86400.0, pool="large", decides="percentile",
    requests=PeakAmounts(cpu=4000.0, memory=None), highest=PeakAmounts(cpu=3100.5, memory=2.0**33),
    known_share_cpu=1.0, known_share_memory=0.25,
    predictors={
        "percentile": PredictorJudgement(
            cpu=Judgement(peak=3000.0, violated=True, severity=0.0324, savings=0.25),
            memory=Judgement(peak=2.0**32),
        )
    },
)  # fmt: skip
DEAD_LETTER = dead_letter(
    "springtide.samples", 3, 99, b"node-1", b"\xff\x00 no Arrow", InvalidRecordError("no rows")
)


def _write_samples(rows: list[dict[str, Any]]) -> bytes:
    return encode_samples(SampleBatch(HEADER, rows))


def _write_dead_letter(letter: DeadLetter) -> bytes:
    key = None if letter.key is None else base64.b64encode(letter.key).decode()
    headers = [[name, value.decode()] for name, value in letter.headers]
    value = base64.b64encode(letter.value).decode()
    return msgspec.json.encode({"key": key, "value": value, "headers": headers})


def _json(name: str, record: Record) -> Golden:
    kind = type(record)
    # NaN is written as null: what is read back has None there.
    plain = msgspec.json.decode(encode_json(record), type=kind)
    return Golden(name, "json", plain, encode_json, lambda data: decode_json(kind, data))


def _pack(name: str, record: Record) -> Golden:
    kind = type(record)
    return Golden(name, "msgpack", record, encode_pack, lambda data: decode_pack(kind, data))


GOLDEN = (
    Golden("samples", "bin", sample_rows(), _write_samples, read_samples),
    Golden("windows", "bin", window_record(), windows.encode_window, windows.decode_window),
    Golden(
        "windows-departure", "json", windows.departure(HEADER.node, 1_700_000_040_250),
        windows.encode_window, windows.decode_window,
    ),
    _json("nodes", NODE),
    _json("pods", POD_RECORD),
    _json("workloads", WORKLOAD),
    _json("predictions", PREDICTION),
    _json("resources", NODE_RESOURCES),
    _json("node-views", NODE_VIEW),
    _json("actions", ACTION),
    _json("accuracy", ACCURACY),
    _json("alerts", ALERT),
    _json("eviction-plans", EVICTION_PLAN),
    _json("eviction-requests", EVICTION_REQUEST),
    _json("heartbeats", HEARTBEAT),
    _json("pool-means", POOL_MEANS),
    _json("hourly-usage", HOURLY_USAGE),
    _json("level-alert", LEVEL_ALERT),
    _json("pool-outcomes", POOL_OUTCOMES),
    _json("workload-histories", WORKLOAD_HISTORY),
    _json("wake-ups", WAKE_UP),
    _json("recommendations", RECOMMENDATION),
    _json("what-if", WHAT_IF),
    _json("node-state", NODE_STATE),
    _pack("checkpoints-node", CHECKPOINT),
    _pack("checkpoints-marker", MARKER),
    _pack("checkpoints-claim", CLAIM),
    _pack("checkpoints-skip", SKIPPED),
    _pack("checkpoints-departed", DEPARTED),
    Golden("dead-letters", "json", DEAD_LETTER, _write_dead_letter, msgspec.json.decode),
)  # fmt: skip


def changed() -> Iterator[tuple[Golden, bytes]]:
    """The types whose bytes are not those of their newest file, with the bytes of today."""
    for golden in GOLDEN:
        data = golden.write(golden.record)
        files = golden.files()
        if not files or files[-1].read_bytes() != data:
            yield golden, data


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--write"]):
        sys.stderr.write("usage: python -m tests.topics.golden [--write]\n")
        return 2
    found = list(changed())
    for golden, data in found:
        revision = len(golden.files()) + 1
        path = FOLDER / f"{golden.name}.{revision:03d}.{golden.suffix}"
        if arguments:
            FOLDER.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        sys.stdout.write(f"{'wrote' if arguments else 'differs'}: {path.name}\n")
    return 1 if found and not arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
