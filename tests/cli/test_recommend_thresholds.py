"""`springtide recommend-thresholds`: proposals of a real worker's history, arguments to paste."""

import asyncio
import json
import math
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from aiokafka import AIOKafkaProducer
from click.testing import CliRunner

from pipeline.cli.main import cli
from pipeline.cli.recommend_thresholds import (
    PoolAdvice,
    ThresholdAdvice,
    text_lines,
    threshold_advice,
    yaml_lines,
)
from pipeline.kafka.client import client_options
from pipeline.kafka.partition import partition_of
from pipeline.kafka.topic_admin import apply_topics
from pipeline.processors.descheduling.low_node_load import read_low_node_load
from pipeline.processors.loadaware.loadaware_args import (
    Aggregated,
    LoadAwareArgs,
    problems,
    with_defaults,
)
from pipeline.settings import KafkaSettings
from pipeline.table.node_histories import PoolHistory
from pipeline.topics.hot_node_policy import DEFAULT_POOL, HotNodePolicy
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.registry import NODE_STATE, NODES, PREDICTIONS, SAMPLES
from pipeline.topics.resource_amounts import Resources
from pipeline.topics.samples import SampleBatch, SampleHeader, encode_samples
from tests.broker import latest
from tests.planner.test_planner import Cluster
from tests.planner.test_pool_means_with_kafka import worker
from tests.processes import environment, springtide, until
from tests.processors.hot_nodes.test_threshold_advice import histories

GOLD = HotNodePolicy(pool="gold", high_percent={"cpu": 65.0}, low_percent={"cpu": 30.0})
ARGS = with_defaults(LoadAwareArgs())
WINDOW_MS = 600_000


def pool(name: str, mean: float, stdev: float, policy: HotNodePolicy | None) -> PoolHistory:
    return PoolHistory(name, policy, histories([mean] * 6, [stdev] * 6))


def advice(*pools: PoolHistory, args: LoadAwareArgs = ARGS) -> ThresholdAdvice:
    return threshold_advice(pools, args)


def pasted(each: ThresholdAdvice) -> dict[str, dict[str, Any]]:
    """The arguments by plugin, as a reader of the YAML gets them."""
    documents = yaml.safe_load("\n".join(yaml_lines(each))) or []
    return {entry["name"]: entry["args"] for entry in documents}


# -- arguments


def test_arguments_are_complete_valid_and_in_the_form_of_each_plugin() -> None:
    prod = HotNodePolicy(
        high_percent={"cpu": 65.0, "memory": 97.5}, low_percent={"cpu": 30.0, "memory": 60.0},
        prod_high_percent={"cpu": 60.0},
    )  # fmt: skip
    nodes = histories([50.0] * 6, [7.0] * 6)
    nodes.stdev[:, 1] = 40.0  # memory has no proposal, and keeps its threshold
    idle = msgspec.structs.replace(GOLD, pool="idle")
    each = advice(
        PoolHistory(DEFAULT_POOL, prod, nodes), pool("gold", 50.0, 4.0, GOLD),
        pool("idle", 10.0, 4.0, idle),
    )  # fmt: skip
    assert pasted(each) == {"LowNodeLoad": each.args["LowNodeLoad"]}
    low_node_load = each.args["LowNodeLoad"]
    assert low_node_load == {
        "highThresholds": {"cpu": 71, "memory": 97.5},
        "lowThresholds": {"cpu": 43, "memory": 60},
        "prodHighThresholds": {"cpu": 71}, "prodLowThresholds": {"cpu": 43},
        "nodePools": [
            {
                "name": "gold", "highThresholds": {"cpu": 62}, "lowThresholds": {"cpu": 46},
                "prodHighThresholds": {}, "prodLowThresholds": {},
            },
            # It has no proposal, and must not take the new thresholds of the top level.
            {
                "name": "idle", "highThresholds": {"cpu": 65}, "lowThresholds": {"cpu": 30},
                "prodHighThresholds": {}, "prodLowThresholds": {},
            },
        ],
    }  # fmt: skip
    for entry in low_node_load["nodePools"]:
        entry["nodeSelector"] = {"matchLabels": {"pool": entry["name"]}}
    read, found = read_low_node_load(low_node_load, "args")
    assert [problem for problem in found if not problem.in_force] == []
    assert [pool.high_percent.get("cpu") for pool in read.pools] == [62, 65, 71]
    assert [pool.prod_high_percent for pool in read.pools] == [{}, {}, {"cpu": 71}]
    # All nodes together vary more: mean 36.7%, deviation 19.6 points.
    assert each.args["LoadAwareScheduling"] == {}
    assert each.load_aware[0].three_sigma_percent == pytest.approx(95.3, abs=0.5)
    alone = advice(pool("gold", 50.0, 4.0, GOLD))
    assert alone.args["LoadAwareScheduling"] == {"usageThresholds": {"cpu": 62, "memory": 62}}
    assert pasted(alone) == alone.args


def test_arguments_of_load_aware_replace_the_kind_of_threshold_that_is_in_force() -> None:
    aggregated = Aggregated(
        usage_thresholds={"cpu": 70}, usage_aggregation_type="p95", usage_aggregated_duration="5m"
    )
    args = with_defaults(
        LoadAwareArgs(aggregated=aggregated, prod_usage_thresholds={"cpu": 60, "memory": 0})
    )
    each = advice(pool("gold", 50.0, 4.0, GOLD), args=args)
    assert each.args["LoadAwareScheduling"] == {
        "aggregated": {"usageThresholds": {"cpu": 62}}, "prodUsageThresholds": {"cpu": 62},
    }  # fmt: skip
    proposed = msgspec.convert(each.args["LoadAwareScheduling"], LoadAwareArgs)
    assert [*problems(with_defaults(proposed))] == []


def test_distances_stay_distances() -> None:
    policy = msgspec.structs.replace(GOLD, use_deviation_thresholds=True)
    each = advice(pool("gold", 40.0, 4.0, policy))
    assert pasted(each)["LowNodeLoad"] == {
        "nodePools": [
            {
                "name": "gold", "useDeviationThresholds": True,
                "highThresholds": {"cpu": 12}, "lowThresholds": {"cpu": 4},
            }
        ]
    }  # fmt: skip


def test_without_a_proposal_there_is_nothing_to_paste_and_a_reason() -> None:
    each = advice(pool("gold", 10.0, 4.0, GOLD), pool("silver", 90.0, 9.0, None))
    assert each.args == {"LoadAwareScheduling": {}, "LowNodeLoad": {}}
    assert pasted(each) == {}
    text = "\n".join(text_lines(each))
    assert "\ngold node_cpu: no proposal: mean + 3 sigma is 22.0%" in text
    assert "\nsilver node_memory: no proposal: mean + 3 sigma is 117.0%" in text


def test_table_shows_low_and_high_thresholds_and_lines_stay_short() -> None:
    each = advice(pool("gold", 50.0, 6.5, GOLD))
    header, *lines = text_lines(each)
    rows = [dict(zip(header.split(), line.split(), strict=True)) for line in lines[:3]]
    assert [(row["PRESENT"], row["ABOVE"], row["TIME"], row["PROPOSED"]) for row in rows] == [
        ("65%", "0", "1.05%", "70%"), ("95%", "0", "0.00%", "70%"),
        ("30-65%", "0", "1.05%", "44-70%"),
    ]  # fmt: skip
    assert max(map(len, lines)) <= 100


def test_unknown_numbers_are_shown_as_such() -> None:
    none = PoolHistory("gold", None, histories([math.nan] * 2, [math.nan] * 2))
    header, _, _, cpu, *_ = text_lines(advice(none))
    row = dict(zip(header.split(), cpu.split(), strict=True))
    assert (row.pop("FOR"), row.pop("RULE"), row.pop("NODES")) == ("gold", "node_cpu", "2")
    assert row.pop("KNOWN") == "0"
    assert {*row.values()} == {"-"}


# -- with a real broker


async def send_history(
    kafka: KafkaSettings, producer: AIOKafkaProducer, nodes: Sequence[str], cpu: Sequence[float]
) -> None:
    """Two days of windows, alternately with these percentages of ten cores, up to now."""
    last_ms = round(1000 * time.time()) // WINDOW_MS * WINDOW_MS
    for number in range(2 * 144):
        end_ms = last_ms - (2 * 144 - 1 - number) * WINDOW_MS
        for node in nodes:
            header = SampleHeader(
                node=node, machine_id=node, boot_id="b", epoch=1, sequence=number,
                window_start_ms=end_ms - WINDOW_MS, window_end_ms=end_ms,
            )  # fmt: skip
            row = {
                "kind": "node", "id": "", "coverage": 1.0,
                "cpu_cores_avg": cpu[number % len(cpu)] / 10.0,
            }  # fmt: skip
            await producer.send(
                SAMPLES.full_name(kafka.topic_prefix),
                encode_samples(SampleBatch(header, [row])),
                node.encode(),
                partition=partition_of(node, kafka.partitions),
            )
    await producer.flush()


def run(kafka: KafkaSettings, *arguments: str) -> subprocess.CompletedProcess[str]:
    address = ("--bootstrap-servers", kafka.bootstrap_servers, "--topic-prefix", kafka.topic_prefix)
    return subprocess.run(
        springtide("recommend-thresholds", *address, *arguments),
        env=environment(), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def read_pool(document: dict[str, Any], name: str) -> PoolAdvice:
    pools = msgspec.convert(document, ThresholdAdvice).pools
    return next(each for each in pools if each.pool == name)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_known_usage_gives_the_known_proposal_through_a_real_broker(
    kafka: KafkaSettings, tmp_path: Path
) -> None:
    await apply_topics(kafka)
    silent = await asyncio.to_thread(run, kafka)
    assert (silent.returncode, silent.stdout) == (4, "")
    assert silent.stderr.startswith("error: there is no node")
    steady = [f"gold-{number}" for number in range(6)]
    async with AIOKafkaProducer(**client_options(kafka)) as producer:
        cluster = Cluster(kafka, producer)
        room = Resources(cpu_millicores=10_000)
        for name in (*steady, "gone"):
            await cluster.write(
                NODES, name, NodeRecord(node=name, hot_nodes=GOLD, allocatable=room)
            )
        await cluster.send(PREDICTIONS, "gold-0", b"\x00 no JSON")
        # Mean 50%, deviation 9.5 points: 3 sigma is at 78.5%.
        await send_history(kafka, producer, steady, [40.5, 59.5])

        async def has_learned() -> bool:
            states = (await latest(kafka, NODE_STATE)).values()
            ends = [json.loads(state)["counters"]["applied"] for state in states if state]
            return len(ends) == 6 and min(ends) == 2 * 144

        async with worker(kafka, tmp_path):
            await until(has_learned, 120)
            await until(lambda: run(kafka, "-o", "yaml").returncode == 0, 60)
    as_json = await asyncio.to_thread(run, kafka, "-o", "json")
    assert (as_json.returncode, as_json.stderr) == (0, "")
    (gold,) = read_pool(json.loads(as_json.stdout), "gold").items
    assert (gold.rule, gold.nodes, gold.known_nodes) == ("node_cpu", 7, 6)
    assert gold.excluded_nodes == {"stale": 1, "short": 0, "unknown": 0}
    assert gold.mean_percent == pytest.approx(50.0, abs=0.2)
    assert gold.sigma_percent == pytest.approx(9.5, abs=0.05)
    assert (gold.over_time_share, gold.high_percent, gold.nodes_above) == (1.0, 65.0, 0)
    assert (gold.proposed_low_percent, gold.proposed_high_percent) == (41, 79)
    assert gold.time_above_percent == pytest.approx(5.7, abs=0.3)
    text = await asyncio.to_thread(run, kafka)
    assert "gold node_cpu: higher: usual usage is above the present threshold" in text.stdout
    assert "(not counted: 1 stale)" in text.stdout
    assert "history: samples that the models learn, model.training_statistic of a window, p90" in (
        text.stdout
    )
    documents = yaml.safe_load((await asyncio.to_thread(run, kafka, "-o", "yaml")).stdout)
    assert {entry["name"]: entry["args"] for entry in documents} == {
        "LoadAwareScheduling": {"usageThresholds": {"cpu": 79, "memory": 95}},
        "LowNodeLoad": {
            "nodePools": [
                {"name": "gold", "highThresholds": {"cpu": 79}, "lowThresholds": {"cpu": 41}}
            ]
        },
    }
    # The archive has the average usage, whatever statistic the models learn.
    archive = tmp_path / "archive"
    address = ("--bootstrap-servers", kafka.bootstrap_servers, "--topic-prefix", kafka.topic_prefix)
    written = await asyncio.to_thread(
        subprocess.run,
        springtide("archive", *address, "--directory", str(archive), "--until-end",
                   "--partitions", str(kafka.partitions)),
        env=environment(), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert written.returncode == 0, written.stderr
    archived = await asyncio.to_thread(run, kafka, "-o", "json", "--archive", str(archive))
    (known,) = read_pool(json.loads(archived.stdout), "gold").items
    assert (known.mean_percent, known.sigma_percent) == (50.0, 9.5)
    assert (known.proposed_low_percent, known.proposed_high_percent) == (40, 79)
    # So does the log.
    live = await asyncio.to_thread(
        run, kafka, "-o", "json", "--live", "--partitions", str(kafka.partitions)
    )
    document = json.loads(live.stdout)
    assert document["history"] == "live"
    assert document == {**json.loads(archived.stdout), "history": "live"}


def test_an_archive_and_the_live_log_together_are_refused(tmp_path: Path) -> None:
    command = ["recommend-thresholds", "--live", "--archive", str(tmp_path)]
    result = CliRunner().invoke(cli, command)
    assert (result.exit_code, "give either --archive or --live" in result.stderr) == (2, True)


def test_a_directory_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["recommend-thresholds", "--archive", str(tmp_path / "none")])
    assert (result.exit_code, "cannot read" in result.stderr) == (2, True)
    result = CliRunner().invoke(cli, ["recommend-thresholds", "--archive", str(tmp_path)])
    assert (result.exit_code, "has no file of an archive" in result.stderr) == (2, True)
