"""NodeMetric objects: spec from the policy, status as koordlet reports it, from our topics.

Each node is reported as often as its policy asks, by the ends of its windows and not by the clock,
so that a delayed window is reported late and not twice. A status is computed when its write is
executed, so that a write that waited in the queue is not old.
"""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, ClassVar, Final

import msgspec

from actuators.cluster.custom_resources import NODE_METRIC, CustomResources, DesiredSpec
from actuators.cluster.feature import Context, Feature, Follower, Topics, Watch
from actuators.cluster.write_queue import Write
from pipeline.errors import InvalidPolicyError, InvalidRecordError, KubernetesError, NotFoundError
from pipeline.kube.api_client import JSON_PATCH
from pipeline.processors.kubernetes.durations import timestamp_seconds
from pipeline.processors.policy.collect_interval import (
    CollectInterval,
    collect_interval,
)
from pipeline.processors.policy.nodemetric_spec import metric_spec
from pipeline.processors.slo.nodemetric import LONGEST_SPAN_SECONDS
from pipeline.processors.slo.nodemetric_status import (
    NodeMetricReport,
    aggregated_usage,
    host_apps_of,
    pods_of,
    status_of,
    usage_of,
)
from pipeline.processors.slo.rolling_usage import Rolling
from pipeline.times import parse_time
from pipeline.topics.node_state import AGGREGATED, AggregatedUsage, NodeStateRecord
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.registry import NODE_STATE, NODES, WINDOWS, Topic
from pipeline.topics.resource_amounts import Usage
from pipeline.topics.result_header import supersedes
from pipeline.topics.windows import Window

_FEATURE: Final = "NodeMetric status"
# An average over a longer time fills up from here.
_HISTORY_SECONDS: Final = 600.0
# Spans of node state by their length.
_PUBLISHED: Final = {Decimal(seconds): span for span, seconds in AGGREGATED.items()}


class NodeMetricObjects(Feature):
    """Writes NodeMetric objects."""

    name = "node_metrics"
    has_switch = True
    topics: ClassVar[Topics] = {NODES: None, NODE_STATE: None, WINDOWS: _HISTORY_SECONDS}

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._memory_policy = context.settings.model.memory_collect_policy
        self._resources = CustomResources(
            context.api, NODE_METRIC, context.queue, context.node_uids
        )
        self._rolling = Rolling()
        self._specs: dict[str, dict[str, Any]] = {}
        self._host_apps: dict[str, dict[str, str]] = {}
        self._states: dict[str, NodeStateRecord] = {}
        self._newest: dict[str, Window] = {}
        self._reported_ms: dict[str, int] = {}
        self._state_ms: dict[str, int] = {}
        self._changed: dict[str, None] = {}

    @property
    def watches(self) -> Mapping[Watch, Follower]:
        watch = Watch(NODE_METRIC.path, only_metadata=True, is_required=self.is_on)
        return {watch: self._resources}

    def learn(self, topic: Topic, node: str, record: Any) -> None:
        if topic is NODES:
            self._learn_node(node, record)
        elif topic is NODE_STATE:
            self._learn_state(node, record)
        elif record is not None:
            self._learn_window(record)

    def _learn_node(self, name: str, record: NodeRecord | None) -> None:
        try:
            spec = None if record is None else metric_spec(record, self._memory_policy)
        except InvalidPolicyError as error:
            raise InvalidRecordError(f"invalid colocation policy: {error.message}") from error
        if record is None or spec is None:
            self._specs.pop(name, None)
            self._host_apps.pop(name, None)
            self._resources.set_desired(name, None)
            return
        self._resources.set_desired(name, DesiredSpec(spec, record.uid))
        self._specs[name] = spec
        self._host_apps[name] = record.host_apps
        self._changed[name] = None

    def _learn_state(self, name: str, record: NodeStateRecord | None) -> None:
        if record is None:
            self._states.pop(name, None)
            self._state_ms.pop(name, None)
        elif supersedes(record, self._states.get(name)):
            self._states[name] = record
            self._state_ms[name] = round(parse_time(record.as_of) * 1000)
            self._changed[name] = None

    def _learn_window(self, window: Window) -> None:
        name = window.header.node
        seconds = min(self._interval(name).aggregate_seconds, LONGEST_SPAN_SECONDS)
        spans = [span for span in self._durations(name).values() if span <= LONGEST_SPAN_SECONDS]
        (is_applied,) = self._rolling.apply([window], [seconds], int(max(spans, default=0)))
        if is_applied and window.type == "window":
            self._newest[name] = window
            self._changed[name] = None
        elif is_applied:
            self._newest.pop(name, None)
            self._reported_ms.pop(name, None)

    def decide(self, *, everything: bool = False) -> None:
        self._resources.decide(everything=everything)
        # A report becomes due by a change only; a sweep finds objects that were created meanwhile.
        names = list(self._newest if everything else self._changed)
        self._changed = {}
        for name in names:
            window = self._newest.get(name)
            if window is not None and self.is_due(name, window):
                self._reported_ms[name] = self._nominal_ms(name, window)
                self._queue.put(_FEATURE, name, self._report(name))

    def is_due(self, name: str, window: Window) -> bool:
        """Whether a node should be reported as of its newest window."""
        end_ms = window.header.window_end_ms
        # The peaks of a window arrive after it, and belong to its report.
        if self._state_ms.get(name, 0) < end_ms or not self._resources.exists(name):
            return False
        early_ms = (end_ms - window.header.window_start_ms) // 2
        next_ms = self._reported_ms.get(name, 0) + 1000 * self._interval(name).report_seconds
        return name in self._specs and end_ms >= next_ms - early_ms

    def _nominal_ms(self, name: str, window: Window) -> int:
        """The time for which the report of this window counts. The interval need not be a multiple
        of the windows' length: reports are then early or late in turn, and on time on average."""
        end_ms, start_ms = window.header.window_end_ms, window.header.window_start_ms
        next_ms = self._reported_ms.get(name, 0) + 1000 * self._interval(name).report_seconds
        return next_ms if abs(end_ms - next_ms) < end_ms - start_ms else end_ms

    def _collect_policy(self, name: str) -> dict[str, Any]:
        policy: dict[str, Any] = self._specs.get(name, {}).get("metricCollectPolicy", {})
        return policy

    def _interval(self, name: str) -> CollectInterval:
        policy = self._collect_policy(name)
        return collect_interval(
            policy.get("reportIntervalSeconds"), policy.get("aggregateDurationSeconds")
        )

    def _report(self, name: str) -> Write:
        async def execute() -> None:
            status = self._status(name)
            if status is None:
                return
            path = f"{NODE_METRIC.path}/{name}/status"
            body = [{"op": "add", "path": "/status", "value": status}]
            await self._api.request("PATCH", path, body=body, content_type=JSON_PATCH, attempts=1)

        def on_failure(error: KubernetesError) -> None:
            self._reported_ms.pop(name, None)
            self._changed[name] = None
            if isinstance(error, NotFoundError):
                self._resources.deleted(name)

        return Write(execute, on_failure)

    def _status(self, name: str) -> Any:
        usage = self._rolling.read(name)
        window, state = self._newest.get(name), self._states.get(name)
        if usage is None or window is None:
            return None
        of_node, of_system = self._aggregated(name, state)
        report = NodeMetricReport(
            updated_seconds=usage.end_ms / 1000,
            usage=usage_of(usage.node),
            system_usage=usage_of(usage.system),
            aggregated=of_node,
            aggregated_system=of_system,
            pods=pods_of(window, usage.pods),
            host_apps=host_apps_of(window, usage.host_apps, self._host_apps.get(name, {})),
            prod_reclaimable=Usage() if state is None else state.prod_reclaimable,
            prod_peak=Usage() if state is None else state.prod_peak,
        )
        return msgspec.to_builtins(status_of(report))

    def _durations(self, name: str) -> dict[str, Decimal]:
        """The durations of the policy in seconds, by their text."""
        policy = self._collect_policy(name).get("nodeAggregatePolicy") or {}
        spans = {text: timestamp_seconds(text) for text in policy.get("durations") or ()}
        return {text: seconds for text, seconds in spans.items() if seconds is not None}

    def _aggregated(
        self, name: str, state: NodeStateRecord | None
    ) -> tuple[dict[str, AggregatedUsage], dict[str, AggregatedUsage]]:
        """Usage of the node and of its system over the durations of the policy.

        Where the worker publishes the node's percentiles, those of its readings count. Samples of
        providers have no readings. A duration without data is empty, as koordlet reports it.
        """
        published = {} if state is None else state.aggregated
        of_node, of_system = {}, {}
        for text, seconds in self._durations(name).items():
            node, system = map(aggregated_usage, self._rolling.aggregated(name, float(seconds)))
            by_readings = published.get(_PUBLISHED.get(seconds, ""), AggregatedUsage())
            of_node[text] = node if by_readings == AggregatedUsage() else by_readings
            of_system[text] = system
        return of_node, of_system
