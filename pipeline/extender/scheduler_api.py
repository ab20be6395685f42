"""The HTTP service: filter, prioritize and preempt for a scheduler, and every other route.

Every request gets a JSON answer, and no request of a client causes a 500. In mode `observe` the
extender has no influence on the scheduler: every node passes with score 0, also while the table is
not caught up; the decision is counted and logged. In mode `act` a table that is not caught up
answers 503, because it can neither pass nor refuse nodes that it does not know; with
`ignorable: true` the scheduler then goes on without the extender.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, cached_property
from typing import Any, Literal

import msgspec
import numpy as np
from aiohttp import web

from pipeline import tracing
from pipeline.clock import Clock
from pipeline.errors import NotReadyError
from pipeline.extender import limits
from pipeline.extender.actions_api import NodeActionsHandler
from pipeline.extender.answer_log import AnswerLog
from pipeline.extender.authentication import Authentication
from pipeline.extender.console_api import ConsoleHandler
from pipeline.extender.console_documents import (
    ConsoleDocuments,
    ReadJudged,
    ReadResults,
    ReliefReading,
)
from pipeline.extender.decision_rules import rules_of
from pipeline.extender.decisions import Decisions, FilterResult, Rules
from pipeline.extender.error_answers import answer_errors
from pipeline.extender.eviction_planner import EvictionPlanner
from pipeline.extender.feeds_api import FeedsHandler, NamedFeeds
from pipeline.extender.http_responses import json_response, struct_response
from pipeline.extender.load_watcher_api import LoadWatcherHandler
from pipeline.extender.node_view_poll import NodeViewHandler
from pipeline.extender.openapi import openapi_document
from pipeline.extender.outage_reports import Check, checks
from pipeline.extender.peaks_api import NodePeaksHandler
from pipeline.extender.preempt_messages import (
    ExtenderPreemptionArgs,
    ExtenderPreemptionResult,
    preemption_reply,
    read_preemption,
)
from pipeline.extender.query_api import QueryHandler
from pipeline.extender.refusals import Refusals
from pipeline.extender.request_bodies import RequestBodies
from pipeline.extender.request_spans import trace_requests
from pipeline.extender.routes import (
    BODY_ERRORS,
    Handler,
    Parameter,
    Response,
    Route,
    access_of,
    register,
)
from pipeline.extender.scheduler_messages import (
    ExtenderArgs,
    ExtenderFilterResult,
    FilterReply,
    HostPriority,
    Question,
    filter_reply,
    prioritize_reply,
    read_question,
)
from pipeline.extender.series_api import NodeSeriesHandler
from pipeline.extender.stage_timing import StageTimer
from pipeline.extender.waiting_pods import WaitingPods
from pipeline.logs import get_logger
from pipeline.metrics import CONTENT_TYPE, counter, page
from pipeline.settings import ExtenderSettings
from pipeline.table import FeedState, Table
from pipeline.table.compressed_views import NodeViewStore
from pipeline.table.usage_history import History
from pipeline.topics.eviction_plans import EvictionPlanRecord

FALLBACKS = counter(
    "extender_fallbacks",
    "Answers of prioritize in which requests replaced a plugin, because usage of no node was known "
    "or the plugin failed.",
)
CYCLES = counter(
    "extender_cycles",
    "Answers of prioritize by how much of filter's work for the pod they used: all of it (reused), "
    "the rows of the nodes (rows: the table has changed), nothing (anew).",
    ["outcome"],
)
PLANS = counter("extender_eviction_plans", "Plans to make room for a Prod pod.")

_cycles = cache(CYCLES.labels)  # The lookup by labels takes longer than the increment.

_log = get_logger(__name__)

Publish = Callable[[EvictionPlanRecord], None]


class Health(msgspec.Struct, frozen=True):
    """The body of /healthz, which answers as long as the process runs.

    status: `ok`.
    """

    status: Literal["ok"] = "ok"


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """The body of /readyz: whether the extender takes requests, and the state of its table.

    status: `ready`, `not ready` or `draining`.
    mode: Mode of the extender.
    table: State of the table in words.
    nodes: Nodes in the table.
    lag_records: Records of the topics that are not in the table yet; null if unknown.
    connected: Whether the broker answers.
    checks: The parts that decisions depend on, with `?verbose`.
    """

    status: Literal["ready", "not ready", "draining"]
    mode: Literal["observe", "act"]
    table: str
    nodes: int
    lag_records: int | None
    connected: bool
    checks: tuple[Check, ...] = ()


class Extender:
    """The service over one table; `state` says whether the table is caught up."""

    def __init__(
        self,
        table: Table,
        state: FeedState,
        settings: ExtenderSettings,
        clock: Clock,
        rules: Rules | None = None,
        node_views: NodeViewHandler | None = None,
        series: NodeSeriesHandler | None = None,
        publish: Publish | None = None,
        relief: ReliefReading | None = None,
        read_judged: ReadJudged | None = None,
        feeds: NamedFeeds | None = None,
        read_results: ReadResults | None = None,
    ) -> None:
        self.draining = False
        self._under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._bodies = RequestBodies()
        self._table = table
        self._state = state
        rules = rules or rules_of(settings)
        relief = relief or ReliefReading()
        self._decisions = Decisions(table, rules, relief.left)
        self.outages = self._decisions.outages
        self._planner = EvictionPlanner(self._decisions)
        self._publish = publish
        self.waiting = WaitingPods(table, self._decisions)
        self._mode = settings.mode
        self.authentication = Authentication.from_settings(settings)
        self._clock = clock
        self._load_watcher = LoadWatcherHandler(table, state, clock, settings.stale_after_seconds)
        self._console = ConsoleHandler(table, state, clock, settings.stale_after_seconds)
        self._console_documents = ConsoleDocuments(
            table, state, settings, rules, clock, relief, read_judged, read_results
        )
        self._query = QueryHandler(table, state, self._decisions, settings, clock, self._bodies)
        self._node_views = node_views or NodeViewHandler(NodeViewStore(), FeedState())
        self._series = series or NodeSeriesHandler(History(), FeedState(), clock)
        self._peaks = NodePeaksHandler(self._series.history.peaks, self._series.feed_state, clock)
        self._actions = NodeActionsHandler(relief.actions, relief.state)
        self._feeds = FeedsHandler(feeds or [("table", state)])
        self._replies: dict[bytes, FilterReply] = {}  # by the JSON of the pod
        self._has_warned = False
        self._answers = AnswerLog(self._mode, clock)

    def app(self) -> web.Application:
        """The aiohttp application."""
        traces = [trace_requests] if tracing.is_on() else []
        app = web.Application(middlewares=[*traces, self._count, answer_errors, self._authenticate])
        register(app, self.routes())
        return app

    def routes(self) -> list[Route]:
        """Every route of the service."""
        return [
            *self._own_routes(),
            *self._query.routes(),
            *self._node_views.routes(),
            *self._series.routes(),
            *self._peaks.routes(),
            *self._actions.routes(),
            *self._feeds.routes(),
            *self._load_watcher.routes(),
            *self._console.routes(),
            *self._console_documents.routes(),
        ]

    def _own_routes(self) -> list[Route]:
        pod = {
            "metadata": {"name": "web-0", "namespace": "shop", "uid": "6f1c"},
            "spec": {"containers": [{"name": "web", "resources": {"requests": {"cpu": "250m"}}}]},
        }
        nodes = {"Pod": pod, "NodeNames": ["node-1", "node-2"]}
        victims = {"node-1": {"Pods": [{"UID": "a1"}]}}
        not_ready = Response("not ready, or draining", Readiness)
        return [
            Route(
                "POST", "/filter", self.filter, "Which nodes may take the pod.",
                ExtenderFilterResult, ExtenderArgs, nodes, errors=BODY_ERRORS, access="scheduler",
            ),
            Route(
                "POST", "/prioritize", self.prioritize, "How good each node is for the pod.",
                list[HostPriority], ExtenderArgs, nodes, errors=BODY_ERRORS, access="scheduler",
            ),
            Route(
                "POST", "/preempt", self.preempt,
                "On which nodes evicting these pods would help the pod.",
                ExtenderPreemptionResult, ExtenderPreemptionArgs,
                {"Pod": pod, "NodeNameToMetaVictims": victims}, errors=BODY_ERRORS,
                access="scheduler",
            ),
            Route(
                "GET", "/healthz", self.healthz, "Whether the process is alive.", Health,
                access="probes",
            ),
            Route(
                "GET", "/readyz", self.readyz, "Whether the table is caught up.", Readiness,
                parameters=(Parameter("verbose", "with `checks`", {"type": "string"}),),
                others={503: not_ready}, access="probes",
            ),
            Route("GET", "/metrics", self.metrics, "Metrics for Prometheus.", access="metrics"),
            Route("GET", "/openapi.json", self.openapi, "This document.", dict[str, Any]),
        ]  # fmt: skip

    def drain(self) -> None:
        """Report `draining` at /readyz, and answer all long polls now."""
        self.draining = True
        self._node_views.release()

    async def finish(self, seconds: float) -> None:
        """Return when no answer is under way any more, or after `seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._idle.wait()

    @web.middleware
    async def _authenticate(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        refusal = self.authentication.refusal(request, access_of(request))
        return await handler(request) if refusal is None else refusal

    @web.middleware
    async def _count(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self._under_way += 1
        self._idle.clear()
        try:
            response = await handler(request)
            if self.draining:
                response.force_close()
            await self._bodies.send(request, response)
            return response
        finally:
            self._bodies.release(request)
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()

    async def filter(self, request: web.Request) -> web.Response:
        timer = StageTimer("filter")
        body = await self._bodies.read(request)
        timer.done("receive")
        question = read_question(body, self._table)
        self._warn_of_whole_nodes(question, len(body))
        await timer.end_turn("read")
        passed = question.names
        refusals = Refusals.none(len(passed))
        if not self._may_decide():
            self._answers.judged(question, {"not_ready": len(passed)})
        elif question.pod.of_daemon_set:
            self._answers.judged(question, {"exempt": len(passed)})
        else:
            now = self._clock.now()
            result = self._decisions.filter(question.record, passed, now)
            self._answers.judged(question, result.counts(), result)
            if self._mode == "act":
                passed, refusals = result.passed, result.refusals
                self._place_on_only_node(question, passed, now)
                self._plan_evictions(question, result, now)
                self._note_waiting(question, result)
        await timer.end_turn("decide")
        reply = filter_reply(question, passed, refusals)
        self._keep_reply(question, reply)
        timer.done("write")
        return json_response(reply.body)

    def _warn_of_whole_nodes(self, question: Question, size: int) -> None:
        """Log once that whole Nodes make every other request wait."""
        if question.nodes is None or size <= limits.WARNED_BODY_BYTES or self._has_warned:
            return
        self._has_warned = True
        _log.warning(
            "the scheduler sends whole Nodes, and no other request is answered while they are read",
            bytes=size,
            nodes=len(question.names),
            hint="set nodeCacheCapable: true in the scheduler's configuration of this extender",
        )

    def _keep_reply(self, question: Question, reply: FilterReply) -> None:
        """Keep the reply to filter: kube-scheduler asks for the scores of its nodes next."""
        if not reply.names or not reply.next.names:
            return
        if len(question.pod_json) <= limits.REMEMBERED_POD_BYTES:
            # The body is large, and its memory is needed for the next one.
            self._replies[question.pod_json] = reply._replace(body=b"")
            while len(self._replies) > limits.CYCLES:
                del self._replies[next(iter(self._replies))]

    def _place_on_only_node(self, question: Question, passed: Sequence[str], now: float) -> None:
        """Count the pod as placed if one node passes: kube-scheduler then sends no prioritize
        request, and binds it there."""
        if len(passed) == 1:
            self._decisions.place(question.record, passed[0], now)

    def _note_waiting(self, question: Question, result: FilterResult) -> None:
        if result.passed:
            self.waiting.forget(question.record.uid)
        else:
            self.waiting.put(question.record, result.nodes, result.demand)

    def _plan_evictions(self, question: Question, result: FilterResult, now: float) -> None:
        """Plan evictions for the pod if every node is refused and push-out is enabled."""
        if self._publish is None or not question.pod.may_preempt:
            return
        if result.passed or not question.names:
            return
        if [*question.names] == [question.pod.status.nominated_node_name]:
            # The scheduler asks about the nominated node alone, before all others.
            return
        plan = self._planner.plan(question.record, question.names, now)
        if plan is not None:
            self._publish(plan)
            PLANS.inc()
            _log.info("plan", node=plan.node, pods=len(plan.pods), why=plan.why)

    async def prioritize(self, request: web.Request) -> web.Response:
        timer = StageTimer("prioritize")
        body = await self._bodies.read(request)
        timer.done("receive")
        question = read_question(body, self._table, self._replies)
        self._replies.pop(question.pod_json, None)
        await timer.end_turn("read")
        scores = np.zeros(len(question.names), np.int64)
        if self._may_decide():
            now = self._clock.now()
            result = self._decisions.prioritize(question.record, question.names, now)
            _cycles(result.cycle).inc()
            if result.best is not None:
                best = question.names[result.best]
                counts: dict[str, Any] = {"best": int(result.steps[result.best])}
                if result.is_by_requests:
                    FALLBACKS.inc()
                    counts["fallback"] = "by requests"
                self._answers.log("prioritize", question, counts, lambda: {"answer": best[:253]})
                self._answers.describe(
                    question.pod.title, len(question.names),
                    lambda: {"best_node": best, "best_score": counts["best"]},
                )  # fmt: skip
                if self._mode == "act":
                    self._decisions.place(question.record, best, now)
            scores = result.steps if self._mode == "act" else scores
        await timer.end_turn("decide")
        body = prioritize_reply(question.names, scores)
        timer.done("write")
        return json_response(body)

    async def preempt(self, request: web.Request) -> web.Response:
        timer = StageTimer("preempt")
        body = await self._bodies.read(request)
        timer.done("receive")
        preemption = read_preemption(body)
        timer.done("read")
        nodes = [*preemption.victims]
        if self._may_decide() and not preemption.pod.of_daemon_set:
            now = self._clock.now()
            helpful = self._decisions.preempt(preemption.record, preemption.victims, now)
            self._answers.describe(
                preemption.pod.title, len(nodes), lambda: {"helpful": len(helpful)}
            )
            nodes = helpful if self._mode == "act" else nodes
        timer.done("decide")
        answer = preemption_reply(preemption, nodes)
        timer.done("write")
        return json_response(answer)

    async def healthz(self, _request: web.Request) -> web.Response:
        return struct_response(Health())

    async def readyz(self, request: web.Request) -> web.Response:
        has_details = "verbose" in request.query
        ready = self._state.caught_up and not self.draining
        readiness = Readiness(
            status="draining" if self.draining else "ready" if ready else "not ready",
            mode=self._mode,
            table=self._state.message,
            nodes=len(self._table),
            lag_records=self._state.lag_records,
            connected=self._state.connected,
            checks=checks(self.outages, self._state, self._clock.now()) if has_details else (),
        )
        return struct_response(readiness, status=200 if ready else 503)

    async def metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=await page(), headers={"Content-Type": CONTENT_TYPE})

    async def openapi(self, _request: web.Request) -> web.Response:
        return json_response(self._openapi)

    @cached_property
    def _openapi(self) -> bytes:
        return msgspec.json.encode(openapi_document(self.routes()))

    def _may_decide(self) -> bool:
        """Whether the table is caught up. Raises `NotReadyError` in mode act if it is not."""
        if self._mode == "act" and not self._state.caught_up:
            raise NotReadyError(
                f"the state table is not caught up: {self._state.message}",
                hint="wait; with `ignorable: true` the scheduler goes on without this extender",
            )
        return self._state.caught_up
