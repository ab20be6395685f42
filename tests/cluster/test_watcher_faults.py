"""Two watchers on a bad way to an API server that crashes, killed at random: in the end the topics
say what they would have said undisturbed, and nothing was written twice."""

import asyncio
import itertools
import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

from pipeline.local.control_plane import ControlPlane
from pipeline.settings import KubernetesSettings, Settings
from pipeline.topics.registry import NODES, PODS, WORKLOADS
from tests.cluster.objects import apply, delete, messages, node, pod, write_policy
from tests.cluster.watching import Role, said, wanted
from tests.kube.fault_proxy import fault_proxy
from tests.processes import until

pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(900)]

STEPS = 16
NAMES = [f"f{i}" for i in range(5)]


def deployment(name: str, replicas: int) -> dict[str, Any]:
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "main", "image": "none"}]},
            },
        },
    }


def change(plane: ControlPlane, config: str, rng: random.Random) -> None:
    """One thing that somebody does to the cluster."""
    name = rng.choice(NAMES)
    match rng.randrange(6):
        case 0:
            apply(plane, node(name, labels={"turn": str(rng.randrange(99))}))
        case 1:
            delete(plane, "node", name)
        case 2:
            apply(plane, *(pod(f"{name}-{rng.randrange(9)}", cpu="100m") for _ in range(4)))
        case 3:
            delete(plane, "pod", *(f"{name}-{i}" for i in range(3)))
        case 4:
            write_policy(plane, config, colocation_config={
                "enable": True, "cpuReclaimThresholdPercent": rng.randrange(1, 99),
            })  # fmt: skip
        case 5:
            apply(plane, deployment("shop", rng.randrange(6)))


def doubled(written: list[Any]) -> list[bytes]:
    """Keys of records that say what the one before of their key said."""
    last: dict[bytes, bytes | None] = {}
    found = []
    for message in written:
        if last.get(message.key) == message.value:
            found.append(message.key)
        last[message.key] = message.value
    return found


@pytest.mark.parametrize("seed", [1])
async def test_two_watchers_among_faults_and_kills_end_in_step(
    plane: ControlPlane, settings: Settings, seed: int
) -> None:
    config, rng = settings.kubernetes.config_name, random.Random(seed)
    user = json.loads(plane.kubeconfig().read_text())["users"][0]["user"]
    apply(plane, *map(node, NAMES))
    async with fault_proxy(
        plane.server, Path(user["client-certificate"]), Path(user["client-key"]),
        plane.certificate_authority, seed=seed,
    ) as proxy:  # fmt: skip
        kubernetes = KubernetesSettings(
            kubeconfig=plane.kubeconfig(server=proxy.url), config_name=config
        )
        faulty = Settings(kafka=settings.kafka, kubernetes=kubernetes)
        roles = [Role("watcher", faulty), Role("watcher", faulty)]
        try:
            for step in itertools.count():
                if step >= STEPS and proxy.kinds >= {"410", "429", "500"}:
                    break
                await asyncio.to_thread(change, plane, config, rng)
                if rng.random() < 0.25:
                    which = rng.randrange(2)
                    roles[which].kill()
                    roles[which] = Role("watcher", faulty)
                if step == STEPS // 2:
                    plane.api.kill()
                    await asyncio.sleep(rng.random() * 3)
                    plane.api.start()
                    await asyncio.to_thread(plane.wait_ready, time.monotonic() + 60)
                await asyncio.sleep(rng.random() * 2)
            proxy.is_fair = True

            async def in_step() -> bool:
                there = await asyncio.to_thread(wanted, plane, config)
                return await said(settings) == there

            await until(in_step, 120)
            codes = [role.stop() for role in roles]
        finally:
            for role in roles:
                role.__exit__()
    assert codes == [0, 0]
    for topic in (NODES, PODS, WORKLOADS):
        written = await messages(settings.kafka, topic)
        assert written
        assert doubled(written) == []
