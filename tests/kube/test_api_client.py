"""Requests and credentials, whatever the server answers."""

import asyncio
import json
import random
import stat
import sys
import time
from datetime import datetime
from pathlib import Path

import aiohttp
import certifi
import pytest
from kubernetes.config.incluster_config import InClusterConfigLoader

from pipeline.clock import SystemClock
from pipeline.errors import (
    ApiRefusedError,
    ApiUnavailableError,
    ConflictError,
    ForbiddenError,
    GoneError,
    KubernetesError,
    NotFoundError,
    SettingsError,
    UnauthenticatedError,
)
from pipeline.kube.api_access import api_access
from pipeline.kube.api_client import Api, open_api
from pipeline.local.port_probe import free_port
from pipeline.settings import KubernetesSettings
from tests.kube.access import in_pod
from tests.kube.fake_server import Answer, SleeplessClock, fake, status, user_file

FINE = Answer([b'{"a":1}'])
PATH = "/api/v1/nodes/n1"


@pytest.mark.parametrize("code", [429, 500, 502, 503, 504])
async def test_a_get_is_repeated(tmp_path: Path, code: int) -> None:
    async with fake(tmp_path, status(code), status(code), FINE) as server:
        assert await server.api.get(PATH) == {"a": 1}
    assert len(server.requests) == 3


@pytest.mark.parametrize(("code", "times"), [(429, 2), (503, 2), (500, 1), (502, 1), (504, 1)])
async def test_a_change_is_repeated_only_if_it_was_not_executed(
    tmp_path: Path, code: int, times: int
) -> None:
    async with fake(tmp_path, status(code), FINE) as server:
        if times == 1:
            with pytest.raises(ApiUnavailableError) as raised:
                await server.api.patch(PATH, {})
            assert raised.value.was_done is None
        else:
            assert await server.api.patch(PATH, {}) == {"a": 1}
    assert len(server.requests) == times


@pytest.mark.parametrize("method", ["get", "create", "replace", "patch"])
@pytest.mark.parametrize("body", [b"<html>", b"null", b"[]", b"3", b"\xff"])
async def test_an_answer_without_an_object_is_an_error(
    tmp_path: Path, method: str, body: bytes
) -> None:
    """A proxy may give such an answer."""
    async with fake(tmp_path, Answer([body])) as server:
        with pytest.raises(ApiUnavailableError, match="invalid answer") as raised:
            await getattr(server.api, method)(PATH, {})
    assert raised.value.was_done is None


async def test_an_error_of_the_block_that_reads_a_stream_is_not_blamed_on_the_server(
    tmp_path: Path,
) -> None:
    async with fake(tmp_path, FINE) as server:
        with pytest.raises(FileNotFoundError):  # noqa: PT012
            async with server.api.stream(PATH, {}) as chunks:
                assert [chunk async for chunk in chunks] == [b'{"a":1}']
                raise FileNotFoundError("a file of the caller")


async def test_attempts_are_limited(tmp_path: Path) -> None:
    async with fake(tmp_path, *[status(503, "etcd is away")] * 9) as server:
        with pytest.raises(ApiUnavailableError, match="GET /api/v1/nodes/n1: 503 etcd is away"):
            await server.api.get(PATH)
    assert len(server.requests) == 5


async def test_the_clock_of_the_server_is_known_by_its_last_valid_answer(tmp_path: Path) -> None:
    answers = [
        Answer([b"{}"], date=date)
        for date in ("soon", "Tue, 14 Nov 2023 22:13:20 GMT", "", "Wed, 99 Nov 9999 99:99:99 GMT")
    ]
    late = Answer([b"{}"], 404, date="Tue, 14 Nov 2023 23:13:20 GMT")
    async with fake(tmp_path, *answers, late) as server:
        assert server.api.server_now() is None
        known = []
        for _ in answers:
            await server.api.get(PATH)
            known.append(server.api.server_now())
        with pytest.raises(NotFoundError):
            await server.api.get(PATH)
        last = server.api.server_now()
    assert known[0] is None
    assert last is not None
    assert [*known[1:], last - 3600] == pytest.approx([1_700_000_000.0] * 4, abs=60)


async def test_retry_after_is_respected(tmp_path: Path) -> None:
    later = Answer(status=429, retry_after="7")
    invalid = [Answer(status=429, retry_after=text) for text in ("soon", "-1", "٣")]
    async with fake(tmp_path, later, *invalid, FINE) as server:
        await server.api.get(PATH)
    assert server.clock.slept[0] == 7.0
    assert max(server.clock.slept[1:]) < 2.0


async def test_retry_after_is_limited_to_a_minute(tmp_path: Path) -> None:
    answers = [Answer(status=503, retry_after=text) for text in ("61", "86400", "9" * 400)]
    async with fake(tmp_path, *answers, FINE) as server:
        await server.api.get(PATH)
    assert server.clock.slept == [60.0] * 3


async def test_pauses_grow_and_differ_between_clients() -> None:
    slept = []
    for seed in (1, 2):
        clock = SleeplessClock()
        async with aiohttp.ClientSession() as session:
            api = Api(session, NoAccess(), clock, 1.0, random.Random(seed))  # type: ignore[arg-type]
            for attempt in range(1, 12):
                await api.pause(attempt)
        slept.append(clock.slept)
        for attempt, seconds in enumerate(clock.slept):
            longest = min(0.2 * 2**attempt, 10.0)
            assert longest / 2 <= seconds <= longest
    assert slept[0] != slept[1]


class NoAccess:
    server, proxy, server_name = "http://127.0.0.1:1", None, None


async def test_a_missing_server_is_retried_and_then_reported(tmp_path: Path) -> None:
    port = free_port()
    settings = user_file(tmp_path, f"http://127.0.0.1:{port}")
    clock = SleeplessClock()
    async with open_api(settings, clock) as api:
        with pytest.raises(ApiUnavailableError, match=r"check kubernetes\.kubeconfig") as raised:
            await api.create(PATH, {})
    assert raised.value.was_done is False
    assert f"cannot connect to 127.0.0.1:{port}: " in raised.value.message
    assert len(clock.slept) == 4


async def test_after_an_interrupted_answer_a_change_is_not_repeated(tmp_path: Path) -> None:
    async with fake(tmp_path, Answer([b"{"], cut=True), FINE) as server:
        with pytest.raises(ApiUnavailableError) as raised:
            await server.api.create(PATH, {})
        assert raised.value.was_done is None
        assert await server.api.get(PATH) == {"a": 1}


async def test_a_silent_server_times_out(tmp_path: Path) -> None:
    async with fake(tmp_path, Answer(hangs=True)) as server:
        with pytest.raises(ApiUnavailableError):
            await server.api.create(PATH, {})


async def test_a_request_is_not_sent_if_no_connection_is_made_in_time(tmp_path: Path) -> None:
    """A busy server accepts connections, and takes long to answer their TLS handshake."""
    received = bytearray()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(65_536):
            received.extend(piece)
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps({
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "c", "users": [{"name": "u", "user": {}}],
        "clusters": [{"name": "c", "cluster": {
            "server": f"https://127.0.0.1:{port}", "insecure-skip-tls-verify": True,
        }}],
    }))  # fmt: skip
    settings = KubernetesSettings(kubeconfig=path, request_timeout_seconds=60.0)
    async with server, open_api(settings, SystemClock()) as api:
        began = time.monotonic()
        with pytest.raises(ApiUnavailableError) as raised:
            await api.request("POST", PATH, body={}, attempts=1, connect_seconds=0.2)
        assert time.monotonic() - began < 30
    assert received.startswith(b"\x16\x03")  # the begin of a handshake
    assert raised.value.was_done is False


@pytest.mark.parametrize(
    ("code", "kind"),
    [(400, ApiRefusedError), (401, UnauthenticatedError), (403, ForbiddenError),
     (404, NotFoundError), (409, ConflictError), (410, GoneError), (422, ApiRefusedError)],
)  # fmt: skip
async def test_a_refusal_has_the_message_of_the_server(
    tmp_path: Path, code: int, kind: type[KubernetesError]
) -> None:
    async with fake(tmp_path, status(code, "so it is")) as server:
        with pytest.raises(kind, match=f"GET {PATH}: {code} so it is") as raised:
            await server.api.get(PATH)
    assert type(raised.value) is kind
    assert ("renew the token" in (raised.value.hint or "")) == (code == 401)
    assert len(server.requests) == 1


async def test_a_refusal_without_a_status_object_is_shortened(tmp_path: Path) -> None:
    async with fake(tmp_path, Answer([b"<html>" + b"\xff" * 999], 404)) as server:
        with pytest.raises(NotFoundError) as raised:
            await server.api.get(PATH)
    assert len(raised.value.message) < 250


async def test_deleting_a_missing_object_is_no_error(tmp_path: Path) -> None:
    async with fake(tmp_path, status(404), status(403)) as server:
        await server.api.delete(PATH)
        with pytest.raises(ForbiddenError):
            await server.api.delete(PATH)


async def test_a_patch_is_sent_as_a_merge_patch(tmp_path: Path) -> None:
    async with fake(tmp_path, FINE) as server:
        await server.api.patch(PATH, {"a": None})
    (request,) = server.requests
    kind = request.headers["Content-Type"]
    assert (request.method, kind) == ("PATCH", "application/merge-patch+json")


# -- credentials


@pytest.mark.parametrize(("user", "sent"), [({"token": "s3cret"}, "Bearer s3cret"), ({}, None)])
async def test_a_token_is_sent_if_there_is_one(
    tmp_path: Path, user: dict[str, str], sent: str | None
) -> None:
    async with fake(tmp_path, FINE, **user) as server:
        await server.api.get(PATH)
    assert server.requests[0].headers.get("Authorization") == sent


async def test_an_expired_token_is_renewed_by_its_plugin(tmp_path: Path) -> None:
    plugin = tmp_path / "plugin"
    plugin.write_text(f"""#!{sys.executable}
import json, pathlib
count = pathlib.Path({str(tmp_path / "count")!r})
number = len(count.read_text()) if count.exists() else 0
count.write_text("x" * (number + 1))
print(json.dumps({{
    "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
    "status": {{"token": f"t{{number}}", "expirationTimestamp": "2020-01-01T00:00:00Z"}},
}}))
""")
    plugin.chmod(plugin.stat().st_mode | stat.S_IXUSR)
    use = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin),
           "interactiveMode": "Never"}  # fmt: skip
    async with fake(tmp_path, FINE, FINE, exec=use) as server:
        await server.api.get(PATH)
        await server.api.get(PATH)
    sent = [asked.headers["Authorization"] for asked in server.requests]
    assert len(set(sent)) == 2
    assert all(text.startswith("Bearer t") for text in sent)


async def test_in_a_pod_requests_have_the_current_service_account_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    in_pod(monkeypatch, token, Path(certifi.where()), "10.0.0.1", "443")
    always = property(lambda self: datetime.min, lambda self, value: None)  # noqa: DTZ901
    monkeypatch.setattr(InClusterConfigLoader, "token_expires_at", always, raising=False)
    access = api_access(KubernetesSettings())
    assert access.server == "https://10.0.0.1:443"
    assert await access.headers() == {"Authorization": "bearer first"}
    token.write_text("second")
    assert await access.headers() == {"Authorization": "bearer second"}
    token.unlink()
    with pytest.raises(ApiUnavailableError, match="credentials cannot be read"):
        await access.headers()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"clusters": 1}', "\x00", "a text", None])
async def test_an_invalid_kubeconfig_is_reported(tmp_path: Path, text: str | None) -> None:
    settings = user_file(tmp_path, "http://127.0.0.1:1")
    assert settings.kubeconfig is not None
    settings.kubeconfig.unlink()
    if text is not None:
        settings.kubeconfig.write_text(text)
    says = f"kubernetes.kubeconfig: {settings.kubeconfig} cannot be used: "
    with pytest.raises(SettingsError, match=says) as raised:
        async with open_api(settings, SystemClock()):
            pass
    assert "\n" not in raised.value.message
    if text is None:
        assert raised.value.message.endswith("cannot be used: No such file")


@pytest.mark.parametrize(
    ("server", "command", "says"),
    [
        ("nonsense", "/bin/true", "its server is 'nonsense'"),
        ("http://127.0.0.1:1", "/no/such", "exec plugin gives no credentials"),
    ],
)
async def test_an_invalid_server_address_and_a_failed_plugin_are_reported(
    tmp_path: Path, server: str, command: str, says: str
) -> None:
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": command}
    settings = user_file(tmp_path, server, exec=plugin | {"interactiveMode": "Never"})
    with pytest.raises(SettingsError, match=says):
        async with open_api(settings, SystemClock()):
            pass


async def test_proxy_and_server_name_of_a_kubeconfig_are_used(tmp_path: Path) -> None:
    settings = user_file(tmp_path, "https://10.0.0.1")
    assert settings.kubeconfig is not None
    tree = json.loads(settings.kubeconfig.read_text())
    tree["clusters"][0]["cluster"] |= {"proxy-url": "http://p:1", "tls-server-name": "inside"}
    settings.kubeconfig.write_text(json.dumps(tree))
    access = api_access(settings)
    assert (access.proxy, access.server_name) == ("http://p:1", "inside")
    assert access.tls is not None


def test_a_machine_without_a_kubeconfig_is_told_which_file_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(KubernetesError) as raised:
        api_access(KubernetesSettings())
    assert raised.value.message == "no access to Kubernetes: there is no ~/.kube/config"
