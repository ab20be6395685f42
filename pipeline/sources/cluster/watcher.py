"""Follow an API server and keep the topics of nodes, pods and workloads equal to it.

The leader opens a transactional producer, which fences its predecessor, reads the topics back,
lists every kind, and then follows changes. After a failure it restarts from there with empty state:
only the topics show what was written.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing, nullcontext
from typing import Any, Final

import msgspec

from pipeline.clock import Clock
from pipeline.errors import KafkaError, RecordError, TopicDriftError
from pipeline.kafka.client import translated_errors
from pipeline.kafka.producer import Producer, is_fenced
from pipeline.kafka.topic_admin import require_topics
from pipeline.kube.api_client import Api
from pipeline.kube.event_reporter import EventReporter
from pipeline.kube.list_watch import Alive, Began, Changed, Complete, Event, Page, follow
from pipeline.logs import get_logger
from pipeline.metrics import counter, gauge
from pipeline.metrics_server import Readiness
from pipeline.processors.descheduling.descheduler_config import CONFIG_MAP_KEY, load_descheduling
from pipeline.processors.policy.load_configmap import CONFIG_MAP, PolicyProblem
from pipeline.processors.policy.policy_in_force import load_policies
from pipeline.settings import KafkaSettings, Settings
from pipeline.sources.cluster.doubtful_lists import CONFIRM_SECONDS, DoubtfulLists
from pipeline.sources.cluster.followed_kinds import FollowedKinds
from pipeline.sources.cluster.watched_kinds import Kind, Nodes, Pods, Workloads
from pipeline.sources.compacted_writer import (
    Entry,
    heartbeat_entry,
    open_producer,
    records_of_source,
    write,
)
from pipeline.sources.policy_file import filter_limits, report_problems
from pipeline.tasks import run_all
from pipeline.topics.access import ROLES, sole_writer_of
from pipeline.topics.heartbeats import HEARTBEAT_SECONDS, WATCHER
from pipeline.topics.registry import NODES, PODS, WORKLOADS

log = get_logger(__name__)

SOURCE: Final = WATCHER

OBJECTS = gauge("watcher_objects", "Objects known to the watcher.", ["kind"])
IN_STEP = gauge(
    "watcher_in_step", "1 when a complete list of the kind has been written, else 0.", ["kind"]
)
LAST_EVENT = gauge(
    "watcher_last_event_timestamp_seconds", "When the API server last sent an event.", ["kind"]
)
STARTS = counter("watcher_starts", "Starts and restarts of the watcher, by cause.", ["why"])

_PATHS: Final[Mapping[str, str]] = {
    "Node": "/api/v1/nodes",
    "Pod": "/api/v1/pods",
    "Deployment": "/apis/apps/v1/deployments",
    "ReplicaSet": "/apis/apps/v1/replicasets",
    "StatefulSet": "/apis/apps/v1/statefulsets",
    "DaemonSet": "/apis/apps/v1/daemonsets",
    "Job": "/apis/batch/v1/jobs",
    "PodDisruptionBudget": "/apis/policy/v1/poddisruptionbudgets",
}
_WORKLOADS: Final = tuple(kind for kind in _PATHS if kind not in ("Node", "Pod"))
_MAX_QUEUED: Final = 4000
# A transaction takes the broker tens of milliseconds, independent of its size.
_MAX_BATCH: Final = 4000
_PAUSE_SECONDS: Final = 5.0
_NO_CONFIG_MAP: Final[tuple[PolicyProblem, ...]] = (
    PolicyProblem(
        CONFIG_MAP,
        "there is none: the last policy stays in force; a ConfigMap without data sets the defaults",
        in_force=True,
    ),
)
_NO_DESCHEDULER_CONFIG_MAP: Final = PolicyProblem(
    CONFIG_MAP_KEY,
    "its ConfigMap was deleted: the last thresholds of hot nodes stay in force; a ConfigMap "
    "without data removes them",
    in_force=True,
)


class Watcher:
    """The state of one leader; recreated after each failure."""

    def __init__(self, api: Api, settings: Settings) -> None:
        self._api = api
        self._settings = settings
        self._reporter = EventReporter(api, "springtide-watcher")
        self.nodes = Nodes(self._report_node_problems)
        self._pods = Pods()
        self._workloads = {kind: Workloads(kind) for kind in _WORKLOADS}
        self._queue: asyncio.Queue[Entry | asyncio.Event] = asyncio.Queue(_MAX_QUEUED)
        self._policy_known = asyncio.Event()
        self._descheduling_known = asyncio.Event()
        # Node events and policy changes both produce node records, whose order must be preserved.
        self._node_lock = asyncio.Lock()
        self._problems: dict[str, tuple[PolicyProblem, ...]] = {}
        self._followed = FollowedKinds((self.nodes.name, self._pods.name), api.clock)

    def trouble(self) -> str:
        """Why the topics may differ from the API server: a list is incomplete, or a watch is
        silent. Empty if they are in step."""
        return "" if self._followed.are_complete else "not in step with nodes and pods"

    async def run(self) -> None:
        """Keep the topics in step until cancelled. Raises `KafkaError` and `KubernetesError`."""
        kafka = self._settings.kafka
        sole_writer = sole_writer_of(kafka.topic_prefix)
        async with open_producer(kafka, "springtide-watcher", sole_writer) as producer:
            await self._read_back(kafka)
            kinds: list[Kind] = [self.nodes, self._pods, *self._workloads.values()]
            try:
                await run_all([
                    self._write(producer, kafka),
                    self._send_heartbeats(),
                    self._follow_config_map(
                        self._settings.kubernetes.config_name, self.apply_policy
                    ),
                    self._follow_config_map(
                        self._settings.kubernetes.descheduler_config_name, self.apply_descheduling
                    ),
                    *(self._follow(kind) for kind in kinds),
                ])  # fmt: skip
            finally:
                # A former leader is no longer in step.
                for kind in kinds:
                    IN_STEP.labels(kind.name).set(0)

    async def _read_back(self, kafka: KafkaSettings) -> None:
        """Restore the state from the topics. Invalid records will be overwritten."""
        for topic, kind in ((NODES, self.nodes), (PODS, self._pods)):
            async for key, value in records_of_source(kafka, topic, SOURCE):
                _restore(kind, key, value)
        async for key, value in records_of_source(kafka, WORKLOADS, SOURCE):
            parts = key.decode(errors="replace").split("/")
            if len(parts) == 3 and parts[1] in self._workloads:
                _restore(self._workloads[parts[1]], key, value)
        log.info("topics are read back", nodes=len(self.nodes), pods=len(self._pods),
                 workloads=sum(map(len, self._workloads.values())))  # fmt: skip

    # -- from the API server

    async def _follow(self, kind: Kind) -> None:
        IN_STEP.labels(kind.name).set(0)
        if kind is self.nodes:
            # Nodes published before the policy is known would lose theirs.
            await self._policy_known.wait()
            await self._descheduling_known.wait()
        lists, path, is_first = DoubtfulLists(kind, self._api.clock), _PATHS[kind.name], True
        lock = self._node_lock if kind is self.nodes else nullcontext()
        while True:
            async with aclosing(follow(self._api, path, was_allowed=not is_first)) as events:
                while (event := await lists.next_event(events)) is not None:
                    async with lock:
                        is_trusted = await self._take(kind, event, lists)
                    if is_trusted:
                        self._followed.observe(kind.name, event)
                    LAST_EVENT.labels(kind.name).set(self._api.clock.now())
                    OBJECTS.labels(kind.name).set(len(kind))
            is_first = False

    async def _take(self, kind: Kind, event: Event, lists: DoubtfulLists) -> bool:
        """Apply an event; return whether the topics may follow it."""
        match event:
            case Began():
                lists.began()
                kind.begin()
            case Page(objects):
                for manifest in objects:
                    await self._enqueue(kind.put(manifest))
            case Complete():
                if not lists.accepts():
                    IN_STEP.labels(kind.name).set(0)
                    self._report_doubt(kind)
                    return False
                await self._enqueue(kind.complete())
                await self._until_written()
                IN_STEP.labels(kind.name).set(1)
                log.info("in step", kind=kind.name, objects=len(kind))
            case Changed(manifest, is_deleted):
                entries = kind.delete(manifest) if is_deleted else kind.put(manifest)
                await self._enqueue(entries)
            case Alive():
                pass
        return True

    async def _send_heartbeats(self) -> None:
        """Write a heartbeat every few seconds, with a new time while the API server sends events of
        Nodes and Pods. It goes through the queue, so that all changes before it are on the topics.
        """
        complete_until: float | None = None
        while True:
            if self._followed.are_complete:
                complete_until = self._api.clock.now()
            await self._queue.put(heartbeat_entry(complete_until))
            await self._api.clock.sleep(HEARTBEAT_SECONDS)

    async def _follow_config_map(
        self, name: str, apply: Callable[[msgspec.Raw | None], Awaitable[None]]
    ) -> None:
        namespace = self._settings.kubernetes.config_namespace
        path = f"/api/v1/namespaces/{namespace}/configmaps"
        selector = {"fieldSelector": f"metadata.name={name}"}
        manifest: msgspec.Raw | None = None
        async with aclosing(follow(self._api, path, selector)) as events:
            async for event in events:
                match event:
                    case Began():
                        manifest = None
                    case Page(objects):
                        manifest = objects[0]
                    case Complete():
                        await apply(manifest)
                    case Changed(changed, is_deleted):
                        await apply(None if is_deleted else changed)

    async def apply_policy(self, manifest: msgspec.Raw | None) -> None:
        """Put the policy of a ConfigMap in force. Without one (`manifest` is None) the last policy
        stays in force, also across a restart: a deletion by mistake must not withdraw all offers.
        """
        config = None if manifest is None else msgspec.json.decode(manifest)
        limits = filter_limits(self._settings)
        policies, problems = self.nodes.policies, _NO_CONFIG_MAP
        if config is not None:
            data = config.get("data") or {}
            policies, problems = load_policies(data, self.nodes.policies, limits)
        changed = policies != self.nodes.policies
        self._report_policy_problems(CONFIG_MAP, config, problems)
        if changed or not self._policy_known.is_set():
            if policies.is_usable:
                log.info("policy is in force")
            else:
                log.warning("no valid policy yet: nodes keep the policy of their last record")
            async with self._node_lock:
                await self._enqueue(self.nodes.apply(policies))
        self._policy_known.set()

    async def apply_descheduling(self, manifest: msgspec.Raw | None) -> None:
        """Put the DeschedulerConfiguration of a ConfigMap in force. Without one the last stays, as
        with the policy; most clusters have none, and no alerts of hot nodes."""
        config = None if manifest is None else msgspec.json.decode(manifest)
        descheduling = self.nodes.descheduling
        problems: tuple[PolicyProblem, ...] = ()
        if config is not None:
            # A megabyte of YAML takes seconds.
            data = config.get("data") or {}
            loaded, problems = await asyncio.to_thread(load_descheduling, data)
            descheduling = loaded or descheduling
        elif descheduling is not None:
            problems = (_NO_DESCHEDULER_CONFIG_MAP,)
        self._report_policy_problems(CONFIG_MAP_KEY, config, problems)
        if descheduling != self.nodes.descheduling:
            log.info("descheduler configuration is in force")
            async with self._node_lock:
                await self._enqueue(self.nodes.apply(self.nodes.policies, descheduling))
        self._descheduling_known.set()

    async def _enqueue(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            await self._queue.put(entry)

    async def _until_written(self) -> None:
        """Return when all entries enqueued before are on the topics."""
        written = asyncio.Event()
        await self._queue.put(written)
        await written.wait()

    # -- to the topics

    async def _write(self, producer: Producer, kafka: KafkaSettings) -> None:
        while True:
            batch = [await self._queue.get()]
            while len(batch) < _MAX_BATCH and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            entries = [item for item in batch if isinstance(item, Entry)]
            if entries:
                with translated_errors(kafka, "writing the objects of the cluster"):
                    async with producer.transaction():
                        await write(producer, kafka, SOURCE, entries, _MAX_BATCH)
            for item in batch:
                if isinstance(item, asyncio.Event):
                    item.set()

    # -- problems

    def _report_doubt(self, kind: Kind) -> None:
        namespace = self._settings.kubernetes.namespace
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "metadata": {"name": "springtide-watcher", "namespace": namespace},
        }
        text = (
            f"a list of kind {kind.name} misses many of the {len(kind)} known objects; their "
            f"records stay until a list {CONFIRM_SECONDS:g} s later agrees"
        )
        self._reporter.warn_soon(lease, "Lease", "DoubtfulList", text)

    def _report_policy_problems(
        self, source: str, config: Any, problems: tuple[PolicyProblem, ...]
    ) -> None:
        if problems == self._problems.get(source):
            return
        self._problems[source] = problems
        report_problems(problem for each in self._problems.values() for problem in each)
        if config is not None and problems:
            text = "; ".join(map(str, problems))
            # The valid parts must not wait for the Event about the invalid ones.
            self._reporter.warn_soon(config, "ConfigMap", "PolicyProblem", text)

    def _report_node_problems(self, node: str, problems: tuple[PolicyProblem, ...]) -> None:
        for problem in problems:
            log.warning("invalid policy of node", per=node, node=node, problem=str(problem))
        if problems:
            self._reporter.warn_soon(
                {"metadata": {"name": node}}, "Node", "PolicyProblem", "; ".join(map(str, problems))
            )


def _restore(kind: Kind, key: bytes, value: bytes | None) -> None:
    try:
        kind.restore(key, value)
    except RecordError as error:
        log.warning("invalid record on the topic", per=kind.name, kind=kind.name,
                    key=repr(key)[:100], why=error.message)  # fmt: skip


async def watch_cluster(api: Api, settings: Settings, clock: Clock, readiness: Readiness) -> None:
    """Keep the topics in step until cancelled; restart after each Kafka error. The role is ready
    while they are in step.

    Raises `KubernetesError` if the API server denies access, `TopicDriftError` if a topic is
    missing.
    """
    STARTS.labels("start").inc()
    watcher: Watcher | None = None
    with readiness.leading(lambda: "waiting for Kafka" if watcher is None else watcher.trouble()):
        while True:
            try:
                await require_topics(settings.kafka, ROLES["watcher"].topics)
                watcher = Watcher(api, settings)
                await watcher.run()
            except TopicDriftError:
                raise
            except KafkaError as error:
                watcher = None
                why = "another writes" if is_fenced(error) else "Kafka"
                STARTS.labels(why).inc()
                log.error("restarting", why=str(error), seconds=_PAUSE_SECONDS)
                await clock.sleep(_PAUSE_SECONDS)
