"""Steps of a scenario, and what must be true of each answer."""

import asyncio
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import msgspec
from yarl import URL

from pipeline.clock import ManualClock
from pipeline.extender.openapi import openapi_document
from pipeline.extender.scheduler_api import Extender
from pipeline.settings import ExtenderSettings
from pipeline.table import FeedState, Table
from pipeline.topics.codec import encode_json
from tests.extender import oracle
from tests.extender.fuzz import broken, documented, questions
from tests.extender.fuzz.changes import Change, Drop
from tests.extender.fuzz.extender_process import FeedInput
from tests.extender.fuzz.fleet import REUSED_SECONDS, STALE, Answer, Cycle, Fleet
from tests.extender.fuzz.questions import Asked, as_record
from tests.extender.json_schema import wrong
from tests.extender.oracle import World

DOCUMENT = openapi_document(
    Extender(Table(), FeedState(), ExtenderSettings(), ManualClock()).routes()
)
SCHEMAS = dict(DOCUMENT["components"]["schemas"])
SCHEMAS["HostPriorityList"] = {"type": "array", "items": SCHEMAS["HostPriority"]}
PATIENCE_SECONDS = 0.15
LARGE_BODY_BYTES = 1 << 20
REASON = re.compile(
    r"node\(s\) (cpu|memory) (estimated )?usage exceed threshold|"
    r"node\(s\) (kubernetes.io/(mid|batch)-)?(cpu|memory) requests exceed "
    r"(allocatable minus reservation|newest offer)"
)


def check(answer: Answer, status: int, schema: str) -> Any:
    """The JSON of an answer of this status that has this schema."""
    assert answer.status == status, answer
    assert [*wrong(answer.json, SCHEMAS[schema], DOCUMENT)] == []
    return answer.json


def differences(result: Sequence[Any], wanted: Sequence[Any]) -> Iterator[str]:
    """The first few differences between two long lists."""
    if len(result) != len(wanted):
        yield f"{len(result)}, not {len(wanted)}"
    pairs = zip(result, wanted, strict=False)
    yield from islice((f"{entry}, not {other}" for entry, other in pairs if entry != other), 5)


# -- requests of a scheduler


class Form(NamedTuple):
    """The form of a request: with whole Nodes or names, and the letter case of its keys."""

    whole: bool
    case: int

    def key(self, name: str) -> str:
        return (name, name.lower(), name.upper(), name.swapcase())[self.case]

    def body(self, asked: Asked, names: Sequence[str]) -> dict[str, Any]:
        nodes = {"items": [{"metadata": {"name": name}, "x": [1.5, None]} for name in names]}
        reply = {"Nodes": nodes} if self.whole else {"NodeNames": [*names]}
        return {self.key(name): value for name, value in ({"Pod": asked.manifest} | reply).items()}


def filtered(answer: Answer, names: Sequence[str], *, whole: bool) -> tuple[Any, ...]:
    """The names in a reply to filter: passed, and refused."""
    result = check(answer, 200, "ExtenderFilterResult")
    assert result["Error"] == ""
    passed = result["NodeNames"]
    if whole:
        assert passed is None
        passed = [item["metadata"]["name"] for item in result["Nodes"]["items"]]
        assert all(item["x"] == [1.5, None] for item in result["Nodes"]["items"])
    # kube-scheduler counts nodes by reason: few texts, whatever the nodes.
    reasons = {*result["FailedAndUnresolvableNodes"].values()}
    assert all(REASON.fullmatch(reason) for reason in reasons), reasons
    assert result["FailedNodes"] == {}
    return passed, {*result["FailedAndUnresolvableNodes"]}


def expected(world: World, names: Sequence[str], asked: Asked, now: float) -> tuple[Any, ...]:
    """The reply to filter that the oracle expects."""
    each = [*dict.fromkeys(names)]
    if asked.is_exempt:
        return each, set()
    result = oracle.judge_all(world, each, asked.pod, now, STALE)
    refused = {name for name in each if result[name].refused}
    return [name for name in each if result[name].passes], refused


class Filter(NamedTuple):
    asked: Asked
    names: list[str]
    form: Form

    async def run(self, fleet: Fleet) -> list[str]:
        uid = self.asked.pod.uid
        if not self.asked.is_exempt:
            fleet.withdraw(uid)
        world = fleet.world()
        answer = await fleet.post("filter", self.form.body(self.asked, self.names))
        passed, *refused = filtered(answer, self.names, whole=self.form.whole)
        wanted = expected(world, self.names, self.asked, fleet.now)
        assert (passed, *refused) == wanted, [*differences(passed, wanted[0])]
        if not self.asked.is_exempt:
            fleet.cycles[uid] = Cycle(world, fleet.now, frozenset(passed))
            if len(passed) == 1:
                fleet.place(self.asked.pod, passed[0])
        return [*passed]


class Prioritize(NamedTuple):
    asked: Asked
    names: list[str]
    form: Form

    async def run(self, fleet: Fleet) -> str | None:
        """Returns the best node. The scores may be those of the moment of the filter."""
        each, pod = [*dict.fromkeys(self.names)], self.asked.pod
        was_placed = fleet.withdraw(pod.uid)
        moments = [(fleet.world(), fleet.now)]
        cycle = fleet.cycles.pop(pod.uid, None)
        if cycle and not was_placed and 0 <= fleet.now - cycle.now < REUSED_SECONDS:
            moments = [(cycle.world, cycle.now), *moments] if pod.uid else moments
        answer = await fleet.post("prioritize", self.form.body(self.asked, self.names))
        result = check(answer, 200, "HostPriorityList")
        possible = [oracle.scores(world, each, pod, now, STALE) for world, now in moments]
        possible_answers = [
            [{"Host": name, "Score": score} for name, score in zip(each, entry.steps, strict=True)]
            for entry in possible
        ]
        assert result in possible_answers, [
            [*differences(result, entry)] for entry in possible_answers
        ]
        best = {
            entry.best
            for entry, reply in zip(possible, possible_answers, strict=True)
            if reply == result
        }
        if len(best) > 1:
            # Nothing shows which node the extender chose: withdraw the placement.
            await fleet.post("filter", self.form.body(self.asked, []))
            return None
        position = best.pop()
        if position is None:
            return None
        fleet.place(pod, each[position])
        return each[position]


class Schedule(NamedTuple):
    """A whole cycle: filter, prioritize of the nodes that passed, and perhaps the bind."""

    asked: Asked
    names: list[str]
    form: Form
    between: list[Change]
    is_bound: bool

    async def run(self, fleet: Fleet) -> None:
        asked = self.asked.of_uid(f"new-{fleet.begun}-{fleet.asked}")
        passed = await Filter(asked, self.names, self.form).run(fleet)
        for change in self.between:
            await change.run(fleet)
        best = await Prioritize(asked, passed, self.form).run(fleet)
        if best is not None and self.is_bound:
            await Change(msgspec.structs.replace(asked.pod, node=best, phase="Pending")).run(fleet)


class Preempt(NamedTuple):
    asked: Asked
    victims: dict[str, list[str]]
    case: int
    whole: bool

    async def run(self, fleet: Fleet) -> None:
        key = Form(False, self.case).key
        pods = {
            node: [{"metadata": {"uid": uid}} if self.whole else {"UID": uid} for uid in uids]
            for node, uids in self.victims.items()
        }
        form = "NodeNameToVictims" if self.whole else "NodeNameToMetaVictims"
        body = {
            key("Pod"): self.asked.manifest,
            key(form): {
                node: {"Pods": entry, "NumPDBViolations": 1} for node, entry in pods.items()
            },
        }
        answer = await fleet.post("preempt", body)
        result = check(answer, 200, "ExtenderPreemptionResult")["NodeNameToMetaVictims"]
        left = [*self.victims]
        if not self.asked.is_exempt:
            left = oracle.preempt(fleet.world(), self.victims, self.asked.pod, fleet.now, STALE)
        assert result == {
            node: {"Pods": [{"UID": uid} for uid in self.victims[node]], "NumPDBViolations": 1}
            for node in left
        }


class Explain(NamedTuple):
    """An explanation, which has no effect: later steps would show one."""

    asked: Asked
    names: list[str] | None
    as_record: bool

    async def run(self, fleet: Fleet) -> None:
        pod = msgspec.Raw(encode_json(as_record(self.asked.pod)))
        what = {"podRecord": pod} if self.as_record else {"pod": self.asked.manifest}
        answer = await fleet.post("v1/explain", {**what, "nodeNames": self.names})
        result = check(answer, 200, "Explanation")["items"]
        world, asked = fleet.world(), self.asked
        if self.as_record:
            asked = asked._replace(manifest={"metadata": {}})
        named = self.names
        if named is None:
            named = [item["node"] for item in result]
            with_pods = {pod.node for pod in world.pods.values()}
            # A scheduler asks about Nodes only.
            known = {*world.nodes} or {*world.states, *world.offers, *with_pods}
            assert named == sorted(name for name in known if world.knows(name))
        world = fleet.world(asked.pod.uid)
        passed, refused = expected(world, named, asked, fleet.now)
        scored = oracle.scores(world, passed, asked.pod, fleet.now, STALE)
        score_of = dict(zip(passed, scored.percent, strict=True))
        assert [item["node"] for item in result] == [*dict.fromkeys(named)]
        for item in result:
            name = item["node"]
            assert (item["verdict"] == "refused") == (name in refused), (item, refused)
            assert item["score"] == score_of.get(name), (item, score_of)


class Together(NamedTuple):
    """Requests while records arrive: each reply belongs to one moment."""

    changes: list[Change | Drop]
    asked: Asked
    names: list[str]
    form: Form

    async def run(self, fleet: Fleet) -> None:
        worlds, inputs = [fleet.world()], []
        for change in self.changes:
            inputs.append(change.feed_input(fleet))
            worlds.append(fleet.world())
        body = self.form.body(self.asked, self.names)
        answers = await fleet.together(inputs, [("filter", body), ("prioritize", body)] * 2)
        possible = [expected(world, self.names, self.asked, fleet.now) for world in worlds]
        each = [*dict.fromkeys(self.names)]
        scores = [
            oracle.scores(world, each, self.asked.pod, fleet.now, STALE).steps for world in worlds
        ]
        for answer in answers[::2]:
            result = filtered(answer, self.names, whole=self.form.whole)
            assert result in possible, (result, possible)
        for answer in answers[1::2]:
            result = check(answer, 200, "HostPriorityList")
            assert [entry["Host"] for entry in result] == each
            assert [entry["Score"] for entry in result] in scores, (result, scores)


class Many(NamedTuple):
    """5,000 names, some repeated, and most unknown."""

    asked: Asked
    start: int
    form: Form

    async def run(self, fleet: Fleet) -> None:
        names = [*questions.NODES, *(f"n{self.start + i % 4990}" for i in range(5000))]
        passed = await Filter(self.asked, names, self.form).run(fleet)
        await Prioritize(self.asked, passed, self.form).run(fleet)


# -- requests of any client


def must_be_documented(asked: documented.Request, answer: Answer) -> None:
    result = [*documented.complaints(asked, answer, DOCUMENT)]
    assert not result, (asked.method, asked.url[:300], len(asked.url), result, answer.body[:300])


class Documented(NamedTuple):
    request: documented.Request

    async def run(self, fleet: Fleet) -> None:
        asked = self.request
        url = URL(f"http://127.0.0.1:{fleet.port}{asked.url}", encoded=True)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS if "wait=" in asked.url else 30.0):
                answer = await fleet.ask(asked.method, url, asked.body, headers=asked.headers)
        except TimeoutError:
            assert "wait=" in asked.url  # a client that disconnects
            return
        must_be_documented(asked, answer)
        assert answer.status < 500


class Junk(NamedTuple):
    """A body of any JSON or bytes."""

    verb: str
    body: Any

    async def run(self, fleet: Fleet) -> None:
        body = self.body if isinstance(self.body, bytes) else msgspec.json.encode(self.body)
        answer = await fleet.post(self.verb, body)
        responses = DOCUMENT["paths"][f"/{self.verb}"]["post"]["responses"]
        assert answer.status in (200, 400)
        schema = responses[str(answer.status)]["content"]["application/json"]["schema"]
        assert [*wrong(answer.json, schema, DOCUMENT)] == []


class Broken(NamedTuple):
    """Invalid HTTP: refused, or not answered at all."""

    data: bytes

    async def run(self, fleet: Fleet) -> None:
        result = await fleet.raw(self.data)
        assert all(status < 500 for status in broken.statuses(result)), result[:300]


class Unready(NamedTuple):
    """The table is not caught up: 503 with the reason, except where that does not matter."""

    requests: list[documented.Request]

    async def run(self, fleet: Fleet) -> None:
        await fleet.feed(FeedInput(caught_up=False))
        try:
            for verb in ("filter", "prioritize"):
                answer = await fleet.post(verb, {"Pod": {}, "NodeNames": ["a"]})
                assert "not caught up" in check(answer, 503, "ErrorReply")["Error"]
                assert answer.headers["Retry-After"]
            check(await fleet.ask("GET", "/readyz"), 503, "Readiness")
            assert (await fleet.ask("GET", "/healthz")).status == 200
            for asked in self.requests:
                url = URL(f"http://127.0.0.1:{fleet.port}{asked.url}", encoded=True)
                answer = await fleet.ask(asked.method, url, asked.body, headers=asked.headers)
                must_be_documented(asked, answer)
        finally:
            await fleet.feed(FeedInput())


class Large(NamedTuple):
    """More large bodies at once than slots: answered, or refused with 503."""

    bodies: int

    async def run(self, fleet: Fleet) -> None:
        body = msgspec.json.encode({"Pod": {}, "NodeNames": ["a"]}) + b" " * LARGE_BODY_BYTES
        for answer in await fleet.together([], [("filter", body)] * self.bodies):
            if answer.status == 503:
                assert "bodies over" in check(answer, 503, "ErrorReply")["Error"]
                assert answer.headers["Retry-After"]
            else:
                check(answer, 200, "ExtenderFilterResult")
