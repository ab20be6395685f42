"""Who may send which request, with real certificates and tokens."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pipeline.errors import SettingsError
from pipeline.extender.authentication import Authentication
from pipeline.local.pki import Authority, Pair
from pipeline.settings import ExtenderSettings
from tests.extender.conftest import running
from tests.extender.test_server_tls import authority, server
from tests.processes import until

ROUTES = {
    "scheduler": "/filter",
    "queries": "/v1/nodes",
    "metrics": "/metrics",
    "watcher": "/watcher/health",
    "probes": "/healthz",
    "console": "/console",
    "fleet": "/v1/fleet",
    "unknown": "/none",
}


class Service:
    """A running extender with HTTPS and client certificates of `ca`."""

    def __init__(self, port: int, ca: Authority) -> None:
        self._url, self._ca = f"https://localhost:{port}", ca

    async def ask(
        self, route: str, certificate: Pair | None = None, token: str | None = None
    ) -> tuple[int, dict[str, Any], Any]:
        """Status, JSON body and headers of an answer."""
        context = ssl.create_default_context(cafile=str(self._ca.certificate))
        if certificate is not None:
            context.load_cert_chain(*certificate)
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        method = "POST" if route == "scheduler" else "GET"
        connector = aiohttp.TCPConnector(ssl=context)
        async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
            body = b"{}" if method == "POST" else None
            async with session.request(method, self._url + ROUTES[route], data=body) as answer:
                is_json = answer.content_type == "application/json" and await answer.read()
                return answer.status, await answer.json() if is_json else {}, answer.headers

    async def admitted(self, *who: Any, **more: Any) -> set[str]:
        """The routes that do not answer 401 or 403."""
        statuses = {route: (await self.ask(route, *who, **more))[0] for route in ROUTES}
        return {route for route, status in statuses.items() if status not in (401, 403)}


@asynccontextmanager
async def service(ca: Authority, **more: Any) -> AsyncIterator[Service]:
    own = server(ca)
    settings = ExtenderSettings(
        host="127.0.0.1", port=0, tls_cert_file=str(own.public), tls_key_file=str(own.private),
        tls_client_ca_file=str(ca.certificate), **more,
    )  # fmt: skip
    async with running(settings=settings) as port:
        yield Service(port, ca)


async def test_a_certificate_opens_every_route_and_none_only_probes(tmp_path: Path) -> None:
    ca = authority(tmp_path)
    async with service(ca) as extender:
        assert await extender.admitted() == {"probes", "console"}
        assert await extender.admitted(ca.client("anybody")) == {*ROUTES}
        status, body, _ = await extender.ask("queries")
        assert (status, body["Error"]) == (403, "client certificate required")
        assert "extender.tls_client_ca_file" in body["Hint"]


async def test_the_verbs_of_a_scheduler_may_be_restricted_to_names(tmp_path: Path) -> None:
    """A certificate of the cluster's CA is also in the hands of every kubelet."""
    ca = authority(tmp_path)
    async with service(ca, scheduler_names=("system:kube-scheduler",)) as extender:
        assert await extender.admitted(ca.client("system:kube-scheduler")) == {*ROUTES}
        kubelet = ca.client("system:node:node-1", ["system:nodes"])
        assert await extender.admitted(kubelet) == {*ROUTES} - {"scheduler"}
        status, body, _ = await extender.ask("scheduler", kubelet)
        assert (status, body["Error"]) == (403, "'system:node:node-1' is not a scheduler")
        assert "extender.scheduler_names" in body["Hint"]


async def test_a_token_opens_all_but_the_verbs_of_a_scheduler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.http_server.limits.CERTIFICATE_CHECK_SECONDS", 0.05)
    ca, file = authority(tmp_path), tmp_path / "tokens"
    file.write_text("first-token\nsecond-token\n")
    async with service(ca, query_token_file=str(file)) as extender:
        for valid in ("first-token", "second-token"):
            assert await extender.admitted(token=valid) == {*ROUTES} - {"scheduler"}
        assert await extender.admitted(ca.client("scheduler")) == {*ROUTES}
        refused: list[tuple[str | None, str]] = [
            (None, "bearer token or client certificate required"),
            ("third-token", "invalid bearer token"),
            ("\u00e9", "invalid bearer token"),
        ]
        for token, error in refused:
            status, body, headers = await extender.ask("queries", token=token)
            assert (status, body["Error"]) == (401, error)
            assert headers["WWW-Authenticate"] == "Bearer"
        assert (await extender.ask("scheduler", token="first-token"))[0] == 403
        # A token is replaced without a restart; a file that became invalid changes nothing.
        file.write_text("third-token\n")

        async def is_valid(token: str) -> bool:
            return (await extender.ask("queries", token=token))[0] != 401

        await until(lambda: is_valid("third-token"))
        assert (await extender.ask("queries", token="first-token"))[0] == 401
        file.write_text("\n")
        await asyncio.sleep(0.15)
        assert (await extender.ask("queries", token="third-token"))[0] != 401


async def test_routes_may_be_open_to_clients_that_can_show_nothing(tmp_path: Path) -> None:
    """Trimaran's client of load-watcher has neither a certificate nor a token."""
    ca = authority(tmp_path)
    async with service(ca, open_routes=("watcher", "metrics")) as extender:
        assert await extender.admitted() == {"probes", "console", "watcher", "metrics"}


async def test_without_certificates_a_token_still_protects_queries(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("secret")
    settings = ExtenderSettings(host="127.0.0.1", port=0, query_token_file=str(file))
    async with running(settings=settings) as port, aiohttp.ClientSession() as session:
        url, headers = f"http://127.0.0.1:{port}", {"Authorization": "bearer secret"}
        for path in ("/v1/nodes", "/watcher"):
            answer = await session.get(url + path)
            assert (answer.status, (await answer.json())["Error"]) == (401, "bearer token required")
        assert (await session.post(f"{url}/filter", data=b"{")).status == 400
        assert (await session.get(f"{url}/v1/nodes", headers=headers)).status == 503


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"mode": "act", "push_out": True}, "extender.push_out: client certificates are required"),
        ({"scheduler_names": ("a",)}, "extender.scheduler_names has no effect"),
        ({"query_token_file": "none"}, "query_token_file: .*none: No such file"),
        ({"query_token_file": "empty"}, "query_token_file: .*empty: there is no token"),
        ({"query_token_file": "latin"}, "latin: the token of line 1 has a character"),
        ({"query_token_file": "comment"}, "comment: line 2 is no token: it contains a space"),
    ],
)
def test_invalid_settings_are_named(tmp_path: Path, given: dict[str, Any], says: str) -> None:
    (tmp_path / "empty").write_text(" \n\n")
    (tmp_path / "latin").write_bytes("gehe\u0131m".encode())
    (tmp_path / "comment").write_text("secret\n# token of prometheus\n")
    if name := given.get("query_token_file"):
        given = given | {"query_token_file": str(tmp_path / name)}
    with pytest.raises(SettingsError, match=says):
        Authentication.from_settings(ExtenderSettings(**given))


@pytest.mark.parametrize(
    "given",
    [{"mode": "observe"}, {"host": "127.0.0.1"}, {"host": "::1"}, {"host": "localhost"},
     {"tls_client_ca_file": "ca.crt"}],
)  # fmt: skip
def test_plans_of_evictions_need_certificates_unless_only_this_machine_can_ask(
    given: dict[str, Any],
) -> None:
    acting: dict[str, Any] = {"mode": "act", "push_out": True} | given
    Authentication.from_settings(ExtenderSettings(**acting))
