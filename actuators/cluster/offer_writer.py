"""Mid and Batch on Nodes: what they are to offer, by mode, and writing the difference.

Owes the rest: a Node gets what `offers_now` says, with one precise patch of its status, and again
only when that changes. What we wrote bears our mark, and is undone when it is not wanted any more,
nobody speaks of the node any more, or the mode is another; what others wrote is left alone. What
takes anything away is written first, and all is worked out when its turn comes. Of a write that
nobody knows the outcome of the Node is asked before the next one. Nothing that was worked out
before a Node was made is offered on it.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple

import msgspec

from actuators.cluster.cooled_nodes import COOLED
from actuators.cluster.write_queue import Write, Writer, answered
from pipeline.clock import Clock
from pipeline.errors import ApiUnavailableError, KubernetesError
from pipeline.kube.api_client import MERGE, Api
from pipeline.kube.event_reporter import EventReporter
from pipeline.logs import get_logger
from pipeline.metrics import counter, gauge
from pipeline.processors.kubernetes.object_records import ORIGIN
from pipeline.processors.overcommit.offer_decision import (
    Offer,
    OfferCase,
    check_amounts,
    offers_now,
)
from pipeline.processors.overcommit.status_patch import ABSENT, WRITTEN, amounts_on, status_patch
from pipeline.times import format_time, parse_time
from pipeline.topics.actions import ActionRecord, Outcome
from pipeline.topics.node_resources import NodeResourcesRecord
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.result_header import supersedes

log = get_logger(__name__)

OFFERED: Final = "springtide/offered"
"""On a Node whose resources we wrote: as of when."""
RECOMMENDED: Final = "springtide/recommended"
"""On a Node in mode recommend: what it would have."""

ACTIONS = counter("actuator_actions", "What was done, observed, or failed.", ["action", "outcome"])
OFFERING = gauge("actuator_nodes_offering", "Nodes with an offer in force, by resource.", ["what"])

_WHAT: Final = "offer"
_EVENT: Final = "event"
# A list may have been made before our last write, and come after it.
_LIST_SECONDS: Final = 60.0
_NOTHING: Final = (ABSENT,) * len(WRITTEN)

Mode = Literal["observe", "recommend", "act"]
_OUTCOMES: Final[Mapping[Mode, Outcome]] = {
    "observe": "observed",
    "recommend": "recommended",
    "act": "done",
}
Tell = Callable[[ActionRecord], None]


class OnServer(NamedTuple):
    """A Node as the API server has it: what of it is ours, and since when it is so, NaN where
    nobody knows. `made` is in UTC seconds."""

    annotations: Mapping[str, str]
    amounts: tuple[int, ...]
    since: float = math.nan
    uid: str = ""
    version: int = 0
    made: float = -math.inf


class _Change(NamedTuple):
    """A patch of a Node's status; whether it takes back what another mode wrote."""

    patch: dict[str, Any]
    undoes: bool = False


class _Metadata(msgspec.Struct, rename="camel"):
    name: str
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    annotations: dict[str, str] | None = None


class _Status(msgspec.Struct):
    allocatable: dict[str, Any] | None = None


class _Node(msgspec.Struct):
    metadata: _Metadata
    status: _Status = msgspec.field(default_factory=_Status)


_MARKS: Final = frozenset({OFFERED, RECOMMENDED, COOLED})

_nodes: Final = msgspec.json.Decoder(_Node)
_texts: Final = msgspec.json.Decoder(dict[str, str])


class Offers:
    """What Nodes offer. `see`, `gone` and `learn` tell it of the world, `decide` what is due."""

    def __init__(self, api: Api, mode: Mode, writer: Writer, clock: Clock, tell: Tell) -> None:
        self._api = api
        self._mode = mode
        self._writer = writer
        self._clock = clock
        self._tell = tell
        self._reporter = EventReporter(api, "springtide-actuator")
        self._problems: dict[str, tuple[str, ...]] = {}
        self._on_server: dict[str, OnServer] = {}
        self._records: dict[str, NodeRecord] = {}
        self._resources: dict[str, NodeResourcesRecord] = {}
        self._observed: dict[str, OnServer] = {}
        self._changed: dict[str, None] = {}
        self._unsure: set[str] = set()
        self._listed: set[str] = set()

    # -- the API server

    def begin(self) -> None:
        """A whole list of Nodes begins."""
        self._listed = set()

    def see(self, of: bytes | msgspec.Raw) -> None:
        """A Node as it is now."""
        self._see(_nodes.decode(of))

    def _see(self, found: _Node) -> None:
        name = found.metadata.name
        self._listed.add(name)
        before, now = self._on_server.get(name), _on_server(found)
        if before is not None and before.uid == now.uid:
            ours_seconds = self._clock.monotonic() - before.since
            if now.version < before.version and ours_seconds < _LIST_SECONDS:
                return
            if before.amounts == now.amounts:
                now = now._replace(since=before.since)
        self._on_server[name] = now
        if before is None or before[:2] != now[:2]:
            self._changed[name] = None

    def uid_of(self, name: str) -> str | None:
        """The uid of a Node, None if there is none."""
        there = self._on_server.get(name)
        return None if there is None else there.uid

    def complete(self) -> None:
        """The list is complete: other Nodes are gone."""
        for name in self._on_server.keys() - self._listed:
            self.gone(name)

    def gone(self, name: str) -> None:
        """A Node was deleted."""
        for known in (self._on_server, self._observed, self._changed, self._problems):
            known.pop(name, None)
        self._unsure.discard(name)
        self._writer.drop(_WHAT, name)

    # -- the topics

    def learn_node(self, name: str, record: NodeRecord | None) -> None:
        """What is known of a node, and its policy."""
        _put(self._records, name, record)
        self._changed[name] = None

    def learn_resources(self, name: str, record: NodeResourcesRecord | None) -> None:
        """What was worked out for a node; what is older than what is known is left. Raises
        `InvalidRecordError` for what nobody could offer."""
        if record is not None:
            check_amounts(record)
            if not supersedes(record, self._resources.get(name)):
                return
        _put(self._resources, name, record)
        self._changed[name] = None

    # -- what is due

    def decide(self, *, everything: bool = False) -> None:
        """Put what is due into the writer's hands, and take back what is not any more: of nodes of
        which something has changed, or of all."""
        names: Iterable[str] = self._on_server if everything else list(self._changed)
        self._changed = {}
        # Of a node that no source speaks of only what we wrote is our concern.
        known = [n for n in names if n in self._on_server and (n in self._records or self._ours(n))]
        for name, offer in zip(known, offers_now([*map(self._case, known)], self._clock.now()),
                               strict=True):  # fmt: skip
            self._put(name, offer)
            self._tell_of_problems(name, offer.problems)
        if everything:
            ours = [one for one in self._on_server.values() if OFFERED in one.annotations]
            for what, at in (("batch", 0), ("mid", 2)):
                OFFERING.labels(what).set(sum(one.amounts[at] >= 0 for one in ours))

    def left_over(self) -> int:
        """How many Nodes bear what another mode wrote: it is taken back."""
        wrong = {"act": {RECOMMENDED}, "recommend": {OFFERED}, "observe": {OFFERED, RECOMMENDED}}
        nodes = self._on_server.values()
        return sum(not wrong[self._mode].isdisjoint(node.annotations) for node in nodes)

    def _ours(self, name: str) -> bool:
        return not _MARKS.isdisjoint(self._on_server[name].annotations)

    def _case(self, name: str) -> OfferCase:
        record, resources = self._records.get(name), self._resources.get(name)
        there, have = self._on_server[name], self._having(name)
        if resources is not None and parse_time(resources.as_of) < there.made:
            resources = None  # of another machine that had the name
        return OfferCase(
            None if record is None else record.overcommit,
            resources,
            there.annotations,
            have.amounts,
            self._clock.monotonic() - have.since,
            says_origin=self._mode == "act",
        )

    def _having(self, name: str) -> OnServer:
        """What stands for the offer of a node in this mode."""
        there = self._on_server[name]
        if self._mode == "act":
            return there
        if self._mode == "observe":
            return self._observed.get(name, OnServer({}, _NOTHING))
        text = there.annotations.get(RECOMMENDED)
        try:
            said = {} if text is None else _texts.decode(text)
        except msgspec.DecodeError:
            said = {}
        return there._replace(amounts=tuple(amounts_on(said)))

    def _put(self, name: str, offer: Offer) -> None:
        change = self._change(name, offer)
        if change is None:
            self._writer.drop(_WHAT, name)
            if self._mode == "observe" and offer.is_due:
                self._observe(name, offer)
            return

        async def do() -> None:
            await self._write(name)

        def failed(error: KubernetesError) -> None:
            if isinstance(error, ApiUnavailableError) and error.was_done is None:
                self._unsure.add(name)
            self._changed[name] = None
            self._say(name, self._known(name), offer, "failed", str(error))

        had = self._having(name).amounts
        is_less = any(new < old for new, old in zip(offer.amounts, had, strict=True))
        self._writer.put(_WHAT, name, Write(do, failed), takes_away=change.undoes or is_less)

    def _change(self, name: str, offer: Offer) -> _Change | None:
        """What is to be done for this offer, None where nothing is."""
        there = self._on_server[name]
        is_ours, is_recommended = OFFERED in there.annotations, RECOMMENDED in there.annotations
        offers = any(amount >= 0 for amount in offer.amounts)
        if self._mode == "act" and (offers or is_ours):
            if offers and is_ours and not is_recommended and not offer.is_due:
                return None
            marks = {
                OFFERED: self._now() if offers else None,
                ORIGIN: offer.origin if offers else None,
                RECOMMENDED: None,
            }
            return _Change(_with(status_patch(offer.amounts), marks, there))
        if is_ours:
            marks = {OFFERED: None, ORIGIN: None, COOLED: None}
            return _Change(_with(status_patch(_NOTHING), marks, there), undoes=True)
        if self._mode != "act" and COOLED in there.annotations:
            return _Change(_with({}, {COOLED: None}, there), undoes=True)
        if self._mode == "recommend" and offers:
            text = msgspec.json.encode(_said(offer.amounts)).decode()
            return _Change(_with({}, {RECOMMENDED: text}, there)) if offer.is_due else None
        if not is_recommended:
            return None
        return _Change(_with({}, {RECOMMENDED: None}, there), undoes=self._mode != "recommend")

    async def _write(self, name: str) -> None:
        path = f"/api/v1/nodes/{name}"
        if name in self._unsure:
            # The last write may have been done: what is wanted then is for the next turn to say.
            found = answered(_nodes, await self._api.request("GET", path, attempts=1))
            self._unsure.discard(name)
            self._changed[name] = None
            self._see(found)
            return
        if name not in self._on_server:
            return
        # The world may have changed while it waited.
        (offer,) = offers_now([self._case(name)], self._clock.now())
        change = self._change(name, offer)
        if change is None:
            return
        # The watch may tell of the patch before its answer is here.
        written, had = self._on_server[name].amounts, self._having(name).amounts
        answer = await self._api.request(
            "PATCH", f"{path}/status", body=change.patch, kind=MERGE, attempts=1
        )
        found = answered(_nodes, answer)
        if change.undoes:
            self._say(name, written, offer._replace(amounts=_NOTHING), "done", action="undo")
        else:
            self._say(name, had, offer, _OUTCOMES[self._mode])
            self._tell_of_withdrawal(name, had, offer)
        self._see(found)
        there = self._on_server.get(name)
        if there is not None:
            self._on_server[name] = there._replace(since=self._clock.monotonic())

    def _observe(self, name: str, offer: Offer) -> None:
        self._say(name, self._known(name), offer, "observed")
        self._observed[name] = OnServer({}, offer.amounts, self._clock.monotonic())

    def _known(self, name: str) -> tuple[int, ...]:
        """What stands for the offer of a node, nothing if the node is gone."""
        return self._having(name).amounts if name in self._on_server else _NOTHING

    def _tell_of_withdrawal(self, name: str, before: tuple[int, ...], offer: Offer) -> None:
        had = any(amount >= 0 for amount in before)
        if self._mode == "act" and had and not any(amount >= 0 for amount in offer.amounts):
            self._warn(name, "OfferWithdrawn", f"no Mid and Batch any more: {offer.why}")

    def _tell_of_problems(self, name: str, problems: tuple[str, ...]) -> None:
        if problems != self._problems.get(name, ()):
            self._problems[name] = problems
            if problems:
                self._warn(name, "AnnotationProblem", "; ".join(problems))

    def _warn(self, name: str, reason: str, text: str) -> None:
        log.warning("node", node=name, reason=reason, why=text)
        if self._mode == "observe":
            return

        async def do() -> None:
            await self._reporter.warn({"metadata": {"name": name}}, "Node", reason, text)

        self._writer.put(_EVENT, f"{name} {reason}", Write(do, lambda _: None))

    def _say(
        self,
        name: str,
        before: tuple[int, ...],
        offer: Offer,
        outcome: Outcome,
        error: str = "",
        action: str = _WHAT,
    ) -> None:
        ACTIONS.labels(action, outcome).inc()
        log.debug(action, node=name, outcome=outcome, why=offer.why)
        self._tell(
            ActionRecord(
                node=name,
                at=self._now(),
                actuator="cluster",
                action=action,
                outcome=outcome,
                why="; ".join([offer.why, *offer.problems]),
                before=_texts_of(before),
                after=_texts_of(offer.amounts),
                error=error,
            )
        )

    def _now(self) -> str:
        return format_time(math.floor(self._clock.now()))


def _on_server(found: _Node) -> OnServer:
    of = found.metadata
    kept = {
        key: text
        for key, text in (of.annotations or {}).items()
        if key.startswith(("springtide/", "node.koordinator.sh/"))
    }
    return OnServer(
        kept,
        tuple(amounts_on(found.status.allocatable or {})),
        uid=of.uid,
        version=int(of.resource_version) if of.resource_version.isdecimal() else 0,
        made=parse_time(of.creation_timestamp) if of.creation_timestamp else -math.inf,
    )


def _put(into: dict[str, Any], name: str, value: Any) -> None:
    if value is None:
        into.pop(name, None)
    else:
        into[name] = value


def _with(
    patch: dict[str, Any], marks: Mapping[str, str | None], there: OnServer
) -> dict[str, Any]:
    """The patch with these annotations; what is not there need not be removed."""
    said = {k: v for k, v in marks.items() if v is not None or k in there.annotations}
    return {**patch, **({"metadata": {"annotations": said}} if said else {})}


def _said(amounts: Iterable[int]) -> dict[str, str]:
    return {name: str(a) for name, a in zip(WRITTEN, amounts, strict=True) if a >= 0}


def _texts_of(amounts: Iterable[int]) -> dict[str, str | None]:
    said = _said(amounts)
    return {name: said.get(name) for name in WRITTEN}
