"""Create certificates for a local control plane or broker: a CA, servers, and a client per user.

They are valid for a year. Kubernetes reads the user from the common name of a client certificate,
and the groups from its organizations.
"""

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pipeline.clock import Clock

_LIFETIME = datetime.timedelta(days=365)
# The clock may be set back.
_LEEWAY = datetime.timedelta(hours=1)


class Pair(NamedTuple):
    """PEM files of a certificate or public key, and of its private key."""

    public: Path
    private: Path


class Authority:
    """A CA that writes certificates to `folder`; its own is `ca.crt`."""

    def __init__(self, folder: Path, clock: Clock, name: str = "springtide-local") -> None:
        self._folder = folder
        self._clock = clock
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name, ())
        certificate = (
            self._builder(self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, SHA256())
        )
        self.certificate = folder / "ca.crt"
        self.certificate.write_bytes(certificate.public_bytes(Encoding.PEM))

    def server(self, name: str, addresses: Sequence[str], hosts: Sequence[str]) -> Pair:
        """Create the certificate of a server with these IP addresses and host names."""
        return self._sign_certificate(
            name, (), [ExtendedKeyUsageOID.SERVER_AUTH], _alternative_names(addresses, hosts)
        )

    def peer(self, name: str, addresses: Sequence[str], hosts: Sequence[str]) -> Pair:
        """Create the certificate of a server that also connects to others, as brokers do."""
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        return self._sign_certificate(name, (), usages, _alternative_names(addresses, hosts))

    def client(self, user: str, groups: Sequence[str] = ()) -> Pair:
        """Create the client certificate of `user` in these groups."""
        return self._sign_certificate(user, groups, [ExtendedKeyUsageOID.CLIENT_AUTH])

    def _sign_certificate(
        self,
        name: str,
        groups: Sequence[str],
        usages: Sequence[x509.ObjectIdentifier],
        *extensions: x509.ExtensionType,
    ) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(_name(name, groups), key)
        for extension in (x509.ExtendedKeyUsage(usages), *extensions):
            builder = builder.add_extension(extension, critical=False)
        certificate = builder.sign(self._key, SHA256())
        pair = _pair_paths(self._folder, name, "crt")
        pair.public.write_bytes(certificate.public_bytes(Encoding.PEM))
        _write_private(pair.private, key)
        return pair

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.fromtimestamp(self._clock.now(), datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _LEEWAY)
            .not_valid_after(now + _LIFETIME)
        )


def _alternative_names(
    addresses: Sequence[str], hosts: Sequence[str]
) -> x509.SubjectAlternativeName:
    return x509.SubjectAlternativeName(
        [
            *(x509.IPAddress(ipaddress.ip_address(address)) for address in addresses),
            *(x509.DNSName(host) for host in hosts),
        ]
    )


def key_pair(folder: Path, name: str) -> Pair:
    """Create a key pair that signs and verifies tokens of service accounts."""
    key = ec.generate_private_key(ec.SECP256R1())
    pair = _pair_paths(folder, name, "pub")
    pair.public.write_bytes(
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    _write_private(pair.private, key)
    return pair


def _pair_paths(folder: Path, name: str, suffix: str) -> Pair:
    plain = name.replace(":", "-")
    return Pair(folder / f"{plain}.{suffix}", folder / f"{plain}.key")


def _write_private(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    path.touch(mode=0o600)
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def _name(common_name: str, groups: Sequence[str]) -> x509.Name:
    return x509.Name(
        [
            *(x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )
