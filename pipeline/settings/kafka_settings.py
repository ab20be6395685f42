"""Settings of the connection to Kafka."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from pipeline.settings.base import Name, Secret, Section, Servers, Text


class KafkaSettings(Section, frozen=True, kw_only=True):
    """The Kafka cluster, its topics, and the client's connection."""

    bootstrap_servers: Annotated[
        Servers,
        Meta(description="Brokers for the first connection: host:port, separated by commas."),
    ] = "127.0.0.1:9092"
    topic_prefix: Annotated[
        Name, Meta(description="Prefix of all topic names, followed by a period.")
    ] = "springtide"
    partitions: Annotated[
        Annotated[int, Meta(ge=1, le=4096)],
        Meta(
            description="Partitions of each topic that is keyed by node. Cannot change while the "
            "topics exist, because it determines the partition of a node."
        ),
    ] = 16
    replication_factor: Annotated[
        int, Meta(ge=1, le=32, description="Replicas of each partition; use 3 in production.")
    ] = 1
    request_timeout_seconds: Annotated[
        Annotated[float, Meta(gt=0, le=3600)],
        Meta(
            description="Time-out of a request. Set it longer than the broker outages that roles "
            "must survive without a restart."
        ),
    ] = 40.0
    security_protocol: Annotated[
        Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"],
        Meta(description="Encryption and authentication of connections."),
    ] = "PLAINTEXT"
    sasl_mechanism: Annotated[
        Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None,
        Meta(description="Required with SASL_PLAINTEXT and SASL_SSL."),
    ] = None
    sasl_username: Annotated[Text | None, Meta(description="Required with a SASL mechanism.")] = (
        None
    )
    sasl_password: Annotated[
        Secret | None,
        Meta(
            description="Required with a SASL mechanism. Never printed, and has no flag; set it by "
            "the environment variable."
        ),
    ] = None
    ssl_ca_file: Annotated[
        Path | None,
        Meta(description="CA certificates (PEM); null: the CA certificates of the system."),
    ] = None
    ssl_cert_file: Annotated[
        Path | None, Meta(description="Client certificate (PEM), for mutual TLS.")
    ] = None
    ssl_key_file: Annotated[
        Path | None, Meta(description="Private key of the client certificate (PEM).")
    ] = None

    def problems(self) -> Mapping[str, str]:
        problems = {}
        if self.security_protocol.startswith("SASL"):
            for key in ("sasl_mechanism", "sasl_username", "sasl_password"):
                if getattr(self, key) is None:
                    problems[key] = (
                        f"a value, because security_protocol is {self.security_protocol}"
                    )
        if (self.ssl_cert_file is None) != (self.ssl_key_file is None):
            missing = "ssl_cert_file" if self.ssl_cert_file is None else "ssl_key_file"
            problems[missing] = "a file: certificate and key are given together"
        return problems
