"""The cluster watcher: an API server's nodes, pods and workloads kept on topics, by one leader.

Owes the rest: the topics say what the API server says, whatever fails in between, and who is cut
off writes no more. A leader first takes over the topics as the one writer that the broker knows,
reads back what lies there, lists everything, and goes on with what changes. If anything fails it
begins again from there: nothing is kept that could be wrong.
"""

import asyncio
from collections.abc import Iterable, Mapping
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
from pipeline.processors.policy.load_configmap import PolicyProblem
from pipeline.processors.policy.policy_in_force import load_policies
from pipeline.settings import KafkaSettings, Settings
from pipeline.sources.cluster.watched_kinds import Kind, Nodes, Pods, Workloads
from pipeline.sources.compacted_writer import Entry, open_producer, write_batches, written_by
from pipeline.sources.policy_file import filter_limits, tell
from pipeline.tasks import run_all
from pipeline.topics.registry import NODES, PODS, WORKLOADS

log = get_logger(__name__)

SOURCE: Final = "cluster"

OBJECTS = gauge("watcher_objects", "Objects that are known.", ["kind"])
IN_STEP = gauge("watcher_in_step", "1 once a whole list of the kind is written.", ["kind"])
ALIVE_AT = gauge(
    "watcher_last_event_timestamp_seconds", "When the API server last said something.", ["kind"]
)
BEGUN = counter("watcher_starts", "Times that everything was listed anew, and why.", ["why"])

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
_WAITING: Final = 4000
# A transaction takes the broker tens of milliseconds, however little is in it.
_AT_ONCE: Final = 4000
_PAUSE_SECONDS: Final = 5.0


class Watcher:
    """What one leader knows; made anew for each turn."""

    def __init__(self, api: Api, settings: Settings) -> None:
        self._api = api
        self._settings = settings
        self._reporter = EventReporter(api, "springtide-watcher")
        self._nodes = Nodes(self._tell_of_node)
        self._pods = Pods()
        self._others = {kind: Workloads(kind) for kind in _WORKLOADS}
        self._waiting: asyncio.Queue[Entry | asyncio.Event] = asyncio.Queue(_WAITING)
        self._policy_known = asyncio.Event()
        # Nodes change by two hands, their own and the policy's: what is written of one must come in
        # the order in which it was worked out.
        self._turn = asyncio.Lock()
        self._problems: tuple[PolicyProblem, ...] | None = None

    async def run(self) -> None:
        """Keep the topics in step, until cancelled. Raises what `KafkaError` and `KubernetesError`
        there are."""
        kafka = self._settings.kafka
        sole = f"{kafka.topic_prefix}-watcher"
        async with open_producer(kafka, "springtide-watcher", sole) as producer:
            await self._read_back(kafka)
            kinds: list[Kind] = [self._nodes, self._pods, *self._others.values()]
            try:
                await run_all([
                    self._write(producer, kafka),
                    self._follow_policy(),
                    *(self._follow(kind) for kind in kinds),
                ])  # fmt: skip
            finally:
                # Who leads no longer, or begins again, is in step with nothing.
                for kind in kinds:
                    IN_STEP.labels(kind.name).set(0)

    async def _read_back(self, kafka: KafkaSettings) -> None:
        """Learn what lies on the topics. What cannot be read is written anew."""
        for topic, kind in ((NODES, self._nodes), (PODS, self._pods)):
            async for key, value in written_by(kafka, topic, SOURCE):
                _learn(kind, key, value)
        async for key, value in written_by(kafka, WORKLOADS, SOURCE):
            parts = key.decode(errors="replace").split("/")
            if len(parts) == 3 and parts[1] in self._others:
                _learn(self._others[parts[1]], key, value)
        log.info("topics are read back", nodes=len(self._nodes), pods=len(self._pods),
                 workloads=sum(map(len, self._others.values())))  # fmt: skip

    # -- from the API server

    async def _follow(self, kind: Kind) -> None:
        IN_STEP.labels(kind.name).set(0)
        if kind is self._nodes:
            # Without its policy a node would look as if it had none.
            await self._policy_known.wait()
        turn = self._turn if kind is self._nodes else nullcontext()
        async with aclosing(follow(self._api, _PATHS[kind.name])) as events:
            async for event in events:
                async with turn:
                    await self._take(kind, event)
                ALIVE_AT.labels(kind.name).set(self._api.clock.now())
                OBJECTS.labels(kind.name).set(len(kind))

    async def _take(self, kind: Kind, event: Event) -> None:
        match event:
            case Began():
                kind.begin()
            case Page(objects):
                for of in objects:
                    await self._hand_on(kind.put(of))
            case Complete():
                await self._hand_on(kind.complete())
                await self._until_written()
                IN_STEP.labels(kind.name).set(1)
                log.info("in step", kind=kind.name, objects=len(kind))
            case Changed(of, is_gone):
                await self._hand_on(kind.gone(of) if is_gone else kind.put(of))
            case Alive():
                pass

    async def _follow_policy(self) -> None:
        kubernetes = self._settings.kubernetes
        path = f"/api/v1/namespaces/{kubernetes.config_namespace}/configmaps"
        only = {"fieldSelector": f"metadata.name={kubernetes.config_name}"}
        found: msgspec.Raw | None = None
        async with aclosing(follow(self._api, path, only)) as events:
            async for event in events:
                match event:
                    case Began():
                        found = None
                    case Page(objects):
                        found = objects[0]
                    case Complete():
                        await self._apply_policy(found)
                    case Changed(of, is_gone):
                        await self._apply_policy(None if is_gone else of)

    async def _apply_policy(self, of: msgspec.Raw | None) -> None:
        config = None if of is None else msgspec.json.decode(of)
        data = None if config is None else config.get("data") or {}
        limits = filter_limits(self._settings)
        policies, problems = load_policies(data, self._nodes.policies, limits)
        changed = policies != self._nodes.policies
        if problems != self._problems:
            self._problems = problems
            self._tell_of_policy(config, problems)
        if changed or not self._policy_known.is_set():
            if policies.is_usable:
                log.info("policy is in force")
            else:
                log.warning("no usable policy yet: nodes that have one keep it, others have none")
            async with self._turn:
                await self._hand_on(self._nodes.apply(policies))
        self._policy_known.set()

    async def _hand_on(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            await self._waiting.put(entry)

    async def _until_written(self) -> None:
        """Return when all that was handed on before is on the topics."""
        written = asyncio.Event()
        await self._waiting.put(written)
        await written.wait()

    # -- to the topics

    async def _write(self, producer: Producer, kafka: KafkaSettings) -> None:
        while True:
            batch = [await self._waiting.get()]
            while len(batch) < _AT_ONCE and not self._waiting.empty():
                batch.append(self._waiting.get_nowait())
            entries = [one for one in batch if isinstance(one, Entry)]
            if entries:
                with translated_errors(kafka, "writing what the cluster says"):
                    async with producer.transaction():
                        await write_batches(producer, kafka, SOURCE, entries)
            for one in batch:
                if isinstance(one, asyncio.Event):
                    one.set()

    # -- what is wrong

    def _tell_of_policy(self, config: Any, problems: tuple[PolicyProblem, ...]) -> None:
        tell(problems)
        if config is not None and problems:
            text = "; ".join(map(str, problems))
            # What is good in it must not wait for the Event about what is not.
            self._reporter.warn_soon(config, "ConfigMap", "PolicyProblem", text)

    def _tell_of_node(self, node: str, problems: tuple[PolicyProblem, ...]) -> None:
        for problem in problems:
            log.warning("policy of a node", node=node, problem=str(problem))
        if problems:
            self._reporter.warn_soon(
                {"metadata": {"name": node}}, "Node", "PolicyProblem", "; ".join(map(str, problems))
            )


def _learn(kind: Kind, key: bytes, value: bytes | None) -> None:
    try:
        kind.learn(key, value)
    except RecordError as error:
        log.warning("record on the topic cannot be read", kind=kind.name, key=repr(key)[:100],
                    why=error.message)  # fmt: skip


async def watch_cluster(api: Api, settings: Settings, clock: Clock) -> None:
    """Keep the topics in step, from the beginning each time that Kafka fails. Raises
    `KubernetesError` if we are not allowed to, `TopicDriftError` if a topic is missing."""
    BEGUN.labels("start").inc()
    while True:
        try:
            await require_topics(settings.kafka)
            await Watcher(api, settings).run()
        except TopicDriftError:
            raise
        except KafkaError as error:
            why = "another writes" if is_fenced(error) else "Kafka"
            BEGUN.labels(why).inc()
            log.error("beginning again", why=str(error), seconds=_PAUSE_SECONDS)
            await clock.sleep(_PAUSE_SECONDS)
