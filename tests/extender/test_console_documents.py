"""The documents about hot nodes, accuracy and policy, as an extender serves them."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from pipeline.clock import ManualClock
from pipeline.errors import BrokerUnavailableError
from pipeline.extender import limits
from pipeline.extender.console_documents import ReliefReading
from pipeline.extender.console_reading import take_action, take_plan
from pipeline.extender.http_responses import ErrorReply
from pipeline.extender.tagged_documents import KeptDocument
from pipeline.kafka.follow import ConsumerRecord
from pipeline.processors.console.accuracy_document import JudgedFleet
from pipeline.table import FeedState
from pipeline.table.node_columns import TableNode
from pipeline.topics.codec import encode_json
from pipeline.topics.hot_node_policy import HotNodePolicy
from tests.extender.conftest import Start, extender
from tests.extender.console_samples import MADE, action, plan, read_judged, relief
from tests.processes import until
from tests.table.records import NOW, node_state, table_of

PATHS = ("/v1/relief", "/v1/accuracy", "/v1/policy")


async def answered(client: Any, path: str) -> Any:
    answer = await client.get(path)
    assert answer.status == 200, await answer.text()
    return await answer.json()


@pytest.mark.parametrize("path", PATHS)
async def test_documents_are_tagged_and_need_a_table_that_is_caught_up(
    start: Start, path: str
) -> None:
    client = await start(relief=relief(), read_judged=read_judged)
    tag = (await client.get(path)).headers["ETag"]
    answer = await client.get(path, headers={"If-None-Match": tag})
    assert (answer.status, await answer.read()) == (304, b"")
    blind = await start(caught_up=False, relief=relief(), read_judged=read_judged)
    assert (await blind.get(path)).status == 503


async def test_plans_that_are_not_read_are_unknown_and_not_none(start: Start) -> None:
    state = FeedState(message="waiting for topic springtide.eviction-plans")
    document = await answered(await start(relief=ReliefReading(state=state)), "/v1/relief")
    assert (document["plans"], document["troubles"]) == (None, None)
    assert "waiting for topic springtide.eviction-plans" in document["problem"]
    # Without the broker what was read stays, and the document says that it may be old.
    old = relief()
    old.state.connected, old.state.message = False, "the broker is away"
    document = await answered(await start(relief=old), "/v1/relief")
    assert (len(document["plans"]), document["problem"]) == (1, "the broker is away")


async def test_a_new_plan_is_in_the_document_a_second_later(start: Start) -> None:
    clock, reading = ManualClock(NOW), relief()
    client = await start(relief=reading, clock=clock)
    assert len((await answered(client, "/v1/relief"))["plans"]) == 1
    reading.log.take_plan(plan("p2"), NOW, NOW)
    assert len((await answered(client, "/v1/relief"))["plans"]) == 1
    clock.jump(limits.DOCUMENT_SECONDS)
    assert [of["id"] for of in (await answered(client, "/v1/relief"))["plans"]] == ["p2", "p1"]


async def test_the_policy_is_that_of_the_records_of_nodes(start: Start) -> None:
    table = table_of(node_state("a"), node_state("b"))
    table.put_node(TableNode(node="a", hot_nodes=HotNodePolicy(high_percent={"cpu": 50.0})))
    document = await answered(await start(extender(table)), "/v1/policy")
    assert (document["name"], document["policy"]) == (["a", "b"], [0, None])
    assert (document["mode"], document["cpu_threshold_percent"]) == ("act", 65)
    texts = " ".join(warning["text"] for warning in document["warnings"])
    assert "no record of the node" in texts
    assert "filled to 65%, but above 50% it is hot" in texts


class Judge:
    """A topic that is read when `released`, and fails with `error`."""

    def __init__(self) -> None:
        self.spans: list[float] = []
        self.released = asyncio.Event()
        self.error: Exception | None = None

    async def read(self, since: float, now: float) -> JudgedFleet:
        self.spans.append(now - since)
        await self.released.wait()
        if self.error is not None:
            raise self.error
        return await read_judged(since, now)


async def test_accuracy_is_read_once_in_ten_minutes_while_it_is_asked_for(start: Start) -> None:
    clock, judge = ManualClock(NOW), Judge()
    judge.released.set()
    client = await start(read_judged=judge.read, clock=clock)
    for _ in range(3):
        assert (await answered(client, "/v1/accuracy"))["pool"] == ["gpu"] * 4
    assert judge.spans == [limits.ACCURACY_LONGEST_SECONDS]
    await clock.advance(limits.ACCURACY_SECONDS)
    await asyncio.sleep(0)
    assert len(judge.spans) == 1  # No client asks.
    # The old document is served while the new one is made.
    judge.released.clear()
    assert (await answered(client, "/v1/accuracy"))["read_at_seconds"] == round(NOW)
    judge.released.set()

    async def is_new() -> bool:
        read_at: int = (await answered(client, "/v1/accuracy"))["read_at_seconds"]
        return read_at == round(NOW + limits.ACCURACY_SECONDS)

    await until(is_new)
    assert len(judge.spans) == 2


async def test_of_many_nodes_a_shorter_time_is_read(start: Start) -> None:
    judge = Judge()
    judge.released.set()
    nodes = (node_state(f"n{number}") for number in range(2_500))
    client = await start(extender(table_of(*nodes), read_judged=judge.read))
    await answered(client, "/v1/accuracy")
    assert judge.spans == [80 * 3600.0]  # of 200,000 records, one an hour and node


async def test_a_failed_reading_says_why_and_is_repeated(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "READ_WAIT_SECONDS", 0.01)
    clock, judge = ManualClock(NOW), Judge()
    client = await start(read_judged=judge.read, clock=clock)
    answer = await client.get("/v1/accuracy")
    assert (answer.status, (await answer.json())["Error"]) == (503, "judged peaks are being read")
    judge.error = BrokerUnavailableError("no broker answers")
    judge.released.set()

    async def error() -> str:
        return str((await (await client.get("/v1/accuracy")).json()).get("Error", ""))

    async def is_said() -> bool:
        return await error() == "judged peaks cannot be read: no broker answers"

    await until(is_said)
    judge.error = None
    assert (await client.get("/v1/accuracy")).status == 503
    assert len(judge.spans) == 1
    await clock.advance(limits.READ_RETRY_SECONDS)

    async def is_read() -> bool:
        return not await error()

    await until(is_read)


async def test_after_a_failed_reading_the_last_document_says_that_it_is_old(start: Start) -> None:
    clock, judge = ManualClock(NOW), Judge()
    judge.released.set()
    client = await start(read_judged=judge.read, clock=clock)
    fresh = await answered(client, "/v1/accuracy")
    assert (fresh["problem"], fresh["read_at_seconds"]) == ("", round(NOW))
    judge.error = BrokerUnavailableError("no broker answers")

    async def says(problem: str, read_at: float) -> bool:
        document = await answered(client, "/v1/accuracy")
        return (document["problem"], document["read_at_seconds"]) == (problem, round(read_at))

    await clock.advance(limits.ACCURACY_SECONDS)
    await until(lambda: says("judged peaks cannot be read: no broker answers", NOW))
    judge.error = None
    await clock.advance(limits.READ_RETRY_SECONDS)
    await until(lambda: says("", NOW + limits.ACCURACY_SECONDS + limits.READ_RETRY_SECONDS))


async def test_topics_that_are_missing_are_named_and_the_others_shown(start: Start) -> None:
    async def known(*missing: str) -> tuple[bool, bool, str]:
        reading = relief()
        reading.state.missing = tuple(f"springtide.{name}" for name in missing)
        client = await start(relief=reading)
        document = await answered(client, "/v1/relief")
        status = (await client.get("/v1/nodes/node-00099/actions")).status
        assert status == (503 if "actions" in missing else 200)
        return document["troubles"] is not None, document["plans"] is not None, document["problem"]

    assert await known() == (True, True, "")
    text = "springtide.{} is missing, or may not be read".format
    assert await known("alerts") == (False, True, text("alerts"))
    assert await known("eviction-plans") == (True, False, text("eviction-plans"))
    assert await known("actions") == (True, True, text("actions"))


@pytest.mark.parametrize(
    ("error", "pause"),
    [
        (TimeoutError(), limits.ACCURACY_SECONDS),
        (ZeroDivisionError(), limits.READ_RETRY_SECONDS),
    ],
)
async def test_a_reading_that_would_fail_again_is_not_begun_by_every_query(
    start: Start, error: Exception, pause: float
) -> None:
    clock, judge, unexpected = ManualClock(NOW), Judge(), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, of: unexpected.append(of))
    client = await start(read_judged=judge.read, clock=clock)
    judge.error = error
    judge.released.set()
    for wait, readings in ((0.0, 1), (pause - 1.0, 1), (1.0, 2)):
        await clock.advance(wait)
        for _ in range(3):
            answer = await client.get("/v1/accuracy")
            text = f"judged peaks cannot be read: {type(error).__name__}"
            assert (answer.status, (await answer.json())["Error"]) == (503, text)
        assert len(judge.spans) == readings
    assert len(unexpected) == (0 if isinstance(error, OSError) else 2)


async def test_an_extender_without_a_reading_says_so(start: Start) -> None:
    client = await start()
    assert (await client.get("/v1/accuracy")).status == 503
    assert (await answered(client, "/v1/relief"))["plans"] is None


def record(value: bytes | None) -> ConsumerRecord:
    return ConsumerRecord(
        topic="t", partition=0, offset=0, timestamp=round(1000 * MADE), timestamp_type=1,
        key=b"node-00099", value=value, checksum=None, serialized_key_size=1,
        serialized_value_size=1, headers=(),
    )  # fmt: skip


def test_records_of_the_topics_are_taken_and_those_of_others_passed_over() -> None:
    reading = ReliefReading()
    evicted = action("done", workload="Deployment/jobs/crunch")
    assert take_plan(reading.log, record(encode_json(plan())), NOW)
    assert take_action(reading, record(encode_json(evicted)), NOW)
    assert not take_action(reading, record(b'{"actuator":"cluster"}'), NOW)
    assert not take_action(reading, record(None), NOW)
    assert not take_plan(reading.log, record(None), NOW)
    # The evictor refuses a plan of so many pods, too.
    assert not take_plan(reading.log, record(encode_json(plan("p2", pods=1001))), NOW)
    # Each part of the extender has its share of one record.
    (logged,) = reading.log.plans(NOW)
    assert logged.of_pods["u0"].outcome == "done"
    assert [of.action for of in reading.actions.of("node-00099")] == ["evict"]
    assert [*reading.left.of_workload("Deployment/jobs/crunch", NOW)] == ["node-00099"]


async def test_clients_that_hang_up_do_not_begin_a_document_each() -> None:
    kept, may_end = KeptDocument(ManualClock(NOW)), threading.Event()
    made: list[float] = []

    def make(now: float, _: object) -> tuple[object, Callable[[], ErrorReply]]:
        made.append(now)
        return None, lambda: ErrorReply(str(may_end.wait(60)))

    for _ in range(5):
        client = asyncio.create_task(kept.current(make))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        client.cancel()
        await asyncio.wait({client})
    may_end.set()
    assert (await kept.current(make)).body == b'{"Error":"True"}'
    assert made == [NOW]


async def test_a_document_that_failed_is_tried_again() -> None:
    kept, failures = KeptDocument(ManualClock(NOW)), [ValueError("once")]

    def make(_now: float, _of: object) -> tuple[object, Callable[[], ErrorReply]]:
        if failures:
            raise failures.pop()
        return None, lambda: ErrorReply("made")

    with pytest.raises(ValueError, match="once"):
        await kept.current(make)
    assert (await kept.current(make)).body == b'{"Error":"made"}'
