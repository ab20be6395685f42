"""The documents behind the pages of the console about hot nodes, accuracy, policy and what-if."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from aiohttp import web

from pipeline.clock import Clock
from pipeline.extender import limits
from pipeline.extender.decisions import Rules
from pipeline.extender.query_api import require_caught_up
from pipeline.extender.read_document import ReadDocument
from pipeline.extender.routes import Route
from pipeline.extender.tagged_documents import KeptDocument, document_response, document_route
from pipeline.processors.arrays import BoolArray
from pipeline.processors.console.accuracy_document import Accuracy, JudgedFleet, accuracy_document
from pipeline.processors.console.encoded_document import pool_of
from pipeline.processors.console.node_actions import NodeActions
from pipeline.processors.console.policy_document import (
    ExtenderPolicy,
    NodePolicy,
    PolicyReport,
    policy_report,
)
from pipeline.processors.console.relief_document import (
    HotNode,
    KnownRelief,
    Relief,
    relief_document,
)
from pipeline.processors.console.relief_log import ReliefLog
from pipeline.processors.console.what_if_document import PublishedResults, WhatIf
from pipeline.processors.descheduling.left_nodes import LeftNodes
from pipeline.processors.descheduling.relief_alerts import ReliefAlerts
from pipeline.settings import ExtenderSettings
from pipeline.table import FeedState, Table
from pipeline.table.node_columns import NodeRecords
from pipeline.topics.registry import ACTIONS, ALERTS, EVICTION_PLANS

ReadJudged = Callable[[float, float], Awaitable[JudgedFleet]]
"""Read the peaks that were judged between two Unix times. Raises `KafkaError` or `OSError`."""
ReadResults = Callable[[], Awaitable[PublishedResults]]
"""Read the published results of `springtide what-if`. Raises the same."""


@dataclass(slots=True)
class ReliefReading:
    """What one feed reads: plans with their outcomes, the last actions about each node, the nodes
    that pods were moved off, and open alerts of the planner. `state` is that of the feed."""

    log: ReliefLog = field(default_factory=ReliefLog)
    actions: NodeActions = field(default_factory=NodeActions)
    left: LeftNodes = field(default_factory=LeftNodes)
    alerts: ReliefAlerts = field(default_factory=ReliefAlerts)
    state: FeedState = field(
        default_factory=lambda: FeedState(message="this extender does not read plans and actions")
    )


class ConsoleDocuments:
    """The routes over one table, what was read of plans, and `read_judged` for accuracy."""

    def __init__(
        self, table: Table, state: FeedState, settings: ExtenderSettings, rules: Rules,
        clock: Clock, relief: ReliefReading, read_judged: ReadJudged | None,
        read_results: ReadResults | None,
    ) -> None:  # fmt: skip
        self._table = table
        self._state = state
        self._settings = settings
        self._placement = rules.placement
        self._clock = clock
        self._relief = relief
        self._kept_relief, self._kept_policy = KeptDocument(clock), KeptDocument(clock)
        accuracy = None if read_judged is None else partial(self._read_accuracy, read_judged)
        self._accuracy = ReadDocument(clock, "judged peaks", limits.ACCURACY_SECONDS, accuracy)
        what_if = None if read_results is None else partial(_read_what_if, read_results)
        self._what_if = ReadDocument(clock, "what-if results", limits.WHAT_IF_SECONDS, what_if)

    def routes(self) -> list[Route]:
        """The routes of this handler."""
        return [
            document_route(
                "/v1/relief", self.relief, "Hot nodes, and plans that relieve them.", Relief
            ),
            document_route(
                "/v1/accuracy", self.accuracy, "Predicted peaks held against what happened.",
                Accuracy,
            ),
            document_route(
                "/v1/what-if", self.what_if, "Published results of `springtide what-if`.", WhatIf
            ),
            document_route(
                "/v1/policy", self.policy, "The policy in force per node, and its warnings.",
                PolicyReport,
            ),
        ]  # fmt: skip

    async def relief(self, request: web.Request) -> web.Response:
        require_caught_up(self._state)
        return document_response(request, await self._kept_relief.current(self._make_relief))

    async def accuracy(self, request: web.Request) -> web.Response:
        require_caught_up(self._state)
        return document_response(request, await self._accuracy.current())

    async def what_if(self, request: web.Request) -> web.Response:
        return document_response(request, await self._what_if.current())

    async def policy(self, request: web.Request) -> web.Response:
        require_caught_up(self._state)
        return document_response(request, await self._kept_policy.current(self._make_policy))

    async def _read_accuracy(self, read: ReadJudged) -> Callable[[], Accuracy]:
        """Read judged peaks: ten thousand nodes have 240,000 a day."""
        now, nodes = self._clock.now(), max(len(self._table), 1)
        seconds = 3600.0 * (limits.ACCURACY_RECORDS // nodes)
        span = min(max(seconds, limits.ACCURACY_SHORTEST_SECONDS), limits.ACCURACY_LONGEST_SECONDS)
        return partial(accuracy_document, await read(now - span, now))

    def _make_relief(self, now: float, _: object) -> tuple[object, Callable[[], Relief]]:
        names, records = self._table.rows()
        rows, stale_after = np.arange(len(names)), self._settings.stale_after_seconds
        fresh, known = self._table.fresh(rows, now, stale_after), self._known_relief(now)
        return None, lambda: relief_document([*_hot_nodes(names, records, fresh)], known)

    def _known_relief(self, now: float) -> KnownRelief:
        log, alerts, state = self._relief.log, self._relief.alerts, self._relief.state
        if not state.caught_up:
            return KnownRelief(problem=f"plans and their outcomes are not read: {state.message}")
        lacking = [
            text for topic in (ALERTS, EVICTION_PLANS, ACTIONS) if (text := state.lacks(topic))
        ]
        problem = "; ".join(lacking if state.connected else [state.message, *lacking])
        troubles = None if state.lacks(ALERTS) else alerts.open(self._clock.monotonic())
        if state.lacks(EVICTION_PLANS):
            return KnownRelief(troubles, problem=problem)
        return KnownRelief(troubles, log.plans(now), log.is_complete(now), problem)

    def _make_policy(self, now: float, _: object) -> tuple[object, Callable[[], PolicyReport]]:
        names, records = self._table.rows()
        load_aware = self._placement.load_aware_filter(now)
        notes = list(self._placement.notes)
        if self._settings.push_out and self._settings.mode != "act":
            notes.append("push_out has no effect in mode observe: no node is refused")
        extender = ExtenderPolicy(self._settings.mode, load_aware, notes)

        def make() -> PolicyReport:
            nodes = [
                NodePolicy(
                    name, of.node, of.state.predictor if of.state else "",
                    of.state.peaks if of.state else (),
                )
                for name, of in zip(names, records, strict=True)
                if name
            ]  # fmt: skip
            return policy_report(nodes, extender)

        return None, make


async def _read_what_if(read: ReadResults) -> Callable[[], WhatIf]:
    return (await read()).document


def _hot_nodes(
    names: Sequence[str], records: Sequence[NodeRecords], fresh: BoolArray
) -> Iterator[HotNode]:
    for name, of, is_fresh in zip(names, records, fresh.tolist(), strict=True):
        if name and of.state is not None and of.state.alerts:
            pool = pool_of(of.node.hot_nodes if of.node else None)
            yield HotNode(name, pool, not is_fresh, of.state.alerts)
