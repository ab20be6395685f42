"""Gather what the API server and the topics know about evictions, for the monitor."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, TypeVar

from pipeline.errors import RecordError
from pipeline.local.control_plane import ControlPlane
from pipeline.settings import KafkaSettings
from pipeline.topics.actions import ActionRecord
from pipeline.topics.alerts import AlertRecord
from pipeline.topics.codec import Record, decode_json
from pipeline.topics.eviction_plans import EvictionPlanRecord
from pipeline.topics.registry import ACTIONS, ALERTS, EVICTION_PLANS, Topic
from tests.broker import messages
from tests.chaos.audit_log import read_events
from tests.chaos.eviction_monitor import Limits, Observed, PublishedAlert, PublishedPlan

RecordT = TypeVar("RecordT", bound=Record)


async def observe(
    plane: ControlPlane, kafka: KafkaSettings, limits: Limits, since: float,
    *, is_loop: bool = False,
) -> Observed:  # fmt: skip
    """Everything since this time (Unix time), which is before the pods were created; alerts only of
    a closed loop. Records that cannot be read are left out."""
    intended: dict[str, list[float]] = defaultdict(list)
    for action, appended_at in await read_records(kafka, ACTIONS, ActionRecord):
        if action.outcome == "intended":
            for uid in action.before.values():
                intended[uid or ""].append(appended_at)
    plans = await read_records(kafka, EVICTION_PLANS, EvictionPlanRecord)
    published = [PublishedPlan(plan, appended_at) for plan, appended_at in plans]
    alerts: list[PublishedAlert] = []
    if is_loop:
        alerts = [PublishedAlert(*each) for each in await read_records(kafka, ALERTS, AlertRecord)]
    return Observed(read_events(plane.audit_log, since), limits, published, intended, alerts)


async def read_records(
    kafka: KafkaSettings, topic: Topic, record_type: type[RecordT]
) -> list[tuple[RecordT, float]]:
    """The valid records of a topic, and when the broker appended them (Unix time)."""
    return [*_decoded(await messages(kafka, topic), record_type)]


def _decoded(records: list[Any], record_type: type[RecordT]) -> Iterator[tuple[RecordT, float]]:
    for record in records:
        with suppress(RecordError):
            if record.value is not None:
                yield decode_json(record_type, record.value), record.timestamp / 1000
