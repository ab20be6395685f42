"""The cluster state: nodes and pods of one partition, from the topics `nodes` and `pods`, and the
means and outcomes of node pools and the histories of workloads, which all partitions share
(`fleet_topic`).

`ClusterStateTopics.load` reads both topics to their current end, `follow` keeps the state current.
An invalid record becomes a dead letter and changes nothing. The order between the two topics is
chance, so each record is applied on its own: a pod may come before its node, or stay after it.
"""

import sys
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from pipeline.agents.deleted_pods import DeletedPods
from pipeline.agents.refusals import Refuse
from pipeline.errors import KeyMismatchError, RecordError
from pipeline.kafka.follow import Fetching, TopicPartition, open_follower
from pipeline.kafka.partition_log import LogReader, LogRecord, record_of
from pipeline.logs import get_logger
from pipeline.processors.join.joined_oom_kills import JoinedOomKills
from pipeline.processors.join.pod_facts import PodRow, pod_row
from pipeline.processors.join.pool_means import PoolMeans
from pipeline.processors.join.sample_join import NodeObjects
from pipeline.topics.codec import check_readable, decode_json
from pipeline.topics.nodes import KnownNode, check_node_name
from pipeline.topics.pods import PodFacts, check_pod, split_pod_key
from pipeline.topics.pool_outcomes import PoolOutcomesRecord
from pipeline.topics.registry import NODES, PODS
from pipeline.topics.workload_histories import WorkloadHistoryRecord
from pipeline.topics.workloads import Workload

log = get_logger(__name__)

MAX_DELETED_NODES: Final = 10_000
"""Limit of remembered deleted nodes: autoscalers create new names for ever."""

# A record a second per partition would else be a fetch each.
_FETCHING: Final = Fetching(min_bytes=1024 * 1024, max_wait_ms=250)


class ClusterState:
    """The nodes and pods of one partition, `pool_means` and `pool_outcomes` of all pools, and
    `workload_histories` of all workloads.

    `node_records` are the encoded node records. `deleted_nodes` are the names of nodes whose last
    record is a tombstone, oldest first; the oldest are dropped.
    """

    def __init__(
        self,
        pool_means: Mapping[str, PoolMeans] | None = None,
        pool_outcomes: Mapping[str, PoolOutcomesRecord] | None = None,
        workload_histories: Mapping[Workload, WorkloadHistoryRecord] | None = None,
    ) -> None:
        self.pool_means = {} if pool_means is None else pool_means
        self.pool_outcomes = {} if pool_outcomes is None else pool_outcomes
        self.workload_histories = {} if workload_histories is None else workload_histories
        self.nodes: dict[str, KnownNode] = {}
        # Encoded: only views need whole records, which is rare.
        self.node_records: dict[str, bytes] = {}
        self.deleted_nodes: dict[str, None] = {}
        self.deleted_pods = DeletedPods()
        self.oom_kills = JoinedOomKills()
        self._pods: dict[str, dict[str, PodRow]] = {}
        # Static pods only: the cgroup of any other pod has the UID of the pod.
        self._cgroups: dict[tuple[str, str], str] = {}

    @property
    def pods(self) -> Mapping[str, Mapping[str, PodRow]]:
        """The facts of existing pods, by node and by the UID in their cgroup's name."""
        return self._pods

    def objects_of(self, node: str) -> NodeObjects:
        """Return the record of `node`, its pods, and deleted pods that a window may contain."""
        pods, deleted = self._pods.get(node, {}), self.deleted_pods.rows(node)
        return NodeObjects(self.nodes.get(node), {**deleted, **pods} if deleted else pods)

    def apply_node(self, record: LogRecord) -> str | None:
        """Apply a record of `nodes`; return the name of the node if it was deleted."""
        name = _text(record.key)
        check_node_name(name)
        if record.value is None:
            self.nodes.pop(name, None)
            self.node_records.pop(name, None)
            self.deleted_nodes.pop(name, None)
            self.deleted_nodes[name] = None
            if len(self.deleted_nodes) > MAX_DELETED_NODES:
                del self.deleted_nodes[next(iter(self.deleted_nodes))]
            self.deleted_pods.forget_node(name)
            self.oom_kills.forget_node(name)
            return name
        node = decode_json(KnownNode, record.value)
        if node.node != name:
            raise KeyMismatchError(f"node record of {node.node!r:.80} has the key {name!r:.80}")
        self.nodes[name] = node
        self.node_records[name] = record.value
        self.deleted_nodes.pop(name, None)
        return None

    def apply_pod(self, record: LogRecord) -> None:
        """Apply a record of `pods`."""
        node, uid = split_pod_key(record.key or b"")
        if record.value is None:
            deleted = self._forget_pod(node, uid)
            # No window contains a pod that is not bound to a node.
            if deleted is not None and node and node not in self.deleted_nodes:
                self.deleted_pods.add(node, *deleted, record.appended_ms)
            return
        pod = decode_json(PodFacts, record.value)
        check_pod(pod)
        if (pod.node, pod.uid) != (node, uid):
            raise KeyMismatchError(f"pod record of {pod.node}/{pod.uid:.80} has another key")
        self._forget_pod(node, uid)
        if pod.cgroup_uid != uid:
            self._cgroups[node, uid] = pod.cgroup_uid
        row = pod_row(pod)
        # Interned, because samples contain the same UID, a million times in a large cluster.
        cgroup_uid = sys.intern(pod.cgroup_uid)
        self._pods.setdefault(node, {})[cgroup_uid] = row
        self.deleted_pods.forget(node, cgroup_uid)
        if pod.oom_killed_at and node and node not in self.deleted_nodes:
            containers = (*pod.containers, *pod.init_containers)
            self.oom_kills.observe(
                node,
                cgroup_uid,
                pod.oom_killed_at,
                row.request_memory_bytes,
                {each.name: each.requests.memory_bytes for each in containers},
                record.appended_ms,
            )

    def _forget_pod(self, node: str, uid: str) -> tuple[str, PodRow] | None:
        """Remove a pod; return the UID in its cgroup's name and its facts, None if unknown."""
        cgroup_uid = self._cgroups.pop((node, uid), uid)
        pods = self._pods.get(node, {})
        # A recreated static pod has the cgroup of its predecessor, whose tombstone may come later.
        if cgroup_uid not in pods or pods[cgroup_uid].uid != uid:
            return None
        row = pods.pop(cgroup_uid)
        if not pods:
            self._pods.pop(node, None)
        return cgroup_uid, row


def _text(key: bytes | None) -> str:
    try:
        return (key or b"").decode()
    except UnicodeDecodeError as error:
        raise KeyMismatchError("node key is not UTF-8") from error


class ClusterStateTopics:
    """The topics `nodes` and `pods` of a prefix, applied to a `ClusterState`."""

    def __init__(self, prefix: str, refuse: Refuse) -> None:
        self.nodes = NODES.full_name(prefix)
        self.pods = PODS.full_name(prefix)
        self.refuse = refuse

    def differ(self, known: Mapping[str, str], ids: Mapping[str, str]) -> bool:
        """Whether one of both topics was recreated: it has another id than it is known to have."""
        both = self.nodes, self.pods
        return any(known[topic] != ids.get(topic) for topic in both if topic in known)

    async def load(
        self, reader: LogReader, partition: int, state: ClusterState, starts: Mapping[str, int]
    ) -> dict[str, int]:
        """Apply all records of `partition`, and return the next offset by topic.

        `starts` are the first offsets to read by topic, by default the first of the log.
        """
        ends = {}
        for topic in (self.nodes, self.pods):
            first, ends[topic] = await reader.bounds(topic, partition)
            start = max(first, starts.get(topic, first))
            async for records in reader.read(topic, partition, start, ends[topic]):
                refused = []
                for record in records:
                    try:
                        self._apply(state, topic, record)
                    except RecordError as error:
                        refused.append((record, error))
                if refused:
                    await self.refuse(topic, refused)
        return ends

    async def apply(self, state: ClusterState, topic: str, record: LogRecord) -> str | None:
        """Apply one record of `topic`; return the name of the node if it was deleted."""
        try:
            return self._apply(state, topic, record)
        except RecordError as error:
            await self.refuse(topic, [(record, error)])
        return None

    def _apply(self, state: ClusterState, topic: str, record: LogRecord) -> str | None:
        check_readable(record.value)
        if topic == self.nodes:
            return state.apply_node(record)
        state.apply_pod(record)
        return None


async def follow(
    client: Mapping[str, Any], starts: Mapping[TopicPartition, int]
) -> AsyncIterator[tuple[str, LogRecord]]:
    """Yield (topic, record) from the offsets `starts` on, for ever.

    Raises `LostOffsetError` if a topic was recreated: the state must be loaded again.
    """
    async with open_follower(client, starts, _FETCHING) as follower:
        follower.read_from(starts, {})
        while True:
            for record in await follower.poll(timeout_seconds=1.0):
                yield record.topic, record_of(record)
