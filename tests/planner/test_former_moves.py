"""What the planner takes from the topics of plans, actions and alerts."""

from types import SimpleNamespace
from typing import Any, cast

from actuators.planner.planner import Planner
from pipeline.clock import ManualClock
from pipeline.extender.decision_rules import rules_of
from pipeline.kafka.follow import ConsumerRecord
from pipeline.kube.api_client import Api
from pipeline.kube.lease import Lease
from pipeline.settings import Settings
from pipeline.times import format_time
from pipeline.topics.actions import ActionRecord
from pipeline.topics.codec import Record, encode_json
from pipeline.topics.eviction_plans import EvictionPlanRecord, LeavingPod
from pipeline.topics.registry import ACTIONS, EVICTION_PLANS

WEB = "Deployment/d/web"


def planner_at(clock: ManualClock) -> Planner:
    settings = Settings()
    lease, api = cast(Lease, SimpleNamespace(is_held=True)), cast(Api, None)
    return Planner(api, settings, rules_of(settings.extender), clock, lease)


def appended(record: Record, at: float) -> ConsumerRecord[Any, Any]:
    node = cast(Any, record).node
    return cast(
        "ConsumerRecord[Any, Any]",
        SimpleNamespace(key=node.encode(), value=encode_json(record), timestamp=round(1000 * at)),
    )


async def test_records_are_as_old_as_the_broker_says() -> None:
    """The clock of the former leader, or of the evictor, was two hours behind."""
    clock = ManualClock()
    planner, now = planner_at(clock), clock.now()
    at, pod = format_time(now - 7200), LeavingPod(uid="a", pod_class="prod", workload=WEB)
    plan = EvictionPlanRecord(
        node="hot", id="p", at=at, valid_until=format_time(now - 6900), planner="planner",
        why="hot", pods=(pod,),
    )  # fmt: skip
    action = ActionRecord(
        node="other", at=at, actuator="evictor", action="evict", outcome="done", why="",
        before={"d/b": "b"}, plan="q", workload="Deployment/d/api",
    )  # fmt: skip
    assert planner._take(EVICTION_PLANS, appended(plan, now - 10))
    assert planner._take(ACTIONS, appended(action, now - 10))
    rests = planner._memory.rests(now)
    assert rests.of_node("hot", 300) == "plan p is under way"
    assert rests.of_node("other", 300) == "usage of 300 s does not show the eviction 10 s ago"


async def test_a_record_that_is_read_after_the_clock_was_set_has_its_own_age() -> None:
    clock = ManualClock()
    planner = planner_at(clock)
    clock.jump(-3600)
    action = ActionRecord(
        node="n", at=format_time(clock.now() - 5), actuator="evictor", action="evict",
        outcome="done", why="", before={"d/b": "b"}, plan="q",
    )  # fmt: skip
    assert planner._take(ACTIONS, appended(action, clock.now() - 5))
    await planner._rounds.step()
    assert planner._memory.rests(clock.now()).of_node("n", 300) == (
        "usage of 300 s does not show the eviction 5 s ago"
    )


async def test_a_planner_is_ready_when_it_follows_the_table_and_former_moves() -> None:
    planner = planner_at(ManualClock())
    assert planner.trouble() == "table: starting"
    for state in (planner._feed.state, planner._moves.state):
        state.caught_up = state.connected = True
    assert planner.trouble() == ""
    planner._moves.state.connected, planner._moves.state.message = False, "the broker is away"
    assert planner.trouble() == "memory of moves: the broker is away"
