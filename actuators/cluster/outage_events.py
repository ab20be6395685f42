"""Report outages by Events about the Lease `springtide-actuator`: of usage, and of the watcher.

Extenders decide otherwise in an outage, and have no access to the API server. The actuator reads
the same topics and applies the same rules.
"""

from typing import Any, ClassVar, Final, NamedTuple

import numpy as np

from actuators.cluster.feature import Context, Feature, Topics
from actuators.cluster.write_queue import Write
from pipeline.errors import KeyMismatchError
from pipeline.kube.event_reporter import EventReporter
from pipeline.logs import get_logger
from pipeline.processors.loadaware.usage_outage import UsageOutage, usage_outage
from pipeline.processors.loadaware.usage_readings import is_fresh, seconds_until_stale
from pipeline.settings import Settings
from pipeline.sources.scheduler_config import load_placement
from pipeline.times import parse_time
from pipeline.topics.heartbeats import Heartbeats
from pipeline.topics.registry import HEARTBEATS, NODE_STATE, NODES, Topic
from pipeline.topics.result_header import Position

log = get_logger(__name__)

LEASE: Final = "springtide-actuator"
REPEAT_SECONDS: Final = 1800.0
"""An Event is written again while its outage lasts: API servers keep Events for an hour."""


def _expiration_seconds(settings: Settings) -> float:
    """The age at which usage is lost for extenders with the same settings. Raises
    `SettingsError`."""
    placement = load_placement(settings.extender)
    return placement.expiration_seconds(settings.extender.stale_after_seconds)


class _Window(NamedTuple):
    end: float
    seconds: float
    position: Position


class OutageEvents(Feature):
    """Follows the last window of each node, the Nodes, and the heartbeats."""

    name = "outage"
    modes = ("recommend", "act")
    topics: ClassVar[Topics] = {NODE_STATE: None, NODES: None, HEARTBEATS: None}

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._expiration_seconds = _expiration_seconds(context.settings) if self.is_on else 0.0
        self._namespace = context.settings.kubernetes.namespace
        self._reporter = EventReporter(context.api, LEASE)
        self._windows: dict[str, _Window] = {}
        self._nodes: set[str] = set()
        self._heartbeats = Heartbeats()
        self._usage: UsageOutage | None = None
        self._reported: dict[str, float] = {}

    def learn(self, topic: Topic, node: str, record: Any) -> None:
        if topic is NODES:
            (self._nodes.discard if record is None else self._nodes.add)(node)
        elif topic is HEARTBEATS:
            if record is None:
                return  # proves neither that the watcher lives nor that another source took over
            if record.source != node:
                raise KeyMismatchError(f"heartbeat of {record.source}, key {node[:80]!r}")
            self._heartbeats.take(None if record.at is None else parse_time(record.at))
            self._heartbeats.observe(self._clock.monotonic())
        elif record is None:
            self._windows.pop(node, None)
        elif node not in self._windows or record.position >= self._windows[node].position:
            window = _Window(parse_time(record.as_of), record.window_seconds, record.position)
            self._windows[node] = window

    def decide(self, *, everything: bool) -> None:
        if not everything or not self.is_on:
            return
        now = self._clock.now()
        ends = np.array([window.end for window in self._windows.values()])
        seconds = np.array([window.seconds for window in self._windows.values()])
        fresh = is_fresh(now - ends, seconds_until_stale(seconds, self._expiration_seconds))
        has_node = np.array([node in self._nodes for node in self._windows], np.bool_)
        self._usage = usage_outage(now, ends, seconds, fresh, has_node, self._usage)
        self._report(
            "UsageOutage", "UsageRecovered", "" if self._usage is None or self._usage.is_over
            else f"{self._usage}: check exporters, Kafka and workers. Extenders judge these nodes "
            "by requests",
        )  # fmt: skip
        trouble = None
        if self._heartbeats.have_come:
            trouble = self._heartbeats.trouble(self._clock.monotonic())
        is_dead = trouble is not None and trouble.is_dead
        unseen = "Topics do not show new pods and nodes"
        self._report(
            "WatcherDead", "WatcherAlive",
            f"{trouble}: start a watcher, or check its log. {unseen}" if is_dead else "",
        )  # fmt: skip
        self._report(
            "WatcherBehind", "WatcherInStep",
            f"{trouble}: check its log, and the API server. {unseen}"
            if trouble is not None and not is_dead else "",
        )  # fmt: skip

    def _report(self, begin: str, end: str, problem: str) -> None:
        """Write an Event when a problem begins, now and then while it lasts, and when it ends."""
        now, reported_at = self._clock.monotonic(), self._reported.get(begin)
        if problem and (reported_at is None or now - reported_at >= REPEAT_SECONDS):
            self._reported[begin] = now
            log.warning("outage", reason=begin, why=problem)
            self._write(begin, problem, "Warning")
        elif not problem and reported_at is not None:
            del self._reported[begin]
            log.info("outage has ended", reason=end)
            self._write(end, "the outage has ended", "Normal")

    def _write(self, reason: str, text: str, severity: str) -> None:
        about = {
            "apiVersion": "coordination.k8s.io/v1",
            "metadata": {"name": LEASE, "namespace": self._namespace},
        }

        async def execute() -> None:
            await self._reporter.write(about, "Lease", reason, text, severity=severity)

        self._queue.put(self.name, reason, Write(execute, lambda _: None))
