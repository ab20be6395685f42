"""Tell the story of the demo of hot nodes: records and pods in, lines of text out.

Every line is about something that was observed, on a topic or at the API server. The story also
knows what has to be observed, in which order on each node, and how long that may take: `unseen` and
`problems` say what went wrong. Times are Unix times.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, Literal, NamedTuple

from pipeline.local.hot_node_scenario import (
    HIGH_PERCENT,
    HOT_NODES,
    PROTECTED,
    RELIEVED,
    SPAN_SECONDS,
)
from pipeline.processors.explain.quantity_text import format_cpu
from pipeline.processors.explain.text_columns import align_columns
from pipeline.times import time_or_none
from pipeline.topics.actions import ActionRecord
from pipeline.topics.alerts import AlertRecord
from pipeline.topics.eviction_plans import EvictionPlanRecord, LeavingPod
from pipeline.topics.node_state import NodeStateRecord

What = Literal[
    "usage above the threshold", "alert opened", "plan", "eviction", "replacement elsewhere",
    "alert closed", "outcome", "eviction refused",
]  # fmt: skip


class Step(NamedTuple):
    """What has to be observed on a node, within so many seconds after the step before it."""

    node: str
    what: What
    limit_seconds: float


# Many times what they take: a busy machine must not make the demo fail.
STEPS: Final = (
    Step(RELIEVED.name, "usage above the threshold", 180),
    Step(RELIEVED.name, "alert opened", 240),
    Step(RELIEVED.name, "plan", 180),
    Step(RELIEVED.name, "eviction", 180),
    Step(RELIEVED.name, "replacement elsewhere", 180),
    Step(RELIEVED.name, "alert closed", 300),
    Step(RELIEVED.name, "outcome", 360),
    Step(PROTECTED.name, "usage above the threshold", 180),
    Step(PROTECTED.name, "alert opened", 240),
    Step(PROTECTED.name, "plan", 180),
    Step(PROTECTED.name, "eviction refused", 300),
)
INDENT: Final = 27
"""Columns before the text of a line, and six more: for what does not fit into it."""
_LEEWAY_SECONDS: Final = 5.0
"""The evictor ends a plan by the broker's clock, a little before its last second is over."""
_HOT: Final = frozenset(node.name for node in HOT_NODES)


class RunningPod(NamedTuple):
    """A pod of a Deployment that is bound to a node and runs."""

    uid: str
    name: str
    deployment: str
    node: str


class Story:
    """The story since `began_at`, when `pods` ran."""

    def __init__(self, began_at: float, pods: Collection[RunningPod]) -> None:
        self.problems: list[str] = []
        self._began_at = began_at
        self._first_pods = frozenset(pod.uid for pod in pods)
        self._protected = {pod.uid: pod for pod in pods if pod.node == PROTECTED.name}
        self._bound: set[str] = set()
        self._seen_at: dict[Step, float] = {}
        self._told: set[object] = set()
        self._targets: list[str] = []
        self._percents: dict[str, float] = {}
        self._plan_ends: dict[str, float] = {}
        self._refusals: dict[str, str] = {}

    # -- what is observed

    def take_state(self, state: NodeStateRecord, now: float) -> Iterator[str]:
        """Take the state of a node after a window."""
        used, room = state.usage.cpu_cores, state.allocatable.cpu_cores
        if state.node not in _HOT or used is None or not room:
            return
        percent = self._percents[state.node] = 100.0 * used / room
        if percent > HIGH_PERCENT and self._see(state.node, "usage above the threshold", now):
            yield _line(
                now, state.node,
                f"uses {percent:.0f}% of its CPU; it is hot when the average of {SPAN_SECONDS} s "
                f"is above {HIGH_PERCENT}%",
            )  # fmt: skip

    def take_alert(self, alert: AlertRecord, now: float) -> Iterator[str]:
        """Take a change of an alert. Repeats say nothing."""
        if not self._is_new((alert.id, alert.transition, alert.position)):
            return
        subject, evidence = alert.node or f"pool {alert.pool}", alert.evidence
        text = f"alert {alert.rule} {alert.transition}"
        text += f" ({alert.reason or alert.severity})"
        if alert.transition == "closed":
            text += f" after {alert.duration_seconds:.0f} s"
        if evidence.usage_percent is not None:
            text += f": {evidence.usage_percent:.1f}%, {evidence.usage} of "
            text += f"{evidence.span_seconds} s"
            # An alert closes below its threshold: by a distance that the record does not have.
            if alert.crossed_percent is not None and alert.transition != "closed":
                text += f"; the threshold is {alert.crossed_percent:g}%"
        yield _line(now, subject, text + (f": {alert.why}" if alert.why else ""))
        if alert.rule == "node_cpu":
            if alert.transition == "opened":
                self._see(alert.node, "alert opened", now)
            elif alert.transition == "closed":
                self._see(alert.node, "alert closed", now)

    def take_plan(self, plan: EvictionPlanRecord, now: float) -> Iterator[str]:
        """Take a plan. Repeats say nothing."""
        if not self._is_new(plan.id):
            return
        self._see(plan.node, "plan", now)
        self._plan_ends[plan.id] = ends_at = time_or_none(plan.valid_until) or 0.0
        seconds = ends_at - (time_or_none(plan.at) or 0.0)
        yield _line(
            now, plan.node, f"plan of {plan.strategy}, valid for {seconds:.0f} s: {plan.why}"
        )
        for pod in plan.pods:
            if plan.node == RELIEVED.name:
                self._targets.append(pod.target)
            yield _line(now, plan.node, f"  {_move_text(pod)}")
            yield from (_line(now, plan.node, f"    not to {reason}") for reason in pod.why_not)

    def take_action(self, action: ActionRecord, now: float) -> Iterator[str]:
        """Take an action of the evictor, or the verdict of the planner. Repeats say nothing."""
        names = ", ".join(action.before) or "a pod"
        key = (action.actuator, action.plan, names, action.outcome, action.at)
        if not self._is_new(key):
            return
        if action.actuator == "planner":
            yield from self._take_verdict(action, now)
        elif action.outcome == "intended":
            yield _line(now, action.node, f"evictor asks the API server to evict {names}")
        elif action.outcome == "done":
            yield _line(now, action.node, f"evicted {names}")
            self._see(action.node, "eviction", now)
            if action.node != RELIEVED.name:
                self.problems.append(f"{names} was evicted from {action.node}")
        elif action.outcome == "refused":
            self._refusals[action.node] = action.error
            yield _line(now, action.node, f"not evicted: {names}: {action.error}")
            ends_at = self._plan_ends.get(action.plan)
            if (
                ends_at is not None
                and (time_or_none(action.at) or 0.0) >= ends_at - _LEEWAY_SECONDS
            ):
                text = "  the evictor tried again until the plan expired"
                yield _line(now, action.node, text)
            if action.node == PROTECTED.name:
                self._see(action.node, "eviction refused", now)
        else:
            yield _line(now, action.node, f"eviction of {names} {action.outcome}: {action.error}")

    def take_pods(self, pods: Sequence[RunningPod], now: float) -> Iterator[str]:
        """Take the pods that run now."""
        for pod in pods:
            if pod.uid in self._first_pods or pod.uid in self._bound:
                continue
            self._bound.add(pod.uid)
            text = f"kube-scheduler bound a new pod of {pod.deployment} here, {pod.name}"
            if self._targets and pod.node not in self._targets:
                text += f"; the plan expected it on {', '.join(self._targets)}"
            yield _line(now, pod.node, text)
            if pod.node in _HOT:
                self.problems.append(f"{pod.name} was bound to {pod.node}, which is hot")
            elif pod.deployment == RELIEVED.deployment:
                self._see(RELIEVED.name, "replacement elsewhere", now)
        running = {pod.uid for pod in pods}
        for uid in [*self._protected.keys() - running]:
            name = self._protected.pop(uid).name
            self.problems.append(f"{name} left {PROTECTED.name}, whose budget allows no eviction")

    def _take_verdict(self, action: ActionRecord, now: float) -> Iterator[str]:
        usage = ", ".join(
            f"{name.removesuffix('_percent')} {value}%"
            for name, value in action.after.items()
            if value
        )
        verdict = "the plan helped" if action.outcome == "done" else "the plan did not help"
        yield _line(now, action.node, f"outcome: {verdict}: {action.why} ({usage})")
        yield _line(
            now, action.node,
            f"  the plan estimated from the average of {SPAN_SECONDS} s before it; load that has "
            "risen since is not in it",
        )  # fmt: skip
        self._see(action.node, "outcome", now)
        if action.outcome != "done":
            self.problems.append(f"the plan for {action.node} did not help: {action.why}")

    # -- how far it is

    @property
    def is_complete(self) -> bool:
        """Whether all steps were seen."""
        return len(self._seen_at) == len(STEPS)

    def unseen(self, now: float) -> list[str]:
        """The steps that were not seen within their limits."""
        return [
            f"{step.what} on {step.node} was not seen within {step.limit_seconds:.0f} s"
            + (f" ({self._refusals[step.node]})" if step.node in self._refusals else "")
            for step, seconds in self._awaited(now)
            if seconds > step.limit_seconds
        ]

    def status(self, now: float) -> str:
        """What is awaited, and usage of the hot nodes."""
        awaited = [f"{step.what} on {step.node}" for step, _ in self._awaited(now)]
        usage = [f"{node} {percent:.0f}%" for node, percent in sorted(self._percents.items())]
        waiting = f"waiting for {', '.join(awaited)}" if awaited else "everything was seen"
        parts = [f"{now - self._began_at:.0f} s", waiting]
        if usage:
            parts.append(f"CPU now: {', '.join(usage)}")
        return "; ".join(parts)

    def summary(self) -> list[str]:
        """The table of steps and when they were seen."""
        rows = [("STEP", "NODE", "SEEN AFTER")]
        for step in STEPS:
            seen_at = self._seen_at.get(step)
            seen = "not seen" if seen_at is None else f"{seen_at - self._began_at:.0f} s"
            rows.append((step.what, step.node, seen))
        return [*align_columns(rows)]

    def _awaited(self, now: float) -> Iterator[tuple[Step, float]]:
        """The first step of each node that was not seen, and since how many seconds it may be."""
        began_at: Mapping[str, float] = dict.fromkeys(_HOT, self._began_at)
        for node in (RELIEVED.name, PROTECTED.name):
            since = began_at[node]
            for step in (step for step in STEPS if step.node == node):
                seen_at = self._seen_at.get(step)
                if seen_at is None:
                    yield step, now - since
                    break
                since = max(since, seen_at)

    def _see(self, node: str, what: What, now: float) -> bool:
        """Note that a step was seen; whether for the first time."""
        for step in STEPS:
            if (step.node, step.what) == (node, what) and step not in self._seen_at:
                self._seen_at[step] = now
                return True
        return False

    def _is_new(self, key: object) -> bool:
        if key in self._told:
            return False
        self._told.add(key)
        return True


def _line(now: float, node: str, text: str) -> str:
    return f"{datetime.fromtimestamp(now, UTC):%H:%M:%S}  {node:9}  {text}"


def _move_text(pod: LeavingPod) -> str:
    cpu = pod.target_usage.get("cpu")
    usage = "" if cpu is None else f", which then uses {cpu:.0f}% of its CPU"
    used = format_cpu(pod.cpu_millicores / 1000)
    return f"{pod.namespace}/{pod.name} ({pod.pod_class}, {used}) to {pod.target}{usage}"
