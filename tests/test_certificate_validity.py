"""The dates of certificates: of every form of file, after a renewal, and as metrics of roles."""

import datetime
import json
from pathlib import Path
from unittest import mock

import pytest
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st

from pipeline.certificate_validity import (
    NOT_AFTER,
    NOT_BEFORE,
    Validity,
    show_validity,
    validity_in,
)
from pipeline.cli.doctor_certificates import check_certificate, check_certificates
from pipeline.clock import ManualClock
from pipeline.http_server.server_tls import Tls
from pipeline.kafka.client import ssl_context
from pipeline.local.pki import Authority, Pair
from pipeline.settings import ExtenderSettings, KafkaSettings, KubernetesSettings, Settings
from tests.metric_values import value_of

DAY = 86_400.0
NOW = 1_800_000_000.0


def pair(folder: Path, now: float = NOW, name: str = "server") -> Pair:
    return Authority(folder, ManualClock(now)).server(name, (), ["localhost"])


def dates(file: Path) -> Validity:
    """The dates as the library cryptography reads them."""
    certificate = x509.load_pem_x509_certificate(file.read_bytes())
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return Validity(begin.timestamp(), end.timestamp())


@pytest.mark.parametrize("year", [1951, 2026, 2049, 2050, 2999])
def test_the_dates_are_those_that_cryptography_reads(tmp_path: Path, year: int) -> None:
    now = datetime.datetime(year, 6, 1, tzinfo=datetime.UTC).timestamp()
    own = pair(tmp_path, now)
    assert validity_in(own.public, now) == dates(own.public)


def test_of_a_chain_the_certificate_counts_that_expires_first(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    young, old = pair(tmp_path / "a").public, pair(tmp_path / "b", NOW - 100 * DAY).public
    chain = tmp_path / "chain.crt"
    chain.write_text("# a comment\n" + young.read_text() + old.read_text())
    assert validity_in(chain, NOW) == dates(old)


@pytest.mark.parametrize("is_leaf_first", [True, False])
def test_a_chain_is_not_valid_before_its_last_certificate_is(
    tmp_path: Path, is_leaf_first: bool
) -> None:
    """As after a renewal by a machine whose clock is ahead: its intermediate expires first."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    leaf, other = pair(tmp_path / "a", NOW + 30 * DAY).public, pair(tmp_path / "b", NOW).public
    chain, files = tmp_path / "chain.crt", [leaf, other]
    chain.write_text("".join(f.read_text() for f in (files if is_leaf_first else files[::-1])))
    assert dates(other).not_after < dates(leaf).not_after
    check = check_certificate("extender.tls_cert_file", chain, NOW)
    assert (check.status, "is not valid before" in check.found) == ("fail", True)
    with mock.patch("time.time", return_value=NOW):
        show_validity("server", chain)
        assert value_of(NOT_BEFORE.labels("server")) == dates(leaf).not_before
    with mock.patch("time.time", return_value=NOW + 40 * DAY):
        assert value_of(NOT_AFTER.labels("server")) == dates(other).not_after


@given(data=st.data())
def test_a_damaged_certificate_has_dates_or_none(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp() / "damaged"
    folder.mkdir(exist_ok=True)
    file = folder / "server.crt"
    text = bytearray((file if file.exists() else pair(folder).public).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    damaged = folder / "damaged.crt"
    damaged.write_bytes(text)
    validity = validity_in(damaged, NOW)
    assert validity is None or validity.not_before < 1e12


def test_the_metric_follows_a_renewal_and_keeps_the_last_dates(tmp_path: Path) -> None:
    file = pair(tmp_path).public
    show_validity("server", file)
    assert value_of(NOT_AFTER.labels("server")) == dates(file).not_after
    pair(tmp_path, NOW + 30 * DAY)
    renewed = dates(file)
    shown = value_of(NOT_BEFORE.labels("server")), value_of(NOT_AFTER.labels("server"))
    assert shown == renewed
    file.write_text("half a certi")
    assert value_of(NOT_AFTER.labels("server")) == renewed.not_after
    file.unlink()
    assert value_of(NOT_AFTER.labels("server")) == renewed.not_after


def test_roles_show_their_own_and_their_client_certificates(tmp_path: Path) -> None:
    own = Authority(tmp_path, ManualClock(NOW))
    server, client = own.server("s", (), ["localhost"]), own.client("c")
    tls = ExtenderSettings(tls_cert_file=str(server.public), tls_key_file=str(server.private))
    Tls.from_settings(tls, "extender")
    ssl_context(
        KafkaSettings(
            security_protocol="SSL", ssl_ca_file=own.certificate, ssl_cert_file=client.public,
            ssl_key_file=client.private,
        )
    )  # fmt: skip
    assert value_of(NOT_AFTER.labels("server")) == dates(server.public).not_after
    assert value_of(NOT_AFTER.labels("kafka")) == dates(client.public).not_after


@pytest.mark.parametrize(
    ("lifetime_days", "left_days", "is_soon"),
    [(365, 30, False), (365, 6, True), (90, 8, False), (90, 6, True), (1, 0.3, False),
     (1, 0.1, True), (30, -1, True)],
)  # fmt: skip
def test_a_certificate_expires_soon_after_those_who_renew_it_should_have(
    lifetime_days: float, left_days: float, is_soon: bool
) -> None:
    end = NOW + left_days * DAY
    assert Validity(end - lifetime_days * DAY, end).expires_soon(NOW) == is_soon


@pytest.mark.parametrize(
    ("age_days", "status", "text"),
    [(0, "ok", "is valid until"), (361, "warn", "expires at"), (400, "fail", "has expired at"),
     (-30, "fail", "is not valid before")],
)  # fmt: skip
def test_doctor_says_when_a_certificate_expires(
    tmp_path: Path, age_days: float, status: str, text: str
) -> None:
    file = pair(tmp_path).public
    settings = Settings(
        extender=ExtenderSettings(tls_cert_file=str(file)),
        kubernetes=KubernetesSettings(kubeconfig=tmp_path / "none"),
    )
    (check,) = check_certificates(settings, NOW + age_days * DAY)
    assert (check.name, check.status) == ("tls", status)
    assert f"extender.tls_cert_file: {file} {text}" in check.found
    assert bool(check.todo) == (status != "ok")


def test_doctor_checks_the_client_certificate_of_a_kubeconfig(tmp_path: Path) -> None:
    client = Authority(tmp_path, ManualClock(NOW - 400 * DAY)).client("admin")
    document = {
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {
            "client-certificate": str(client.public), "client-key": str(client.private),
        }}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }  # fmt: skip
    (tmp_path / "config").write_text(json.dumps(document))
    settings = Settings(kubernetes=KubernetesSettings(kubeconfig=tmp_path / "config"))
    (check,) = check_certificates(settings, NOW)
    assert check.status == "fail"
    assert check.found.startswith(f"kubernetes.kubeconfig: {client.public} has expired")


def test_doctor_names_a_file_without_a_certificate(tmp_path: Path) -> None:
    check = check_certificate("kafka.ssl_cert_file", tmp_path / "absent", NOW)
    assert check.status == "fail"
    assert "no certificate can be read" in check.found


@pytest.mark.parametrize("body", ["", "MAA=", "MAQwAjAA"])
def test_an_empty_certificate_has_no_dates(tmp_path: Path, body: str) -> None:
    file = tmp_path / "empty.crt"
    file.write_text(f"-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n")
    assert validity_in(file, NOW) is None
