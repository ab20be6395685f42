"""The source of docs/how-to/add-a-sample-source.md is listed, validates options and fetches."""

import json
from pathlib import Path

from tests.docs.guides import blocks, install, run

CHECK = """
import asyncio, sys
from click.testing import CliRunner
from pipeline.cli.main import cli
from pipeline.clock import SystemClock
from pipeline.errors import SampleSourceError
from pipeline.processors.imported_usage.fetched_usage import TimeWindow
from pipeline.settings import ProviderSettings, Settings
from pipeline.sources.provider.registry import SOURCES

settings = Settings(
    provider=ProviderSettings(kind="usage-files", options={"directory": sys.stdin.read()})
)


async def main():
    async with SOURCES.get("usage-files").open(settings, SystemClock(), None) as session:
        print((await session.fetch(TimeWindow(0, 60_000))).nodes)
        try:
            await session.fetch(TimeWindow(60_000, 120_000))
        except SampleSourceError as error:
            print(error.may_pass)


asyncio.run(main())
for arguments in (["--help-all"], ["--kind", "usage-files", "--options", "{folder: /tmp}"]):
    print(" ".join(CliRunner().invoke(cli, ["provider", *arguments]).output.split()))
"""


def test_the_guides_source_is_listed_and_fetches_a_window(tmp_path: Path) -> None:
    (module,) = blocks("add-a-sample-source.md", "python")
    (toml,) = blocks("add-a-sample-source.md", "toml")
    install(tmp_path, "usage-files", "usage_files", module, toml)
    usage = {"node-1": {"cpu": 1.5, "memory": 1e9}}
    (tmp_path / "60000.json").write_text(json.dumps(usage))
    nodes, may_pass, help, refused = run(CHECK, tmp_path, str(tmp_path)).splitlines()
    assert nodes == str({"node-1": {"cpu_cores_avg": 1.5, "memory_bytes_avg": 1e9}})
    assert may_pass == "True"
    assert "one per window; directory: Directory of the files." in help
    assert refused.startswith("error: provider.options: Object contains unknown field `folder`")
