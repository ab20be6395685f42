"""Every topic of Springtide, declared once.

From this table `springtide topics apply` creates topics, `springtide topics check` reports drift,
and docs/reference/topics.md is printed. Names start with `kafka.topic_prefix`.

All records about a node, in every topic, are in the partition with one number, which
`kafka.partition` computes from the node's name. So all topics have the same number of partitions,
and the worker that is assigned a partition of `samples` owns everything about its nodes. The number
is never changed: a node's records would be in another partition than its earlier ones.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
TOMBSTONE_MS: Final = DAY_MS
"""How long a compacted topic keeps tombstones: longer than a reader may be away."""
RETENTION_SEGMENTS: Final = 8
"""The number of segments into which a partition with a retention is divided by age."""
MAX_RECORD_BYTES: Final = 8 * 1024 * 1024
"""The largest record batch of a topic. A sample may have a quarter of it: its window, peaks and
checkpoint are larger than the sample, and a hostile sample must not stop the worker."""
MAX_SAMPLE_BYTES: Final = MAX_RECORD_BYTES // 4

MAX_WHAT_IF_BYTES: Final = 128 * 1024
"""The largest published result of `springtide what-if`: sums and distributions, not nodes."""

Codec = Literal["json + arrow", "json", "msgpack", "bytes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic. `key` describes the record key, `record` names the module of `pipeline.topics` with
    the record type. Readers of a topic that is written `in_transactions` wait for their end.

    Records are deleted after `retention_ms` and at most an eighth more. A topic without it is
    compacted: it keeps the newest record of each key, and every record for `compaction_lag_ms`.
    `partitions` is their number where it does not follow the setting.
    """

    name: str
    key: str
    value: str
    written_by: str
    record: str
    codec: Codec = "json"
    max_bytes: int = MAX_RECORD_BYTES
    retention_ms: int | None = None
    compaction_lag_ms: int = 0
    in_transactions: bool = False
    partitions: int | None = None

    def full_name(self, prefix: str) -> str:
        """The topic's name on the broker."""
        return f"{prefix}.{self.name}"

    def partition_count(self, usual: int) -> int:
        """The number of partitions where topics usually have `usual` ones."""
        return usual if self.partitions is None else self.partitions

    @property
    def retention_text(self) -> str:
        """How long the topic keeps records, as documentation states it."""
        return "compacted" if self.retention_ms is None else f"{self.retention_ms // HOUR_MS} h"

    def config(self, replicas: int = 1) -> Mapping[str, str]:
        """The configuration that `apply` sets and `check` compares, for a topic of `replicas`.

        Producers wait for all in-sync replicas. With three or more replicas two of them must be in
        sync, so that one lost broker loses no record that was acknowledged.
        """
        common = {
            # The broker would unpack and pack each batch: a small one may take all of its memory.
            "compression.type": "producer",
            "min.insync.replicas": "2" if replicas >= 3 else "1",
            "unclean.leader.election.enable": "false",
            "message.timestamp.type": "LogAppendTime",
            "max.message.bytes": str(self.max_bytes),
        }
        if self.retention_ms is not None:
            return common | {
                "cleanup.policy": "delete",
                "retention.ms": str(self.retention_ms),
                # A segment is deleted as a whole: a quiet partition would keep a record for as long
                # as others may follow it into its segment, a week by default.
                "segment.ms": str(self.retention_ms // RETENTION_SEGMENTS),
            }
        # Segments roll hourly, because the active segment is never compacted.
        compacted = {
            "cleanup.policy": "compact",
            "segment.ms": str(HOUR_MS),
            "min.cleanable.dirty.ratio": "0.2",
            "delete.retention.ms": str(TOMBSTONE_MS),
        }
        if self.compaction_lag_ms:
            # Shorter segments, so that a new reader has no more to read than without the lag.
            compacted |= {
                "segment.ms": str(self.compaction_lag_ms // 3),
                "min.compaction.lag.ms": str(self.compaction_lag_ms),
            }
        return common | compacted


SAMPLES: Final = Topic(
    name="samples", key="node", codec="json + arrow", retention_ms=24 * HOUR_MS,
    value="usage of a node and its pods in one window, a row per entity",
    written_by="node exporter or provider", record="samples", max_bytes=MAX_SAMPLE_BYTES,
)  # fmt: skip
NODES: Final = Topic(
    name="nodes", key="node", value="allocatable, labels, taints and strategy of a node",
    written_by="cluster watcher or file source", record="nodes", in_transactions=True,
)  # fmt: skip
PODS: Final = Topic(
    name="pods", key="node/uid", value="cgroup uid, class, requests, limits and phase of a pod",
    written_by="cluster watcher or file source", record="pods", in_transactions=True,
)  # fmt: skip
WORKLOADS: Final = Topic(
    name="workloads", key="namespace/kind/name", value="replicas and PodDisruptionBudgets",
    written_by="cluster watcher", record="workloads", in_transactions=True,
)  # fmt: skip
HEARTBEATS: Final = Topic(
    name="heartbeats", key="source", value="time until which `nodes` and `pods` are complete",
    written_by="cluster watcher", record="heartbeats",
)  # fmt: skip
FLEET: Final = Topic(
    name="fleet", key="pool/name, outcomes/name, hour/n or workloads/namespace/kind/name",
    partitions=1,
    value="mean usage of the nodes of a pool, for thresholds that are distances from it; outcomes "
    "of calibrated peaks of a pool; usage of pools and workloads by the hour; what a pod of a "
    "workload used in the last days",
    written_by="planner, worker of partition 0", record="pool_means",
)  # fmt: skip
WINDOWS: Final = Topic(
    name="windows", key="node", codec="json + arrow", retention_ms=3 * DAY_MS,
    value="the log of record: a sample with facts about its node and pods", written_by="join agent",
    record="windows",
)  # fmt: skip
PREDICTIONS: Final = Topic(
    name="predictions", key="node",
    value="peaks by predictor for node, system, classes and pods, with terms",
    written_by="model agent", record="predictions",
)  # fmt: skip
RESOURCES: Final = Topic(
    name="resources", key="node", value="Mid and Batch, each with its terms",
    written_by="model agent", record="node_resources",
)  # fmt: skip
NODE_STATE: Final = Topic(
    name="node-state", key="node",
    value="the row of the state table: usage now and of the last half hour, peaks, ages",
    written_by="model agent", record="node_state", compaction_lag_ms=HOUR_MS // 2,
)  # fmt: skip
NODE_VIEWS: Final = Topic(
    name="node-views", key="node", value="everything that a node actuator needs, with a generation",
    written_by="view agent", record="node_views",
)  # fmt: skip
ALERTS: Final = Topic(
    name="alerts", key="node, pool or workload", retention_ms=7 * DAY_MS,
    value="hot-node alerts: opened, escalated, eased, closed", written_by="model agent, planner",
    record="alerts",
)  # fmt: skip
EVICTION_REQUESTS: Final = Topic(
    name="eviction-requests", key="node", retention_ms=DAY_MS,
    value="a node asks that pods leave it", written_by="agents on nodes",
    record="eviction_requests",
)  # fmt: skip
EVICTION_PLANS: Final = Topic(
    name="eviction-plans", key="node", retention_ms=7 * DAY_MS,
    value="pods to evict from a node, and why", written_by="extender, planner",
    record="eviction_plans",
)  # fmt: skip
WAKE_UPS: Final = Topic(
    name="wake-ups", key="node", retention_ms=DAY_MS,
    value="a node may take a pod that it refused", written_by="extender", record="wake_ups",
)  # fmt: skip
ACTIONS: Final = Topic(
    name="actions", key="node", retention_ms=30 * DAY_MS,
    value="writes and refusals of an actuator, with the reason; whether plans helped",
    written_by="actuators and planner", record="actions",
)  # fmt: skip
ACCURACY: Final = Topic(
    name="accuracy", key="node", retention_ms=30 * DAY_MS,
    value="predicted peaks of Prod held against usage", written_by="model agent",
    record="accuracy",
)  # fmt: skip
RECOMMENDATIONS: Final = Topic(
    name="recommendations", key="namespace/kind/name",
    value="requests recommended for a workload, as the Vertical Pod Autoscaler does",
    written_by="worker of partition 0", record="recommendations",
)  # fmt: skip
WHAT_IF: Final = Topic(
    name="what-if", key="name of the result", max_bytes=2 * MAX_WHAT_IF_BYTES,
    value="results of `springtide what-if` that were published for the console",
    written_by="`springtide what-if`", record="what_if",
)  # fmt: skip
CHECKPOINTS: Final = Topic(
    name="checkpoints", key="node@epoch", codec="msgpack",
    value="exact model state, round markers, claims, skipped windows", written_by="model agent",
    record="checkpoints",
)  # fmt: skip
DEAD_LETTERS: Final = Topic(
    name="dead-letters", key="as it came", codec="bytes", retention_ms=14 * DAY_MS,
    value="records that could not be used; the reason in headers", written_by="everyone",
    record="dead_letters",
)  # fmt: skip

TOPICS: Final = (
    SAMPLES, NODES, PODS, WORKLOADS, HEARTBEATS, FLEET, WINDOWS, PREDICTIONS, RESOURCES, NODE_STATE,
    NODE_VIEWS, ALERTS, EVICTION_REQUESTS, EVICTION_PLANS, WAKE_UPS, ACTIONS, ACCURACY,
    RECOMMENDATIONS, WHAT_IF, CHECKPOINTS, DEAD_LETTERS,
)  # fmt: skip
"""The topics that a role writes: `springtide topics apply` creates them."""

_IN_TRANSACTIONS: Final = {topic.name for topic in TOPICS if topic.in_transactions}


def is_in_transactions(full_name: str) -> bool:
    """Whether the topic of this name is written in transactions."""
    return full_name.rpartition(".")[2] in _IN_TRANSACTIONS


def creation_commands(
    connection: str, prefix: str, partitions: int, replicas: int
) -> Iterator[str]:
    """Yield a command line of Kafka's own tool that creates each topic, unless it exists.
    `connection` are the flags by which the tool connects."""
    for topic in TOPICS:
        flags = " ".join(f"--config {key}={value}" for key, value in topic.config(replicas).items())
        yield (
            f"kafka-topics.sh {connection} --create --if-not-exists "
            f"--topic {topic.full_name(prefix)} --partitions {topic.partition_count(partitions)} "
            f"--replication-factor {replicas} {flags}"
        )


def markdown_table() -> str:
    """The registry as the table of docs/reference/topics.md."""
    lines = ["| topic | key | value | codec | kept | written by |", "|---|---|---|---|---|---|"]
    for topic in TOPICS:
        lines.append(
            f"| `springtide.{topic.name}` | {topic.key} | {topic.value} | {topic.codec} "
            f"| {topic.retention_text} | {topic.written_by} |"
        )
    return "\n".join(lines) + "\n"
