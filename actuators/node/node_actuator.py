"""Rounds of the node actuator: read, decide, write, once a second, and when a pod is new.

Rounds are level-triggered: each starts from what the node is now, and none depends on the success
of an earlier one. Limits stay when the actuator stops or dies; the next start takes them over by
the saved original values.
"""

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from actuators.action_log import Actions
from actuators.node import node_metrics
from actuators.node.cgroup_writer import CgroupWriter
from actuators.node.node_reading import NodeReading
from actuators.node.round_copy import RoundCopy
from actuators.node.round_span import round_context, round_span
from actuators.node.runtime_values import RuntimeValues
from pipeline import tracing
from pipeline.clock import Clock
from pipeline.errors import KernelError
from pipeline.logs import get_logger
from pipeline.processors.node_qos.cgroup_values import Place
from pipeline.processors.node_qos.changes import Change, ChangeSummary
from pipeline.processors.node_qos.claims import Claim, Decision, Merged, merge_claims
from pipeline.processors.node_qos.hold_back import hold_back
from pipeline.processors.node_qos.node_state import Feature, NodeState
from pipeline.settings import NodeActuatorSettings
from pipeline.settings.node_actuator_settings import FeatureMode
from pipeline.tasks import cancel_tasks
from pipeline.topics.actions import ActionRecord

log = get_logger(__name__)

# Rounds lie this share of an interval behind the exporter's readings.
_PHASE: Final = 0.15
_TOO_EARLY: Final = 0.01
SETTLE_SECONDS: Final = 0.1
"""From news to an early round. Kubelet and runtime write the limits of a cgroup just after they
made it: what they write is its original value."""
LEAST_SECONDS: Final = 0.3
"""From any round to an early one, whatever the news."""


class NodeActuator:
    """The rounds of one node. `modes` has the mode of each feature by its name, `follow` is called
    with the state of each round, `after_round` with that of each round whose view is fresh. `news`
    asks for an early round. `replaced` has values that answers to a container runtime replaced."""

    def __init__(
        self,
        settings: NodeActuatorSettings,
        modes: Mapping[str, FeatureMode],
        features: Iterable[Feature],
        reading: NodeReading,
        writer: CgroupWriter,
        replaced: RuntimeValues,
        follow: Callable[[NodeState], None],
        after_round: Sequence[Callable[[NodeState], None]],
        actions: Actions,
        clock: Clock,
        news: asyncio.Event,
    ) -> None:
        self._settings, self._modes = settings, modes
        self._features = tuple(features)
        self._reading, self._writer, self._after_round = reading, writer, after_round
        self._replaced = replaced
        self._state: NodeState | None = None
        self._follow, self._actions, self._clock, self._news = follow, actions, clock, news
        self._began_at = -math.inf
        self._summary = ChangeSummary(reading.node)
        self._claims: dict[str, list[Claim]] = {}
        self._revisions: dict[str, int | None] = {}
        self._written: dict[Place, Decision] = {}
        self._acting = self._wished = Merged({}, {})
        self._observed: Mapping[Place, Decision] = {}
        self._take_over()

    def _take_over(self) -> None:
        """Start from what an earlier process wrote, so that features go on from there. What the
        settings have switched off since is not held, whatever the view is."""
        for feature, values in self._writer.claimed().items():
            self._claims[feature] = [
                Claim(place, value, feature, "written before the start")
                for place, value in values.items()
            ]
        acting = (claims for name, claims in self._claims.items() if self._modes.get(name) == "act")
        self._written = merge_claims(claim for claims in acting for claim in claims)

    async def run(self) -> None:
        """Run rounds until cancelled; what was not published yet is queued at the end."""
        try:
            while True:
                is_early = await self._next_round()
                self._began_at = self._clock.monotonic()
                with node_metrics.ROUND_SECONDS.time():
                    await self._round_safely(is_early)
                self._publish(self._summary.due(self._clock.now()))
        finally:
            self._publish(self._summary.rest(self._clock.now()))

    async def _next_round(self) -> bool:
        """Wait until a round is due: returns whether it is early, because of news."""
        regular = asyncio.create_task(self._clock.sleep(self._until_next()))
        early = asyncio.create_task(self._early_round())
        try:
            await asyncio.wait((regular, early), return_when=asyncio.FIRST_COMPLETED)
            if regular.done():
                return False
        finally:
            await cancel_tasks(regular, early)
        self._news.clear()
        node_metrics.EARLY_ROUNDS.inc()
        return True

    async def _early_round(self) -> None:
        """Wait until an early round is due. News of a regular round have one, too: that may have
        come before they had settled."""
        await self._news.wait()
        earliest = self._began_at + LEAST_SECONDS - self._clock.monotonic()
        await self._clock.sleep(max(SETTLE_SECONDS, earliest))

    def _until_next(self) -> float:
        interval = self._settings.interval_seconds
        now = self._clock.now() - _PHASE * interval
        # A sleep may end a little before its time, and the second that it ends has been waited for.
        return (math.floor(now / interval + _TOO_EARLY) + 1) * interval - now

    async def _round_safely(self, is_early: bool) -> None:
        try:
            await self.round(is_early=is_early)
        except KernelError as error:
            node_metrics.ROUNDS_FAILED.labels("kernel").inc()
            log.warning("round failed, limits stay as they are", per="kernel", why=error)
        except Exception as error:
            node_metrics.ROUNDS_FAILED.labels("internal").inc()
            log.exception("round failed, limits stay as they are", per="internal", why=error)

    async def round(self, *, is_early: bool = False) -> None:
        """Read, decide and write once. Does nothing before the first view of the node."""
        state = await self._reading.read(is_early=is_early)
        self._note_ages()
        if state is None:
            return
        self._follow(state)
        if (cause := self._reading.cause) is None:
            await self._hold(state)
            return
        # Later rounds follow live usage.
        with tracing.entered(round_context(cause)) as span:
            changes = await self._hold(state)
        tracing.record(round_span(state.node, span.context, cause, changes, tracing.now()))
        self._reading.cause = None

    async def _hold(self, state: NodeState) -> list[Change]:
        """Decide from a state and write; returns the changes."""
        acting, observing = self._wishes(state)
        self._state = state
        self._acting = self._acting.then(acting)
        decisions = self._acting.decisions
        held = self._is_held()
        if held:
            decisions = hold_back(decisions, self._written)
        node_metrics.HELD.set(held)
        # A write may wait for the kernel, for example until it has reclaimed memory.
        changes = await asyncio.to_thread(self._act, decisions, state, held)
        self._note(changes)
        self._wished = self._wished.then(acting | observing if any(observing.values()) else {})
        observed = self._observations(self._wished.decisions)
        self._note(observed)
        return changes + observed

    def copy(self) -> RoundCopy | None:
        """A copy of the last round; None before the first."""
        if self._state is None:
            return None
        return RoundCopy.of(
            self._state, self._features, self._modes, self._claims, self._written, self._is_held()
        )

    def _is_held(self) -> bool:
        age = self._reading.view_age_seconds()
        return age is None or age > self._settings.view_max_age_seconds

    def _act(self, decisions: dict[Place, Decision], state: NodeState, held: bool) -> list[Change]:
        """Write decisions, then take the steps, unless the view is stale."""
        adopted = self._replaced.adopt(decisions, () if held else state.pods)
        changes = adopted.changes + self._writer.apply(decisions, adopted.places)
        ended = self._writer.without_cgroup  # a stale view would hold them without end
        self._written = {place: d for place, d in decisions.items() if place not in ended}
        for step in () if held else self._after_round:
            try:
                step(state)
            except Exception as error:
                node_metrics.ROUNDS_FAILED.labels("step").inc()
                log.exception("a step failed, the others go on", per="step", why=error)
        return changes

    def _wishes(self, state: NodeState) -> tuple[dict[str, list[Claim]], dict[str, list[Claim]]]:
        """The claims of each feature in mode act, and of each in mode observe."""
        wishes: dict[str, dict[str, list[Claim]]] = {"act": {}, "observe": {}}
        for feature in self._features:
            mode = self._modes[feature.name]
            if mode == "off":
                self._claims.pop(feature.name, None)
                continue
            wishes[mode][feature.name] = self._claims_of(feature, state)
        return wishes["act"], wishes["observe"]

    def _claims_of(self, feature: Feature, state: NodeState) -> list[Claim]:
        """What a feature wants now; if it fails, what it wanted before."""
        before = self._claims.get(feature.name, [])
        is_known = state.revision is not None and not feature.reads_usage
        if is_known and self._revisions.get(feature.name) == state.revision:
            return before
        try:
            claims = feature.claims(state, {claim.place: claim.value for claim in before})
        except Exception as error:
            node_metrics.FEATURES_FAILED.labels(feature.name).inc()
            log.exception("feature failed, its limits stay", per=feature.name, why=error)
            return before
        self._claims[feature.name] = claims
        self._revisions[feature.name] = state.revision
        node_metrics.CLAIMED.labels(feature.name).set(len(claims))
        return claims

    def _observations(self, decisions: Mapping[Place, Decision]) -> list[Change]:
        """Decisions of features in mode observe that differ from those of the round before."""
        before, self._observed = self._observed, decisions
        return [
            Change(
                place,
                before[place].value if place in before else self._writer.value_of(place),
                decision.value,
                decision.features,
                decision.why,
                "observed",
            )
            for place, decision in decisions.items()
            if (place not in before or before[place].value != decision.value)
            and any(self._modes[feature] == "observe" for feature in decision.features)
        ]

    def _note(self, changes: Sequence[Change]) -> None:
        for change in changes:
            feature = change.features[0] if change.features else "restore"
            node_metrics.CHANGES.labels(feature, change.outcome).inc()
        self._summary.add(changes)

    def _note_ages(self) -> None:
        for metric, age in (
            (node_metrics.VIEW_AGE, self._reading.view_age_seconds()),
            (node_metrics.USAGE_AGE, self._reading.usage_age_seconds()),
        ):
            if age is not None:
                metric.set(age)

    def _publish(self, records: Iterable[ActionRecord]) -> None:
        for record in records:
            self._actions.put(record)
