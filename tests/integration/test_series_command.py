"""The command `series` with a real broker."""

import json
import time

import pytest

from pipeline.kafka.topic_admin import apply_topics
from pipeline.local.local_kafka import LocalKafka
from pipeline.settings import KafkaSettings
from pipeline.times import format_time
from pipeline.topics.codec import encode_json
from pipeline.topics.registry import NODE_STATE, WINDOWS
from pipeline.topics.windows import departure, encode_window
from tests.broker import own_topics, send
from tests.integration.test_model_commands import typed
from tests.processors.usage_windows import LENGTH_MS, usage_window
from tests.table.records import node_state


@pytest.fixture
def kafka(broker: LocalKafka) -> KafkaSettings:
    return own_topics(broker, 1)


async def test_series_shows_usage_of_a_node_and_its_pods(kafka: KafkaSettings) -> None:
    shown = await typed(kafka, "series", "node-1")
    assert (shown.exit_code, "springtide topics apply" in shown.stderr) == (3, True)
    await apply_topics(kafka)
    await send(kafka, NODE_STATE, ("node-1", encode_json(node_state("node-1"))))
    for node, message in (("node-1", "none ended from"), ("node-2", "did you mean node-1?")):
        shown = await typed(kafka, "series", node)
        assert (shown.exit_code, message in shown.stderr) == (4, True), shown.output

    now_ms = int(time.time()) * 1000
    ends = [now_ms - back * LENGTH_MS for back in (40, 4, 3, 1, 0)]
    windows = [
        usage_window(end, float(at), sequence=40 + (end - now_ms) // LENGTH_MS,
                     pods={"u1": ("web-0", 0.5 + at)})
        for at, end in enumerate(ends)
    ]  # fmt: skip
    other = usage_window(ends[2], 7.0, node="node-3")
    await send(
        kafka, WINDOWS, *(("node-1", encode_window(one)) for one in windows),
        ("node-3", encode_window(other)), ("node-1", encode_window(windows[1])),
        ("node-1", b"no window"), ("node-1", None),
        ("node-1", encode_window(departure("node-1", now_ms))),
    )  # fmt: skip

    shown = await typed(kafka, "series", "node-1")
    assert shown.exit_code == 0, shown.output
    assert "skipped 2 records of the node" in shown.stderr
    head, *rows, _, cpu, memory, missing = shown.stdout.splitlines()
    assert head.split() == ["END", "CPU", "P95", "MAX", "MEMORY", "P95", "MAX", "SEEN"]
    assert [row.split()[:4] for row in rows] == [
        [format_time(end / 1000), f"{at}000m", f"{2 * at}000m", "-"]
        for at, end in enumerate(ends) if at
    ]  # fmt: skip
    assert rows[0].split()[4:] == ["1.0Gi", "-", "2.0Gi", "90%"]
    assert (
        cpu == "CPU: avg 2500m, p50 2000m, p90 3000m, p95 3000m, p99 3000m, max 4000m of 4 windows"
    )
    assert memory.startswith("memory: avg 1.0Gi")
    assert missing == "windows missing in between: 1"

    shown = await typed(kafka, "series", "node-1", "--pod", "shop/web-0", "--since", "70s")
    assert [line.split()[1] for line in shown.stdout.splitlines()[1:3]] == ["3500m", "4500m"]
    by_uid = await typed(kafka, "series", "node-1", "--pod-uid", "u1", "--since", "70s")
    assert by_uid.stdout == shown.stdout
    first, last = (format_time(end / 1000) for end in (ends[0], ends[1]))
    shown = await typed(kafka, "series", "node-1", "--since", first, "--until", last, "-o", "json")
    found = json.loads(shown.stdout)
    assert [item["end"] for item in found["items"]] == [first, last]
    assert (found["missing_windows"], found["statistics"]["cpu_cores"]["max"]) == (35, 1.0)

    for flags, code, message in (
        (("--pod", "shop/wep-0"), 2, "did you mean shop/web-0?"),
        (("--pod", "x"), 2, "the node has 1 pods, such as shop/web-0"),
        (("--since", "2023-11-14T22:00:00Z", "--until", "2023-11-14T23:00:00Z"), 4,
         "the node reports windows"),
    ):  # fmt: skip
        shown = await typed(kafka, "series", "node-1", *flags)
        assert (shown.exit_code, message in shown.stderr) == (code, True), shown.output
