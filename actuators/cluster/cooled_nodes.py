"""Telling the scheduler that a node has cooled: pods that were refused because of it wait for that.

Owes the rest: a Node that was above the extender's thresholds, or its own, for any pods and is not
any more gets one change of an annotation, one that pods were to leave for another gets one with
each window for a while. The scheduler tries pods again when a Node changes, else only after
minutes.
"""

from collections.abc import Set
from typing import Final

from actuators.cluster.write_queue import Write, Writer
from pipeline.clock import Clock
from pipeline.errors import InvalidRecordError, KubernetesError, NotFoundError
from pipeline.kube.api_client import MERGE, Api
from pipeline.processors.loadaware.hot_nodes import hot_for
from pipeline.processors.loadaware.node_thresholds import ANNOTATION
from pipeline.processors.loadaware.pod_amounts import seconds_of
from pipeline.processors.placement.plugin_config import Placement
from pipeline.processors.placement.threshold_hours import TIME_SHARED, in_force
from pipeline.processors.scorers.load_aware import LOAD_AWARE
from pipeline.times import parse_time
from pipeline.topics.eviction_plans import EvictionPlanRecord
from pipeline.topics.node_state import NodeStateRecord
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.result_header import supersedes

COOLED: Final = "springtide/cooled"
"""On a Node that has cooled: as of which window."""

READERS_SECONDS: Final = 1.0
"""Whom the scheduler asks then has read of it: extenders read a few times a second."""
TOLD_SECONDS: Final = 180.0
"""For so long after a plan to evict pods of a node it is told of with each window."""

_WHAT: Final = "cooled"


class Cooling:
    """Which nodes are hot, as the extender sees it. `decide` puts what is due into the writer's
    hands; what `learn_state` learned before `is_on` lay on the topic at the start, and is no
    change."""

    def __init__(self, api: Api, writer: Writer, placement: Placement, clock: Clock) -> None:
        self.is_on = False
        self._api = api
        self._writer = writer
        self._placement = placement
        self._states: dict[str, NodeStateRecord] = {}
        self._hot_for: dict[str, Set[str]] = {}
        self._own_thresholds: dict[str, str] = {}
        self._making_room: dict[str, float] = {}
        self._due: dict[str, float] = {}
        self._clock = clock

    def learn_node(self, name: str, record: NodeRecord | None) -> None:
        """What is known of a node: its own thresholds."""
        said = None if record is None else record.annotations.get(ANNOTATION)
        if said is None:
            self._own_thresholds.pop(name, None)
        else:
            self._own_thresholds[name] = said

    def learn_plan(self, plan: EvictionPlanRecord) -> None:
        """Pods are to leave a node for one that waits; how soon the node cools nobody knows."""
        try:
            self._making_room[plan.node] = parse_time(plan.at)
        except ValueError as error:
            raise InvalidRecordError(f"at is not readable: {error}") from error

    def learn_state(self, name: str, record: NodeStateRecord | None) -> None:
        """The row of a node in the state table."""
        if record is None:
            self._states.pop(name, None)
            self._hot_for.pop(name, None)
            self._due.pop(name, None)
            return
        if not supersedes(record, self._states.get(name)):
            return
        self._states[name] = record
        before, now = self._hot_for.get(name, frozenset()), self._find_hot(name, record)
        self._hot_for[name] = now
        if now - before:
            self._due.pop(name, None)
            self._writer.drop(_WHAT, name)
        if before - now or (not now and self._is_making_room(name, record)):
            self._tell_soon(name)

    def decide(self) -> None:
        """Have told what is due."""
        now = self._clock.monotonic()
        for name in [name for name, due in self._due.items() if due <= now]:
            del self._due[name]
            self._writer.put(_WHAT, name, self._write(name, self._states[name].as_of))

    def _is_making_room(self, name: str, record: NodeStateRecord) -> bool:
        """Whether this is a window after pods were to leave, and not long after."""
        since, end = self._making_room.get(name), seconds_of(record.as_of)
        if since is None or end is None:
            return False
        seconds = end - since
        if seconds > TOLD_SECONDS:
            del self._making_room[name]
        return 0 < seconds <= TOLD_SECONDS

    def _tell_soon(self, name: str) -> None:
        if self.is_on:
            self._due.setdefault(name, self._clock.monotonic() + READERS_SECONDS)

    def _find_hot(self, name: str, record: NodeStateRecord) -> Set[str]:
        """Which pods the extender refuses on a node because of its usage."""
        if LOAD_AWARE not in self._placement.filters:
            return frozenset()
        args = self._placement.load_aware
        if TIME_SHARED in self._placement.filters:
            args = in_force(self._placement.args[TIME_SHARED], args, self._clock.now())
        return hot_for(record, args, self._own_thresholds.get(name))

    def _write(self, name: str, as_of: str) -> Write:
        async def do() -> None:
            body = {"metadata": {"annotations": {COOLED: as_of}}}
            path = f"/api/v1/nodes/{name}/status"
            await self._api.request("PATCH", path, body=body, kind=MERGE, attempts=1)

        def failed(error: KubernetesError) -> None:
            # Done twice it says the same; a Node that is gone has nobody waiting for it.
            state = self._states.get(name)
            is_there = not isinstance(error, NotFoundError)
            if is_there and state is not None and state.as_of == as_of:
                self._writer.put(_WHAT, name, self._write(name, as_of))

        return Write(do, failed)
