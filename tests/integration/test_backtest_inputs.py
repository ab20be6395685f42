"""Commands that read past usage, on a real broker: a trace that was played, its windows in the
live log, and their archive give the same results."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pytest
from click.testing import CliRunner

from pipeline.cli.main import cli
from pipeline.processors.backtest.trace import MEBIBYTE, Trace
from pipeline.settings import KafkaSettings
from pipeline.sources.trace_folders import read_dataset
from pipeline.times import format_time
from pipeline.topics.registry import WINDOWS
from tests.broker import flags_of, send
from tests.integration.test_archive import create_topic, run
from tests.processors.backtest.trace_exports import (
    long_placement_rows,
    long_series_rows,
    long_tables,
)
from tests.processors.backtest.trace_log import records_of

pytestmark = pytest.mark.broker

TRACES = Path(__file__).parents[1] / "data" / "traces"
START = 1_764_374_400  # midnight, 29 November 2025
NODES, STEPS = 3, 300
POLICY = """\
apiVersion: descheduler/v1alpha2
kind: DeschedulerConfiguration
profiles:
- name: balance
  plugins: {balance: {enabled: [{name: LowNodeLoad}]}}
  pluginConfig:
  - name: LowNodeLoad
    args: {highThresholds: {cpu: 10}, lowThresholds: {cpu: 2}}
---
model: {half_life_seconds: {cpu: 7200}}
"""


def part_of_a_trace() -> Trace:
    """A day of the first nodes of the Google trace, and a MiB of memory for each millicore: the
    trace has no memory."""
    (trace,) = (each for each in read_dataset(TRACES, "google_jobs") if each.scenario == "std")
    kept = (trace.node_index < NODES) & (trace.start < STEPS)
    per_stay = ("node_index", "start", "end", "requests", "limits", "series_index", "first_sample")
    columns = {name: getattr(trace, name)[kept] for name in per_stay}
    columns["end"] = np.minimum(columns["end"], STEPS)
    for name in ("requests", "limits"):
        columns[name] = columns[name][:, [0, 0]] * [1.0, MEBIBYTE]
    return replace(
        trace, **columns, dataset="played", start_seconds=START, steps=STEPS,
        nodes=trace.nodes[:NODES], allocatable=trace.allocatable[:NODES],
        pods=tuple(pod for pod, keep in zip(trace.pods, kept, strict=True) if keep),
        usage=trace.usage[:, [0, 0]] * [1.0, MEBIBYTE],
        workloads=("Deployment/trace/cart",) * int(kept.sum()),
    )  # fmt: skip


def write(trace: Trace, folder: Path) -> Path:
    folder.mkdir()
    series, placement = long_tables(long_series_rows(trace), long_placement_rows(trace))
    pyarrow.csv.write_csv(series, folder / "played.series.csv")
    pyarrow.csv.write_csv(placement, folder / "played.placement.csv")
    return folder


async def output(*arguments: str | Path) -> str:
    """What a command prints, which runs beside the loop of the test."""
    result = await asyncio.to_thread(CliRunner().invoke, cli, [*map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.stdout


def flat(value: Any, place: str = "") -> dict[str, Any]:
    """The leaves of a document by their place; `live` is the name of the data set of the log."""
    match value:
        case dict():
            parts = [flat(each, f"{place}.{key}") for key, each in value.items()]
        case list():
            parts = [flat(each, f"{place}[{number}]") for number, each in enumerate(value)]
        case str():
            return {place: value.replace("live", "played")}
        case _:
            return {place: value}
    return {key: each for part in parts for key, each in part.items()}


async def test_a_trace_its_live_log_and_its_archive_give_the_same_results(
    kafka: KafkaSettings, tmp_path: Path
) -> None:
    trace = part_of_a_trace()
    await create_topic(kafka)
    await send(kafka, WINDOWS, *records_of(trace))
    archive, folder = tmp_path / "played", write(trace, tmp_path / "traces")
    archived = run(kafka, archive)
    assert archived.returncode == 0, archived.stderr
    live = ("--live", *flags_of(kafka))

    async def backtest(*source: str | Path) -> dict[str, Any]:
        model = ("--cold-start-seconds", "7200", "--predictors", "[percentile, nsigma-v1]")
        return flat(json.loads(await output("backtest", *source, *model, "-o", "json")))

    async def gaps(*source: str | Path, by: str = "workload") -> dict[str, Any]:
        return flat(json.loads(await output("gaps", *source, "--by", by, "-o", "json")))

    of_archive = await backtest(archive)
    assert await backtest(*live) == of_archive
    assert await backtest(folder) == pytest.approx(of_archive, rel=1e-6)
    assert {"played-std-cpu-3.125h", "played-std-mem-3.125h"} <= {*of_archive.values()}
    gaps_of_archive = await gaps(archive)
    assert await gaps(*live) == gaps_of_archive
    assert await gaps(folder) == pytest.approx(gaps_of_archive, rel=1e-9)
    assert "Deployment/trace/cart" in gaps_of_archive.values()

    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)

    async def what_if(*source: str | Path) -> dict[str, Any]:
        shown = await output("what-if", *source, "--policy", policy, "-o", "json")
        return flat(json.loads(shown))

    of_archive = await what_if(archive)
    assert await what_if(*live) == of_archive
    assert of_archive[".items[0].total.new.node_cpu_hot_hours"] > 0

    async def simulated(*source: str | Path) -> Any:
        return json.loads(
            await output("scheduler", "simulate", "--pods", "60", *source, "-o", "json")
        )

    of_archive = await simulated("--trace", archive)
    assert await simulated(*live) == of_archive
    assert await simulated("--trace", folder) == [
        pytest.approx(outcome, rel=1e-6) for outcome in of_archive
    ]
    assert of_archive != await simulated()

    half = format_time(START + STEPS * trace.step_seconds // 2)
    for span in (("--until", half), ("--since", half)):
        part = await gaps(archive, *span, by="node")
        assert part[".items[0].steps"] == STEPS // 2
        assert await gaps(*live, *span, by="node") == part
        assert await simulated(*live, *span) == await simulated("--trace", archive, *span)
