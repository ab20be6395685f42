"""The Batch quick start, command by command, in a cluster with the chart.

Workers, watcher and actuator are processes that stand in for their containers
(`pod_processes`), recorded usage stands in for exporters, and KWOK for kubelets.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

from pipeline.kafka.topic_admin import apply_topics
from pipeline.local.control_plane import ControlPlane, local_control_plane
from pipeline.local.local_kafka import LocalKafka
from pipeline.processors.overcommit.status_patch import ABSENT, read_amounts
from pipeline.settings import KafkaSettings, variable_name
from tests.broker import own_topics
from tests.cluster.exporters import Exporters
from tests.cluster.objects import apply, deployment, named, node
from tests.deploy.helm import CHART, DEFAULT_ROLES, NAMESPACE, run_helm, with_values
from tests.deploy.pod_processes import PodProcesses
from tests.docs.guide_shell import Shell, commands_of
from tests.processes import ROOT, until

pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(1800)]

PAGE: Final = "tutorials/batch-quick-start.md"
NODE: Final = "node-1"
ROLES: Final = ("worker", "watcher", "actuator")
_WINDOW_SECONDS: Final = 5


def values_of(kafka: KafkaSettings) -> list[str]:
    """Values of the release: our broker, and of the default roles those that the page needs."""
    others = {"node-actuator"}
    return with_values((
        *(f"{role}.enabled=false" for role in DEFAULT_ROLES if role not in {*ROLES, *others}),
        "topics.apply=false", "worker.replicas=1", "watcher.replicas=1", "actuator.replicas=1",
        f"settings.kafka.bootstrap_servers={kafka.bootstrap_servers}",
        f"settings.kafka.topic_prefix={kafka.topic_prefix}",
        f"settings.kafka.partitions={kafka.partitions}",
    ))  # fmt: skip


@asynccontextmanager
async def measured(plane: ControlPlane, kafka: KafkaSettings) -> AsyncIterator[None]:
    """Windows of all nodes, while the context lasts."""
    exporters = Exporters(plane, kafka, windows=1, window_seconds=_WINDOW_SECONDS)

    async def send() -> None:
        while True:
            await exporters.send(1)
            await asyncio.sleep(_WINDOW_SECONDS)

    sending = asyncio.create_task(send())
    try:
        yield
    finally:
        sending.cancel()
        with suppress(asyncio.CancelledError):
            await sending


async def test_the_page_runs_a_batch_pod_and_undoes_everything(
    broker: LocalKafka, tmp_path: Path
) -> None:
    kafka = own_topics(broker)
    await apply_topics(kafka)
    text = (ROOT / "docs" / PAGE).read_text()
    (policy,) = re.findall(r"^```sh\n(.*?)^```$", text, re.M | re.S)
    (pod,) = re.findall(r"^```yaml\n(.*?)^```$", text, re.M | re.S)
    commands = [line.replace("NODE", NODE) for line in commands_of(PAGE, indent=4)]
    assert len(commands) == 12
    variables = {variable_name(f"{role}.metrics_port"): "0" for role in ROLES}
    with local_control_plane() as plane:
        plane.kubectl("create", "namespace", NAMESPACE)
        apply(plane, node(NODE, cpu="32", memory="128Gi", labels={"kubernetes.io/os": "linux"}))
        apply(plane, deployment("s1", 3, cpu="2", memory="4Gi"))
        processes = PodProcesses(plane, tmp_path, ROLES, variables)
        shell = Shell(tmp_path, kafka, plane)
        (tmp_path / "crunch.yaml").write_text(pod)

        def offered() -> list[int]:
            return [*read_amounts(named(plane, "nodes")[NODE]["status"]["allocatable"])]

        async def run(count: int) -> list[str]:
            """Run the next commands, and return their outputs."""
            return [await asyncio.to_thread(shell.run, commands.pop(0)) for _ in range(count)]

        async def shown(command: str, words: str) -> None:
            """Wait until the next command succeeds and prints `words`."""
            assert commands.pop(0) == command

            async def has_words() -> bool:
                with suppress(AssertionError):
                    return words in await asyncio.to_thread(shell.run, command)
                return False

            await until(has_words, 180, processes.tails)

        async with processes.following(), measured(plane, kafka):
            await asyncio.to_thread(
                run_helm, "install", "springtide", str(CHART), "--namespace", NAMESPACE, "--wait",
                "--timeout", "5m", *values_of(kafka), kubeconfig=plane.kubeconfig(),
            )  # fmt: skip
            # 1, 2: nothing is offered yet, and it is said what would be.
            assert await asyncio.to_thread(shell.run, policy)
            await run(1)
            await shown("springtide actions --since 5m", NODE)
            await shown(f"springtide explain {NODE} --tier batch", "taken")
            assert offered() == [ABSENT] * 4
            # 3: the Node has Batch.
            await run(1)
            await until(lambda: offered()[0] > 500, 180, processes.tails)
            ((amounts),) = await run(1)
            assert '"kubernetes.io/batch-cpu"' in amounts
            # 4: the pod runs by it.
            await run(1)
            await until(lambda: named(plane, "pods")["crunch"]["status"]["phase"] == "Running", 120)
            assert "crunch" in (await run(1))[0]
            # 5
            await run(1)
            await shown(f"springtide actions {NODE} --since 5m", NODE)
            # 6: nothing stays.
            changed = (tmp_path / "policy.yaml").read_text().replace("true", "false")
            (tmp_path / "policy.yaml").write_text(changed)
            await run(3)
            assert commands == []
            await until(lambda: offered() == [ABSENT] * 4, 180, processes.tails)
            assert "crunch" not in named(plane, "pods")
