"""Watchers and actuators with an API server that fails, and killed at any moment: in the end the
world is as if nothing had happened, and nothing was written twice."""

import asyncio
import contextlib
import json
import random
import re
import subprocess
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
from aiokafka import AIOKafkaProducer

from pipeline.clock import SystemClock
from pipeline.kafka.client import client_options
from pipeline.kube.api_client import open_api
from pipeline.kube.list_watch import Changed, Page, follow
from pipeline.local.control_plane import ControlPlane
from pipeline.processors.overcommit.status_patch import amounts_on
from pipeline.settings import KubernetesSettings, Settings
from pipeline.tasks import cancel_tasks
from tests.cluster.objects import apply, delete, items, node, pod, write_policy
from tests.cluster.results import Results
from tests.cluster.watching import Role, in_step
from tests.kube.fault_proxy import FaultProxy, fault_proxy
from tests.processes import until

pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(1800)]

NODES = [f"f{i}" for i in range(6)]
BUDGET = 10
SECONDS = 60
KINDS = {"409", "410", "429", "500", "504", "silent", "slow"}
_STATUS = re.compile(r"PATCH /api/v1/nodes/(f\d)/status")


class History:
    """Every state of the Nodes' offers that the server itself tells of."""

    def __init__(self) -> None:
        self.states: dict[str, list[tuple[list[int], str]]] = {}

    async def run(self, settings: KubernetesSettings) -> None:
        async with open_api(settings, SystemClock()) as api:
            async for event in follow(api, "/api/v1/nodes"):
                match event:
                    case Page(objects):
                        found = [json.loads(bytes(of)) for of in objects]
                    case Changed(of, False):
                        found = [json.loads(bytes(of))]
                    case _:
                        found = []
                for one in found:
                    amounts = amounts_on(one["status"].get("allocatable", {}))
                    mark = one["metadata"].get("annotations", {}).get("springtide/offered", "")
                    states = self.states.setdefault(one["metadata"]["name"], [])
                    if not states or states[-1] != (amounts, mark):
                        states.append((amounts, mark))


class Cluster:
    """Somebody who works with the cluster all the time."""

    def __init__(self, plane: ControlPlane, seed: int) -> None:
        self._plane = plane
        self._rng = random.Random(seed)
        self._number = 0

    def step(self) -> None:
        kind = self._rng.choice(["pods", "pods", "label", "delete", "node"])
        with contextlib.suppress(subprocess.CalledProcessError, RuntimeError):
            if kind == "pods":
                self._number += 1
                on = self._rng.choice(NODES)
                apply(self._plane, pod(f"fp{self._number}", on=on, cpu="10m"))
            elif kind == "label":
                on = self._rng.choice(NODES)
                self._plane.kubectl("label", "node", on, f"v={self._number}", "--overwrite")
            elif kind == "delete" and self._number:
                delete(self._plane, "pod", f"fp{self._rng.randrange(self._number) + 1}")
            elif self._rng.random() < 0.5:
                apply(self._plane, node("fx"))
            else:
                delete(self._plane, "node", "fx")


def resident_bytes(of: Role) -> int:
    return int(psutil.Process(of.pid).memory_info().rss)


async def test_whatever_fails_or_dies_the_world_ends_up_as_it_should(
    plane: ControlPlane, settings: Settings
) -> None:
    apply(plane, *map(node, NODES))
    name = settings.kubernetes.config_name
    write_policy(plane, name, colocation_config={"enable": True, "updateTimeThresholdSeconds": 600})
    user = json.loads(plane.kubeconfig().read_text())["users"][0]["user"]
    certificate, key = Path(user["client-certificate"]), Path(user["client-key"])
    history, rng = History(), random.Random(7)
    watching = asyncio.create_task(history.run(settings.kubernetes))
    async with fault_proxy(
        plane.server, certificate, key, plane.certificate_authority, seed=5
    ) as proxy:
        faulty = KubernetesSettings(kubeconfig=plane.kubeconfig(server=proxy.url), config_name=name)
        through = Settings(kafka=settings.kafka, kubernetes=faulty)
        flags = ("--mode", "act", "--writes-per-second", str(BUDGET))
        roles = [
            Role("watcher", through), Role("watcher", through),
            Role("actuator", through, *flags), Role("actuator", through, *flags),
        ]  # fmt: skip
        try:
            results = Results(settings, 1)
            producer = AIOKafkaProducer(**client_options(settings.kafka))
            await producer.start()
            cluster, began, restarted = Cluster(plane, 3), time.monotonic(), False
            sizes: list[int] = []
            while (passed := time.monotonic() - began) < SECONDS or not proxy.kinds >= KINDS:
                await results.publish(producer, rng.choice(NODES))
                await asyncio.to_thread(cluster.step)
                if rng.random() < 0.05:
                    at = rng.randrange(len(roles))
                    roles[at].kill()
                    name = "watcher" if at < 2 else "actuator"
                    roles[at] = Role(name, through, *(() if at < 2 else flags))
                if passed > SECONDS / 2 and not restarted:
                    restarted = True
                    plane.api.kill()
                    plane.api.start()
                    await asyncio.to_thread(plane.wait_ready, time.monotonic() + 60)
            proxy.is_fair = True
            for of in NODES:
                await results.publish(producer, of)
            await until(lambda: offered(plane) == results.last, 90)
            await until(lambda: in_step(plane, settings), 90)
            sizes = [resident_bytes(role) for role in roles]
            for _ in range(40):
                await results.publish(producer, rng.choice(NODES))
            await until(lambda: offered(plane) == results.last, 60)
            for role, before in zip(roles, sizes, strict=True):
                assert resident_bytes(role) < before + 30 * 2**20
            await producer.stop()
        finally:
            for role in roles:
                role.__exit__()
        nothing_is_written_twice(history, proxy)
        the_budget_is_kept(proxy)
    await cancel_tasks(watching)


def offered(plane: ControlPlane) -> dict[str, Any]:
    return {
        of["metadata"]["name"]: amounts_on(of["status"]["allocatable"])
        for of in items(plane, "nodes")
        if of["metadata"]["name"] in NODES
    }


def nothing_is_written_twice(history: History, proxy: FaultProxy) -> None:
    """Each write that the server took changed the offer: none was made again that had been done,
    though nobody had heard of it."""
    done = {m[1]: n for path, n in proxy.writes.items() if (m := _STATUS.fullmatch(path))}
    assert sum(done.values()) > 20
    for name in NODES:
        amounts = [of for of, mark in history.states[name] if mark]
        assert all(one != other for one, other in pairwise(amounts))
        assert len(amounts) <= done[name]
        # A watch may tell of two changes as one; of a write that changes nothing it tells nothing.
        assert done[name] - len(amounts) <= 2


def the_budget_is_kept(proxy: FaultProxy) -> None:
    times = [at for at, what in proxy.attempts if _STATUS.fullmatch(what)]
    for first in range(len(times) - BUDGET - 1):
        assert times[first + BUDGET + 1] - times[first] > 0.9
