"""What a provider says of itself."""

import aiohttp
import pytest

from pipeline.clock import ManualClock
from pipeline.errors import SettingsError
from pipeline.processors.provided.fetched_usage import TimeWindow
from pipeline.settings import ProviderSettings
from pipeline.sources.providers.status_page import Status, serve


def window_at(clock: ManualClock) -> TimeWindow:
    end_ms = int(clock.now() * 1000)
    return TimeWindow(end_ms - 60_000, end_ms)


async def test_ready_is_who_stands_by_and_who_publishes() -> None:
    clock = ManualClock()
    settings = ProviderSettings(host="127.0.0.1", port=0)
    status = Status(settings, clock)
    async with serve(settings, status) as port, aiohttp.ClientSession() as session:

        async def ask(path: str) -> tuple[int, str]:
            async with session.get(f"http://127.0.0.1:{port}{path}") as answer:
                return answer.status, await answer.text()

        assert (await ask("/readyz"))[0] == 200
        assert "standing by" in (await ask("/readyz"))[1]
        status.leads = True
        assert (await ask("/readyz"))[0] == 503
        status.published(window_at(clock), 3, {})
        assert (await ask("/readyz"))[0] == 200
        clock.jump(186)
        assert (await ask("/readyz"))[0] == 503
        assert (await ask("/healthz"))[0] == 200
        status_code, text = await ask("/metrics")
        assert status_code == 200
        assert "springtide_provider_windows_total" in text


def test_a_window_without_nodes_is_none_unless_exporters_have_them_all() -> None:
    clock = ManualClock()
    status = Status(ProviderSettings(), clock)
    status.leads = True
    status.published(window_at(clock), 0, {"pods unknown": 2})
    assert not status.is_ready
    status.published(window_at(clock), 0, {"served by an exporter": 2})
    assert status.is_ready


async def test_a_port_that_is_taken_is_a_settings_error() -> None:
    settings = ProviderSettings(host="127.0.0.1", port=0)
    status = Status(settings, ManualClock())
    async with serve(settings, status) as port:
        taken = ProviderSettings(host="127.0.0.1", port=port)
        with pytest.raises(SettingsError, match="cannot listen"):
            async with serve(taken, status):
                pass
    async with serve(ProviderSettings(port=None), status) as none:
        assert none is None
