"""The source of docs/how-to/add-a-sample-source.md is found by its name and fetches a window."""

import json
from pathlib import Path

from tests.docs.guides import blocks, install, run

CHECK = """
import asyncio, os
from pipeline.clock import SystemClock
from pipeline.errors import SampleSourceError
from pipeline.processors.imported_usage.fetched_usage import TimeWindow
from pipeline.settings import ProviderSettings, Settings
from pipeline.sources.provider.registry import SOURCES

settings = Settings(provider=ProviderSettings(kind="usage-files"))
source = SOURCES.get(settings.provider.kind)


async def main():
    async with source.open(settings, SystemClock(), None) as session:
        print((await session.fetch(TimeWindow(0, 60_000))).nodes)
        try:
            await session.fetch(TimeWindow(60_000, 120_000))
        except SampleSourceError as error:
            print(error.may_pass)


asyncio.run(main())
"""


def test_the_guides_source_fetches_a_window(tmp_path: Path) -> None:
    (module,) = blocks("add-a-sample-source.md", "python")
    (toml,) = blocks("add-a-sample-source.md", "toml")
    install(tmp_path, "usage-files", "usage_files", module, toml)
    usage = {"node-1": {"cpu": 1.5, "memory": 1e9}}
    (tmp_path / "60000.json").write_text(json.dumps(usage))
    shown = run(f"import os; os.environ['USAGE_FILES'] = {str(tmp_path)!r}" + CHECK, tmp_path)
    expected = {"node-1": {"cpu_cores_avg": 1.5, "memory_bytes_avg": 1e9}}
    assert shown.splitlines() == [str(expected), "True"]
