"""Two watchers behind a faulty proxy of an API server that crashes, killed at random: in the end
topics agree with the cluster, and no record was written twice."""

import asyncio
import itertools
import random
import time
from typing import Any

import pytest

from pipeline.local.control_plane import ControlPlane
from pipeline.settings import KubernetesSettings, Settings
from pipeline.topics.registry import NODES, PODS, WORKLOADS
from tests.broker import messages
from tests.cluster.objects import apply, delete, deployment, node, pod, write_policy
from tests.cluster.roles import Role, in_step
from tests.kube.fault_proxy import fault_proxy
from tests.processes import until

pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(900)]

STEPS = 16
NAMES = [f"f{i}" for i in range(5)]


def change(plane: ControlPlane, config: str, rng: random.Random) -> None:
    """Change something in the cluster."""
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


def repeated_keys(records: list[Any]) -> list[bytes]:
    """Keys of records that equal the previous record of their key."""
    last: dict[bytes, bytes | None] = {}
    keys = []
    for record in records:
        if last.get(record.key) == record.value:
            keys.append(record.key)
        last[record.key] = record.value
    return keys


async def test_two_watchers_agree_with_the_cluster_after_faults_and_kills(
    plane: ControlPlane, settings: Settings
) -> None:
    config, rng = settings.kubernetes.config_name, random.Random(1)
    apply(plane, *map(node, NAMES))
    async with fault_proxy(plane, seed=1) as proxy:
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
                    index = rng.randrange(2)
                    roles[index].kill()
                    roles[index] = Role("watcher", faulty)
                if step == STEPS // 2:
                    plane.api.kill()
                    await asyncio.sleep(rng.random() * 3)
                    plane.api.start()
                    await asyncio.to_thread(plane.wait_ready, time.monotonic() + 120)
                await asyncio.sleep(rng.random() * 2)
            proxy.is_fair = True
            await until(lambda: in_step(plane, settings), 180)
            codes = [role.stop() for role in roles]
        finally:
            for role in roles:
                role.__exit__()
    assert codes == [0, 0]
    for topic in (NODES, PODS, WORKLOADS):
        records = await messages(settings.kafka, topic)
        assert records
        assert repeated_keys(records) == []
