"""The status page of a provider."""

import aiohttp
import pytest

from pipeline.clock import ManualClock
from pipeline.errors import SettingsError
from pipeline.processors.imported_usage.fetched_usage import TimeWindow
from pipeline.settings import ProviderSettings
from pipeline.sources.provider.status_page import Status, serve


def window_at(clock: ManualClock) -> TimeWindow:
    end_ms = int(clock.now() * 1000)
    return TimeWindow(end_ms - 60_000, end_ms)


async def test_provider_is_ready_if_it_stands_by_or_publishes() -> None:
    clock = ManualClock()
    settings = ProviderSettings(host="127.0.0.1", port=0)
    status = Status(settings, clock)
    async with serve(settings, status) as port, aiohttp.ClientSession() as session:

        async def get(path: str) -> tuple[int, str]:
            async with session.get(f"http://127.0.0.1:{port}{path}") as response:
                return response.status, await response.text()

        status_code, text = await get("/readyz")
        assert (status_code, "standing by" in text) == (200, True)
        status.leads = True
        assert (await get("/readyz"))[0] == 503
        status.published(window_at(clock), 3, {})
        assert (await get("/readyz"))[0] == 200
        clock.jump(186)
        assert [(await get(path))[0] for path in ("/readyz", "/healthz")] == [503, 200]
        status_code, text = await get("/metrics")
        assert (status_code, "springtide_provider_windows_total" in text) == (200, True)


def test_window_without_nodes_counts_only_if_exporters_serve_all() -> None:
    clock = ManualClock()
    status = Status(ProviderSettings(), clock)
    status.leads = True
    status.published(window_at(clock), 0, {"pods unknown": 2})
    assert not status.is_ready
    status.published(window_at(clock), 0, {"served by an exporter": 2})
    assert status.is_ready


async def test_port_in_use_is_a_settings_error() -> None:
    settings = ProviderSettings(host="127.0.0.1", port=0)
    status = Status(settings, ManualClock())
    async with serve(settings, status) as port:
        taken = ProviderSettings(host="127.0.0.1", port=port)
        with pytest.raises(SettingsError, match="cannot listen"):
            async with serve(taken, status):
                pass
    async with serve(ProviderSettings(port=None), status) as no_port:
        assert no_port is None
