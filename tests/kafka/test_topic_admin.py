"""Drift of topics and the changes that correct it, without a broker."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import errors
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import (
    GroupAuthorizationFailedError,
    GroupLoadInProgressError,
    NotCoordinatorForGroupError,
)
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import BrokerUnavailableError, KafkaError, TopicDriftError
from pipeline.kafka import connection_problems, topic_admin
from pipeline.kafka.client import client_options
from pipeline.kafka.topic_admin import (
    ConsumerGroup,
    Drift,
    TopicState,
    find_drift,
    find_group,
    plan_changes,
    require_topics,
)
from pipeline.settings import KafkaSettings
from pipeline.topics.registry import CHECKPOINTS, FLEET, NODE_STATE, SAMPLES, TOPICS, WINDOWS

KAFKA = KafkaSettings(topic_prefix="tide", partitions=8)


def declared() -> dict[str, TopicState]:
    return {
        topic.full_name("tide"): TopicState(
            partitions=topic.partition_count(8), replication=1, config=topic.config()
        )
        for topic in TOPICS
    }


def changed(name: str, **changes: object) -> dict[str, TopicState]:
    found = declared()
    was = {n: getattr(found[name], n) for n in ("partitions", "replication", "config")}
    return found | {name: TopicState(**{**was, **changes})}


def test_declared_topics_have_no_drift() -> None:
    assert list(find_drift(KAFKA, declared())) == []
    assert list(plan_changes(KAFKA, declared())) == []


def test_an_empty_cluster_gets_every_topic() -> None:
    changes = list(plan_changes(KAFKA, {}))
    assert [c.topic for c in changes] == [t.full_name("tide") for t in TOPICS]
    assert {c.topic: c.partitions for c in changes if c.partitions != 8} == {"tide.fleet": 1}
    assert "create tide.samples: 8 partitions, 1 replicas, " in str(changes[0])


@pytest.mark.parametrize(
    ("wanted", "found"), [("0.2", "0.20"), ("3600000", "3600000.0"), ("delete", "delete")]
)
def test_equal_values_written_differently_are_no_drift(wanted: str, found: str) -> None:
    name, key = next(
        (t.full_name("tide"), k) for t in TOPICS for k, v in t.config().items() if v == wanted
    )
    config = {**declared()[name].config, key: found}
    assert list(find_drift(KAFKA, changed(name, config=config))) == []


@pytest.mark.parametrize("found", ["delete,compact", "delete"])
def test_another_cleanup_policy_is_drift(found: str) -> None:
    config = {**declared()["tide.nodes"].config, "cleanup.policy": found}
    (drift,) = find_drift(KAFKA, changed("tide.nodes", config=config))
    assert str(drift) == f"tide.nodes: cleanup.policy is {found}, not compact"
    assert drift.mendable


def test_a_missing_key_is_drift_and_is_set() -> None:
    config = dict(declared()["tide.nodes"].config)
    del config["segment.ms"]
    (drift,) = find_drift(KAFKA, changed("tide.nodes", config=config))
    assert str(drift) == "tide.nodes: segment.ms is not set, not 3600000"
    (change,) = plan_changes(KAFKA, changed("tide.nodes", config=config))
    assert str(change) == "alter tide.nodes: segment.ms=3600000"


@pytest.mark.parametrize("kind", ["partitions", "replication"])
@pytest.mark.parametrize("number", [2, 9])
def test_drift_that_cannot_be_corrected_plans_no_change(kind: str, number: int) -> None:
    config = WINDOWS.config(number if kind == "replication" else 1)
    found = changed("tide.windows", **{kind: number, "config": config})
    (drift,) = find_drift(KAFKA, found)
    assert (drift.kind, drift.found, drift.mendable) == (kind, str(number), False)
    assert str(number) in str(drift)
    assert list(plan_changes(KAFKA, found)) == []


@pytest.mark.parametrize(
    ("replicas", "key", "found", "wanted"),
    [
        (3, "min.insync.replicas", "1", "2"),
        (5, "min.insync.replicas", "3", "2"),
        (2, "min.insync.replicas", "2", "1"),  # else one lost broker stops all writes
        (3, "unclean.leader.election.enable", "true", "false"),
        (1, "compression.type", "uncompressed", "producer"),
    ],
)
def test_settings_that_lose_records_or_stop_brokers_are_drift(
    replicas: int, key: str, found: str, wanted: str
) -> None:
    kafka = KafkaSettings(topic_prefix="tide", partitions=8, replication_factor=replicas)
    config = {topic: dict(topic.config(replicas)) for topic in TOPICS}
    config[SAMPLES][key] = found
    topics = {
        topic.full_name("tide"): TopicState(
            partitions=topic.partition_count(8), replication=replicas, config=values
        )
        for topic, values in config.items()
    }
    (drift,) = find_drift(kafka, topics)
    assert str(drift) == f"tide.samples: {key} is {found}, not {wanted}"
    (change,) = plan_changes(kafka, topics)
    assert change.config == {key: wanted}


def test_topics_with_too_few_replicas_stay_writable() -> None:
    kafka = KafkaSettings(topic_prefix="tide", partitions=8, replication_factor=3)
    assert {drift.kind for drift in find_drift(kafka, declared())} == {"replication"}
    assert list(plan_changes(kafka, declared())) == []
    (created, *_) = plan_changes(kafka, {})
    assert created.config["min.insync.replicas"] == "2"


def test_a_missing_topic_is_reported_as_missing() -> None:
    assert str(Drift(topic="t", kind="missing", wanted="a topic")) == "t is missing"


@given(
    st.sets(st.sampled_from([t.full_name("tide") for t in TOPICS])),
    st.sets(st.sampled_from([t.full_name("tide") for t in TOPICS])),
)
def test_planned_changes_correct_all_mendable_drift(
    missing: set[str], changed_names: set[str]
) -> None:
    found = declared()
    for name in changed_names:
        found[name] = TopicState(partitions=8, replication=1, config={"cleanup.policy": "x"})
    for name in missing:
        del found[name]
    for change in plan_changes(KAFKA, found):
        was = found.get(change.topic)
        found[change.topic] = TopicState(
            partitions=change.partitions or (was.partitions if was else 0),
            replication=change.replication or 1,
            config={**(was.config if was else {}), **change.config},
        )
    assert not [d for d in find_drift(KAFKA, found) if d.mendable]


def connect_to(monkeypatch: pytest.MonkeyPatch, client: Any) -> None:
    monkeypatch.setattr(topic_admin, "open_admin", lambda *_: nullcontext(client))


@pytest.fixture
def two_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that lists two topics, because the client may not describe the others."""

    class Client:
        async def describe_topics(self) -> list[dict[str, Any]]:
            partitions = [{"replicas": [0]}] * 8
            topics = (CHECKPOINTS, NODE_STATE)
            return [{"topic": t.full_name("tide"), "partitions": partitions} for t in topics]

    connect_to(monkeypatch, Client())


@pytest.mark.usefixtures("two_topics")
async def test_a_role_needs_access_to_its_own_topics_only() -> None:
    """Kafka lists the topics that the client may describe; their configuration is not read."""
    await require_topics(KAFKA, (CHECKPOINTS, NODE_STATE))
    with pytest.raises(TopicDriftError, match=r"tide\.samples is missing \(create"):
        await require_topics(KAFKA, (CHECKPOINTS, SAMPLES))
    with pytest.raises(TopicDriftError, match=rf"\(and {len(TOPICS) - 3} more\)"):
        await require_topics(KAFKA, TOPICS)


@pytest.mark.usefixtures("two_topics")
async def test_another_number_of_partitions_is_not_corrected_by_apply() -> None:
    other = KafkaSettings(topic_prefix="tide", partitions=16)
    with pytest.raises(TopicDriftError, match="has 8 partitions, not 16") as caught:
        await require_topics(other, (NODE_STATE,))
    assert "to 8: " in str(caught.value.hint)
    assert "topics apply" not in str(caught.value)


GROUP = ("Stable", "consumer", "faust", [("member-1", "client"), ("member-2", "client")])
UNKNOWN: tuple[Any, ...] = ("", "", "", [])


def _answers(monkeypatch: pytest.MonkeyPatch, *codes: int) -> None:
    """A broker that answers with these error codes, one after the other."""
    left = iter(codes)

    class Client:
        async def describe_consumer_groups(self, groups: list[str]) -> list[Any]:
            code = next(left)
            return [SimpleNamespace(groups=[(code, *groups, *(UNKNOWN if code else GROUP))])]

    connect_to(monkeypatch, Client())
    monkeypatch.setattr(topic_admin, "COORDINATOR_SECONDS", 0.0)


async def test_a_group_is_described_once_its_coordinator_is_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loading, moved = GroupLoadInProgressError.errno, NotCoordinatorForGroupError.errno
    _answers(monkeypatch, loading, moved, 0)
    members = frozenset({"member-1", "member-2"})
    assert await find_group(KAFKA, "g") == ConsumerGroup("Stable", members)


async def test_a_group_that_must_not_be_described_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _answers(monkeypatch, GroupAuthorizationFailedError.errno)
    with pytest.raises(GroupAuthorizationFailedError):
        await find_group(KAFKA, "g")


async def test_listing_topics_names_why_the_broker_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(_: object) -> None:
        raise errors.KafkaConnectionError("Unable to bootstrap from [('127.0.0.1', 9092)]")

    causes = {("127.0.0.1", 9092): errors.SaslAuthenticationFailed("no")}
    monkeypatch.setattr(connection_problems, "CAUSES", causes)
    monkeypatch.setattr(AIOKafkaAdminClient, "start", fail)
    with pytest.raises(KafkaError, match="refused the password") as caught:
        await topic_admin.existing_partitions(client_options(KafkaSettings()), ["topic"])
    assert not isinstance(caught.value, BrokerUnavailableError)


@pytest.mark.parametrize(
    "request_topics",
    [
        lambda: topic_admin.check_topics(KafkaSettings()),
        lambda: topic_admin.existing_partitions(client_options(KafkaSettings()), ["topic"]),
    ],
    ids=["check", "list"],
)
async def test_a_server_that_never_answers_is_an_error_in_time(
    monkeypatch: pytest.MonkeyPatch, request_topics: Callable[[], Coroutine[Any, Any, object]]
) -> None:
    async def wait(_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(topic_admin, "CONNECT_SECONDS", 0.05)
    monkeypatch.setattr(AIOKafkaAdminClient, "start", wait)
    async with asyncio.timeout(60):
        with pytest.raises(BrokerUnavailableError, match=r"no answer within 0\.05 s"):
            await request_topics()


async def test_a_topic_of_a_fixed_number_of_partitions_must_be_recreated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (drift,) = find_drift(KAFKA, changed("tide.fleet", partitions=8))
    assert str(drift).startswith("tide.fleet has 8 partitions, not 1: never changed in place; del")

    class Client:
        async def describe_topics(self) -> list[dict[str, Any]]:
            return [{"topic": "tide.fleet", "partitions": [{"replicas": [0]}] * 8}]

    connect_to(monkeypatch, Client())
    with pytest.raises(TopicDriftError, match="has 8 partitions, not 1") as caught:
        await require_topics(KAFKA, (FLEET,))
    assert caught.value.hint == "delete the topic and run `springtide topics apply`"
