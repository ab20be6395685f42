"""A gauge that no column measures, from a file of an exporter to a decision of an extender."""

import json
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from pipeline.kafka.topic_admin import apply_topics
from pipeline.local.local_kafka import LocalKafka
from pipeline.local.port_probe import free_port
from pipeline.local.process_guard import die_with_parent
from pipeline.settings import Settings
from pipeline.topics.codec import decode_json, encode_json
from pipeline.topics.node_state import NodeStateRecord
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.registry import NODE_STATE, NODES
from pipeline.topics.resource_amounts import Resources
from tests.broker import flags_of, latest, own_topics, send
from tests.cluster.roles import worker
from tests.node_exporter.fake_node import FakeNode
from tests.processes import environment, springtide, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

CONNTRACK = "example.com/conntrack"
ROOM = Resources(cpu_millicores=4000, memory_bytes=8 << 30)
PROFILE = {
    "plugins": {"multiPoint": {"enabled": [{"name": "LoadAwareScheduling"}]}},
    "pluginConfig": [
        {
            "name": "LoadAwareScheduling",
            "args": {
                "supportedResources": [CONNTRACK],
                "usageThresholds": {CONNTRACK: 80},
                "resourceWeights": {CONNTRACK: 1},
                "estimatedScalingFactors": {CONNTRACK: 100},
            },
        }
    ],
}
POD = {"metadata": {"name": "web-0", "namespace": "shop"}, "spec": {"containers": []}}


class Fleet:
    """Exporters of fake nodes with a file for the gauge, a worker and an extender."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.kafka, self._folder = settings.kafka, folder
        self._url = f"http://127.0.0.1:{free_port()}"

    @contextmanager
    def role(self, *words: str) -> Iterator[None]:
        flags = flags_of(self.kafka)[: 4 if words[0] == "extender" else None]
        with (self._folder / "log").open("a") as log:
            process = subprocess.Popen(
                springtide(words[0], *flags, *words[1:]), stdout=log, stderr=log,
                cwd=self._folder, env=environment(), preexec_fn=die_with_parent,
            )  # fmt: skip
        try:
            yield
        finally:
            process.kill()
            process.wait()

    @contextmanager
    def exporter(self, name: str, used: str) -> Iterator[None]:
        folder = self._folder / name
        machine = FakeNode(folder, 2)
        self.write(name, used)
        gauges = json.dumps({CONNTRACK: str(folder / "gauge")})
        with self.role(
            "exporter", "--node-name", name, "--window-seconds", "2", "--metrics-port", "0",
            "--collect-interval-seconds", "0.5", "--socket-path", str(folder / "socket"),
            "--cgroup-root", str(machine.cgroups), "--proc-root", str(machine.proc),
            "--sys-root", str(machine.sys), "--gauges", gauges,
        ):  # fmt: skip
            yield

    @contextmanager
    def extender(self) -> Iterator[None]:
        (self._folder / "profile.yaml").write_text(json.dumps(PROFILE))
        port = self._url.rpartition(":")[2]
        with self.role(
            "extender", "--mode", "act", "--host", "127.0.0.1", "--port", port,
            "--scheduler-config-file", "profile.yaml",
        ):  # fmt: skip
            yield

    def write(self, name: str, used: str) -> None:
        (self._folder / name / "gauge").write_text(used)

    def ask(self, path: str, document: dict[str, Any] | None = None) -> Any:
        """The answer of the extender; None while it has none."""
        body = None if document is None else json.dumps(document).encode()
        try:
            with urllib.request.urlopen(f"{self._url}{path}", body, timeout=30) as answer:
                data = answer.read()
        except OSError:
            return None
        return data.decode() if path == "/metrics" else json.loads(data)

    def verdicts(self) -> dict[str, tuple[str, tuple[str, ...]]]:
        answer = self.ask("/v1/explain", {"pod": POD}) or {"items": []}
        return {
            item["node"]: (item["verdict"], tuple(item["estimated"])) for item in answer["items"]
        }

    def why_not(self, node: str) -> tuple[int, str]:
        (self._folder / "pod.json").write_text(json.dumps({"kind": "Pod", **POD}))
        ran = subprocess.run(
            springtide("why-not", "-f", "pod.json", node, "--extender", self._url),
            cwd=self._folder, env=environment(), capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        return ran.returncode, ran.stdout

    async def gauges(self, node: str) -> dict[str, float] | None:
        value = (await latest(self.kafka, NODE_STATE)).get(node)
        return None if value is None else decode_json(NodeStateRecord, value).gauges


async def test_a_gauge_of_an_exporter_decides_where_pods_may_go(
    broker: LocalKafka, tmp_path: Path
) -> None:
    settings = Settings(kafka=own_topics(broker, 2))
    await apply_topics(settings.kafka)
    names = ("blind", "calm", "hot")
    records = [
        NodeRecord(node=name, allocatable=ROOM, capacity=ROOM, scalars={CONNTRACK: 100_000})
        for name in names
    ]
    await send(settings.kafka, NODES, *((each.node, encode_json(each)) for each in records))
    fleet = Fleet(settings, tmp_path)
    with ExitStack() as stack:
        for name, used in zip(names, ("nothing", "20000", "90000"), strict=True):
            stack.enter_context(fleet.exporter(name, used))
        stack.enter_context(worker(settings))
        stack.enter_context(fleet.extender())
        judged = {
            "blind": ("estimated", (CONNTRACK,)),
            "calm": ("passed", ()),
            "hot": ("refused", ()),
        }
        await until(lambda: fleet.verdicts() == judged, 120, fleet.verdicts)

        pod = {"Pod": POD, "NodeNames": [*names]}
        refused = fleet.ask("/filter", pod)["FailedAndUnresolvableNodes"]
        assert refused == {"hot": f"node(s) {CONNTRACK} usage exceed threshold"}
        scores = {each["Host"]: each["Score"] for each in fleet.ask("/prioritize", pod)}
        assert scores["calm"] > scores["blind"] >= scores["hot"]
        code, text = fleet.why_not("hot")
        assert code == 4
        assert f"{CONNTRACK} usage would be 90.0% of 100000, over the threshold of 80%" in text
        assert f"usage of {CONNTRACK} is unknown" in fleet.why_not("blind")[1]
        page = fleet.ask("/metrics")
        assert f'springtide_table_extended_resource_nodes{{resource="{CONNTRACK}"}} 2.0' in page

        # It cools down, and the gauge of the other node vanishes.
        fleet.write("hot", "70000")
        fleet.write("calm", "NaN")
        judged |= {"hot": ("passed", ()), "calm": ("estimated", (CONNTRACK,))}
        await until(lambda: fleet.verdicts() == judged, 120, fleet.verdicts)
        assert await fleet.gauges("calm") == {}
        assert await fleet.gauges("hot") == {CONNTRACK: 70_000.0}
