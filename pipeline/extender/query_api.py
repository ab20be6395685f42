"""The query interface for everyone but the scheduler: nodes, and what would be said of a pod.

Owes the rest: answers of which nothing comes, with stable keys; what is no question gets a 400, a
node that nobody knows a 404, and a table that is not caught up a 503.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from aiohttp import web

from pipeline import API_VERSION
from pipeline.clock import Clock
from pipeline.errors import BadRequestError, NotReadyError, RecordError
from pipeline.extender.decisions import Decisions
from pipeline.extender.explain_documents import Explanation, explanation
from pipeline.extender.http_replies import error_reply, json_reply
from pipeline.extender.request_bodies import Bodies
from pipeline.extender.scheduler_messages import Pod, must_be_few
from pipeline.extender.stage_timing import Stages
from pipeline.processors.kubernetes.object_records import read_manifest
from pipeline.settings import ExtenderSettings
from pipeline.table import FeedState, Table
from pipeline.table.node_documents import beside, node_item, node_list
from pipeline.topics.codec import decode_json
from pipeline.topics.pods import PodRecord

EXPLAIN_KEYS: Final = (
    "an object with pod (a Pod as kubectl gives it) or podRecord (one as the topic springtide.pods "
    "has it), and nodeNames where not all nodes are meant"
)
_ABSENT: Final = msgspec.Raw(b"null")

T = TypeVar("T")


class _Kinded(msgspec.Struct, frozen=True):
    kind: str | None = None


class ExplainBody(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """What `POST /v1/explain` is asked; all nodes are meant where none are named."""

    pod: msgspec.Raw = _ABSENT
    pod_record: msgspec.Raw = _ABSENT
    node_names: list[str] | None = None


class Subject(NamedTuple):
    """A pod, whether it passes everywhere, and which nodes are meant, each once; None for all."""

    record: PodRecord
    is_exempt: bool
    names: Sequence[str] | None


def read_subject(body: bytes) -> Subject:
    """The question in the body of an explain request. Raises `BadRequestError`."""
    asked = _decoded(ExplainBody, body, "body")
    must_be_few(asked.node_names or ())
    names = None if asked.node_names is None else tuple(dict.fromkeys(asked.node_names))
    has_pod, has_record = (bytes(one) != b"null" for one in (asked.pod, asked.pod_record))
    if has_pod == has_record:
        wrong = "both pod and podRecord" if has_pod else "neither pod nor podRecord"
        raise BadRequestError(wrong, hint=f"send {EXPLAIN_KEYS}")
    try:
        if has_record:
            record = decode_json(PodRecord, bytes(asked.pod_record))
            of_daemon_set = record.owner is not None and record.owner.kind == "DaemonSet"
            return Subject(record, of_daemon_set, names)
        kind = _decoded(_Kinded, asked.pod, "pod").kind
        if kind not in (None, "", "Pod"):
            raise BadRequestError(
                f"pod: a {kind:.80} is no Pod", hint="send the Pod that its template makes"
            )
        pod = _decoded(Pod, asked.pod, "pod")
        return Subject(read_manifest(asked.pod), pod.of_daemon_set, names)
    except RecordError as error:
        raise BadRequestError(f"pod: {error.message}", hint=f"send {EXPLAIN_KEYS}") from error


def explain(
    decisions: Decisions, table: Table, subject: Subject, now: float, mode: str
) -> Callable[[], Explanation]:
    """What would be said of this pod, from one moment of the table: what is given writes it down,
    and may be called in another thread."""
    table.bring_up_to_date(now)  # else a node of which nothing is left but a placed pod is there
    names = tuple(table) if subject.names is None else subject.names
    found = decisions.explain(subject.record, names, now, is_exempt=subject.is_exempt)
    return lambda: explanation(found, subject.record, decisions.rules, now, mode)


class QueryHandler:
    """The handlers over one table."""

    def __init__(
        self, table: Table, state: FeedState, decisions: Decisions, settings: ExtenderSettings,
        clock: Clock, bodies: Bodies,
    ) -> None:  # fmt: skip
        self._table = table
        self._state = state
        self._decisions = decisions
        self._mode = settings.mode
        self._stale_after = settings.stale_after_seconds
        self._clock = clock
        self._bodies = bodies

    def add_to(self, app: web.Application) -> None:
        """Route to these handlers."""
        app.router.add_get("/v1/nodes", self.nodes)
        app.router.add_get("/v1/nodes/{node}", self.node)
        app.router.add_post("/v1/explain", self.explain)

    async def nodes(self, _request: web.Request) -> web.Response:
        """The state of every node, by name."""
        must_be_caught_up(self._state)
        known = beside(self._table, tuple(self._table))
        found = node_list(self._table, self._clock.now(), self._stale_after, known)
        # Records are not written to: a scheduler's question need not wait for megabytes of them.
        return json_reply(await asyncio.to_thread(msgspec.json.encode, found))

    async def node(self, request: web.Request) -> web.Response:
        """The state of one node."""
        must_be_caught_up(self._state)
        name = request.match_info["node"]
        known = beside(self._table, (name,))
        item = node_item(self._table, name, self._clock.now(), self._stale_after, known)
        if item is None:
            why = "is known but has no window yet" if name in self._table else "is not known"
            return error_reply(404, f"node {name[:253]!r} {why}", "GET /v1/nodes lists all")
        document = {"apiVersion": API_VERSION, "kind": "NodeState", **item}
        return json_reply(msgspec.json.encode(document))

    async def explain(self, request: web.Request) -> web.Response:
        """What filter and prioritize would say of a pod, and why."""
        stages = Stages("v1/explain")
        body = await self._bodies.read(request)
        stages.done("receive")
        subject = read_subject(body)
        stages.done("read")
        must_be_caught_up(self._state)
        written = explain(self._decisions, self._table, subject, self._clock.now(), self._mode)
        stages.done("decide")
        # Ten thousand nodes are some megabytes: a scheduler's question does not wait for them.
        answer = await asyncio.to_thread(lambda: msgspec.json.encode(written()))
        stages.done("write")
        return json_reply(answer)


def must_be_caught_up(state: FeedState) -> None:
    """Raise `NotReadyError` unless the table holds what lay in the topics at the start."""
    if not state.caught_up:
        raise NotReadyError(
            f"the state table is not caught up: {state.message}",
            hint="ask again when GET /readyz says 200",
        )


def _decoded(kind: type[T], data: bytes | msgspec.Raw, what: str) -> T:
    try:
        found: Any = msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequestError(f"{what}: {error}", hint=f"send {EXPLAIN_KEYS}") from error
    result: T = found
    return result
