"""Explain why the connection to a broker failed, and name the setting to change.

aiokafka 0.14 logs the cause of a failed connection, and raises an error that does not have it.
`note_connections` lets it leave the cause here, for every client of this process, Faust's included.
"""

import ssl
from asyncio import IncompleteReadError
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Final, NamedTuple

import aiokafka.client
from aiokafka import errors

_create_connection: Final = aiokafka.client.create_conn
CAUSES: dict[tuple[str, int], BaseException | None] = {}
"""The cause of the last failure by broker; None while connected. As many as brokers are known."""

_bootstrap: Final = aiokafka.client.AIOKafkaClient.bootstrap
_OPENED: Final[ContextVar[list[Any] | None]] = ContextVar("opened", default=None)
"""The connections that the bootstrap that runs has opened."""
_TLS_ALERT: Final = 0x15


class Problem(NamedTuple):
    """What the broker or this client refused, and what to change. `is_refused` distinguishes wrong
    settings from a broker that may only be away."""

    text: str
    hint: str
    is_refused: bool = True


def note_connections() -> None:
    """Note the cause of each failed connection of this process from now on, and close the
    connection of a client that is cancelled while it connects."""
    aiokafka.client.create_conn = _noted_connection
    aiokafka.client.AIOKafkaClient.bootstrap = _closing_bootstrap


def connection_problem(client: Mapping[str, Any], error: BaseException) -> Problem | None:
    """Explain why a broker does not answer, by the `error` of a client or by the last failed
    connection; None if it is only away. `client` has the options of the client."""
    # Faust connects in a thread of its own.
    causes = dict(CAUSES)
    newest = next(reversed(causes), None)
    servers = client["bootstrap_servers"].split(",")
    for link in _chain(error):
        # A broker that is killed resets live connections, too.
        if not isinstance(link, ConnectionResetError) and (problem := _explain(link, client)):
            return problem
    for (host, port), cause in causes.items():
        # The newest may be of an advertised address, which one of the servers returned.
        if (host, port) == newest or f"{host}:{port}" in servers:
            for link in _chain(cause):
                if problem := _explain(link, client):
                    return problem
    if newest is None or causes[newest] is not None or "Unable to bootstrap" not in str(error):
        return None
    # A bootstrap connects to the servers alone: another client made any other connection.
    if "{}:{}".format(*newest) in servers:
        return _closed_after_connecting(client)
    return None


async def _noted_connection(host: str, port: int, **options: Any) -> Any:
    cause: BaseException | None = None
    try:
        connection = await _create_connection(host, port, **options)
        if (opened := _OPENED.get()) is not None:
            opened.append(connection)
        return connection
    except Exception as error:
        cause = error
        raise
    finally:
        CAUSES.pop((host, port), None)
        CAUSES[host, port] = cause


async def _closing_bootstrap(client: Any) -> None:
    """Bootstrap a client. aiokafka leaves the connection open if it is cancelled while it waits for
    metadata, as by Ctrl-C, and logs an error when the object is collected."""
    opened: list[Any] = []
    token = _OPENED.set(opened)
    try:
        await _bootstrap(client)
    except BaseException:
        for connection in opened:
            connection.close()
        raise
    finally:
        _OPENED.reset(token)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _explain(error: BaseException, client: Mapping[str, Any]) -> Problem | None:
    protocol = client.get("security_protocol", "PLAINTEXT")
    match error:
        case errors.UnsupportedSaslMechanismError():
            return Problem(
                f"does not offer the mechanism {client.get('sasl_mechanism')}",
                "set kafka.sasl_mechanism to a mechanism of the broker",
            )
        case errors.IllegalSaslStateError():
            return Problem(
                f"does not use SASL on this port, and kafka.security_protocol is {protocol}",
                f"set kafka.security_protocol to {'SSL' if 'SSL' in protocol else 'PLAINTEXT'}, or "
                "kafka.bootstrap_servers to a port with SASL",
            )
        case errors.SaslAuthenticationFailed() | errors.AuthenticationFailedError():
            return Problem(
                f"refused the password of the user {client.get('sasl_plain_username')!r}",
                "correct kafka.sasl_username and kafka.sasl_password, or create the user",
            )
        case ssl.SSLCertVerificationError():
            return _invalid_certificate(error)
        case ssl.SSLError() if "ALERT" in (error.reason or ""):
            return Problem(
                f"refused the certificate of this client ({error.reason})",
                "set kafka.ssl_cert_file and kafka.ssl_key_file to a valid certificate that the "
                "broker trusts",
            )
        case ssl.SSLError() | ConnectionResetError() if protocol.endswith("SSL"):
            plain = "PLAINTEXT" if protocol == "SSL" else "SASL_PLAINTEXT"
            return Problem(
                f"does not answer TLS on this port, and kafka.security_protocol is {protocol}",
                "set kafka.bootstrap_servers to a port with TLS; without TLS, set "
                f"kafka.security_protocol to {plain}",
                is_refused=False,
            )
        case IncompleteReadError() if (error.expected or 0) >> 24 == _TLS_ALERT:
            return Problem(
                f"requires TLS on this port, and kafka.security_protocol is {protocol}",
                f"set kafka.security_protocol to {'SASL_SSL' if 'SASL' in protocol else 'SSL'}",
            )
    return None


def _invalid_certificate(error: ssl.SSLCertVerificationError) -> Problem:
    match error.verify_code:  # X509_V_ERR_* of OpenSSL
        case 10:
            return Problem(
                "has an expired certificate",
                "renew the certificate of the broker, or correct the clock of this machine; "
                "no setting of Springtide accepts it",
            )
        case 9:
            return Problem(
                "has a certificate that is not valid yet", "correct the clock of this machine"
            )
        case 62 | 64:
            return Problem(
                "has a certificate for another name",
                "use a name of the certificate in kafka.bootstrap_servers and in the broker's "
                "advertised.listeners",
            )
    return Problem(
        f"has a certificate that this client does not trust ({error.verify_message})",
        "set kafka.ssl_ca_file to the CA of the broker's certificate",
    )


def _closed_after_connecting(client: Mapping[str, Any]) -> Problem | None:
    protocol = client.get("security_protocol", "PLAINTEXT")
    if protocol.startswith("SASL"):
        return None
    return Problem(
        f"closed the connection, and kafka.security_protocol is {protocol}",
        f"if the port requires a password, set kafka.security_protocol to SASL_{protocol}",
        is_refused=False,
    )
