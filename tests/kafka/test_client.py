"""Connection options of aiokafka clients, and aiokafka's errors as Springtide's."""

import asyncio
import ssl
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition, errors
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient

from pipeline.errors import BrokerUnavailableError, KafkaError, SettingsError, TopicDeniedError
from pipeline.kafka import client as module
from pipeline.kafka import connection_problems
from pipeline.kafka.client import (
    client_options,
    limit_connections,
    limit_metadata_requests,
    translated_errors,
)
from pipeline.settings import KafkaSettings, Secret


def test_plain_text_needs_addresses_and_time_out() -> None:
    kafka = KafkaSettings(bootstrap_servers="a:1,b:2", request_timeout_seconds=1.5)
    assert client_options(kafka) == {
        "bootstrap_servers": "a:1,b:2",
        "request_timeout_ms": 1500,
        "security_protocol": "PLAINTEXT",
    }


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_sasl_has_mechanism_and_credentials(mechanism: str) -> None:
    options = client_options(
        KafkaSettings(
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism=mechanism,  # type: ignore[arg-type]
            sasl_username="me",
            sasl_password=Secret("hush"),
        )
    )
    sasl = {name: value for name, value in options.items() if name.startswith("sasl_")}
    assert sasl == {
        "sasl_mechanism": mechanism, "sasl_plain_username": "me", "sasl_plain_password": "hush",
    }  # fmt: skip
    assert "ssl_context" not in options


@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL"])
def test_tls_verifies_the_broker(protocol: str) -> None:
    context = client_options(KafkaSettings(security_protocol=protocol))["ssl_context"]  # type: ignore[arg-type]
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert context.check_hostname


@pytest.mark.parametrize(
    ("files", "key", "says"),
    [
        ({"ssl_ca_file": "ca.pem"}, "ssl_ca_file", r".*ca\.pem cannot be used: No such file"),
        ({"ssl_ca_file": "garbage.pem"}, "ssl_ca_file", ""),
        ({"ssl_cert_file": "garbage.pem", "ssl_key_file": "garbage.pem"}, "ssl_cert_file", ""),
    ],
)
def test_invalid_certificates_are_named(
    tmp_path: Path, files: dict[str, str], key: str, says: str
) -> None:
    (tmp_path / "garbage.pem").write_text("no certificate")
    paths: dict[str, Any] = {name: tmp_path / file for name, file in files.items()}
    with pytest.raises(SettingsError, match=f"{key}: {says}") as caught:
        client_options(KafkaSettings(security_protocol="SSL", **paths))
    assert caught.value.key == f"kafka.{key}"


@pytest.mark.parametrize("client", [AIOKafkaProducer, AIOKafkaConsumer, AIOKafkaAdminClient])
async def test_every_kind_of_client_accepts_the_options(client: type) -> None:
    kafka = KafkaSettings(
        security_protocol="SASL_SSL", sasl_mechanism="SCRAM-SHA-512",
        sasl_username="me", sasl_password=Secret("hush"),
    )  # fmt: skip
    made = client(**client_options(kafka))
    await (made.close() if client is AIOKafkaAdminClient else made.stop())


_BROKER = "the broker at 127.0.0.1:9092"
_NO_BROKER = "no broker answers at 127.0.0.1:9092"


@pytest.mark.parametrize(
    ("raised", "expected", "says"),
    [
        (
            errors.KafkaConnectionError("Unable to bootstrap from [('127.0.0.1', 9092)]"),
            BrokerUnavailableError,
            f"{_NO_BROKER} .start a broker",
        ),
        (errors.KafkaConnectionError("x"), BrokerUnavailableError, f"{_NO_BROKER} .*Error: x[)]"),
        (errors.RequestTimedOutError(), BrokerUnavailableError, _NO_BROKER),
        (TimeoutError(), BrokerUnavailableError, f"{_NO_BROKER} .TimeoutError"),
        (
            ConnectionRefusedError(111, "refused"),
            BrokerUnavailableError,
            f"{_NO_BROKER} .*refused[)]",
        ),
        (errors.AuthenticationFailedError("no"), KafkaError, f"{_BROKER} refused the password"),
        (errors.SaslAuthenticationFailed("no"), KafkaError, f"{_BROKER} refused the password"),
        (errors.TopicAuthorizationFailedError("t"), TopicDeniedError, f"{_BROKER} denied access"),
        (errors.GroupAuthorizationFailedError("g"), KafkaError, f"{_BROKER} denied access"),
        (errors.PolicyViolationError("p"), KafkaError, f"{_BROKER} returned PolicyViolationError"),
    ],
)
def test_errors_of_the_client_are_translated(
    raised: Exception, expected: type[KafkaError], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another client of this process was connected to another broker.
    monkeypatch.setattr(connection_problems, "CAUSES", {("127.0.0.1", 29092): None})
    with (
        pytest.raises(expected, match=f"looking: {says}") as caught,
        translated_errors(KafkaSettings(), "looking"),
    ):
        raise raised
    assert type(caught.value) is expected
    if isinstance(caught.value, TopicDeniedError):
        assert caught.value.topic == "t"


def test_other_errors_are_not_translated() -> None:
    with pytest.raises(ZeroDivisionError), translated_errors(KafkaSettings(), "looking"):
        raise ZeroDivisionError


async def test_a_client_without_leaders_requests_metadata_ten_times_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requests = 0

    async def answer_without_leaders(*_: object) -> bool:
        nonlocal requests
        requests += 1
        await asyncio.sleep(0)
        return True

    async def bootstrap(client: AIOKafkaClient) -> None:
        client._sync_task = asyncio.create_task(client._md_synchronizer())

    monkeypatch.setattr(AIOKafkaClient, "_metadata_update", answer_without_leaders)
    monkeypatch.setattr(AIOKafkaClient, "bootstrap", bootstrap)
    consumer = AIOKafkaConsumer(group_id=None)
    limit_metadata_requests(consumer._client)
    await consumer.start()
    consumer.assign([TopicPartition("deleted", 0)])
    began = time.monotonic()
    await asyncio.sleep(0.5)
    most = 10 * (time.monotonic() - began) + 5
    with suppress(asyncio.CancelledError):
        await consumer.stop()
    # Without a limit there are thousands.
    assert 1 <= requests <= most


class FakeConnections:
    """The part of a client that connects; it is asked every 100 ms."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.attempts: list[float] = []
        self.connection: Any = None
        self._conns: dict[Any, Any] = {}
        self._get_conn_lock = asyncio.Lock()
        self._now = 1000.0
        monkeypatch.setattr(module, "monotonic", lambda: self._now)
        monkeypatch.setattr("pipeline.kafka.client.random.random", lambda: 0.5)
        client: Any = self
        limit_connections(client)

    async def _get_conn(self, node_id: int, *, group: Any, no_hint: bool) -> Any:
        self.attempts.append(round(self._now - 1000.0, 3))
        if self.connection is not None:
            self._conns[node_id, group] = self.connection
        return self.connection

    async def ask(self, seconds: float) -> Any:
        connection = None
        for _ in range(round(10 * seconds)):
            connection = await self._get_conn(1)  # type: ignore[call-arg]
            self._now += 0.1
        return connection


async def test_a_broker_that_is_away_is_connected_after_growing_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = FakeConnections(monkeypatch)
    assert await client.ask(10) is None
    assert client.attempts == [0.0, 0.1, 0.3, 0.7, 1.5, 3.1, 5.1, 7.1, 9.1]


async def test_a_connection_that_is_ended_at_once_is_no_success(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = FakeConnections(monkeypatch)
    client.connection = SimpleNamespace(connected=lambda: False)
    await client.ask(10)
    assert len(client.attempts) == 9


async def test_after_a_calm_time_a_broken_connection_is_replaced_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = FakeConnections(monkeypatch)
    await client.ask(4)
    client.connection = SimpleNamespace(connected=lambda: True)
    assert await client.ask(20) is client.connection
    before = len(client.attempts)
    client.connection = SimpleNamespace(connected=lambda: False)
    client._conns.clear()
    await client.ask(0.3)
    assert client.attempts[before:] == [24.0, 24.1]


async def test_a_client_that_is_cancelled_while_it_connects_closes_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, closed = asyncio.Event(), []

    class Connection:
        async def send(self, _: Any) -> None:
            asked.set()
            await asyncio.Event().wait()

        def close(self) -> None:
            closed.append(self)

    async def connect(*_: Any, **__: Any) -> Connection:
        return Connection()

    monkeypatch.setattr(connection_problems, "_create_connection", connect)
    client = AIOKafkaClient(bootstrap_servers="127.0.0.1:9")
    starting = asyncio.create_task(client.bootstrap())
    await asyncio.wait_for(asked.wait(), 60)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert len(closed) == 1
    await client.close()
