"""The Prometheus provider retries transient errors and omits failed columns.

These tests use a fake; tests/provider uses a real Prometheus.
"""

import asyncio
import socket
import ssl
import time
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path

import pytest

from pipeline.clock import SystemClock
from pipeline.errors import SampleSourceError, SettingsError
from pipeline.local.pki import Authority
from pipeline.metrics import REGISTRY
from pipeline.processors.imported_usage.fetched_usage import FetchedUsage, TimeWindow
from pipeline.settings import ProviderSettings, Settings
from pipeline.sources.provider.prometheus_source import open_prometheus, show_queries
from pipeline.tasks import cancel_tasks
from tests.kube.fake_server import SleeplessClock
from tests.processes import until
from tests.sources.provider.fake_prometheus import (
    Answer,
    FakePrometheus,
    fake_prometheus,
    matrix,
    refusal,
)

WINDOW = TimeWindow(600_000, 660_000)
CPU, MEMORY, POD = "node_cpu_seconds_total{mode!~", "MemAvailable", "container_cpu_usage"
GOOD = matrix(({"instance": "n1"}, [(660, "1")]))
ALL = ("node.", "pod.")


HANGS_SECONDS = 2.0
"""The time-out of queries that get no answer: long enough for the answers to all others."""


async def fetch(fake: FakePrometheus, **settings: object) -> FetchedUsage:
    provider = ProviderSettings(url=fake.url, **settings)  # type: ignore[arg-type]
    async with open_prometheus(Settings(provider=provider), SleeplessClock(), None) as prometheus:
        return await prometheus.fetch(WINDOW)


async def test_queries_are_evaluated_at_the_end_of_the_window(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("abc\n")
    async with fake_prometheus({CPU: [GOOD]}, "/prom") as fake:
        usage = await fetch(fake, token_file=token)
        assert (usage.failed, usage.nodes["n1"]["cpu_cores_avg"]) == ({}, 1)
        expected = {
            "time": "660.000", "path": "/prom/api/v1/query", "Authorization": "Bearer abc",
        }  # fmt: skip
        assert fake.last_request.items() >= expected.items()
        assert fake.last_request["query"].endswith("[60s:15s]")
        # The token is rotated.
        token.write_text("def")
        await fetch(fake, token_file=token)
        assert fake.last_request["Authorization"] == "Bearer def"


async def test_empty_answers_are_no_usage() -> None:
    async with fake_prometheus({}) as fake:
        usage = await fetch(fake)
    assert (usage.nodes, usage.knows_pods) == ({}, True)


@pytest.mark.parametrize(
    ("answer", "requests"),
    [
        *((refusal(status), 3) for status in (500, 503, 429)),
        (Answer(hangs=True), 3),
        *((refusal(status), 1) for status in (400, 401, 422)),
        (Answer(b"", 302, headers={"Location": "/login"}), 1),
        (Answer(b'{"status":"succ'), 1),
        (Answer(b"<html>", 200), 1),
    ],
    ids=["500", "503", "429", "time-out", "400", "401", "422", "302", "truncated", "html"],
)
async def test_failed_query_omits_its_column(answer: Answer, requests: int) -> None:
    async with fake_prometheus({CPU: [GOOD], MEMORY: [answer]}) as fake:
        seconds = HANGS_SECONDS if answer.hangs else 30.0
        usage = await fetch(fake, query_timeout_seconds=seconds)
    assert (set(usage.failed), usage.nodes["n1"]["cpu_cores_avg"]) == ({"node.memory_bytes"}, 1)
    assert fake.requests[MEMORY] == requests


async def test_transient_errors_are_retried() -> None:
    async with fake_prometheus({CPU: [refusal(503), Answer(hangs=True), GOOD]}) as fake:
        usage = await fetch(fake, query_timeout_seconds=HANGS_SECONDS)
    assert (usage.failed, usage.nodes["n1"]["cpu_cores_avg"]) == ({}, 1)


async def test_a_query_that_waits_for_its_next_attempt_delays_no_other() -> None:
    never = asyncio.Event()

    class PausedClock(SystemClock):
        async def sleep(self, seconds: float) -> None:
            await never.wait()

    async with fake_prometheus({"": [refusal(503)]}) as fake:
        provider = ProviderSettings(url=fake.url)
        async with open_prometheus(Settings(provider=provider), PausedClock(), None) as prometheus:
            fetching = asyncio.create_task(prometheus.fetch(WINDOW))
            queries = len([*show_queries(provider)])
            await until(lambda: fake.requests.total() == queries)
            await cancel_tasks(fetching)


async def test_failure_of_all_queries_is_a_provider_error() -> None:
    async with fake_prometheus({"": [refusal(401, "who are you")]}) as fake:
        with pytest.raises(SampleSourceError, match="401 some: who are you") as caught:
            await fetch(fake)
    assert fake.url in caught.value.message
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        fake.url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(SampleSourceError, match=r": cannot connect to 127\.0\.0\.1:") as caught:
            await fetch(fake)
    assert "ssl:default" not in caught.value.message
    assert caught.value.may_pass
    assert "check provider.url" in str(caught.value.hint)


async def test_missing_files_are_errors(tmp_path: Path) -> None:
    async with fake_prometheus({}) as fake:
        for error, key, value in (
            (SampleSourceError, "token_file", tmp_path / "none"),
            (SampleSourceError, "token_file", Path("/dev/zero")),
            (SettingsError, "ca_file", tmp_path / "none"),
            (SettingsError, "queries", {"node.x": "up"}),
        ):
            with pytest.raises(error, match=rf"provider\.{key}"):
                await fetch(fake, **{key: value})


async def test_clock_difference_is_measured() -> None:
    behind = format_datetime(datetime.fromtimestamp(time.time() - 100, UTC), usegmt=True)
    async with fake_prometheus({"": [GOOD._replace(headers={"Date": behind})]}) as fake:
        await fetch(fake)
    ahead = REGISTRY.get_sample_value("springtide_provider_clock_ahead_seconds")
    assert 95 < (ahead or 0) < 110
    async with fake_prometheus({"": [GOOD._replace(headers={"Date": "soon"})]}) as fake:
        assert (await fetch(fake)).nodes


async def test_certificate_is_verified_with_the_ca_file(tmp_path: Path) -> None:
    authority = Authority(tmp_path, SystemClock())
    pair = authority.server("prometheus", ["127.0.0.1"], [])
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(pair.public, pair.private)
    async with fake_prometheus({CPU: [GOOD]}, tls=tls) as fake:
        with pytest.raises(SampleSourceError, match="certificate"):
            await fetch(fake)
        assert (await fetch(fake, ca_file=authority.certificate)).nodes
        assert (await fetch(fake, insecure_skip_verify=True)).nodes
