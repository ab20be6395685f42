"""From usage on Kafka to pods that are bound because of it: all parts together, and real."""

import asyncio
import json
import time
from typing import Any

import numpy as np
import pytest

from pipeline.agents.bank_settings import model_config
from pipeline.agents.learn_windows import GENERATION
from pipeline.local.control_plane import ControlPlane
from pipeline.processors.join.window_batch import WindowBatch
from pipeline.processors.model.bank import Bank
from pipeline.processors.overcommit.node_offers import offers, records
from pipeline.processors.overcommit.offer_decision import OfferCase, offers_now
from pipeline.processors.overcommit.status_patch import ABSENT, WRITTEN, amounts_on
from pipeline.processors.overcommit.window_columns import Prod
from pipeline.settings import Settings
from pipeline.times import parse_time
from pipeline.topics.codec import decode_json, encode_json
from pipeline.topics.node_resources import NodeResourcesRecord
from pipeline.topics.registry import RESOURCES, WINDOWS
from pipeline.topics.windows import decode_window
from tests.cluster.objects import (
    apply,
    items,
    latest,
    messages,
    node,
    pod,
    write_policy,
)
from tests.cluster.usage import SERIES, Exporters
from tests.cluster.watching import Role, in_step, worker
from tests.processes import until

pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(1800)]

NODES, REPLICAS, HISTORY = 50, 50, 20
POLICY = "usageWithoutPageCache"


def deployment(number: int) -> dict[str, Any]:
    """Replicas that use what a recorded machine used, and ask for twice its peak."""
    of, name = SERIES[number], f"s{number}"
    asked: dict[str, Any] = {
        "cpu": f"{2 * max(of['cpu_millicores'])}m",
        "memory": f"{2 * max(of['memory_mebibytes'])}Mi",
    }
    template = pod(name, **asked)
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": REPLICAS,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": template["spec"]},
        },
    }


def on_nodes(plane: ControlPlane) -> dict[str, list[int]]:
    return {
        of["metadata"]["name"]: amounts_on(of["status"]["allocatable"])
        for of in items(plane, "nodes")
    }


async def offline(settings: Settings) -> dict[str, bytes]:
    """What the log of record comes to, window by window, without a worker."""
    bank = Bank(model_config(settings))
    found: dict[str, bytes] = {}
    for message in await messages(settings.kafka, WINDOWS):
        window = decode_window(message.value)
        batch = WindowBatch([window], POLICY)
        bank.apply(batch.training("p95"))
        name = window.header.node
        peaks = bank.peaks([name])
        bank.due(peaks)
        headline = peaks.headline(0)
        decides = list(headline.peaks).index(headline.decides)

        def prod(i: int, headline: Any = headline) -> Prod:
            return Prod(np.array([headline.prod_amounts[i]]), np.array([headline.prod_peaks[i]]))

        every = [prod(i) for i in range(len(headline.peaks))]
        found_offers = offers(batch, every[decides], every)
        at = {"generation": GENERATION, "offset": message.offset, "epoch": 0}
        (record,) = records(batch, found_offers, [headline.decides], [at])
        found[name] = encode_json(record)
    return found


def without_epoch(of: dict[str, bytes]) -> dict[str, Any]:
    return {name: {**json.loads(value), "epoch": 0} for name, value in of.items()}


async def test_usage_becomes_capacity_that_pods_are_bound_by(
    plane: ControlPlane, settings: Settings
) -> None:
    name = settings.kubernetes.config_name
    colocation = {
        "enable": True,
        "cpuReclaimThresholdPercent": 65,
        "memoryReclaimThresholdPercent": 65,
        "nodePredictPolicy": {"coldStartPeriodSeconds": 0},
    }
    write_policy(
        plane, name, colocation_config=colocation, springtide_config={"coldStartSamples": 3}
    )
    apply(plane, *(node(f"e{i:02}", cpu="32", memory="128Gi") for i in range(NODES)))
    apply(plane, *map(deployment, range(len(SERIES))))
    with Role("watcher", settings), worker(settings):
        await until(lambda: running(plane) == len(SERIES) * REPLICAS, 300)
        await until(lambda: in_step(plane, settings), 60)
        exporters = Exporters(plane, settings.kafka, windows=HISTORY)
        await exporters.send(HISTORY)
        await until(lambda: all_windows(settings, NODES * HISTORY), 120)

        async def equal() -> bool:
            said = without_epoch(await latest(settings.kafka, RESOURCES))
            return said == without_epoch(await offline(settings))

        await until(equal, 120)
        worked_out = {
            of: decode_json(NodeResourcesRecord, value)
            for of, value in (await latest(settings.kafka, RESOURCES)).items()
        }
        with Role("actuator", settings, "--mode", "act", "--writes-per-second", "100"):
            expected = {
                of: list(wanted(record).amounts) for of, record in sorted(worked_out.items())
            }
            await until(lambda: on_nodes(plane) == expected, 60)
            assert min(amounts[2] for amounts in expected.values()) > 0
            assert sum(amounts[0] for amounts in expected.values()) > 0
            await mid_pods(plane, expected)
            await edits(plane, settings, exporters, colocation)
            await stale(plane, settings, colocation)


def running(plane: ControlPlane) -> int:
    return sum(of["status"]["phase"] == "Running" for of in items(plane, "pods"))


async def all_windows(settings: Settings, count: int) -> bool:
    return len(await messages(settings.kafka, WINDOWS)) >= count


def wanted(record: NodeResourcesRecord) -> Any:
    (offer,) = offers_now(
        [OfferCase(record.strategy, record, {}, (ABSENT,) * len(WRITTEN), 0.0)],
        parse_time(record.as_of),
    )
    return offer


async def mid_pods(plane: ControlPlane, expected: dict[str, list[int]]) -> None:
    """One Mid pod is bound because of what the node offers, one too many stays Pending."""
    on, amounts = max(expected.items(), key=lambda item: item[1][2])
    half: dict[str, Any] = {"kubernetes.io/mid-cpu": str(amounts[2] * 6 // 10)}
    for of in ("fits", "one-too-many"):
        made = pod(of, **half)
        made["spec"]["nodeSelector"] = {"kubernetes.io/hostname": on}
        plane.kubectl("label", "node", on, f"kubernetes.io/hostname={on}", "--overwrite")
        apply(plane, made)
        if of == "fits":
            await until(lambda: phase(plane, "fits") == "Running")

    def refused() -> bool:
        (found,) = (p for p in items(plane, "pods") if p["metadata"]["name"] == "one-too-many")
        said = [c.get("message", "") for c in found["status"].get("conditions", ())]
        return any("Insufficient kubernetes.io/mid-cpu" in text for text in said)

    await until(refused)
    assert phase(plane, "one-too-many") == "Pending"


def phase(plane: ControlPlane, name: str) -> str:
    found = [p for p in items(plane, "pods") if p["metadata"]["name"] == name]
    return str(found[0]["status"]["phase"]) if found else ""


async def edits(
    plane: ControlPlane, settings: Settings, exporters: Exporters, colocation: dict[str, Any]
) -> None:
    """An edit is in force within seconds of the next window, a broken one changes nothing."""
    own = {"coldStartSamples": 3}
    name = settings.kubernetes.config_name
    less = {**colocation, "midCPUThresholdPercent": 1}
    write_policy(plane, name, colocation_config=less, springtide_config=own)
    await until(lambda: in_step(plane, settings), 10)
    await exporters.send(1)
    began = time.monotonic()
    await until(lambda: all(a[2] == 320 for a in on_nodes(plane).values()), 15)
    assert time.monotonic() - began < 15
    before = on_nodes(plane)
    write_policy(plane, name, colocation_config='{"enable": tru', springtide_config=own)

    def told() -> bool:
        events = items(plane, "events", "-n", "koordinator-system")
        return any(
            of["involvedObject"]["name"] == name and "not JSON" in of["message"] for of in events
        )

    await until(told, 10)
    await exporters.send(1)
    await asyncio.sleep(3)
    after = on_nodes(plane)
    assert all(a[2] == 320 for a in after.values())
    assert before.keys() == after.keys()


async def stale(plane: ControlPlane, settings: Settings, colocation: dict[str, Any]) -> None:
    """Without samples what was offered goes, at the time that the policy says."""
    write_policy(
        plane,
        settings.kubernetes.config_name,
        colocation_config={**colocation, "degradeTimeMinutes": 1, "updateTimeThresholdSeconds": 30},
    )
    await until(lambda: all(a == [ABSENT] * 4 for a in on_nodes(plane).values()), 120)
