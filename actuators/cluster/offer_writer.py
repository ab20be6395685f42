"""Write Mid and Batch to Nodes, by mode, and undo it.

A Node gets the offer of `offers_now` and our mark (`OFFERED`) in one patch of its status, so that
no offer is ever without a mark: by it a later leader, or the actuator in another mode, knows which
resources to remove. Resources without the mark belong to others and are left alone. An offer is
removed when it is not wanted any more, when no topic knows the node, and in another mode.

An offer is computed again when its write is executed, because records may have changed while the
write waited. If the outcome of a write is unknown, the Node is read before the next one. Results
from before the creation of a Node belong to an earlier machine of the same name.
"""

import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple

import msgspec

from actuators.action_spans import action_span
from actuators.cluster.feature import NODES_WATCH, Context, Feature, Follower, Topics, Watch
from actuators.cluster.write_queue import Write
from pipeline import tracing
from pipeline.errors import ApiUnavailableError, KubernetesError
from pipeline.kube.api_client import MERGE, decode_answer
from pipeline.kube.event_reporter import EventReporter
from pipeline.logs import get_logger
from pipeline.metrics import counter, gauge
from pipeline.processors.kubernetes.object_records import OFFERED, ORIGIN
from pipeline.processors.overcommit.offer_decision import (
    Offer,
    OfferInputs,
    check_amounts,
    offers_now,
)
from pipeline.processors.overcommit.status_patch import (
    ABSENT,
    EXTENDED_RESOURCES,
    read_amounts,
    status_patch,
)
from pipeline.times import format_time, parse_time
from pipeline.topics.actions import ActionRecord, Outcome
from pipeline.topics.node_resources import NodeResourcesRecord
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.registry import NODES, RESOURCES, Topic
from pipeline.topics.result_header import supersedes

log = get_logger(__name__)

RECOMMENDED: Final = "springtide/recommended"
"""On a Node in mode recommend: the offer it would get."""

ACTIONS = counter("actuator_actions", "Actions by outcome.", ["action", "outcome"])
OFFERING = gauge("actuator_nodes_offering", "Nodes with an offer, by tier.", ["what"])

_EVENT: Final = "event"
# A list may have been made before our last write and arrive after it.
_LIST_SECONDS: Final = 60.0
_NOTHING: Final = (ABSENT,) * len(EXTENDED_RESOURCES)

Mode = Literal["observe", "recommend", "act"]
_OUTCOMES: Final[Mapping[Mode, Outcome]] = {
    "observe": "observed",
    "recommend": "recommended",
    "act": "done",
}
_MARKS_OF_OTHER_MODES: Final[Mapping[Mode, set[str]]] = {
    "act": {RECOMMENDED},
    "recommend": {OFFERED},
    "observe": {OFFERED, RECOMMENDED},
}


class ObservedNode(NamedTuple):
    """A Node as last observed: our annotations, the offered amounts, and since when these are
    unchanged (monotonic seconds, NaN if unknown). `created` is in UTC seconds."""

    annotations: Mapping[str, str]
    amounts: tuple[int, ...]
    since: float = math.nan
    uid: str = ""
    version: int = 0
    created: float = -math.inf


class _Change(NamedTuple):
    """A patch of a Node's status; `undoes` what another mode wrote."""

    patch: dict[str, Any]
    undoes: bool = False


class _Metadata(msgspec.Struct, rename="camel"):
    name: str
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    annotations: dict[str, str] | None = None


class _Status(msgspec.Struct):
    allocatable: dict[str, Any] | None = None


class _Node(msgspec.Struct):
    metadata: _Metadata
    status: _Status = msgspec.field(default_factory=_Status)


_MARKS: Final = frozenset({OFFERED, RECOMMENDED})

_nodes: Final = msgspec.json.Decoder(_Node)
_texts: Final = msgspec.json.Decoder(dict[str, str])


class OfferWriter(Feature):
    """Writes the offers of all Nodes. It follows the Nodes for all features, and updates
    `context.node_uids`."""

    name = "offer"
    modes = ("observe", "recommend", "act")
    annotations = (OFFERED, RECOMMENDED, ORIGIN)
    topics: ClassVar[Topics] = {NODES: None, RESOURCES: None}

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._mode: Mode = context.settings.actuator.mode
        self._report = context.report
        self._node_uids, self._traces = context.node_uids, context.traces
        self._events = EventReporter(context.api, "springtide-actuator")
        self._problems: dict[str, tuple[str, ...]] = {}
        self._nodes: dict[str, ObservedNode] = {}
        self._records: dict[str, NodeRecord] = {}
        self._resources: dict[str, NodeResourcesRecord] = {}
        self._observed_offers: dict[str, ObservedNode] = {}
        self._changed: dict[str, None] = {}
        self._outcome_unknown: set[str] = set()
        self._listed: set[str] = set()

    @property
    def watches(self) -> Mapping[Watch, Follower]:
        return {NODES_WATCH: self}

    def start(self) -> None:
        if count := self.count_of_other_modes():
            log.warning("removing what another mode wrote", mode=self._mode, nodes=count)

    def count_of_other_modes(self) -> int:
        """The number of Nodes that carry marks of another mode."""
        wrong = _MARKS_OF_OTHER_MODES[self._mode]
        return sum(not wrong.isdisjoint(node.annotations) for node in self._nodes.values())

    # -- the API server

    def list_started(self) -> None:
        self._listed = set()

    def observed(self, encoded: bytes | msgspec.Raw) -> None:
        self._observe(_nodes.decode(encoded))

    def _observe(self, document: _Node) -> None:
        name = document.metadata.name
        self._listed.add(name)
        before, now = self._nodes.get(name), _observed_node(document)
        if before is not None and now.created < before.created:
            return  # the answer of a Node that was deleted and recreated meanwhile
        if before is not None and before.uid == now.uid:
            seconds_since_write = self._clock.monotonic() - before.since
            if now.version < before.version and seconds_since_write < _LIST_SECONDS:
                return
            if before.amounts == now.amounts:
                now = now._replace(since=before.since)
        self._nodes[name] = now
        self._node_uids[name] = now.uid
        if before is None or before[:2] != now[:2]:
            self._changed[name] = None

    def list_completed(self) -> None:
        for name in self._nodes.keys() - self._listed:
            self.deleted(name)

    def deleted(self, name: str) -> None:
        for state in (self._nodes, self._observed_offers, self._changed, self._problems):
            state.pop(name, None)
        self._node_uids.pop(name, None)
        self._outcome_unknown.discard(name)
        self._queue.discard(self.name, name)

    # -- the topics

    def learn(self, topic: Topic, node: str, record: Any) -> None:
        if topic is NODES:
            _set(self._records, node, record)
        else:
            if record is not None:
                check_amounts(record)
                if not supersedes(record, self._resources.get(node)):
                    return
            _set(self._resources, node, record)
        self._changed[node] = None

    # -- decisions

    def decide(self, *, everything: bool = False) -> None:
        names: Iterable[str] = self._nodes if everything else list(self._changed)
        self._changed = {}
        # Without a record of the node only our own marks matter.
        known = [
            name
            for name in names
            if name in self._nodes
            and (name in self._records or not _MARKS.isdisjoint(self._nodes[name].annotations))
        ]
        offers = offers_now([self._offer_inputs(name) for name in known], self._clock.now())
        for name, offer in zip(known, offers, strict=True):
            self._queue_change(name, offer)
            self._report_problems(name, offer.problems)
        if everything:
            ours = [node for node in self._nodes.values() if OFFERED in node.annotations]
            for tier, column in (("batch", 0), ("mid", 2)):
                OFFERING.labels(tier).set(sum(node.amounts[column] >= 0 for node in ours))

    def _offer_inputs(self, name: str) -> OfferInputs:
        record, resources = self._records.get(name), self._resources.get(name)
        node, current = self._nodes[name], self._current(name)
        if resources is not None and parse_time(resources.as_of) < node.created:
            resources = None  # of another machine with the same name
        return OfferInputs(
            None if record is None else record.overcommit,
            resources,
            node.annotations,
            current.amounts,
            self._clock.monotonic() - current.since,
            writes_origin=self._mode == "act",
        )

    def _current(self, name: str) -> ObservedNode:
        """The present offer of a node in this mode."""
        node = self._nodes[name]
        if self._mode == "act":
            return node
        if self._mode == "observe":
            return self._observed_offers.get(name, ObservedNode({}, _NOTHING))
        text = node.annotations.get(RECOMMENDED)
        try:
            recommended = {} if text is None else _texts.decode(text)
        except msgspec.DecodeError:
            recommended = {}
        return node._replace(amounts=tuple(read_amounts(recommended)))

    def _queue_change(self, name: str, offer: Offer) -> None:
        change = self._change(name, offer)
        if change is None:
            self._queue.discard(self.name, name)
            if self._mode == "observe" and offer.is_due:
                self._record(name, self._current_amounts(name), offer, "observed")
                observed = ObservedNode({}, offer.amounts, self._clock.monotonic())
                self._observed_offers[name] = observed
            return

        async def execute() -> None:
            await self._write(name)

        def on_failure(error: KubernetesError) -> None:
            if isinstance(error, ApiUnavailableError) and error.was_done is None:
                self._outcome_unknown.add(name)
            self._changed[name] = None
            self._record(name, self._current_amounts(name), offer, "failed", str(error))

        before = self._current(name).amounts
        shrinks = any(new < old for new, old in zip(offer.amounts, before, strict=True))
        write = Write(execute, on_failure, tracing.cause(self._traces, name))
        self._queue.put(self.name, name, write, is_withdrawal=change.undoes or shrinks)

    def _change(self, name: str, offer: Offer) -> _Change | None:
        """The patch for this offer, None if there is nothing to change."""
        node = self._nodes[name]
        is_ours, is_recommended = OFFERED in node.annotations, RECOMMENDED in node.annotations
        offers = any(amount >= 0 for amount in offer.amounts)
        if self._mode == "act" and (offers or is_ours):
            if offers and is_ours and not is_recommended and not offer.is_due:
                return None
            marks = {
                OFFERED: self._now() if offers else None,
                ORIGIN: offer.origin if offers else None,
                RECOMMENDED: None,
            }
            return _Change(_annotated(status_patch(offer.amounts), marks, node))
        if is_ours:
            marks = {OFFERED: None, ORIGIN: None}
            return _Change(_annotated(status_patch(_NOTHING), marks, node), undoes=True)
        if self._mode == "recommend" and offers:
            text = msgspec.json.encode(_quantities(offer.amounts)).decode()
            return _Change(_annotated({}, {RECOMMENDED: text}, node)) if offer.is_due else None
        if not is_recommended:
            return None
        undoes = self._mode != "recommend"
        return _Change(_annotated({}, {RECOMMENDED: None}, node), undoes=undoes)

    async def _write(self, name: str) -> None:
        path = f"/api/v1/nodes/{name}"
        if name in self._outcome_unknown:
            # The last write may have been executed: decide again by what the Node has now.
            answer = await self._api.request("GET", path, attempts=1)
            document = decode_answer(_nodes, answer, f"GET {path}")
            self._outcome_unknown.discard(name)
            if name in self._nodes:
                self._changed[name] = None
                self._observe(document)
            return
        if name not in self._nodes:
            return
        # The world may have changed while the write waited.
        (offer,) = offers_now([self._offer_inputs(name)], self._clock.now())
        change = self._change(name, offer)
        if change is None:
            return
        # The watch may deliver the patch before its answer arrives.
        written, current = self._nodes[name].amounts, self._current(name).amounts
        answer = await self._api.request(
            "PATCH", f"{path}/status", body=change.patch, content_type=MERGE, attempts=1
        )
        document = decode_answer(_nodes, answer, f"PATCH {path}")
        if change.undoes:
            withdrawn = offer._replace(amounts=_NOTHING)
            self._record(name, written, withdrawn, "done", action="undo")
        else:
            self._record(name, current, offer, _OUTCOMES[self._mode])
            self._report_withdrawal(name, current, offer)
        if name in self._nodes:
            self._observe(document)
            self._nodes[name] = self._nodes[name]._replace(since=self._clock.monotonic())

    # -- reports

    def _current_amounts(self, name: str) -> tuple[int, ...]:
        """The present offer of a node, nothing if the node was deleted."""
        return self._current(name).amounts if name in self._nodes else _NOTHING

    def _report_withdrawal(self, name: str, before: tuple[int, ...], offer: Offer) -> None:
        offered = any(amount >= 0 for amount in before)
        if self._mode == "act" and offered and not any(amount >= 0 for amount in offer.amounts):
            self._warn(name, "OfferWithdrawn", f"Mid and Batch withdrawn: {offer.why}")

    def _report_problems(self, name: str, problems: tuple[str, ...]) -> None:
        if problems != self._problems.get(name, ()):
            self._problems[name] = problems
            if problems:
                self._warn(name, "AnnotationProblem", "; ".join(problems))

    def _warn(self, name: str, reason: str, text: str) -> None:
        cause = tracing.cause(self._traces, name)
        with tracing.logged(cause):
            log.warning("node", node=name, reason=reason, why=text)
        if self._mode == "observe":
            return

        async def execute() -> None:
            await self._events.write({"metadata": {"name": name}}, "Node", reason, text)

        self._queue.put(_EVENT, f"{name} {reason}", Write(execute, lambda _: None, cause))

    def _record(
        self,
        name: str,
        before: tuple[int, ...],
        offer: Offer,
        outcome: Outcome,
        error: str = "",
        action: str = "offer",
    ) -> None:
        ACTIONS.labels(action, outcome).inc()
        log.debug(action, node=name, outcome=outcome, why=offer.why)
        record = ActionRecord(
            node=name,
            at=self._now(),
            actuator="cluster",
            action=action,
            outcome=outcome,
            why="; ".join([offer.why, *offer.problems]),
            before=_all_quantities(before),
            after=_all_quantities(offer.amounts),
            error=error,
        )
        self._report(record)
        if (received := self._traces.get(name)) is not None:
            tracing.record(action_span(record, received, tracing.now()))

    def _now(self) -> str:
        return format_time(math.floor(self._clock.now()))


def _observed_node(document: _Node) -> ObservedNode:
    metadata = document.metadata
    annotations = {
        key: text
        for key, text in (metadata.annotations or {}).items()
        if key.startswith(("springtide/", "node.koordinator.sh/"))
    }
    created = metadata.creation_timestamp
    return ObservedNode(
        annotations,
        tuple(read_amounts(document.status.allocatable or {})),
        uid=metadata.uid,
        version=int(metadata.resource_version) if metadata.resource_version.isdecimal() else 0,
        created=created.timestamp() if created else -math.inf,
    )


def _set(mapping: dict[str, Any], name: str, value: Any) -> None:
    if value is None:
        mapping.pop(name, None)
    else:
        mapping[name] = value


def _annotated(
    patch: dict[str, Any], marks: Mapping[str, str | None], node: ObservedNode
) -> dict[str, Any]:
    """The patch with these annotations; absent ones need not be removed."""
    changes = {k: v for k, v in marks.items() if v is not None or k in node.annotations}
    return {**patch, **({"metadata": {"annotations": changes}} if changes else {})}


def _quantities(amounts: Iterable[int]) -> dict[str, str]:
    return {name: str(a) for name, a in zip(EXTENDED_RESOURCES, amounts, strict=True) if a >= 0}


def _all_quantities(amounts: Iterable[int]) -> dict[str, str | None]:
    quantities = _quantities(amounts)
    return {name: quantities.get(name) for name in EXTENDED_RESOURCES}
