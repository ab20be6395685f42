"""Watchers and actuators with a faulty API server, killed at random: in the end topics and Nodes
are as without faults, and nothing was written twice."""

import asyncio
import contextlib
import json
import random
import re
import time
from itertools import pairwise
from typing import Any

import psutil
import pytest
from aiokafka import AIOKafkaProducer

from pipeline.clock import SystemClock
from pipeline.errors import ControlPlaneError
from pipeline.kube.api_client import open_api
from pipeline.kube.list_watch import Changed, Page, follow
from pipeline.local.control_plane import ControlPlane
from pipeline.processors.overcommit.status_patch import read_amounts
from pipeline.settings import KubernetesSettings, Settings
from pipeline.tasks import cancel_tasks
from tests.cluster.objects import apply, delete, named, node, pod, write_policy
from tests.cluster.resource_results import ResourceResults
from tests.cluster.roles import Role, in_step
from tests.kube.fault_proxy import FaultProxy, fault_proxy
from tests.processes import until

pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(1800)]

NODES = [f"f{i}" for i in range(6)]
WRITES_PER_SECOND = 10
SECONDS = 60
KINDS = {"409", "410", "429", "500", "504", "silent", "slow"}
_STATUS = re.compile(r"PATCH /api/v1/nodes/(f\d)/status")


class History:
    """Every offer of each Node that the API server's watch delivers, with its mark."""

    def __init__(self) -> None:
        self.offers: dict[str, list[tuple[list[int], str]]] = {}

    async def run(self, settings: KubernetesSettings) -> None:
        async with open_api(settings, SystemClock()) as api:
            async for event in follow(api, "/api/v1/nodes"):
                match event:
                    case Page(objects):
                        documents = [json.loads(bytes(encoded)) for encoded in objects]
                    case Changed(encoded, False):
                        documents = [json.loads(bytes(encoded))]
                    case _:
                        documents = []
                for document in documents:
                    metadata = document["metadata"]
                    mark = metadata.get("annotations", {}).get("springtide/offered", "")
                    offer = read_amounts(document["status"].get("allocatable", {})), mark
                    offers = self.offers.setdefault(metadata["name"], [])
                    if offers[-1:] != [offer]:
                        offers.append(offer)


class OtherUser:
    """Changes pods, labels and a Node at random."""

    def __init__(self, plane: ControlPlane, seed: int) -> None:
        self._plane = plane
        self._rng = random.Random(seed)
        self._number = 0

    def step(self) -> None:
        kind = self._rng.choice(["pods", "pods", "label", "delete", "node"])
        with contextlib.suppress(ControlPlaneError):
            if kind == "pods":
                self._number += 1
                name = self._rng.choice(NODES)
                apply(self._plane, pod(f"fp{self._number}", on=name, cpu="10m"))
            elif kind == "label":
                name = self._rng.choice(NODES)
                self._plane.kubectl("label", "node", name, f"v={self._number}", "--overwrite")
            elif kind == "delete" and self._number:
                delete(self._plane, "pod", f"fp{self._rng.randrange(self._number) + 1}")
            elif self._rng.random() < 0.5:
                apply(self._plane, node("fx"))
            else:
                delete(self._plane, "node", "fx")


def resident_bytes(role: Role) -> int:
    return int(psutil.Process(role.pid).memory_info().rss)


def offers(plane: ControlPlane) -> dict[str, Any]:
    nodes = named(plane, "nodes")
    return {name: read_amounts(nodes[name]["status"]["allocatable"]) for name in NODES}


async def test_nodes_and_topics_are_correct_after_faults_kills_and_restarts(
    plane: ControlPlane, settings: Settings, producer: AIOKafkaProducer
) -> None:
    apply(plane, *map(node, NODES))
    name = settings.kubernetes.config_name
    write_policy(plane, name, colocation_config={"enable": True, "updateTimeThresholdSeconds": 600})
    history, rng = History(), random.Random(7)
    watching = asyncio.create_task(history.run(settings.kubernetes))
    async with fault_proxy(plane, seed=5) as proxy:
        faulty = KubernetesSettings(kubeconfig=plane.kubeconfig(server=proxy.url), config_name=name)
        proxied = Settings(kafka=settings.kafka, kubernetes=faulty)
        flags = ("--mode", "act", "--writes-per-second", str(WRITES_PER_SECOND))
        commands = [("watcher",)] * 2 + [("actuator", *flags)] * 2

        def start(command: tuple[str, ...]) -> Role:
            return Role(command[0], proxied, *command[1:])

        roles = [*map(start, commands)]
        try:
            results = ResourceResults(settings, 1)
            user, began, is_restarted = OtherUser(plane, 3), time.monotonic(), False
            while (passed := time.monotonic() - began) < SECONDS or not proxy.kinds >= KINDS:
                await results.publish(producer, rng.choice(NODES))
                await asyncio.to_thread(user.step)
                if rng.random() < 0.05:
                    index = rng.randrange(len(roles))
                    roles[index].kill()
                    roles[index] = start(commands[index])
                if passed > SECONDS / 2 and not is_restarted:
                    is_restarted = True
                    plane.api.kill()
                    plane.api.start()
                    await asyncio.to_thread(plane.wait_ready, time.monotonic() + 60)
            proxy.is_fair = True
            for name in NODES:
                await results.publish(producer, name)
            await until(lambda: offers(plane) == results.last, 90)
            await until(lambda: in_step(plane, settings), 90)
            sizes = [resident_bytes(role) for role in roles]
            for _ in range(40):
                await results.publish(producer, rng.choice(NODES))
            await until(lambda: offers(plane) == results.last, 60)
            for role, before in zip(roles, sizes, strict=True):
                assert resident_bytes(role) < before + 30 * 2**20
        finally:
            for role in roles:
                role.__exit__()
        assert_nothing_is_written_twice(history, proxy)
        times = [at for at, request in proxy.attempts if _STATUS.fullmatch(request)]
        for first, later in zip(times, times[WRITES_PER_SECOND + 1 :], strict=False):
            assert later - first > 0.9
    await cancel_tasks(watching)


def assert_nothing_is_written_twice(history: History, proxy: FaultProxy) -> None:
    """Each accepted write changed the offer: an actuator repeats no write whose answer was lost."""
    writes = {m[1]: n for path, n in proxy.writes.items() if (m := _STATUS.fullmatch(path))}
    assert sum(writes.values()) > 20
    for name in NODES:
        amounts = [amounts for amounts, mark in history.offers[name] if mark]
        assert all(before != after for before, after in pairwise(amounts))
        assert len(amounts) <= writes[name]
        # A watch may deliver two changes as one. It never delivers a write that changes nothing.
        assert writes[name] - len(amounts) <= 2
