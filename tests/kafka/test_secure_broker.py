"""A real broker with TLS, SCRAM and ACLs: rights of each role, and errors of each wrong setting."""

import asyncio
import datetime
import os
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiokafka import AIOKafkaClient
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.produce import ProduceRequest
from msgspec.structs import replace

from pipeline.clock import SystemClock
from pipeline.errors import KafkaError, TopicDriftError
from pipeline.kafka.acl_admin import grant_rights
from pipeline.kafka.client import client_options
from pipeline.kafka.follow import ConsumerRecord, open_follower, topic_partitions
from pipeline.kafka.producer import Producer
from pipeline.kafka.topic_admin import apply_topics, check_topics, require_topics
from pipeline.local.broker_security import ADMIN
from pipeline.local.kafka_jars import ensure_jars
from pipeline.local.local_kafka import LocalKafka, local_kafka
from pipeline.local.pki import Authority
from pipeline.settings import KafkaSettings, Secret
from pipeline.table import Feed, Table
from pipeline.tasks import cancel_tasks
from pipeline.topics.access import ROLES, Role, rights_of
from pipeline.topics.codec import encode_json
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.registry import ACTIONS, NODES, SAMPLES, TOPICS, Topic
from tests.broker import send
from tests.forwarder import forwarder
from tests.processes import until

pytestmark = [pytest.mark.broker, pytest.mark.slow]

PREFIX = "secure"
_TOPIC_DENIED = 29
each_role = pytest.mark.parametrize("role", ROLES.values(), ids=[*ROLES])


@pytest.fixture(scope="module")
def secure() -> Iterator[LocalKafka]:
    """A broker with the rights of all roles on the topics of a prefix."""
    with local_kafka(secure=True) as broker:
        rights = [r for role in ROLES.values() for r in rights_of(role, PREFIX, "group")]
        asyncio.run(grant_rights(settings_of(broker, ADMIN), rights))
        # As its own role, which proves its rights.
        asyncio.run(apply_topics(settings_of(broker, "operator")))
        yield broker


def settings_of(broker: LocalKafka, role: str) -> KafkaSettings:
    settings = broker.security.settings_of(role, broker.bootstrap_servers)
    return replace(settings, topic_prefix=PREFIX, partitions=1, request_timeout_seconds=10.0)


async def allowed(kafka: KafkaSettings, request: Any) -> set[str]:
    """The topics of a request for which the broker does not deny access."""
    client = AIOKafkaClient(**client_options(kafka))
    await client.bootstrap()
    try:
        answer = await client.send(client.get_random_node(), request)
    finally:
        await client.close()
    return {
        name.partition(".")[2]
        for name, partitions in answer.topics
        if all(partition[1] != _TOPIC_DENIED for partition in partitions)
    }


@each_role
async def test_a_role_may_read_and_write_its_topics_and_no_others(
    secure: LocalKafka, role: Role
) -> None:
    kafka = settings_of(secure, role.name)
    names = [topic.full_name(PREFIX) for topic in TOPICS]
    fetch = FetchRequest(0, 0, 1000, 0, [(name, [(0, 0, 1000)]) for name in names])
    # Of a topic that the user may write the broker refuses the empty batch, not the user.
    produce = ProduceRequest(None, -1, 1000, [(name, [(0, b"")]) for name in names])
    assert await allowed(kafka, fetch) == {topic.name for topic in role.reads}
    assert await allowed(kafka, produce) == {topic.name for topic in role.writes}
    await require_topics(kafka, role.topics)


@each_role
async def test_a_denied_produce_or_fetch_names_the_user_and_the_remedy(
    secure: LocalKafka, role: Role
) -> None:
    kafka = settings_of(secure, role.name)
    client = client_options(kafka)
    denied = next(topic for topic in TOPICS if topic not in role.writes)
    says = f"denied access to the user 'springtide-{role.name}' .*topics acls"
    producer = Producer(client)
    try:
        with pytest.raises(KafkaError, match=says):
            await producer.deliver(denied.full_name(PREFIX), value=b"", key=b"n", partition=0)
    finally:
        await producer.stop()
    for unread in [topic for topic in role.writes if topic not in role.reads][:1]:
        async with open_follower(client, topic_partitions(kafka, unread)) as follower:
            await follower.begin()
            with pytest.raises(KafkaError, match=says):
                await follower.poll(timeout_seconds=60.0)


async def test_a_missing_topic_may_be_a_missing_right(
    secure: LocalKafka,
) -> None:
    with pytest.raises(TopicDriftError, match=r"pods is missing \(.*springtide topics acls"):
        await require_topics(settings_of(secure, "exporter"), TOPICS)


async def test_an_operator_finds_no_drift(secure: LocalKafka) -> None:
    assert await check_topics(settings_of(secure, "operator")) == []


def test_a_settings_file_has_what_a_role_connects_with(secure: LocalKafka) -> None:
    (file,) = (
        path
        for path in secure.security.write_settings_files(secure.bootstrap_servers, PREFIX)
        if path.name == "exporter.yaml"
    )
    assert file.stat().st_mode & 0o777 == 0o600
    kafka = yaml.safe_load(file.read_text())["kafka"]
    expected = settings_of(secure, "exporter")
    assert kafka["sasl_password"] == (expected.sasl_password or Secret("")).reveal()
    assert kafka["bootstrap_servers"] == secure.bootstrap_servers
    assert kafka["topic_prefix"] == PREFIX


# -- wrong settings: each has a sentence, and works again without a restart


@asynccontextmanager
async def producer_of(kafka: KafkaSettings, port: int) -> AsyncIterator[Producer]:
    """A producer of the role exporter that connects to another port first."""
    other = replace(kafka, bootstrap_servers=f"127.0.0.1:{port}", request_timeout_seconds=3.0)
    producer = Producer(client_options(other))
    try:
        yield producer
    finally:
        await producer.stop()


async def deliver(producer: Producer) -> None:
    await producer.deliver(SAMPLES.full_name(PREFIX), value=b"", key=b"node", partition=0)


async def is_delivered(producer: Producer) -> bool:
    """Whether the producer can deliver by now: a broker that is busy, or has a new password for a
    moment only, may not answer in time."""
    try:
        await deliver(producer)
    except KafkaError:
        return False
    return True


@asynccontextmanager
async def tls_server(folder: Path, started_days_ago: int) -> AsyncIterator[int]:
    """The port of a TLS server whose certificate is valid for a year from a day in the past on.

    A broker with an expired certificate cannot start: it could not connect to its own controller.
    """
    past = datetime.timedelta(days=started_days_ago).total_seconds()

    class Past(SystemClock):
        def now(self) -> float:
            return super().now() - past

    pair = Authority(folder, Past(), "another CA").server("broker", ["127.0.0.1"], [])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.public, pair.private)
    server = await asyncio.start_server(lambda _, w: w.close(), "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def refused_then_accepted(kafka: KafkaSettings, wrong_port: int, good_port: int) -> str:
    """The error of a producer at the wrong port; the same producer delivers at the good one."""
    async with forwarder(wrong_port) as between, producer_of(kafka, between.port) as producer:
        with pytest.raises(KafkaError) as caught:
            await deliver(producer)
        between.target = good_port
        await until(partial(is_delivered, producer))
    return str(caught.value)


async def test_an_expired_certificate_is_named(secure: LocalKafka, tmp_path: Path) -> None:
    kafka = settings_of(secure, "exporter")
    async with tls_server(tmp_path, started_days_ago=400) as port:
        # The client trusts this server's CA and the broker's.
        both = tmp_path / "both.crt"
        both.write_text((tmp_path / "ca.crt").read_text() + secure.security.ca_file.read_text())
        error = await refused_then_accepted(replace(kafka, ssl_ca_file=both), port, secure.port)
    assert "has an expired certificate (renew the certificate of the broker" in error


async def test_a_wrong_ca_is_named(secure: LocalKafka, tmp_path: Path) -> None:
    async with tls_server(tmp_path, started_days_ago=0) as port:
        error = await refused_then_accepted(settings_of(secure, "exporter"), port, secure.port)
    assert "that this client does not trust" in error
    assert "(set kafka.ssl_ca_file to the CA" in error


async def test_tls_at_a_plaintext_port_is_named(secure: LocalKafka, broker: LocalKafka) -> None:
    error = await refused_then_accepted(settings_of(secure, "exporter"), broker.port, secure.port)
    assert "does not answer TLS on this port, and kafka.security_protocol is SASL_SSL" in error


async def test_plaintext_at_a_tls_port_is_named(secure: LocalKafka) -> None:
    kafka = KafkaSettings(bootstrap_servers=secure.bootstrap_servers)
    with pytest.raises(KafkaError, match=r"requires TLS .*\(set kafka.security_protocol to SSL"):
        await require_topics(kafka, (NODES,))
    with pytest.raises(KafkaError, match=r"closed .*\(.*set kafka.security_protocol to SASL_SSL"):
        await require_topics(
            replace(kafka, security_protocol="SSL", ssl_ca_file=secure.security.ca_file), (NODES,)
        )


async def test_a_wrong_password_is_named_and_works_once_the_broker_has_it(
    secure: LocalKafka,
) -> None:
    kafka = replace(settings_of(secure, "exporter"), sasl_password=Secret("another"))
    async with producer_of(kafka, secure.port) as producer:
        with pytest.raises(KafkaError, match=r"password of the user 'springtide-exporter' \(corr"):
            await deliver(producer)
        await asyncio.to_thread(set_password, secure, "springtide-exporter", "another")
        await until(partial(is_delivered, producer))
    # For the other tests.
    password = settings_of(secure, "exporter").sasl_password
    assert password is not None
    await asyncio.to_thread(set_password, secure, "springtide-exporter", password.reveal())
    async with producer_of(settings_of(secure, "exporter"), secure.port) as producer:
        await until(partial(is_delivered, producer))


def set_password(broker: LocalKafka, user: str, password: str) -> None:
    """Set a password by Kafka's own tool, as an operator does."""
    file = broker.data_dir / "client.properties"
    admin = settings_of(broker, ADMIN)
    assert admin.sasl_password is not None
    login = f'username="{admin.sasl_username}" password="{admin.sasl_password.reveal()}"'
    file.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\n"
        f"ssl.truststore.type=PEM\nssl.truststore.location={broker.security.ca_file}\n"
        "sasl.jaas.config="
        f"org.apache.kafka.common.security.scram.ScramLoginModule required {login};\n"
    )
    subprocess.run(
        [
            *(str(broker.java.path), "-Xmx128m", "-cp", os.pathsep.join(map(str, ensure_jars()))),
            *("kafka.admin.ConfigCommand", "--bootstrap-server", broker.bootstrap_servers),
            *("--command-config", str(file), "--alter", "--entity-type", "users"),
            *("--entity-name", user, "--add-config", f"SCRAM-SHA-512=[password={password}]"),
        ],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip


async def test_a_topic_that_may_not_be_read_does_not_stop_the_feed_of_others(
    secure: LocalKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user who may write a topic sees it, and learns by its first fetch that it is denied."""
    monkeypatch.setattr("pipeline.table.limits.MISSING_TOPIC_SECONDS", 1.0)
    kafka, role = settings_of(secure, "actuator"), ROLES["actuator"]
    denied = ACTIONS.full_name(PREFIX)
    assert ACTIONS in role.writes
    assert ACTIONS not in role.reads
    await send(settings_of(secure, "watcher"), NODES, ("a", encode_json(NodeRecord(node="a"))))
    taken: list[tuple[Topic, bytes | None]] = []

    def take(topic: Topic, record: ConsumerRecord) -> bool:
        taken.append((topic, record.key))
        return True

    feed = Feed(
        Table(), client=client_options(kafka), prefix=PREFIX, clock=SystemClock(),
        topics=(NODES, ACTIONS), optional=(ACTIONS,), take_record=take,
    )  # fmt: skip
    feeding = asyncio.create_task(feed.run())
    try:
        await until(lambda: feed.state.caught_up and feed.state.missing == (denied,), 60)
        await until(lambda: feed.state.connected, 60)
        assert (NODES, b"a") in taken
        await send(kafka, ACTIONS, ("a", b"{}"))
        rights = rights_of(role, PREFIX, "group")
        read = next(r for r in rights if (r.name, r.operation) == (NODES.full_name(PREFIX), "Read"))
        await grant_rights(settings_of(secure, ADMIN), [read._replace(name=denied)])
        await until(lambda: feed.state.missing == () and (ACTIONS, b"a") in taken, 60)
        assert feed.state.connected
    finally:
        await cancel_tasks(feeding)


class PausesClock(SystemClock):
    """Remembers how long its users slept."""

    def __init__(self) -> None:
        self.pauses: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await super().sleep(seconds)


async def test_a_topic_that_may_be_read_again_is_read_while_all_others_are_denied(
    secure: LocalKafka, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pipeline.table.limits.MISSING_TOPIC_SECONDS", 1.0)
    kafka, role = settings_of(secure, "node-actuator"), ROLES["node-actuator"]
    clock = PausesClock()
    topics = [topic for topic in role.writes if topic not in role.reads]
    feed = Feed(
        Table(), client=client_options(kafka), prefix=PREFIX, clock=clock,
        topics=topics, optional=topics, take_record=lambda *_: True,
    )  # fmt: skip
    feeding = asyncio.create_task(feed.run())
    try:
        await until(lambda: len(feed.state.missing) == 1 and not feed.state.connected, 60)
        await until(lambda: max(clock.pauses) > 1.0, 60)
        assert caplog.text.count("not fed") == 1
        (denied_first,) = feed.state.missing
        rights = rights_of(role, PREFIX, "group")
        write = next(r for r in rights if (r.name, r.operation) == (denied_first, "Write"))
        await grant_rights(settings_of(secure, ADMIN), [write._replace(operation="Read")])
        others = tuple({topic.full_name(PREFIX) for topic in topics} - {denied_first})
        # Connected comes before caught up: the first probe precedes the first record.
        await until(lambda: feed.state.missing == others and feed.state.caught_up, 60)
        assert feed.state.connected
    finally:
        await cancel_tasks(feeding)
