"""Connection options of aiokafka clients, and aiokafka's errors as Springtide's.

Every producer, consumer and admin client connects with `client_options`, so that a cluster with TLS
and SASL works for every role or for none.
"""

import asyncio
import random
import ssl
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from time import monotonic
from typing import Any, Final

from aiokafka import errors
from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.errors import KafkaError as ClientError

from pipeline.certificate_validity import show_validity
from pipeline.errors import (
    BrokerUnavailableError,
    KafkaError,
    SettingsError,
    TopicDeniedError,
)
from pipeline.kafka.connection_problems import connection_problem, note_connections
from pipeline.settings import KafkaSettings
from pipeline.tls import RenewedContext

_UNREACHABLE: Final = (
    errors.KafkaConnectionError, errors.KafkaTimeoutError, errors.NoBrokersAvailable,
    errors.NodeNotReadyError, errors.RequestTimedOutError, TimeoutError, OSError,
)  # fmt: skip
_DENIED: Final = (
    errors.AuthenticationFailedError, errors.SaslAuthenticationFailed,
    errors.UnsupportedSaslMechanismError, errors.IllegalSaslStateError,
)  # fmt: skip
_FORBIDDEN: Final = (
    errors.ClusterAuthorizationFailedError, errors.GroupAuthorizationFailedError,
    errors.TopicAuthorizationFailedError,
)  # fmt: skip

_METADATA_REQUESTS_PER_SECOND: Final = 10
_FIRST_RECONNECT_SECONDS: Final = 0.1
_LONGEST_RECONNECT_SECONDS: Final = 2.0
# A connection that lasted this long counts as a success.
_CALM_SECONDS: Final = 10.0

note_connections()


def client_options(kafka: KafkaSettings) -> dict[str, Any]:
    """The connection arguments of an aiokafka client: addresses, time-out, TLS and SASL.

    Raises `SettingsError` if a certificate cannot be read.
    """
    options: dict[str, Any] = {
        "bootstrap_servers": kafka.bootstrap_servers,
        "request_timeout_ms": round(kafka.request_timeout_seconds * 1000),
        "security_protocol": kafka.security_protocol,
    }
    if (context := ssl_context(kafka)) is not None:
        options["ssl_context"] = context
    if kafka.security_protocol.startswith("SASL"):
        options |= {
            "sasl_mechanism": kafka.sasl_mechanism,
            "sasl_plain_username": kafka.sasl_username,
            "sasl_plain_password": kafka.sasl_password and kafka.sasl_password.reveal(),
        }
    return options


def ssl_context(kafka: KafkaSettings) -> ssl.SSLContext | None:
    """The TLS context, with the client certificate if one is set; None without TLS. Connections
    use the files as they are then.

    Raises `SettingsError` if a certificate cannot be read.
    """
    if kafka.security_protocol not in ("SSL", "SASL_SSL"):
        return None
    files = (kafka.ssl_ca_file, kafka.ssl_cert_file, kafka.ssl_key_file)
    if kafka.ssl_cert_file is not None:
        show_validity("kafka", kafka.ssl_cert_file)
    return RenewedContext(partial(_new_context, kafka), [file for file in files if file])


def _new_context(kafka: KafkaSettings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=kafka.ssl_ca_file)
    except OSError as error:  # ssl.SSLError is one
        raise _invalid_file("ssl_ca_file", kafka.ssl_ca_file, error) from error
    if kafka.ssl_cert_file is not None:
        try:
            context.load_cert_chain(kafka.ssl_cert_file, kafka.ssl_key_file)
        except OSError as error:
            pair = f"{kafka.ssl_cert_file} with {kafka.ssl_key_file}"
            raise _invalid_file("ssl_cert_file", pair, error) from error
    return context


def limit_metadata_requests(client: AIOKafkaClient) -> None:
    """Let a client request metadata ten times a second at most.

    While a partition has no leader, because its broker is away or its topic was deleted, aiokafka
    0.14 repeats the request without a pause, thousands of times a second.
    """
    update, recent = client._metadata_update, deque[float](maxlen=_METADATA_REQUESTS_PER_SECOND)

    async def limited(*arguments: Any) -> bool:
        if len(recent) == recent.maxlen:
            await asyncio.sleep(recent[0] + 1.0 - monotonic())
        recent.append(monotonic())
        updated: bool = await update(*arguments)
        return updated

    client._metadata_update = limited


def limit_connections(client: AIOKafkaClient) -> None:
    """Let a client connect again to a broker after growing pauses with jitter, up to two seconds.

    aiokafka 0.14 connects 20 to 40 times a second to a broker that is away, and so does each of ten
    thousand exporters when a broker returns. During a pause the broker counts as not ready, so that
    others are asked meanwhile.
    """
    connect, plans = client._get_conn, dict[Any, tuple[float, float]]()

    async def limited(
        node_id: Any, *, group: Any = ConnectionGroup.DEFAULT, no_hint: bool = False
    ) -> Any:
        place = node_id, group
        connection = client._conns.get(place)
        if connection is None or not connection.connected():
            now = monotonic()
            not_before, pause = plans.get(place, (0.0, _FIRST_RECONNECT_SECONDS))
            # While somebody connects, wait for that connection.
            if now < not_before and not client._get_conn_lock.locked():
                return None
            if now > not_before + _CALM_SECONDS:
                pause = _FIRST_RECONNECT_SECONDS
            not_before = now + pause * (0.5 + random.random())
            plans[place] = not_before, min(2 * pause, _LONGEST_RECONNECT_SECONDS)
        return await connect(node_id, group=group, no_hint=no_hint)

    client._get_conn = limited


@contextmanager
def translated_errors(kafka: KafkaSettings | Mapping[str, Any], doing: str) -> Iterator[None]:
    """Raise aiokafka's errors as errors that say what to do; their message begins with `doing`.

    `kafka` names the broker: settings, or what `client_options` returns. Raises
    `BrokerUnavailableError` if no broker answers (an `OSError` or `TimeoutError` counts as that),
    `KafkaError` otherwise, also if a connection was refused because of a setting.
    """
    client: Mapping[str, Any]
    if isinstance(kafka, KafkaSettings):
        client = {
            "bootstrap_servers": kafka.bootstrap_servers,
            "security_protocol": kafka.security_protocol,
            "sasl_mechanism": kafka.sasl_mechanism,
            "sasl_plain_username": kafka.sasl_username,
        }
    else:
        client = kafka
    servers = client["bootstrap_servers"]
    where = f"{doing}: the broker at {servers}"
    try:
        yield
    except _FORBIDDEN as error:
        user = client.get("sasl_plain_username")
        text = f"{where} denied access{f' to the user {user!r}' if user else ''} ({_text(error)})"
        hint = "grant the rights that `springtide topics acls` prints for this role"
        if isinstance(error, errors.TopicAuthorizationFailedError):
            topic = next((name for name in error.args if isinstance(name, str)), "")
            raise TopicDeniedError(text, topic, hint=hint) from error
        raise KafkaError(text, hint=hint) from error
    except (*_UNREACHABLE, *_DENIED) as error:
        if (problem := connection_problem(client, error)) is not None:
            kind = KafkaError if problem.is_refused else BrokerUnavailableError
            raise kind(f"{where} {problem.text}", hint=problem.hint) from error
        # aiokafka's text for a refused connection repeats the address.
        detail = "" if "Unable to bootstrap" in str(error) else f" ({_text(error)})"
        raise BrokerUnavailableError(f"{doing}: no broker answers at {servers}{detail}") from error
    except ClientError as error:
        raise KafkaError(f"{where} returned {_text(error)}") from error


def _invalid_file(key: str, file: object, error: OSError) -> SettingsError:
    return SettingsError(
        f"kafka.{key}: {file} cannot be used: {error.strerror or error}",
        key=f"kafka.{key}",
        hint="name a readable file in PEM format; certificate and key must belong together",
    )


def _text(error: BaseException) -> str:
    name, text = type(error).__name__, str(error)
    if isinstance(error, TimeoutError) and text:
        return text
    # aiokafka's errors begin with their names.
    return f"{name}: {text.removeprefix(f'{name}: ')}"[:300] if text else name
