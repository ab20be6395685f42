"""Checks of `springtide doctor`: do hot nodes have a planner, and do its plans have an evictor."""

import asyncio
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from pipeline.cli.doctor_check import Check, unread
from pipeline.cli.doctor_feeds import first_names
from pipeline.errors import RecordError, SpringtideError
from pipeline.kafka.client import client_options
from pipeline.kafka.follow import open_follower, topic_partitions
from pipeline.settings import KafkaSettings
from pipeline.sources.compacted_writer import all_records
from pipeline.times import time_or_none
from pipeline.topics.codec import check_readable, decode_json
from pipeline.topics.eviction_plans import EvictionPlanRecord
from pipeline.topics.registry import ACTIONS, EVICTION_PLANS, NODE_STATE

_KAFKA_SECONDS: Final = 30.0
_LOOK_BACK_SECONDS: Final = 3600.0
_ANSWER_SECONDS: Final = 15.0
"""After the end of a plan: its last action is on the topic by then."""


class _State(msgspec.Struct):
    alerts: tuple[msgspec.Raw, ...] = ()


class _Action(msgspec.Struct):
    plan: str = ""


class Plans(NamedTuple):
    """The plans that ended in the last hour, and those of them without an action."""

    ended: list[str]
    unanswered: list[str]


_states: Final = msgspec.json.Decoder(_State)
_actions: Final = msgspec.json.Decoder(_Action)


def check_relief(
    kafka: KafkaSettings, planner: str | None, evictor: str | None, now: float
) -> Iterator[Check]:
    """Check planner and evictor, by the holder of their Lease: empty if there is none. Without a
    cluster (None) they are not checked."""
    if planner is not None:
        yield check_planner(kafka, planner)
    if evictor is not None:
        yield check_evictor(kafka, evictor, now)


def check_planner(kafka: KafkaSettings, holder: str) -> Check:
    """Check that a planner leads while nodes are hot."""
    try:
        hot = asyncio.run(asyncio.wait_for(_hot_nodes(kafka), _KAFKA_SECONDS))
    except (SpringtideError, TimeoutError) as error:
        return unread("planner", "springtide.node-state", error)
    if holder or not hot:
        leads = f"{holder} leads" if holder else "no planner leads"
        return Check("planner", "ok", f"{leads}; {len(hot)} nodes are hot")
    names = first_names(hot)
    todo = "start springtide planner, with LowNodeLoad enabled in the descheduler configuration"
    text = f"{len(hot)} nodes are hot, and no planner leads to relieve them: {names}"
    return Check("planner", "warn", text, todo)


def check_evictor(kafka: KafkaSettings, holder: str, now: float) -> Check:
    """Check that every plan of the last hour has an action: also an evictor that only observes, or
    that refuses a plan, writes one."""
    try:
        plans = asyncio.run(asyncio.wait_for(_plans(kafka, now), _KAFKA_SECONDS))
    except (SpringtideError, TimeoutError) as error:
        return unread("evictor", "springtide.eviction-plans and springtide.actions", error)
    leads = f"{holder} leads" if holder else "no evictor leads"
    if not plans.unanswered:
        return Check("evictor", "ok", f"{leads}; {len(plans.ended)} plans ended in the last hour")
    count = f"{len(plans.unanswered)} of {len(plans.ended)} plans of the last hour"
    text = f"{leads}; {count} have no action: {plans.unanswered[-1]:.200}"
    todo = "compare kafka.topic_prefix and the log of that evictor"
    return Check("evictor", "warn", text, todo if holder else "start springtide evictor")


async def _hot_nodes(kafka: KafkaSettings) -> list[str]:
    """The nodes with an open alert, by name."""
    hot: set[str] = set()
    async for record in all_records(kafka, NODE_STATE):
        node = (record.key or b"").decode(errors="replace")
        hot.discard(node)
        try:
            if record.value is not None and _states.decode(record.value).alerts:
                hot.add(node)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            continue
    return sorted(hot)


async def _plans(kafka: KafkaSettings, now: float) -> Plans:
    """The plans that were appended in the last hour and have ended."""
    of_plans, of_actions = (
        topic.full_name(kafka.topic_prefix) for topic in (EVICTION_PLANS, ACTIONS)
    )
    since_ms = round(1000 * (now - _LOOK_BACK_SECONDS))
    ended, answered = dict[str, None](), set[str]()
    partitions = topic_partitions(kafka, EVICTION_PLANS, ACTIONS)
    async with open_follower(client_options(kafka), partitions) as follower:
        await follower.begin({of_plans: since_ms, of_actions: since_ms})
        async for records in follower.read_to_end():
            for record in records:
                try:
                    if record.topic == of_actions:
                        answered.add(_plan_of_action(record.value))
                    elif (plan := _ended_plan(record.value, now)) is not None:
                        ended[plan] = None
                except RecordError:
                    continue
    return Plans([*ended], [plan for plan in ended if plan not in answered])


def _plan_of_action(value: bytes | None) -> str:
    # Most actions are of the cluster actuator.
    if value is None or b'"evictor"' not in value:
        return ""
    check_readable(value)
    try:
        return _actions.decode(value).plan
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return ""


def _ended_plan(value: bytes | None, now: float) -> str | None:
    """The id of a plan that has ended; None for others."""
    if value is None:
        return None
    check_readable(value)
    plan = decode_json(EvictionPlanRecord, value)
    until = time_or_none(plan.valid_until)
    return plan.id if until is not None and until + _ANSWER_SECONDS < now else None
