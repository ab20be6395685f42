"""The query interface for clients other than the scheduler: node states, and explained decisions.

Queries have no effect (an explained pod is not placed), and keys of answers are stable. Errors: 400
for an invalid request, 404 for an unknown node, 503 while the table is not caught up.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import compress
from typing import Annotated, Final, NamedTuple

import msgspec
from aiohttp import web
from msgspec import Meta

from pipeline.clock import Clock
from pipeline.errors import BadRequestError, NotReadyError, RecordError
from pipeline.extender import limits
from pipeline.extender.decisions import Decisions
from pipeline.extender.explain_documents import Explanation, explanation
from pipeline.extender.http_responses import error_response, json_response, struct_response
from pipeline.extender.request_bodies import PartsResponse, RequestBodies
from pipeline.extender.routes import BODY_ERRORS, NODE, Route
from pipeline.extender.scheduler_messages import (
    JsonPod,
    Pod,
    decode_part,
    refuse_large_pod,
    refuse_too_many,
)
from pipeline.extender.stage_timing import StageTimer
from pipeline.processors.kubernetes.object_records import read_manifest
from pipeline.settings import ExtenderSettings
from pipeline.table import FeedState, Table
from pipeline.table.node_documents import (
    NodeStateDocument,
    NodeStateList,
    node_facts,
    node_list,
    node_state_document,
)
from pipeline.times import format_time
from pipeline.topics.codec import decode_json
from pipeline.topics.pods import PodRecord

EXPLAIN_KEYS: Final = (
    "an object with pod (a Pod as kubectl prints it) or podRecord (a record of the topic "
    "springtide.pods), and nodeNames unless all nodes are meant"
)
_ABSENT: Final = msgspec.Raw(b"null")
_POD_RECORD: Final = {"$ref": "#/components/schemas/PodRecord"}


class _Kinded(msgspec.Struct, frozen=True):
    kind: str | None = None


class ExplainRequest(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A question about one pod: `pod` or `podRecord`, not both.

    pod: A Pod as kubectl prints it.
    pod_record: A record of the topic of pods.
    node_names: The nodes in question; without it all that have a Node object are meant.
    """

    # A default that is no factory would have to be in the schema, which has no Raw.
    pod: JsonPod = msgspec.field(default_factory=lambda: _ABSENT)
    pod_record: Annotated[msgspec.Raw, Meta(extra_json_schema=_POD_RECORD)] = msgspec.field(
        default_factory=lambda: _ABSENT
    )
    node_names: list[str] | None = None


_request = msgspec.json.Decoder(ExplainRequest)
_kinded = msgspec.json.Decoder(_Kinded)
_pod = msgspec.json.Decoder(Pod)


class ExplainSubject(NamedTuple):
    """The pod, whether it passes everywhere, and the nodes in question, each once; None: all."""

    record: PodRecord
    is_exempt: bool
    names: Sequence[str] | None


def read_subject(body: bytes) -> ExplainSubject:
    """The subject of an `ExplainRequest`. Raises `BadRequestError`."""
    request = decode_part(_request, body, "body", EXPLAIN_KEYS)
    refuse_too_many(len(request.node_names or ()))
    names = None if request.node_names is None else tuple(dict.fromkeys(request.node_names))
    refuse_large_pod(request.pod)
    refuse_large_pod(request.pod_record)
    has_pod, has_record = (bytes(part) != b"null" for part in (request.pod, request.pod_record))
    if has_pod == has_record:
        wrong = "both pod and podRecord" if has_pod else "neither pod nor podRecord"
        raise BadRequestError(wrong, hint=f"send {EXPLAIN_KEYS}")
    try:
        if has_record:
            record = decode_json(PodRecord, bytes(request.pod_record))
            of_daemon_set = record.owner is not None and record.owner.kind == "DaemonSet"
            return ExplainSubject(record, of_daemon_set, names)
        kind = decode_part(_kinded, request.pod, "pod", EXPLAIN_KEYS).kind
        if kind not in (None, "", "Pod"):
            raise BadRequestError(
                f"pod: a {kind:.80} is no Pod", hint="send the Pod that its template makes"
            )
        pod = decode_part(_pod, request.pod, "pod", EXPLAIN_KEYS)
        return ExplainSubject(read_manifest(request.pod), pod.of_daemon_set, names)
    except RecordError as error:
        raise BadRequestError(f"pod: {error.message}", hint=f"send {EXPLAIN_KEYS}") from error


def explain(
    decisions: Decisions, table: Table, subject: ExplainSubject, now: float, mode: str
) -> Callable[[], Explanation]:
    """Decide about the pod at one moment of the table. The returned function makes the document,
    and may be called in another thread."""
    # Removes nodes of which nothing but an expired placement is left.
    table.bring_up_to_date(now)
    names = nodes_of_cluster(table) if subject.names is None else subject.names
    result = decisions.explain(subject.record, names, now, is_exempt=subject.is_exempt)
    return lambda: explanation(result, subject.record, decisions.rules, now, mode)


def nodes_of_cluster(table: Table) -> tuple[str, ...]:
    """The nodes about which a scheduler asks, by name: those that have a Node object, or all if the
    table has none. Others are known by usage or pods alone."""
    names, has_node = tuple(table), table["has_node"]
    if not has_node.any():
        return names
    return tuple(compress(names, has_node[table.lookup(names)].tolist()))


class QueryHandler:
    """The routes over one table."""

    def __init__(
        self, table: Table, state: FeedState, decisions: Decisions, settings: ExtenderSettings,
        clock: Clock, bodies: RequestBodies,
    ) -> None:  # fmt: skip
        self._table = table
        self._state = state
        self._decisions = decisions
        self._mode = settings.mode
        self._stale_after = settings.stale_after_seconds
        self._clock = clock
        self._bodies = bodies

    def routes(self) -> list[Route]:
        """The routes of this handler."""
        pod = {
            "metadata": {"name": "web-0", "namespace": "shop"},
            "spec": {"containers": [{"name": "web", "resources": {"requests": {"cpu": "250m"}}}]},
        }
        return [
            Route(
                "GET", "/v1/nodes", self.nodes, "The state of every node, by name.",
                NodeStateList, errors=(503,),
            ),
            Route(
                "GET", "/v1/nodes/{node}", self.node, "The state of a node.",
                NodeStateDocument, parameters=(NODE,), errors=(404, 503),
            ),
            Route(
                "POST", "/v1/explain", self.explain,
                "The decision about a pod on each node, and its reasons. Has no effect.",
                Explanation, ExplainRequest, {"pod": pod, "nodeNames": ["node-1"]},
                errors=BODY_ERRORS,
            ),
        ]  # fmt: skip

    async def nodes(self, _request: web.Request) -> web.StreamResponse:
        require_caught_up(self._state)
        return PartsResponse(self._node_parts(), "application/json")

    async def _node_parts(self) -> AsyncIterator[bytes]:
        """A `NodeStateList` in parts. Ten thousand nodes are ten megabytes: a scheduler's request
        must not wait until they are encoded, nor until one piece of that size is sent."""
        table, now = self._table, self._clock.now()
        document = NodeStateList(now=format_time(now), items=[])
        head, between, tail = msgspec.json.encode(document).split(b"[]")
        without_state: list[str] = []
        yield head + b"["
        comma, every = b"", [*table]
        for first in range(0, len(every), limits.NODES_IN_A_TURN):
            await asyncio.sleep(0)
            some = every[first : first + limits.NODES_IN_A_TURN]
            names = [name for name in some if name in table]
            part = node_list(table, now, self._stale_after, node_facts(table, names), names)
            without_state += part.without_state
            if part.items:
                yield comma + msgspec.json.encode(part.items)[1:-1]
                comma = b","
        yield b"]" + between + msgspec.json.encode(without_state) + tail

    async def node(self, request: web.Request) -> web.Response:
        require_caught_up(self._state)
        name = request.match_info["node"]
        facts = node_facts(self._table, (name,))
        document = node_state_document(
            self._table, name, self._clock.now(), self._stale_after, facts
        )
        if document is None:
            why = "has published no window yet" if name in self._table else "is unknown"
            return error_response(404, f"node {name[:253]!r} {why}", "GET /v1/nodes lists all")
        return struct_response(document)

    async def explain(self, request: web.Request) -> web.Response:
        timer = StageTimer("v1/explain")
        body = await self._bodies.read(request, limits.MAX_EXPLAIN_BYTES)
        timer.done("receive")
        subject = read_subject(body)
        await timer.end_turn("read")
        require_caught_up(self._state)
        document = explain(self._decisions, self._table, subject, self._clock.now(), self._mode)
        timer.done("decide")
        # Ten thousand nodes are some megabytes; a scheduler's request must not wait for them.
        answer = await asyncio.to_thread(lambda: msgspec.json.encode(document()))
        timer.done("write")
        return json_response(answer)


def require_caught_up(state: FeedState) -> None:
    """Raise `NotReadyError` until the table holds what lay in the topics at the start."""
    if not state.caught_up:
        raise NotReadyError(
            f"the state table is not caught up: {state.message}",
            hint="ask again when GET /readyz answers 200",
        )
