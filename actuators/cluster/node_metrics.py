"""NodeMetric: its spec by the policy, its status as koordlet would report it, from our topics.

Owes the rest: a report of each node as often as its policy says, by the ends of its windows, over
the time of aggregation that its policy says. What a report says is worked out when its turn comes,
so that one that waited is not old.
"""

from decimal import Decimal
from typing import Any, Final

import msgspec

from actuators.cluster.custom_resources import NODE_METRIC, Objects, UidOf, Wanted
from actuators.cluster.write_queue import Write, Writer
from pipeline.errors import (
    InvalidPolicyError,
    InvalidRecordError,
    KubernetesError,
    NotFoundError,
)
from pipeline.kube.api_client import JSON_PATCH, Api
from pipeline.processors.kubernetes.durations import seconds_of
from pipeline.processors.policy.collect_interval import CollectInterval, collect_interval
from pipeline.processors.policy.nodemetric_spec import metric_spec
from pipeline.processors.slo.nodemetric_status import (
    HostMetricReport,
    NodeMetricReport,
    pods_of,
    status_of,
    usage_of,
)
from pipeline.processors.slo.rolling_usage import Rolling
from pipeline.times import parse_time
from pipeline.topics.node_state import AGGREGATED, AggregatedUsage, NodeStateRecord
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.result_header import supersedes
from pipeline.topics.windows import Window

_STATUS: Final = "NodeMetric status"
# What is kept for an average costs memory; no report is about more than an hour.
_LONGEST_SECONDS: Final = 3600


class NodeMetrics:
    """The NodeMetrics of all nodes. `learn_*` tell it of the topics, `decide` what is due."""

    def __init__(self, api: Api, writer: Writer, uid_of: UidOf, memory_policy: str) -> None:
        self.objects = Objects(api, NODE_METRIC, writer, uid_of)
        self._api = api
        self._writer = writer
        self._memory_policy = memory_policy
        self._rolling = Rolling()
        self._specs: dict[str, dict[str, Any]] = {}
        self._host_apps: dict[str, dict[str, str]] = {}
        self._states: dict[str, NodeStateRecord] = {}
        self._newest: dict[str, Window] = {}
        self._reported_ms: dict[str, int] = {}
        self._known_ms: dict[str, int] = {}
        # Of which something has come since the last look: only by that a report becomes due.
        self._changed: dict[str, None] = {}

    def learn_node(self, name: str, record: NodeRecord | None) -> None:
        """What is known of a node, and its policy. Raises `InvalidRecordError` for one that cannot
        be used."""
        try:
            spec = None if record is None else metric_spec(record)
        except InvalidPolicyError as error:
            raise InvalidRecordError(f"colocation cannot be used: {error.message}") from error
        if record is None or spec is None:
            self._specs.pop(name, None)
            self.objects.want(name, None)
            return
        self.objects.want(name, Wanted(spec, record.uid))
        self._specs[name] = spec
        self._host_apps[name] = record.host_apps
        self._changed[name] = None

    def learn_state(self, name: str, record: NodeStateRecord | None) -> None:
        """The row of a node in the state table."""
        if record is None:
            self._states.pop(name, None)
            self._known_ms.pop(name, None)
        elif supersedes(record, self._states.get(name)):
            self._states[name] = record
            self._known_ms[name] = round(parse_time(record.as_of) * 1000)
            self._changed[name] = None

    def learn_window(self, window: Window) -> None:
        """What a node used; its report may be due by it."""
        name = window.header.node
        if window.type == "departure":
            self._rolling.forget(name)
            for known in (self._newest, self._reported_ms):
                known.pop(name, None)
            return
        memory = self._collect_policy(name).get("nodeMemoryCollectPolicy", self._memory_policy)
        seconds = min(self._interval(name).aggregate_seconds, _LONGEST_SECONDS)
        (is_taken,) = self._rolling.apply([window], [seconds], memory)
        if is_taken:
            self._newest[name] = window
            self._changed[name] = None

    def decide(self, *, everything: bool = False) -> None:
        """Put what is due into the writer's hands: of nodes of which something has come, or of all,
        which is for those whose object is there by now."""
        self.objects.decide(everything=everything)
        names = list(self._newest if everything else self._changed)
        self._changed = {}
        for name in names:
            window = self._newest.get(name)
            if window is not None and self._is_due(name, window):
                self._reported_ms[name] = window.header.window_end_ms
                self._writer.put(_STATUS, name, self._report(name))

    def _is_due(self, name: str, window: Window) -> bool:
        end_ms = window.header.window_end_ms
        # Peaks of a window come after it, and belong to its report.
        if self._known_ms.get(name, 0) < end_ms or not self.objects.exists(name):
            return False
        length_ms = end_ms - window.header.window_start_ms
        # Windows end on a grid that the interval need not be a multiple of.
        interval_ms = 1000 * self._interval(name).report_seconds - length_ms // 2
        return name in self._specs and end_ms >= self._reported_ms.get(name, 0) + interval_ms

    def _collect_policy(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self._specs.get(name, {}).get("metricCollectPolicy", {})
        return found

    def _interval(self, name: str) -> CollectInterval:
        policy = self._collect_policy(name)
        return collect_interval(
            policy.get("reportIntervalSeconds"), policy.get("aggregateDurationSeconds")
        )

    def _report(self, name: str) -> Write:
        async def do() -> None:
            status = self._status(name)
            if status is None:
                return
            path = f"{NODE_METRIC.path}/{name}/status"
            body = [{"op": "add", "path": "/status", "value": status}]
            await self._api.request("PATCH", path, body=body, kind=JSON_PATCH, attempts=1)

        def failed(error: KubernetesError) -> None:
            self._reported_ms.pop(name, None)
            self._changed[name] = None
            if isinstance(error, NotFoundError):
                self.objects.gone(name)

        return Write(do, failed)

    def _status(self, name: str) -> Any:
        usage, window, state = (
            self._rolling.read(name),
            self._newest.get(name),
            self._states.get(name),
        )
        if usage is None or window is None:
            return None
        classes = self._host_apps.get(name, {})
        report = NodeMetricReport(
            updated_seconds=usage.end_ms / 1000,
            usage=usage_of(usage.node),
            system_usage=usage_of(usage.system),
            aggregated={} if state is None else self._spans(name, state),
            pods=pods_of(window, usage.pods),
            host_apps=tuple(
                HostMetricReport(
                    name=of, usage=usage_of(used), priority=_label(classes.get(of, ""))
                )
                for of, used in zip(usage.hosts, usage.host_apps, strict=True)
            ),
            **({} if state is None else _predicted(state)),
        )
        return msgspec.to_builtins(status_of(report))

    def _spans(self, name: str, state: NodeStateRecord) -> dict[str, Any]:
        """The spans that the policy asks for; of one that is not measured nothing is known."""
        policy = self._collect_policy(name).get("nodeAggregatePolicy") or {}
        measured = {Decimal(of): state.aggregated.get(span) for span, of in AGGREGATED.items()}
        texts = {seconds_of(text): text for text in policy.get("durations") or ()}
        return {
            text: measured.get(seconds) or AggregatedUsage()
            for seconds, text in texts.items()
            if seconds is not None
        }


def _predicted(state: NodeStateRecord) -> dict[str, Any]:
    return {"prod_reclaimable": state.prod_reclaimable, "prod_peak": state.prod_peak}


def _label(of: str) -> str:
    return f"koord-{of}" if of in ("prod", "mid", "batch", "free") else ""
