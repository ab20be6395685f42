"""The service: filter and prioritize for a scheduler, health and metrics, nodes for people.

Owes the rest: a clear JSON answer to whatever comes in, no 500 for anything that a client may send,
and in mode `observe` no influence on the scheduler at all: every node passes with score 0, also
while the table is not caught up, and what would have been said is counted and logged. In mode `act`
a table that is not caught up answers 503, because it must neither pass nor refuse what it has not
seen; with `ignorable: true` the scheduler then goes on without us.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import cache
from itertools import islice
from typing import Any, Final

import msgspec
import numpy as np
from aiohttp import web

from pipeline.clock import Clock
from pipeline.errors import BadRequestError, NotReadyError, OverloadedError
from pipeline.extender.decisions import CYCLE_SECONDS, CYCLES_KEPT, Decisions, Rules
from pipeline.extender.filters import Refusal
from pipeline.extender.http_replies import error_reply as _error
from pipeline.extender.http_replies import json_reply as _reply
from pipeline.extender.load_watcher_api import LoadWatcherHandler
from pipeline.extender.node_view_poll import NodeViewHandler
from pipeline.extender.openapi import serve_openapi
from pipeline.extender.preempt_messages import preemption_answer, read_preemption
from pipeline.extender.push_out_plans import PushingOut
from pipeline.extender.query_api import QueryHandler
from pipeline.extender.request_bodies import MAX_BODY_BYTES, Bodies
from pipeline.extender.scheduler_messages import (
    Question,
    Sent,
    filter_answer,
    kept_names,
    prioritize_answer,
    read_question,
)
from pipeline.extender.series_api import NodeSeriesHandler
from pipeline.extender.stage_timing import Stages
from pipeline.logs import get_logger
from pipeline.metrics import CONTENT_TYPE, counter, histogram, page
from pipeline.processors.placement.combine_scores import MAX_EXTENDER_SCORE
from pipeline.processors.scorers.rounding import MAX_SCORE as FINE_SCORE
from pipeline.settings import ExtenderSettings
from pipeline.sources.scheduler_config import placement_of
from pipeline.table import FeedState, Table
from pipeline.table.compressed_views import NodeViewStore
from pipeline.table.usage_history import History
from pipeline.topics.eviction_plans import EvictionPlanRecord

LOG_PERIOD_SECONDS: Final = 1.0

# Of larger ones each question is read for itself: some of them would fill the memory.
_LARGEST_POD_BYTES: Final = 256 * 1024

VERBS: Final = ("filter", "prioritize", "preempt")
_FOR_ANYBODY: Final = ("/healthz", "/readyz")

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
LATENCY = histogram(
    "extender_request_seconds", "Time from headers to answer.", ["verb"], buckets=_SECONDS
)
REQUESTS = counter("extender_requests", "Requests answered.", ["verb", "status"])
VERDICTS = counter(
    "extender_verdicts",
    "Nodes judged by filter: passed, refused, unknown (passed without being judged), not_ready, "
    "exempt (the pod's kind passes everywhere). In mode observe: what would have been said.",
    ["mode", "verdict"],
)

FALLBACKS = counter(
    "extender_fallbacks",
    "Answers of prioritize for which usage was known of no node: it went by requests.",
)
CYCLES = counter(
    "extender_cycles",
    "Answers of prioritize by what of filter's work for the pod they used again: all of it "
    "(reused), where the nodes lie (rows: something came in between), nothing (anew).",
    ["outcome"],
)
PLANS = counter("extender_eviction_plans", "Plans to make room for a Prod pod.")

# To look a metric up by its labels takes longer than to count.
_latency, _requests = cache(LATENCY.labels), cache(REQUESTS.labels)
_verdicts, _cycles = cache(VERDICTS.labels), cache(CYCLES.labels)

_log = get_logger(__name__)
_json = msgspec.json.Encoder()

Publish = Callable[[EvictionPlanRecord], None]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def rules_of(settings: ExtenderSettings) -> Rules:
    """What these settings enable. Raises `SettingsError`."""
    return Rules(
        placement_of(settings),
        settings.stale_after_seconds,
        FINE_SCORE if settings.fine_scores else MAX_EXTENDER_SCORE,
        settings.in_flight,
    )


class Extender:
    """The handlers over one table. `state` says whether the table may be trusted yet."""

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
    ) -> None:
        self.draining = False
        self._under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._bodies = Bodies()
        self._table = table
        self._state = state
        self._decisions = Decisions(table, rules or rules_of(settings))
        self._pushing_out = PushingOut(self._decisions)
        self._publish = publish
        self._mode = settings.mode
        self._asks_who = settings.tls_client_ca_file is not None
        self._clock = clock
        self._load_watcher = LoadWatcherHandler(table, state, clock, settings.stale_after_seconds)
        self._sent: dict[bytes, Sent] = {}
        self._query = QueryHandler(table, state, self._decisions, settings, clock, self._bodies)
        self._node_views = node_views or NodeViewHandler(NodeViewStore(), FeedState())
        self._series = series or NodeSeriesHandler(History(), FeedState(), clock)
        self._said: dict[str, tuple[float, int]] = {}  # verb -> when, and how many not since

    def app(self) -> web.Application:
        """The aiohttp application."""
        app = web.Application(middlewares=[self._count, _answer_errors, self._know_who_asks])
        app.router.add_post("/filter", self.filter)
        app.router.add_post("/prioritize", self.prioritize)
        app.router.add_post("/preempt", self.preempt)
        app.router.add_get("/healthz", self.healthz)
        app.router.add_get("/readyz", self.readyz)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_get("/openapi.json", serve_openapi)
        self._query.add_to(app)
        self._node_views.add_to(app)
        self._series.add_to(app)
        self._load_watcher.add_to(app)
        return app

    def drain(self) -> None:
        """Say that this goes, and let nobody wait any more."""
        self.draining = True
        self._node_views.release()

    async def finish(self, seconds: float) -> None:
        """Return when no answer is under way any more, or after `seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._idle.wait()

    @web.middleware
    async def _know_who_asks(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Whoever shows no certificate, where one is wanted, is told nothing but that we are there:
        a kubelet has none."""
        shown = request.get_extra_info("peercert")
        if self._asks_who and not shown and request.path not in _FOR_ANYBODY:
            hint = "show a certificate that extender.tls_client_ca_file has signed"
            return _error(403, "this extender answers to those alone whom it knows", hint)
        return await handler(request)

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
        """Which nodes may take the pod."""
        stages = Stages("filter")
        body = await self._bodies.read(request)
        stages.done("receive")
        question = read_question(body, may_repeat=self._table.may_repeat)
        stages.done("read")
        refused: Mapping[str, Refusal] = {}
        left = question.names
        counts = {"exempt": len(question.names)}
        if not self._may_judge():
            counts = {"not_ready": len(question.names)}
        elif not question.pod.of_daemon_set:
            now = self._clock.now()
            judgement = self._decisions.filter(question.record, question.names, now)
            refused, counts = judgement.refused, judgement.counts()
            left = judgement.left if self._mode == "act" else left
            self._place_if_alone(question, refused, now)
            self._push_out_for(question, refused, now)
        for verdict, count in counts.items():
            _verdicts(self._mode, verdict).inc(count)
        reasons = [refusal.reason for refusal in islice(refused.values(), 3)]
        self._say("filter", question, counts, reasons)
        stages.done("decide")
        told = refused if self._mode == "act" else {}
        kept = kept_names(question, left)
        self._remember(question, kept)
        answer = filter_answer(question, told, kept)
        stages.done("write")
        return _reply(answer)

    def _remember(self, question: Question, kept: Sent) -> None:
        """What is left is asked about next."""
        if question.nodes is None and len(question.pod_json) <= _LARGEST_POD_BYTES:
            now = self._clock.monotonic()
            self._sent = {
                pod: sent for pod, sent in self._sent.items() if now - sent.at < CYCLE_SECONDS
            }
            self._sent[question.pod_json] = kept._replace(at=now)
            while len(self._sent) > CYCLES_KEPT:
                del self._sent[next(iter(self._sent))]

    def _place_if_alone(
        self, question: Question, refused: Mapping[str, Refusal], now: float
    ) -> None:
        """Where one node is left a scheduler does not ask which is best."""
        if self._mode == "act" and len(question.names) - len(refused) == 1:
            left = next(name for name in question.names if name not in refused)
            self._decisions.place(question.record, left, now)

    def _push_out_for(self, question: Question, refused: Mapping[str, Refusal], now: float) -> None:
        """Where nothing is left, ask for room, if that is wanted."""
        if self._publish is None or self._mode != "act" or not question.pod.may_push_out:
            return
        if not refused or len(refused) < len(question.names):
            return
        if [*question.names] == [question.pod.status.nominated_node_name]:
            # Asked about alone, before the others are.
            return
        plan = self._pushing_out.plan(question.record, refused, now)
        if plan is not None:
            self._publish(plan)
            PLANS.inc()
            _log.info("plan", node=plan.node, pods=len(plan.pods), why=plan.why)

    async def prioritize(self, request: web.Request) -> web.Response:
        """How good each node is for the pod, 0 to 10."""
        stages = Stages("prioritize")
        body = await self._bodies.read(request)
        stages.done("receive")
        question = read_question(body, self._sent, self._table.may_repeat)
        self._sent.pop(question.pod_json, None)
        stages.done("read")
        scores = np.zeros(len(question.names), np.int64)
        if self._may_judge():
            now = self._clock.now()
            found = self._decisions.prioritize(question.record, question.names, now)
            _cycles(found.cycle).inc()
            if found.best is not None:
                best = question.names[found.best]
                counts: dict[str, Any] = {"best": int(found.steps[found.best])}
                if found.is_by_requests:
                    FALLBACKS.inc()
                    counts["usage"] = "known of no node: by requests"
                self._say("prioritize", question, counts, best)
                if self._mode == "act":
                    self._decisions.place(question.record, best, now)
            scores = found.steps if self._mode == "act" else scores
        stages.done("decide")
        answer = prioritize_answer(question.names, scores)
        stages.done("write")
        return _reply(answer)

    async def preempt(self, request: web.Request) -> web.Response:
        """On which nodes evicting pods would help the pod."""
        stages = Stages("preempt")
        body = await self._bodies.read(request)
        stages.done("receive")
        question = read_preemption(body)
        stages.done("read")
        nodes = [*question.victims]
        if self._may_judge() and not question.pod.of_daemon_set:
            would_be = self._decisions.preempt(question.record, question.victims, self._clock.now())
            nodes = would_be if self._mode == "act" else nodes
        stages.done("decide")
        answer = preemption_answer(question, nodes)
        stages.done("write")
        return _reply(answer)

    async def healthz(self, _request: web.Request) -> web.Response:
        """Alive: the event loop turns."""
        return _reply(_json.encode({"status": "ok"}))

    async def readyz(self, _request: web.Request) -> web.Response:
        """Ready: the table is caught up and nobody asked us to go."""
        ready = self._state.caught_up and not self.draining
        status = {
            "status": "draining" if self.draining else "ready" if ready else "not ready",
            "mode": self._mode,
            "table": self._state.message,
            "nodes": len(self._table),
            "lag_records": self._state.lag_records,
            "connected": self._state.connected,
        }
        return _reply(_json.encode(status), status=200 if ready else 503)

    async def metrics(self, _request: web.Request) -> web.Response:
        """The metrics page."""
        return web.Response(body=page(), headers={"Content-Type": CONTENT_TYPE})

    def _may_judge(self) -> bool:
        """Whether the table can be asked. In mode act it must be; raises `NotReadyError`."""
        if self._mode == "act":
            self._must_be_ready()
        return self._state.caught_up

    def _must_be_ready(self) -> None:
        if not self._state.caught_up:
            raise NotReadyError(
                f"the state table is not caught up: {self._state.message}",
                hint="wait; with `ignorable: true` the scheduler goes on without this extender",
            )

    def _say(self, verb: str, question: Question, counts: Mapping[str, Any], what: object) -> None:
        now = self._clock.monotonic()
        said_at, unsaid = self._said.get(verb, (-math.inf, 0))
        if now - said_at < LOG_PERIOD_SECONDS:
            self._said[verb] = (said_at, unsaid + 1)
            return
        _log.info(
            "answer" if self._mode == "act" else "would-be answer",
            verb=verb,
            mode=self._mode,
            pod=question.pod.title,
            nodes=len(question.names),
            **counts,
            answer=what,
            suppressed=unsaid,
        )
        self._said[verb] = (now, 0)


@web.middleware
async def _answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Whatever is raised becomes a JSON answer; time and status are measured on the way."""
    began = time.perf_counter()
    response = await _answered(request, handler)
    resource = request.match_info.route.resource
    verb = resource.canonical.strip("/") if resource else "unknown"
    _latency(verb).observe(time.perf_counter() - began)
    _requests(verb, str(response.status)).inc()
    return response


async def _answered(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except BadRequestError as error:
        return _error(400, error.message, error.hint)
    except (NotReadyError, OverloadedError) as error:
        return _error(503, error.message, error.hint, {"Retry-After": "1"})
    except web.HTTPNotFound:
        offered = ", ".join(f"POST /{verb}" for verb in VERBS)
        return _error(404, f"no such path: {request.path[:200]}", f"this extender has {offered}")
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        message = f"{request.method} is not for {request.path[:200]}"
        return _error(405, message, f"use {allowed}", {"Allow": allowed})
    except web.HTTPRequestEntityTooLarge:
        limit = f"the body is larger than {MAX_BODY_BYTES} bytes"
        return _error(413, limit, "set nodeCacheCapable: true, so that only names are sent")
    except web.HTTPException as error:
        return _error(error.status, error.reason)
    except Exception:
        # A mistake of ours: it is counted as any answer is, and a scheduler can read it.
        _log.exception("no answer", path=request.path[:200])
        return _error(500, "this extender made a mistake", "its log says which: please report it")
