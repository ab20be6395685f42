"""What the console shows of plans and accuracy, through a real broker."""

import asyncio
import os
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pyarrow.parquet
import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from pipeline.cli.main import cli
from pipeline.clock import SystemClock
from pipeline.errors import TopicDriftError
from pipeline.extender.console_reading import read_judged, read_results, relief_feed
from pipeline.kafka.client import client_options
from pipeline.kafka.topic_admin import apply_topics, open_admin
from pipeline.settings import KafkaSettings
from pipeline.table import Feed, Table
from pipeline.tasks import cancel_tasks
from pipeline.times import format_time
from pipeline.topics.codec import encode_json
from pipeline.topics.pool_outcomes import PoolOutcomesRecord
from pipeline.topics.registry import (
    ACCURACY,
    ACTIONS,
    ALERTS,
    EVICTION_PLANS,
    FLEET,
    NODE_STATE,
    WHAT_IF,
    Topic,
)
from tests.broker import flags_of, send
from tests.extender.conftest import running
from tests.extender.console_samples import action, judged, plan
from tests.processes import environment, springtide, until
from tests.processors.backtest.trace_files import (
    PLACEMENT,
    SERIES,
    series_row,
    stay_row,
    table_of,
)
from tests.table.records import node_state


async def write(kafka: KafkaSettings) -> None:
    now = time.time()
    await send(kafka, NODE_STATE, ("node-00099", encode_json(node_state("node-00099"))))
    await send(
        kafka, ACTIONS, ("node-00099", encode_json(action("done"))),
        ("node-00099", encode_json(action("refused", "u1", error="too late"))),
    )  # fmt: skip
    await send(kafka, EVICTION_PLANS, ("node-00099", encode_json(plan())))
    await send(
        kafka, ACCURACY, ("node-1", encode_json(judged("node-1"))), ("node-2", b"garbage"),
        ("node-2", encode_json(judged("node-2"))),
    )  # fmt: skip
    outcomes = PoolOutcomesRecord(
        pool="gpu", at=format_time(now), nodes=2, horizon_seconds=86_400, risk=0.02
    )
    await send(
        replace(kafka, partitions=1),
        FLEET,
        ("outcomes/gpu", encode_json(outcomes)),
        ("gpu/node_cpu", b'{"pool": "gpu"}'),
    )


async def test_plans_and_accuracy_are_read_from_their_topics(kafka: KafkaSettings) -> None:
    client, clock = client_options(kafka), SystemClock()
    await apply_topics(kafka)
    await write(kafka)
    plans, relief = relief_feed(client, kafka.topic_prefix, clock)
    feed = Feed(Table(), client=client, prefix=kafka.topic_prefix, clock=clock)
    async with (
        running(feed, plans=plans, relief=relief, read_judged=partial(read_judged, kafka)) as port,
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session,
    ):

        async def document(name: str) -> Any:
            async with session.get(f"/v1/{name}") as answer:
                return await answer.json()

        async def outcomes() -> list[Any]:
            found = (await document("relief")).get("plans") or []
            return [[pod["outcome"] for pod in each["pods"]] for each in found]

        async def is_known() -> bool:
            return await outcomes() == [["done", "refused", None]]

        await until(is_known)
        accuracy = await document("accuracy")
        assert accuracy["pool"] == ["gpu"] * 4
        assert accuracy["nodes"] == [2, 0, 2, 0]
        assert accuracy["declared_risk"] == [0.02, 0.02, None, None]
        # Later records are seen without a restart.
        await send(kafka, ACTIONS, ("node-00099", encode_json(action("done", "u2"))))

        async def is_followed() -> bool:
            return await outcomes() == [["done", "refused", "done"]]

        await until(is_followed)


@pytest.mark.parametrize("lacking", [ALERTS, EVICTION_PLANS, ACTIONS])
async def test_one_missing_topic_does_not_stop_the_others(
    kafka: KafkaSettings, monkeypatch: pytest.MonkeyPatch, lacking: Topic
) -> None:
    monkeypatch.setattr("pipeline.table.limits.MISSING_TOPIC_SECONDS", 1.0)
    name, client = lacking.full_name(kafka.topic_prefix), client_options(kafka)
    await apply_topics(kafka)
    async with open_admin(kafka, "deleting a topic") as admin:
        await admin.delete_topics([name])
    if lacking is not ACTIONS:
        await send(kafka, ACTIONS, ("node-00099", encode_json(action("done"))))
    if lacking is not EVICTION_PLANS:
        await send(kafka, EVICTION_PLANS, ("node-00099", encode_json(plan())))
    plans, reading = relief_feed(client, kafka.topic_prefix, SystemClock())
    feeding = asyncio.create_task(plans.run())
    try:
        await until(lambda: plans.state.caught_up, 60)
        assert (plans.state.connected, plans.state.missing) == (True, (name,))
        assert len(reading.actions.of("node-00099")) == (lacking is not ACTIONS)
        assert len(reading.log.plans(time.time())) == (lacking is not EVICTION_PLANS)
        await apply_topics(kafka)
        await until(lambda: plans.state.missing == () and plans.state.connected, 60)
    finally:
        await cancel_tasks(feeding)


async def test_without_its_topic_accuracy_is_an_error(kafka: KafkaSettings) -> None:
    with pytest.raises(TopicDriftError, match=r"waiting for topic .*accuracy"):
        await read_judged(kafka, 0.0, time.time())


POLICY = "model: {half_life_seconds: {cpu: %d}}\n"


def replay(folder: Path) -> list[str]:
    """A command that compares two policies on a trace; all its files are in the folder."""
    metadata = {"step_s": "3600", "t0_unix": "1700000100", "steps": "48"}
    usage = np.random.default_rng(8).integers(100, 500, 48).tolist()
    tables = {
        "series": table_of([series_row("s", usage)], SERIES, metadata),
        "placement": table_of([stay_row("p", "s", 0, 48)], PLACEMENT, metadata),
    }
    for name, table in tables.items():
        pyarrow.parquet.write_table(table, folder / f"april.{name}.parquet")
    for number, name in enumerate(("old", "new"), 1):
        (folder / f"{name}.yaml").write_text(POLICY % (7200 * number))
    return [
        "what-if", str(folder), "--policy", str(folder / "new.yaml"), "--against",
        str(folder / "old.yaml"), "--burn-in", "6h", "--horizon-seconds", "21600",
    ]  # fmt: skip


@pytest.mark.parametrize("output", ["table", "json"])
async def test_a_result_is_published_although_nobody_reads_what_is_printed(
    kafka: KafkaSettings, tmp_path: Path, output: str
) -> None:
    await apply_topics(kafka)
    reading, writing = os.pipe()
    os.close(reading)
    command = springtide(*replay(tmp_path), "--publish", "p", "-o", output, *flags_of(kafka))
    ran = await asyncio.create_subprocess_exec(
        *command, stdout=writing, stderr=subprocess.PIPE, env=environment()
    )
    os.close(writing)
    _, said = await ran.communicate()
    assert (ran.returncode, b"published as p: see" in said) == (1, True), said
    assert [of.name for of in (await read_results(kafka)).document().items] == ["p"]


async def test_a_published_result_is_seen_until_it_is_withdrawn(
    kafka: KafkaSettings, tmp_path: Path
) -> None:
    async def what_if(*arguments: str) -> Result:
        return await asyncio.to_thread(CliRunner().invoke, cli, [*arguments, *flags_of(kafka)])

    command = replay(tmp_path)
    # Before a replay that may take long.
    missing = await what_if(*command, "--publish", "shorter")
    assert (missing.exit_code, missing.stdout) == (3, "")
    assert "waiting for topic" in missing.stderr
    await apply_topics(kafka)
    refused = await what_if(*command, "--publish", "a/b")
    assert (refused.exit_code, "give 1 to 63 letters" in refused.stderr) == (2, True)
    ran = await what_if(*command, "--publish", "shorter")
    assert (ran.exit_code, "published as shorter" in ran.stderr) == (0, True), ran.output
    await send(kafka, WHAT_IF, ("bad", b"garbage"))
    document = (await read_results(kafka)).document()
    (item,) = document.items
    assert (item.name, item.policy, item.against) == ("shorter", "new.yaml", "old.yaml")
    assert [*item.difference][2:] == [
        "@@ -1 +1 @@", "-" + (POLICY % 7200).strip(), "+" + (POLICY % 14400).strip(),
    ]  # fmt: skip
    measures = {each.key: each for each in item.traces[0].measures}
    savings = measures["cpu_savings"]
    assert savings.old is not None
    assert f"{100 * savings.old:.1f}%" in ran.stdout
    assert len(savings.old_by_node) == 21
    assert [*savings.old_by_node] == sorted(savings.old_by_node)
    assert [of.name for of in document.refused] == ["bad"]
    assert abs(item.published_at_seconds - time.time()) < 600
    both = await what_if("what-if", "--withdraw", "shorter", "--policy", "new.yaml")
    assert (both.exit_code, "replays nothing" in both.stderr) == (2, True)
    gone = await what_if("what-if", "--withdraw", "shorter")
    assert (gone.exit_code, gone.stderr.strip()) == (0, "withdrawn: shorter")
    assert (await read_results(kafka)).document().items == []
