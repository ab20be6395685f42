"""Mid and Batch on Nodes: what they are to offer, by mode, and writing the difference.

Owes the rest: a Node gets what `offers_now` says, with one precise patch of its status, and again
only when that changes. What we wrote bears our mark, and is undone when it is not wanted any more
or the mode is another; what others wrote is left alone. Of a write that nobody knows the outcome
of the Node is asked before the next one.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple

import msgspec

from actuators.cluster.writing import Write, Writer
from pipeline.clock import Clock
from pipeline.errors import KubernetesError
from pipeline.kube.client import MERGE, Api
from pipeline.logs import get_logger
from pipeline.metrics import gauge
from pipeline.processors.overcommit.offering import Case, Offer, offers_now
from pipeline.processors.overcommit.third_party import ORIGIN
from pipeline.processors.overcommit.writing import ABSENT, WRITTEN, amounts_on, status_patch
from pipeline.times import format_time
from pipeline.topics.actions import ActionRecord, Outcome
from pipeline.topics.node_resources import NodeResourcesRecord
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.results import supersedes

log = get_logger(__name__)

OFFERED: Final = "springtide/offered"
"""On a Node whose resources we wrote: as of when."""
RECOMMENDED: Final = "springtide/recommended"
"""On a Node in mode recommend: what it would have."""

OFFERING = gauge("actuator_nodes_offering", "Nodes with an offer in force, by resource.", ["what"])

_WHAT: Final = "offer"
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
    nobody knows."""

    annotations: Mapping[str, str]
    amounts: tuple[int, ...]
    since: float = math.nan


class _Metadata(msgspec.Struct):
    name: str
    annotations: dict[str, str] | None = None


class _Status(msgspec.Struct):
    allocatable: dict[str, Any] | None = None


class _Node(msgspec.Struct):
    metadata: _Metadata
    status: _Status = msgspec.field(default_factory=_Status)


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
        found = _nodes.decode(of)
        name = found.metadata.name
        kept = {
            key: text
            for key, text in (found.metadata.annotations or {}).items()
            if key.startswith(("springtide/", "node.koordinator.sh/"))
        }
        amounts = tuple(amounts_on(found.status.allocatable or {}))
        self._listed.add(name)
        before = self._on_server.get(name)
        since = before.since if before and before.amounts == amounts else math.nan
        self._on_server[name] = OnServer(kept, amounts, since)
        if before is None or (before.annotations, before.amounts) != (kept, amounts):
            self._changed[name] = None

    def complete(self) -> None:
        """The list is complete: other Nodes are gone."""
        for name in self._on_server.keys() - self._listed:
            self.gone(name)

    def gone(self, name: str) -> None:
        """A Node was deleted."""
        for known in (self._on_server, self._observed, self._changed):
            known.pop(name, None)
        self._unsure.discard(name)
        self._writer.drop(_WHAT, name)

    # -- the topics

    def learn_node(self, name: str, record: NodeRecord | None) -> None:
        """What is known of a node, and its policy."""
        _put(self._records, name, record)
        self._changed[name] = None

    def learn_resources(self, name: str, record: NodeResourcesRecord | None) -> None:
        """What was worked out for a node; what is older than what is known is left."""
        if record is not None and not supersedes(record, self._resources.get(name)):
            return
        _put(self._resources, name, record)
        self._changed[name] = None

    # -- what is due

    def decide(self, *, everything: bool = False) -> None:
        """Put what is due into the writer's hands, and take back what is not any more: of nodes of
        which something has changed, or of all."""
        names: Iterable[str] = self._on_server if everything else list(self._changed)
        self._changed = {}
        # A node that no source speaks of is nothing that we could know what to do with.
        known = [n for n in names if n in self._on_server and n in self._records]
        for name, offer in zip(known, offers_now([*map(self._case, known)], self._clock.now()),
                               strict=True):  # fmt: skip
            self._put(name, offer)
        if everything:
            for what, at in (("batch", 0), ("mid", 2)):
                there = sum(one.amounts[at] >= 0 for one in self._on_server.values())
                OFFERING.labels(what).set(there)

    def _case(self, name: str) -> Case:
        record, there = self._records[name], self._on_server[name]
        have = self._having(name)
        return Case(
            record.overcommit,
            self._resources.get(name),
            there.annotations,
            have.amounts,
            self._clock.monotonic() - have.since,
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
        there = self._on_server[name]
        patch = self._patch(there, offer)
        if patch is None:
            self._writer.drop(_WHAT, name)
            if self._mode == "observe" and offer.is_due:
                self._observe(name, offer)
            return

        async def do() -> None:
            await self._write(name, offer, patch)

        def failed(error: KubernetesError) -> None:
            self._unsure.add(name)
            self._changed[name] = None
            self._say(name, offer, "failed", str(error))

        self._writer.put(_WHAT, name, Write(do, failed))

    def _patch(self, there: OnServer, offer: Offer) -> dict[str, Any] | None:
        """The patch of the Node's status, None where there is nothing to do."""
        is_ours, is_recommended = OFFERED in there.annotations, RECOMMENDED in there.annotations
        offers = any(amount >= 0 for amount in offer.amounts)
        if self._mode == "act" and (offers or is_ours):
            due = offer.is_due or not offers or is_recommended
            if not due:
                return None
            marks = {
                OFFERED: self._now() if offers else None,
                ORIGIN: offer.origin if offers else None,
                RECOMMENDED: None,
            }
            return _with(status_patch(offer.amounts), marks, there)
        if is_ours:
            marks = {OFFERED: None, ORIGIN: None}
            return _with(status_patch(_NOTHING), marks, there)
        if self._mode == "recommend" and offers:
            text = msgspec.json.encode(_said(offer.amounts)).decode()
            return _with({}, {RECOMMENDED: text}, there) if offer.is_due else None
        return _with({}, {RECOMMENDED: None}, there) if is_recommended else None

    async def _write(self, name: str, offer: Offer, patch: dict[str, Any]) -> None:
        path = f"/api/v1/nodes/{name}"
        if name in self._unsure:
            # The last write may have been done: what is wanted then is for the next turn to say.
            found = await self._api.request("GET", path, attempts=1)
            self._unsure.discard(name)
            self._changed[name] = None
            self.see(found)
            return
        found = await self._api.request(
            "PATCH", f"{path}/status", body=patch, kind=MERGE, attempts=1
        )
        self._say(name, offer, _OUTCOMES[self._mode])
        self.see(found)
        there = self._on_server.get(name)
        if there is not None:
            self._on_server[name] = there._replace(since=self._clock.monotonic())

    def _observe(self, name: str, offer: Offer) -> None:
        self._say(name, offer, "observed")
        self._observed[name] = OnServer({}, offer.amounts, self._clock.monotonic())

    def _say(self, name: str, offer: Offer, outcome: Outcome, error: str = "") -> None:
        before = self._having(name).amounts if name in self._on_server else _NOTHING
        log.debug("offer", node=name, outcome=outcome, why=offer.why)
        self._tell(
            ActionRecord(
                node=name,
                at=self._now(),
                actuator="cluster",
                action=_WHAT,
                outcome=outcome,
                why="; ".join([offer.why, *offer.problems]),
                before=_texts_of(before),
                after=_texts_of(offer.amounts),
                error=error,
            )
        )

    def _now(self) -> str:
        return format_time(math.floor(self._clock.now()))


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
