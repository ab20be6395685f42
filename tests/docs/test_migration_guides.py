"""The commands of the guides from VPA and Trimaran run in their order, and do what the guides say.

`tests/deploy/test_chart_on_plane.py` runs those of the guide from Koordinator.
"""

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from pipeline.kafka.topic_admin import apply_topics
from pipeline.local.control_plane import ControlPlane
from pipeline.local.port_probe import free_port
from pipeline.settings import KafkaSettings
from pipeline.topics.codec import encode_json
from pipeline.topics.recommendations import ContainerRecommendation
from pipeline.topics.registry import NODE_STATE, RECOMMENDATIONS
from tests.broker import flags_of, send
from tests.cluster.objects import apply, define, deployment, items, pod
from tests.docs.guide_shell import Shell, commands_of
from tests.processes import ROOT, environment, eventually, springtide
from tests.table.records import NOW, node_state
from tests.topics.golden import RECOMMENDATION

VPA = str(ROOT / "tests/data/operators/vertical_pod_autoscaler.json")
PROGRAMS_OF_VPA = ("vpa-updater", "vpa-admission-controller", "vpa-recommender")
TARGETS = {"main": "500m", "mesh": "50m"}


@pytest.fixture
def autoscaled(plane: ControlPlane) -> Iterator[ControlPlane]:
    """A control plane with VPA's kind, its programs, and the namespace of a workload."""
    define(plane, VPA)
    plane.kubectl("create", "namespace", "shop")
    programs = [deployment(name, 1) for name in PROGRAMS_OF_VPA]
    for program in programs:
        program["metadata"]["namespace"] = "kube-system"
    apply(plane, *programs)
    yield plane
    plane.kubectl("delete", "deployment", "-n", "kube-system", *PROGRAMS_OF_VPA)
    plane.kubectl("delete", "namespace", "shop", "--wait=false")
    plane.kubectl("delete", "-f", VPA)


@pytest.mark.plane
@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_the_guide_from_vpa_shows_each_container_and_stops_vpa(
    autoscaled: ControlPlane, kafka: KafkaSettings, tmp_path: Path
) -> None:
    await apply_topics(kafka)
    containers = tuple(
        ContainerRecommendation(
            container_name=name, target={"cpu": cpu}, uncapped_target={"cpu": cpu},
            lower_bound={}, upper_bound={},
        )
        for name, cpu in TARGETS.items()
    )  # fmt: skip
    record = replace(RECOMMENDATION, containers=containers)
    await send(kafka, RECOMMENDATIONS, ("shop", encode_json(record)))
    shell = Shell(tmp_path, kafka, autoscaled)
    commands = commands_of("how-to/migrate-from-vpa.md", indent=8)
    outputs = {command: shell.run(command) for command in commands}
    assert len(outputs) == 8
    (savings,) = (text for command, text in outputs.items() if "jq" in command)
    assert json.loads(savings)["saves"] == {"cpu": "1000m"}
    (vpa,) = json.loads(autoscaled.kubectl("get", "vpa", "-n", "shop", "-o", "json"))["items"]
    found = vpa["status"]["recommendation"]["containerRecommendations"]
    assert {each["containerName"]: each["target"]["cpu"] for each in found} == TARGETS
    assert vpa["spec"]["updatePolicy"] == {"updateMode": "Off"}
    stopped = items(autoscaled, "deployment", "-n", "kube-system")
    assert {o["metadata"]["name"]: o["spec"]["replicas"] for o in stopped} == dict.fromkeys(
        PROGRAMS_OF_VPA, 0
    )
    # The undoing of step 3.
    shell.run("kubectl delete -f vpa.yaml")
    assert items(autoscaled, "vpa", "-n", "shop") == []


@contextmanager
def load_watcher() -> Iterator[str]:
    """The address of a fake load-watcher with a node of no usage."""
    body = json.dumps({"data": {"NodeMetricsMap": {"node-1": {"metrics": []}}}}).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@contextmanager
def running_extender(kafka: KafkaSettings) -> Iterator[str]:
    """The address of an extender over these topics, which has caught up."""
    address = f"http://127.0.0.1:{(port := free_port())}"
    command = springtide("extender", "--port", str(port), *flags_of(kafka)[:4])
    process = subprocess.Popen(command, env=environment(), stderr=subprocess.DEVNULL)
    try:
        ready = ["curl", "-fs", "-o", "/dev/null", f"{address}/readyz"]
        assert eventually(lambda: subprocess.run(ready).returncode == 0, 120)
        yield address
    finally:
        process.terminate()
        process.wait()


async def test_the_guide_from_trimaran_compares_with_a_fake_load_watcher_and_scores(
    kafka: KafkaSettings, tmp_path: Path
) -> None:
    await apply_topics(kafka)
    age = NOW - time.time() + 10
    states = [(name, encode_json(node_state(name, age=age))) for name in ("node-1", "node-2")]
    await send(kafka, NODE_STATE, *states)
    (tmp_path / "pod.yaml").write_text(json.dumps(pod("web-1")))
    shell = Shell(tmp_path, kafka)
    with load_watcher() as theirs, running_extender(kafka) as ours:
        addresses = {
            "http://load-watcher:2020": theirs,
            "http://springtide-extender.springtide-system.svc:8888": ours,
        }
        outputs = {}
        for command in commands_of("how-to/migrate-from-trimaran.md", indent=8):
            runnable = command
            for documented, real in addresses.items():
                runnable = runnable.replace(documented, real)
            outputs[command] = shell.run(runnable)
    assert len(outputs) == 7
    nodes = [[*json.loads(text)] for text in outputs.values() if '"metrics"' in text]
    assert nodes == [["node-1"], ["node-1", "node-2"]]
    assert all(name in outputs["springtide score -f pod.yaml"] for name in nodes[1])
    # In mode act the scheduler's own scores by requests are off.
    (profile,) = yaml.safe_load((tmp_path / "scheduler.yaml").read_text())["profiles"]
    disabled = [each["name"] for each in profile["plugins"]["score"]["disabled"]]
    assert "NodeResourcesFit" in disabled
