"""The cluster state of a provider: nodes, the node of each pod, and the nodes with an exporter.

A provider follows the topics for them, to name nodes, to assign usage to pods, and to skip nodes
whose exporter publishes. Samples are read from a few windows back, and only their headers are
decoded. A worker's cluster state (`agents.cluster_state`) has one partition and all facts of pods;
this one has all partitions and the names only.
"""

import asyncio
from typing import Final, NamedTuple

from pipeline.errors import RecordError
from pipeline.kafka.client import client_options
from pipeline.kafka.follow import ConsumerRecord, open_follower, topic_partitions
from pipeline.logs import get_logger
from pipeline.processors.imported_usage.fetched_usage import TimeWindow
from pipeline.processors.imported_usage.usage_samples import MACHINE_ID, PodPlace
from pipeline.settings import KafkaSettings
from pipeline.topics.codec import Record, check_readable, decode_json
from pipeline.topics.pods import split_pod_key
from pipeline.topics.registry import NODES, PODS, SAMPLES
from pipeline.topics.sample_rows import read_header

log = get_logger(__name__)

WINDOWS_SERVED: Final = 3
"""Windows of silence (of the longer length) after which an exporter counts as stopped."""


_MOST_AHEAD_MS: Final = 60_000
"""Workers refuse windows that end later than this after their append, by default."""


class _Pod(Record, frozen=True, kw_only=True):
    """The fields of a `PodRecord` that a provider reads."""

    cgroup_uid: str
    namespace: str
    name: str


class _PlacedPod(NamedTuple):
    """The place of a pod and the key of its record."""

    key: bytes
    place: PodPlace


class ProviderClusterState:
    """Nodes, pods and exporters, as an `ClusterStateFollower` reads them.

    `nodes` has the names in `springtide.nodes`. `nodes_with_pods` has the number of pods of each
    node that has any.
    """

    def __init__(self) -> None:
        self.nodes: set[str] = set()
        self.nodes_with_pods: dict[str, int] = {}
        self._places: dict[tuple[str, str], _PlacedPod] = {}
        self._names: dict[bytes, tuple[str, str]] = {}
        self._exported: dict[str, TimeWindow] = {}

    @property
    def pods(self) -> int:
        """Number of pods with a distinct name."""
        return len(self._places)

    def place(self, namespace: str, name: str) -> PodPlace | None:
        """Return the place of a pod; None if it is unknown."""
        placed = self._places.get((namespace, name))
        return None if placed is None else placed.place

    def served(self, window: TimeWindow) -> set[str]:
        """Return the nodes whose exporter has published recently, as of `window`; the others are
        forgotten. Windows must not go back in time."""
        length_ms = window.end_ms - window.start_ms
        self._exported = {
            node: last
            for node, last in self._exported.items()
            if window.end_ms - last.end_ms
            <= WINDOWS_SERVED * max(length_ms, last.end_ms - last.start_ms)
        }
        return set(self._exported)

    # -- records

    def put_node(self, key: bytes, value: bytes | None, appended_ms: int) -> None:
        """Apply a record of `springtide.nodes`. A tombstone removes a node and its exporter.

        An exporter that published a window after the tombstone stays: the topics are read side by
        side, so the tombstone of an earlier node of that name may arrive late.
        """
        name = key.decode(errors="replace")
        if value is not None:
            self.nodes.add(name)
            return
        self.nodes.discard(name)
        last = self._exported.get(name)
        if last is not None and last.end_ms <= appended_ms:
            del self._exported[name]

    def put_pod(self, key: bytes, value: bytes | None) -> None:
        """Apply a record of `springtide.pods`. Raises `RecordError` if it is invalid."""
        node, _ = split_pod_key(key)
        pod = decode_json(_Pod, value) if value is not None and node else None
        name = self._names.pop(key, None)
        if name is not None:
            self._count(node, -1)
            # A pod of the same name may have been added before this tombstone.
            if (placed := self._places.get(name)) is not None and placed.key == key:
                del self._places[name]
        if pod is not None:
            self._count(node, 1)
            self._names[key] = name = (pod.namespace, pod.name)
            self._places[name] = _PlacedPod(key, PodPlace(node, pod.cgroup_uid))

    def _count(self, node: str, pods: int) -> None:
        self.nodes_with_pods[node] = self.nodes_with_pods.get(node, 0) + pods
        if not self.nodes_with_pods[node]:
            del self.nodes_with_pods[node]

    def put_sample(self, value: bytes | None, appended_ms: int) -> None:
        """Apply a record of `springtide.samples`. Raises `RecordError` if it is invalid.

        A window of a clock that is ahead does not count, else its node would be served until then.
        """
        if value is None:
            return
        header = read_header(value)
        is_ahead = header.window_end_ms > appended_ms + _MOST_AHEAD_MS
        if header.machine_id != MACHINE_ID and not is_ahead:
            window = TimeWindow(header.window_start_ms, header.window_end_ms)
            last = self._exported.get(header.node)
            if last is None or last.end_ms < window.end_ms:
                self._exported[header.node] = window


class ClusterStateFollower:
    """Reads the topics into a `ProviderClusterState`; recreated after each failure."""

    def __init__(self, kafka: KafkaSettings, state: ProviderClusterState, since_ms: int) -> None:
        """Read samples appended at `since_ms` (milliseconds since 1970) or later."""
        self._kafka = kafka
        self._state = state
        self._since_ms = since_ms
        self._topics = {t.full_name(kafka.topic_prefix): t for t in (NODES, PODS, SAMPLES)}
        self._caught_up = asyncio.Event()

    async def caught_up(self) -> None:
        """Return when the records that were on the topics at the start have been read."""
        await self._caught_up.wait()

    async def run(self) -> None:
        """Follow until cancelled. Raises `KafkaError` if the topics cannot be read."""
        partitions = topic_partitions(self._kafka, *self._topics.values())
        async with open_follower(client_options(self._kafka), partitions) as follower:
            await follower.begin({SAMPLES.full_name(self._kafka.topic_prefix): self._since_ms})
            while True:
                for record in await follower.poll():
                    self._apply(record)
                if follower.is_caught_up and not self._caught_up.is_set():
                    self._caught_up.set()
                    log.info("caught up", nodes=len(self._state.nodes), pods=self._state.pods)

    def _apply(self, record: ConsumerRecord) -> None:
        topic, key, value = self._topics[record.topic], record.key or b"", record.value
        try:
            check_readable(value)
            if topic is SAMPLES:
                self._state.put_sample(value, record.timestamp)
            elif topic is PODS:
                self._state.put_pod(key, value)
            else:
                self._state.put_node(key, value, record.timestamp)
        except RecordError:
            return  # the join agent refuses and reports it
