"""Certificates and users of a secure local broker: TLS, SASL SCRAM, and Kafka's own authorizer.

Clients connect by TLS with a user and a password (SCRAM-SHA-512). The broker connects to itself and
to its controller with a certificate. There is a user for each role of `pipeline.topics.access`,
without any right until ACLs grant it, and `springtide-admin`, who may do everything. `folder` has:

- `ca.crt`: the CA; `broker.pem`: key and certificate of the broker;
- `<role>.yaml`: settings with which a role connects, password included.

Passwords are made with the first start. Certificates are valid for a year, and are made again in
their last month.
"""

import datetime
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import yaml

from pipeline.clock import Clock
from pipeline.errors import MissingExtraError
from pipeline.local.port_probe import HOST
from pipeline.settings import KafkaSettings, Secret
from pipeline.topics.access import ROLES, user_of

ADMIN: Final = "admin"
MECHANISM: Final = "SCRAM-SHA-512"

_BROKER: Final = "springtide-broker"
_RENEWED: Final = datetime.timedelta(days=30)
_PASSWORD_BYTES: Final = 18


class BrokerSecurity:
    """The certificates and users in `folder`, which are created where they are missing."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.folder = folder
        self._clock = clock
        folder.mkdir(mode=0o700, exist_ok=True)
        self._passwords = {name: self._password(name) for name in (ADMIN, *ROLES)}
        if not self._has_valid_certificate():
            self.renew_certificates(clock)

    @property
    def ca_file(self) -> Path:
        return self.folder / "ca.crt"

    def renew_certificates(self, clock: Clock) -> None:
        """Create another CA, and a certificate of the broker that is valid for a year from the
        time of `clock` on. A broker reads them when it starts."""
        try:
            from pipeline.local.pki import Authority
        except ImportError as error:
            raise MissingExtraError("cryptography", "local", module=error.name) from error
        authority = Authority(self.folder, clock)
        certificate, key = authority.peer(_BROKER, [HOST], ["localhost"])
        self._write("broker.pem", key.read_text() + certificate.read_text())

    def settings_of(self, role: str, bootstrap_servers: str) -> KafkaSettings:
        """Return the settings with which `role`, or `ADMIN`, connects."""
        return KafkaSettings(
            bootstrap_servers=bootstrap_servers, security_protocol="SASL_SSL",
            sasl_mechanism=MECHANISM, sasl_username=user_of(role),
            sasl_password=Secret(self._passwords[role]), ssl_ca_file=self.ca_file,
        )  # fmt: skip

    def write_settings_files(self, bootstrap_servers: str, topic_prefix: str) -> list[Path]:
        """Write a settings file per role, readable by the owner alone."""
        return [
            self._write_settings(role, password, bootstrap_servers, topic_prefix)
            for role, password in self._passwords.items()
        ]

    def properties(self) -> dict[str, str]:
        """Return the broker's settings for TLS, SASL and the authorizer."""
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.folder / "broker.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.ca_file),
            # Of brokers and controllers: clients have passwords instead.
            "ssl.client.auth": "required",
            "sasl.enabled.mechanisms": MECHANISM,
            f"listener.name.sasl_ssl.{MECHANISM.lower()}.sasl.jaas.config":
                "org.apache.kafka.common.security.scram.ScramLoginModule required;",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "false",
            "super.users": f"User:CN={_BROKER};User:{user_of(ADMIN)}",
        }  # fmt: skip

    def format_flags(self) -> list[str]:
        """Return the flags of Kafka's storage tool that create the users."""
        return [
            f"--add-scram={MECHANISM}=[name={user_of(role)},password={password}]"
            for role, password in self._passwords.items()
        ]

    def _password(self, role: str) -> str:
        try:
            text = (self.folder / f"{role}.yaml").read_text()
        except FileNotFoundError:
            return self._new_password(role)
        password: str = yaml.safe_load(text)["kafka"]["sasl_password"]
        return password

    def _new_password(self, role: str) -> str:
        password = secrets.token_urlsafe(_PASSWORD_BYTES)
        # Before the users are created with it; the rest is written when it is known.
        unknown = KafkaSettings()
        self._write_settings(role, password, unknown.bootstrap_servers, unknown.topic_prefix)
        return password

    def _write_settings(
        self, role: str, password: str, bootstrap_servers: str, topic_prefix: str
    ) -> Path:
        settings: Mapping[str, str] = {
            "bootstrap_servers": bootstrap_servers, "topic_prefix": topic_prefix,
            "security_protocol": "SASL_SSL", "sasl_mechanism": MECHANISM,
            "sasl_username": user_of(role), "sasl_password": password,
            "ssl_ca_file": str(self.ca_file),
        }  # fmt: skip
        return self._write(f"{role}.yaml", yaml.safe_dump({"kafka": settings}, sort_keys=False))

    def _write(self, name: str, text: str) -> Path:
        temporary = self.folder / f".{name}"
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as f:
            f.write(text)
        return temporary.replace(self.folder / name)

    def _has_valid_certificate(self) -> bool:
        try:
            pem = (self.folder / "broker.pem").read_bytes()
        except FileNotFoundError:
            return False
        from cryptography import x509

        now = datetime.datetime.fromtimestamp(self._clock.now(), datetime.UTC)
        return x509.load_pem_x509_certificate(pem).not_valid_after_utc > now + _RENEWED
