"""Former plans, evictions and requests of nodes, read once: a plan that is only shown goes by the
same ones as the planner."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from actuators.planner.hot_nodes import pool_of, span_seconds
from actuators.planner.planner import take_record, take_request
from pipeline.errors import RecordError
from pipeline.extender.relief_planning import AlertRelief
from pipeline.kafka.client import client_options
from pipeline.kafka.follow import ConsumerRecord, TopicPartition, open_follower
from pipeline.kafka.refused_records import refuse
from pipeline.kafka.topic_admin import existing_partitions
from pipeline.processors.descheduling.low_node_load import NAME as LOW_NODE_LOAD
from pipeline.processors.descheduling.move_memory import LASTING_SECONDS, MoveMemory
from pipeline.processors.descheduling.node_requests import NodeRequests
from pipeline.processors.descheduling.relief_alerts import ReliefAlerts
from pipeline.processors.eviction.known_replicas import KnownReplicas
from pipeline.processors.kubernetes.top_owner import workload_of
from pipeline.settings import KafkaSettings
from pipeline.table import Table
from pipeline.topics.codec import check_readable
from pipeline.topics.pods import PodRecord
from pipeline.topics.registry import ACTIONS, EVICTION_PLANS, EVICTION_REQUESTS, WORKLOADS

_TOPICS: Final = (WORKLOADS, EVICTION_REQUESTS, EVICTION_PLANS, ACTIONS)


class FormerMoves(NamedTuple):
    """Plans and actions of the last hours, requests of nodes of `table`, and replicas of workloads.
    `missing` are the topics that do not exist."""

    memory: MoveMemory
    requests: NodeRequests
    replicas: KnownReplicas
    missing: tuple[str, ...] = ()


def no_former_moves(table: Table) -> FormerMoves:
    """The memory of a planner that has read nothing yet."""
    requests = NodeRequests(lambda node: table.snapshot(node).node is not None)
    return FormerMoves(MoveMemory(), requests, KnownReplicas())


async def read_former_moves(kafka: KafkaSettings, table: Table, now: float) -> FormerMoves:
    """Read what the planner remembers at this time (Unix). Invalid records are logged and skipped.
    Raises `KafkaError` if the broker does not send what it has."""
    client, former = client_options(kafka), no_former_moves(table)
    topics = {topic.full_name(kafka.topic_prefix): topic for topic in _TOPICS}
    partitions = await existing_partitions(client, topics, optional=topics)
    missing = sorted(topics.keys() - {tp.topic for tp in partitions})
    alerts = ReliefAlerts()

    def take(record: ConsumerRecord) -> None:
        topic, appended_at = topics[record.topic], record.timestamp / 1000
        if topic is WORKLOADS:
            former.replicas.take(record.key, record.value)
        elif topic is EVICTION_REQUESTS:
            take_request(former.requests, record.key, record.value, now, appended_at)
        else:
            take_record(
                former.memory, alerts, topic, record.key, record.value, now, appended_at
            )  # fmt: skip

    since_ms = round(1000 * (now - LASTING_SECONDS))
    workloads = WORKLOADS.full_name(kafka.topic_prefix)
    await _read(client, [tp for tp in partitions if tp.topic == workloads], {}, take)
    recent = [tp for tp in partitions if tp.topic != workloads]
    await _read(client, recent, dict.fromkeys(topics, since_ms), take)
    return former._replace(missing=tuple(missing))


async def _read(
    client: Mapping[str, Any], partitions: Sequence[TopicPartition], since_ms: Mapping[str, int],
    take: Callable[[ConsumerRecord], None],
) -> None:  # fmt: skip
    if not partitions:
        return
    async with open_follower(client, partitions) as follower:
        await follower.begin(since_ms)
        async for records in follower.read_to_end():
            for record in records:
                try:
                    check_readable(record.value)
                    take(record)
                except RecordError as error:
                    refuse(
                        record.topic, error, partition=record.partition, offset=record.offset
                    )  # fmt: skip


def relief_after(
    former: FormerMoves, table: Table, strategies: Collection[str], now: float
) -> AlertRelief:
    """How the planner relieves nodes after these moves: cool-downs, pods that the evictor refused,
    strategies and pools that are paused, and requests of nodes. Pods of a node in a cool-down
    stay."""
    memory = former.memory
    memory.forget(now)
    rests = memory.rests(now)

    def objection(pod: PodRecord) -> str | None:
        of_node = rests.of_node(pod.node, span_seconds(table, pod.node))
        return of_node or rests.of_pod(pod.uid, str(workload_of(pod) or ""))

    span = max((span_seconds(table, node) for node in table), default=0.0)
    return AlertRelief(
        paused={name for name in strategies if memory.paused(name, now)},
        paused_pools=memory.paused(LOW_NODE_LOAD, now, partial(pool_of, table)),
        objection=objection,
        state_of=former.replicas.state_of,
        incoming=rests.incoming(span),
        resting_targets=rests.resting_targets,
        asked=former.requests.open(now),
    )
