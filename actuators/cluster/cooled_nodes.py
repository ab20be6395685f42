"""Wake pending pods when a node has cooled, by an annotation of the Node.

kube-scheduler retries a refused pod when a Node changes, else only after minutes. A Node that was
above the extender's thresholds, or its own, gets one change of the annotation when it is below them
again. A Node with an eviction plan gets one per window for a while.

Only the change of the annotation matters, not its value. So the actuator never reads it back, as
`NodeMarks` does to repair a difference, and repeats a write whose outcome is unknown.
"""

from collections.abc import Mapping, Set
from typing import Any, ClassVar, Final

from actuators.cluster.feature import Context, Feature, Follower, Topics, Watch
from actuators.cluster.node_marks import NodeMarks, patch_node
from actuators.cluster.write_queue import Write
from pipeline.errors import InvalidRecordError, KubernetesError, NotFoundError
from pipeline.processors.loadaware.node_thresholds import ANNOTATION
from pipeline.times import parse_time, time_or_none
from pipeline.topics.eviction_plans import EvictionPlanRecord
from pipeline.topics.node_state import NodeStateRecord
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.registry import EVICTION_PLANS, NODE_STATE, NODES, Topic
from pipeline.topics.result_header import supersedes

COOLED: Final = "springtide/cooled"
"""Annotation of a Node that has cooled: end of the window that showed it."""

EXTENDER_LAG_SECONDS: Final = 1.0
"""Extenders read the topics a few times a second: the scheduler must not ask them earlier."""
PLAN_SECONDS: Final = 180.0
"""For so long after an eviction plan each window of the node wakes pending pods."""


class _Removal(NodeMarks):
    """Removes the annotation from every Node: no value is ever desired."""

    name = "cooled"
    annotations = (COOLED,)


class CooledNodes(Feature):
    """Follows which nodes the extender considers hot, and for which pods.

    Records read before `start` cause no write: nodes that cooled before this actuator led were
    the previous leader's work.
    """

    name = _Removal.name
    annotations = _Removal.annotations
    topics: ClassVar[Topics] = {NODES: None, NODE_STATE: None, EVICTION_PLANS: PLAN_SECONDS}

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._removal = None if self.is_on else _Removal(context)
        self._has_started = False
        self._states: dict[str, NodeStateRecord] = {}
        self._hot_for: dict[str, Set[str]] = {}
        self._own_thresholds: dict[str, str] = {}
        self._planned_at: dict[str, float] = {}
        self._due: dict[str, float] = {}

    @property
    def watches(self) -> Mapping[Watch, Follower]:
        return {} if self._removal is None else self._removal.watches

    def learn(self, topic: Topic, node: str, record: Any) -> None:
        if topic is NODES:
            self._learn_node(node, record)
        elif topic is NODE_STATE:
            self._learn_state(node, record)
        elif record is not None:
            self._learn_plan(record)

    def start(self) -> None:
        self._has_started = True

    def _learn_node(self, name: str, record: NodeRecord | None) -> None:
        if record is None:
            self._planned_at.pop(name, None)
        annotation = None if record is None else record.annotations.get(ANNOTATION)
        if annotation is None:
            self._own_thresholds.pop(name, None)
        else:
            self._own_thresholds[name] = annotation

    def _learn_plan(self, plan: EvictionPlanRecord) -> None:
        try:
            self._planned_at[plan.node] = parse_time(plan.at)
        except ValueError as error:
            raise InvalidRecordError(f"at is not a time: {error}") from error

    def _learn_state(self, name: str, record: NodeStateRecord | None) -> None:
        if record is None:
            self._states.pop(name, None)
            self._hot_for.pop(name, None)
            self._due.pop(name, None)
            return
        if not supersedes(record, self._states.get(name)):
            return
        self._states[name] = record
        before = self._hot_for.get(name, frozenset())
        now = self._placement.hot_for(record, self._own_thresholds.get(name), self._clock.now())
        self._hot_for[name] = now
        if now - before:
            self._due.pop(name, None)
            self._queue.discard(self.name, name)
        has_cooled = bool(before - now) or (not now and self._is_being_relieved(name, record))
        if has_cooled and self._has_started:
            self._due.setdefault(name, self._clock.monotonic() + EXTENDER_LAG_SECONDS)

    def decide(self, *, everything: bool) -> None:
        if self._removal is not None:
            self._removal.decide(everything=everything)
        now = self._clock.monotonic()
        for name in [name for name, due in self._due.items() if due <= now]:
            del self._due[name]
            self._queue.put(self.name, name, self._waking(name, self._states[name].as_of))

    def _is_being_relieved(self, name: str, record: NodeStateRecord) -> bool:
        """Whether this window follows an eviction plan for the node by less than
        `PLAN_SECONDS`."""
        planned_at, end = self._planned_at.get(name), time_or_none(record.as_of)
        if planned_at is None or end is None:
            return False
        seconds = end - planned_at
        if seconds > PLAN_SECONDS:
            del self._planned_at[name]
        return 0 < seconds <= PLAN_SECONDS

    def _waking(self, name: str, as_of: str) -> Write:
        async def execute() -> None:
            await patch_node(self._api, name, {"annotations": {COOLED: as_of}})

        def on_failure(error: KubernetesError) -> None:
            # No pod waits for a deleted Node.
            state = self._states.get(name)
            exists = not isinstance(error, NotFoundError)
            if exists and state is not None and state.as_of == as_of:
                self._queue.put(self.name, name, self._waking(name, as_of))

        return Write(execute, on_failure)
