"""The pods that a node asks to leave it, from one second to the next.

A wish is repeated until its pod is gone or no longer has to go. A pod that is still there after ten
minutes of asking is left alone for half an hour, and another one is asked instead. After a new
choice no other pod is chosen for 20 seconds (CPU) or 4 seconds (memory), so that its effect shows
first; for CPU also after the start.
"""

from collections.abc import Collection
from typing import Final, NamedTuple

import msgspec

from pipeline.processors.node_qos.eviction_tasks import EvictionTasks
from pipeline.processors.node_qos.eviction_victims import (
    EvictionFeature,
    EvictionTask,
    Measure,
    Victim,
    amount,
    choose_victims,
)
from pipeline.processors.node_qos.node_state import NodeState

CPU_COOL_DOWN_SECONDS: Final = 20.0
MEMORY_COOL_DOWN_SECONDS: Final = 4.0
PATIENCE_SECONDS: Final = 600.0
REST_SECONDS: Final = 1800.0
MOST_WISHES: Final = 32
_FORGOTTEN_SECONDS: Final = 30.0
_LONGEST_STEP_SECONDS: Final = 60.0

_OF_CPU: Final = frozenset(
    {EvictionFeature.BE_CPU, EvictionFeature.CPU_ALLOCATABLE, EvictionFeature.CPU}
)


class EvictionWish(NamedTuple):
    """A pod that should leave the node, since when (Unix time) and why. Usage of unknown amount is
    0."""

    uid: str
    namespace: str
    name: str
    pod_class: str
    feature: EvictionFeature
    since: float
    cpu_millicores: int
    memory_bytes: int
    why: str


class _Asked(msgspec.Struct):
    """A pod that was asked to leave for a feature: since when, and when last. `given_up_at` is None
    until the patience with it ended."""

    feature: EvictionFeature
    since: float
    last: float
    given_up_at: float | None = None


class NodeEvictions:
    """The wishes of these features. Observed and acting features need an object each, because what
    an observed one chooses does not leave."""

    def __init__(self, features: Collection[EvictionFeature]) -> None:
        self._features = frozenset(features)
        self._tasks = EvictionTasks()
        self._asked: dict[str, _Asked] = {}
        self._cpu_chosen_at = self._memory_chosen_at = float("-inf")
        self._last_at: float | None = None

    def wishes(self, state: NodeState) -> list[EvictionWish]:
        """The pods that should leave now, those first that were asked first. Nothing is asked while
        the policy or a needed input is missing."""
        self._follow_time(state.at)
        listed = {pod.uid for pod in state.listed_pods()}
        self._asked = {uid: asked for uid, asked in self._asked.items() if uid in listed}
        asking = {uid: asked for uid, asked in self._asked.items() if asked.given_up_at is None}
        tasks = [
            self._cooled(task, state.at)
            for task in self._tasks.of(state, {asked.feature for asked in asking.values()})
            if task.feature in self._features
        ]
        given_up = self._asked.keys() - asking.keys()
        pods = [pod for pod in state.pods if pod.deleting or pod.uid not in given_up]
        victims = choose_victims(tasks, pods, asking, MOST_WISHES)
        wishes = [self._wish(victim, state.at) for victim in victims]
        self._forget(state.at, {task.feature for task in tasks})
        return sorted(wishes, key=lambda wish: wish.since)

    def _follow_time(self, at: float) -> None:
        """Keep all ages if the clock was set, or if nobody looked for a while."""
        if self._last_at is None:
            self._last_at = self._cpu_chosen_at = at
        step, self._last_at = at - self._last_at, at
        if 0 <= step <= _LONGEST_STEP_SECONDS:
            return
        self._cpu_chosen_at += step
        self._memory_chosen_at += step
        for asked in self._asked.values():
            asked.since, asked.last = asked.since + step, asked.last + step
            if asked.given_up_at is not None:
                asked.given_up_at += step

    def _cooled(self, task: EvictionTask, at: float) -> EvictionTask:
        """The task, which chooses no pod during a cool-down."""
        if task.feature in _OF_CPU:
            may_choose = at - self._cpu_chosen_at >= CPU_COOL_DOWN_SECONDS
        else:
            may_choose = at - self._memory_chosen_at >= MEMORY_COOL_DOWN_SECONDS
        return task._replace(may_choose=task.may_choose and may_choose)

    def _wish(self, victim: Victim, at: float) -> EvictionWish:
        pod, feature = victim.pod, victim.task.feature
        if pod.uid not in self._asked:
            self._asked[pod.uid] = _Asked(feature, since=at, last=at)
            if feature in _OF_CPU:
                self._cpu_chosen_at = at
            else:
                self._memory_chosen_at = at
        asked = self._asked[pod.uid]
        asked.feature, asked.last = feature, at
        return EvictionWish(
            pod.uid, pod.namespace, pod.name, pod.pod_class, feature, asked.since,
            amount(pod, Measure.CPU_USED) or 0, amount(pod, Measure.MEMORY_USED) or 0,
            victim.task.why,
        )  # fmt: skip

    def _forget(self, at: float, decided: Collection[EvictionFeature]) -> None:
        """End the patience with pods that stay, and forget pods that need not leave any more."""
        for uid, asked in [*self._asked.items()]:
            if asked.given_up_at is not None:
                is_over = at - asked.given_up_at >= REST_SECONDS
            elif asked.last == at:
                is_over = False
                if at - asked.since >= PATIENCE_SECONDS:
                    asked.given_up_at = at
            else:
                # Without its inputs a feature says nothing: a missing sample ends no wish.
                is_over = asked.feature in decided or at - asked.last >= _FORGOTTEN_SECONDS
            if is_over:
                del self._asked[uid]
