"""All parts together: usage on Kafka becomes capacity of Nodes, by which pods are bound."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.agents.bank_settings import model_config
from pipeline.local.control_plane import ControlPlane
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.window_batch import WindowBatch
from pipeline.processors.overcommit.node_offers import offers, records
from pipeline.processors.overcommit.offer_decision import OfferInputs, offers_now
from pipeline.processors.overcommit.status_patch import ABSENT, EXTENDED_RESOURCES, read_amounts
from pipeline.processors.overcommit.window_columns import Prod
from pipeline.settings import Settings
from pipeline.times import parse_time
from pipeline.topics.checkpoints import FIRST_GENERATION
from pipeline.topics.codec import decode_json, encode_json
from pipeline.topics.node_resources import NodeResourcesRecord
from pipeline.topics.registry import RESOURCES, WINDOWS
from pipeline.topics.windows import decode_window
from tests.broker import latest, messages
from tests.cluster.exporters import SERIES, WINDOW_SECONDS, Exporters
from tests.cluster.objects import (
    Object,
    apply,
    deployment,
    items,
    named,
    node,
    pod,
    policy_event_text,
    write_policy,
)
from tests.cluster.roles import Role, in_step, worker, worker_in_step
from tests.processes import until

pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(1800)]

NODES, REPLICAS, HISTORY = 20, 10, 20


def recorded(number: int) -> Object:
    """Replicas with the usage of a recorded machine, and requests of twice its peak."""
    series = SERIES[number]
    cpu, memory = (max(series[name]) for name in ("cpu_millicores", "memory_mebibytes"))
    return deployment(f"s{number}", REPLICAS, cpu=f"{2 * cpu}m", memory=f"{2 * memory}Mi")


def allocatable(plane: ControlPlane) -> dict[str, list[int]]:
    nodes = named(plane, "nodes").items()
    return {name: read_amounts(item["status"]["allocatable"]) for name, item in nodes}


def is_ready(node_object: Object) -> bool:
    """Whether the scheduler may use the node: its conditions left no taint."""
    conditions = node_object["status"].get("conditions", [])
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
    return ready and not node_object["spec"].get("taints")


async def computed(settings: Settings) -> dict[str, bytes]:
    """The resources that follow from the log of windows, one by one, without a worker."""
    bank = Bank(model_config(settings))
    values: dict[str, bytes] = {}
    for message in await messages(settings.kafka, WINDOWS):
        window = decode_window(message.value)
        batch = WindowBatch([window])
        bank.apply(batch.training("p95"))
        name = window.header.node
        peaks = bank.peaks([name])
        bank.due(peaks)
        summary = peaks.summaries[0]
        deciding = list(summary.peaks).index(summary.decides)
        prods = [
            Prod(np.array([amounts]), np.array([peak]))
            for amounts, peak in zip(summary.prod_amounts, summary.prod_peaks, strict=True)
        ]
        node_offers = offers(batch, prods[deciding], prods)
        position = {"generation": FIRST_GENERATION, "offset": message.offset, "epoch": 0}
        (record,) = records(batch, node_offers, [summary.decides], [position])
        values[name] = encode_json(record)
    return values


def without_epoch(values: dict[str, bytes]) -> dict[str, Any]:
    return {name: {**json.loads(value), "epoch": 0} for name, value in values.items()}


async def test_usage_becomes_capacity_that_pods_are_bound_by(
    plane: ControlPlane, settings: Settings, tmp_path: Path
) -> None:
    ahead = tmp_path / "ahead"
    name = settings.kubernetes.config_name
    colocation = {
        "enable": True, "cpuReclaimThresholdPercent": 65, "memoryReclaimThresholdPercent": 65,
        "nodePredictPolicy": {"coldStartPeriodSeconds": 0},
    }  # fmt: skip
    write_policy(
        plane, name, colocation_config=colocation, springtide_config={"coldStartSamples": 3}
    )
    apply(plane, *(node(f"e{i:02}", cpu="32", memory="128Gi") for i in range(NODES)))
    # A node that is not ready yet gets no pod, and so has no request to reclaim.
    await until(lambda: all(is_ready(item) for item in items(plane, "nodes")), 120)
    apply(plane, *map(recorded, range(len(SERIES))))

    def running() -> int:
        return sum(item["status"].get("readyReplicas", 0) for item in items(plane, "deployments"))

    async def has_all_windows() -> bool:
        return len(await messages(settings.kafka, WINDOWS)) >= NODES * HISTORY

    async def is_as_computed() -> bool:
        published = without_epoch(await latest(settings.kafka, RESOURCES))
        return published == without_epoch(await computed(settings))

    with Role("watcher", settings), worker(settings):
        await until(lambda: running() == len(SERIES) * REPLICAS, 300)
        await until(lambda: in_step(plane, settings), 120)
        await until(lambda: worker_in_step(settings), 120)
        # The newest window must end after all pods were created: the offer of an earlier one knows
        # no request of the later pods.
        created = time.time()
        await until(lambda: time.time() // WINDOW_SECONDS * WINDOW_SECONDS >= created)
        exporters = Exporters(plane, settings.kafka, windows=HISTORY)
        await exporters.send(HISTORY)
        await until(has_all_windows, 120)
        await until(is_as_computed, 120)
        expected = {
            node_name: offered(decode_json(NodeResourcesRecord, value))
            for node_name, value in (await latest(settings.kafka, RESOURCES)).items()
        }
        flags = ("--mode", "act", "--writes-per-second", "100")
        with Role("actuator", settings, *flags, clock_file=ahead):
            await until(lambda: allocatable(plane) == expected, 120)
            assert min(amounts[2] for amounts in expected.values()) > 0, expected
            assert sum(amounts[0] for amounts in expected.values()) > 0
            await assert_mid_pods_are_bound_by_the_offer(plane, expected)
            await assert_policy_edits_take_effect(plane, settings, exporters, colocation)
            # Without samples the offers end when the policy says so.
            short = {**colocation, "degradeTimeMinutes": 1, "updateTimeThresholdSeconds": 30}
            write_policy(plane, name, colocation_config=short)
            ahead.write_text("90")
            nothing = [ABSENT] * 4
            await until(lambda: all(a == nothing for a in allocatable(plane).values()), 300)


def offered(record: NodeResourcesRecord) -> list[int]:
    """The amounts that a node without an offer gets from a fresh record."""
    case = OfferInputs(record.strategy, record, {}, (ABSENT,) * len(EXTENDED_RESOURCES), 0.0)
    (offer,) = offers_now([case], parse_time(record.as_of))
    return [*offer.amounts]


async def assert_mid_pods_are_bound_by_the_offer(
    plane: ControlPlane, expected: dict[str, list[int]]
) -> None:
    """The offer has room for one of two Mid pods; the other stays Pending."""
    name, amounts = max(expected.items(), key=lambda item: item[1][2])
    plane.kubectl("label", "node", name, f"kubernetes.io/hostname={name}", "--overwrite")

    def create(pod_name: str) -> None:
        requests: dict[str, Any] = {"kubernetes.io/mid-cpu": str(amounts[2] * 6 // 10)}
        created = pod(pod_name, **requests)
        created["spec"]["nodeSelector"] = {"kubernetes.io/hostname": name}
        apply(plane, created)

    def status(pod_name: str) -> Object:
        pod_status: Object = named(plane, "pods")[pod_name]["status"]
        return pod_status

    create("fits")
    await until(lambda: status("fits")["phase"] == "Running", 120)
    create("too-many")
    reason = "Insufficient kubernetes.io/mid-cpu"
    await until(lambda: reason in str(status("too-many").get("conditions")), 120)
    assert status("too-many")["phase"] == "Pending"


async def assert_policy_edits_take_effect(
    plane: ControlPlane, settings: Settings, exporters: Exporters, colocation: dict[str, Any]
) -> None:
    """A valid edit is in force with the next window, an invalid one changes nothing.

    One percent of 32 cores is Mid, less the buffer of ten percent.
    """
    own = {"coldStartSamples": 3}
    name = settings.kubernetes.config_name
    less = {**colocation, "midCPUThresholdPercent": 1}
    write_policy(plane, name, colocation_config=less, springtide_config=own)
    await until(lambda: in_step(plane, settings), 120)
    await until(lambda: worker_in_step(settings), 120)
    await exporters.send(1)
    await until(lambda: all(a[2] == 288 for a in allocatable(plane).values()), 120)
    before = allocatable(plane)
    write_policy(plane, name, colocation_config='{"enable": tru', springtide_config=own)
    await until(lambda: "not JSON" in policy_event_text(plane, name), 120)
    await exporters.send(1)
    await asyncio.sleep(3)
    after = allocatable(plane)
    assert all(a[2] == 288 for a in after.values())
    assert before.keys() == after.keys()
