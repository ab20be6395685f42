"""Every role runs, and a real Prometheus scrapes it: the pages have the documented metrics, and
dashboards and rules have data."""

import asyncio
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.clock import SystemClock
from pipeline.kafka.topic_admin import apply_topics
from pipeline.local.build_programs import ensure_promtool
from pipeline.local.control_plane import ControlPlane
from pipeline.local.local_kafka import LocalKafka
from pipeline.local.pki import Authority
from pipeline.local.port_probe import HOST, free_port
from pipeline.local.process_guard import die_with_parent
from pipeline.settings.load import load_settings
from tests.broker import own_topics
from tests.cgroup_tree import cgroup_tree
from tests.cluster.objects import apply, define, delete, node
from tests.crds import FOLDER
from tests.deploy.dashboard_queries import queries, selectors
from tests.deploy.monitoring_files import alerts
from tests.docs.metric_tables import METRIC_ROLES, metrics_of
from tests.processes import environment, eventually, springtide
from tests.provider.local_prometheus import LocalPrometheus, local_prometheus

pytestmark = [
    pytest.mark.plane, pytest.mark.broker, pytest.mark.cgroups, pytest.mark.slow,
    pytest.mark.timeout(1800),
]  # fmt: skip

NODE = "monitored"
RATE_SECONDS = 20.0
RATE = "20s"
READ_SECONDS = 60
# Names of Koordinator, which its dashboards read.
KNOWN_FAULTS = {
    f"koordlet_container_scaled_cfs_{name}_us metric names should not contain abbreviated units"
    for name in ("burst", "quota")
}


def settings_document(
    kafka: LocalKafka,
    plane: ControlPlane,
    tree: str,
    folder: Path,
    ports: dict[str, int],
    prometheus: str,
) -> dict[str, Any]:
    """The settings of all roles, each with its page on its port."""
    topics = own_topics(kafka)
    pages = {
        role.replace("-", "_"): {"metrics_host": HOST, "metrics_port": port}
        for role, port in ports.items()
        if role not in ("extender", "provider")
    }
    pages["exporter"] |= {
        "node_name": NODE, "cgroup_parent": tree, "window_seconds": 5,
        "socket_path": str(folder / "exporter.sock"),
    }  # fmt: skip
    pages["worker"] |= {
        "id": topics.topic_prefix, "data_dir": str(folder), "supervise": False,
        "checkpoint_interval_seconds": 5,
    }  # fmt: skip
    pages["node_actuator"] |= {"mode": "observe", "state_file": str(folder / "limits.json")}
    pages["notifier"] |= {"alertmanager_urls": f"http://{HOST}:{free_port()}"}
    pages["archive"] |= {"directory": str(folder / "archive")}
    pair = Authority(folder, SystemClock()).server("webhook", [HOST], ["localhost"])
    pages["webhook"] |= {
        "host": HOST, "port": 0, "tls_cert_file": str(pair.public),
        "tls_key_file": str(pair.private),
    }  # fmt: skip
    return pages | {
        "kafka": {
            "bootstrap_servers": topics.bootstrap_servers, "topic_prefix": topics.topic_prefix,
            "partitions": topics.partitions,
        },
        "kubernetes": {"kubeconfig": str(plane.kubeconfig())},
        "extender": {"host": HOST, "port": ports["extender"]},
        "provider": {
            "host": HOST, "port": ports["provider"], "kind": "prometheus", "url": prometheus,
            "lease": False, "window_seconds": 6, "step_seconds": 2, "rate_seconds": 6,
            "delay_seconds": 1,
        },
    }  # fmt: skip


@pytest.fixture(scope="module")
def ports() -> dict[str, int]:
    return {role: free_port() for role in METRIC_ROLES}


@pytest.fixture(scope="module")
def prometheus(
    broker: LocalKafka,
    plane: ControlPlane,
    ports: dict[str, int],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[LocalPrometheus]:
    """A Prometheus that has scraped all roles after the worker has published results."""
    folder = tmp_path_factory.mktemp("monitored")
    jobs = [
        {"job_name": f"springtide-{role}", "static_configs": [{"targets": [f"{HOST}:{port}"]}]}
        for role, port in ports.items()
    ]
    apply(plane, node(NODE))
    define(plane, str(FOLDER))
    with ExitStack() as stack:
        stack.callback(plane.kubectl, "delete", "-f", str(FOLDER))
        stack.callback(delete, plane, "node", NODE)
        tree = stack.enter_context(cgroup_tree("monitored"))
        tree.make("kubepods/besteffort/podbatch")
        running = stack.enter_context(local_prometheus(jobs))
        document = settings_document(broker, plane, tree.name, folder, ports, running.url)
        file = folder / "springtide.yaml"
        file.write_text(yaml.safe_dump(document))
        asyncio.run(apply_topics(load_settings(file, {}, {}).kafka))
        for role in METRIC_ROLES:
            stack.callback(start(role, file, folder / f"{role}.log").kill)
        try:
            waited = eventually(lambda: not missing(running), 600)
            assert waited, missing(running)
            yield running
        finally:
            if not waited:
                for role in METRIC_ROLES:
                    print(role, (folder / f"{role}.log").read_text()[-2000:])  # noqa: T201


def start(role: str, settings: Path, log: Path) -> "subprocess.Popen[bytes]":
    with log.open("wb") as output:
        return subprocess.Popen(
            springtide("--config", str(settings), role), stdout=output, stderr=output,
            env=environment(), preexec_fn=die_with_parent,
        )  # fmt: skip


def missing(prometheus: LocalPrometheus) -> list[str]:
    """What must have data before the queries are tried, and has none yet."""
    roles = len(METRIC_ROLES)
    conditions = {
        "all roles": f"sum(up) == {roles}",
        "windows": f"sum(rate(springtide_worker_windows_total[{RATE}])) > 0",
        "peaks": "koordlet_node_predicted_resource_peak",
        "usage of best-effort pods": "koordlet_be_suppress_be_used_cpu_cores",
        "the table": "springtide_table_nodes > 0",
        "lag of event loops": (
            f"count(rate(springtide_event_loop_lag_seconds_count[{RATE}]) > 0) == {roles}"
        ),
        "leaders": "sum(springtide_kubernetes_leader) == 4",
        "a checkpoint": f"sum(rate(springtide_worker_checkpoint_rounds_total[{RATE}])) > 0",
    }
    return [name for name, query in conditions.items() if not prometheus.query(query)]


def page(port: int) -> str:
    with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=READ_SECONDS) as answer:
        text: str = answer.read().decode()
    return text


@pytest.mark.parametrize("role", METRIC_ROLES)
def test_a_page_has_the_documented_metrics_and_promtool_finds_no_fault(
    prometheus: LocalPrometheus, ports: dict[str, int], role: str
) -> None:
    text = page(ports[role])
    names = set(re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE))
    assert names == metrics_of(role)
    assert set(re.findall(r"^# HELP (\S+) \S", text, re.MULTILINE)) == names
    checked = subprocess.run(
        [ensure_promtool(), "check", "metrics"], input=text, text=True, capture_output=True
    )
    assert {*(checked.stdout + checked.stderr).splitlines()} <= KNOWN_FAULTS


def test_each_query_whose_metrics_have_series_has_a_result(prometheus: LocalPrometheus) -> None:
    tried, empty = 0, []
    for query in queries(RATE):
        # A query for a time that is not known yet, which is 0, has no result.
        known = " > 0" if " > 0" in query.expression else ""
        if all(prometheus.query(f"last_over_time({each}[1h]){known}") for each in selectors(query)):
            tried += 1
            # A series that just began has no rate before its second sample.
            if not eventually(partial(prometheus.query, query.expression), RATE_SECONDS):
                empty.append(query)
    assert empty == []
    assert tried > len([*queries(RATE)]) / 2


def test_a_healthy_installation_has_no_alert_but_that_of_the_absent_alertmanager(
    prometheus: LocalPrometheus,
) -> None:
    results = {alert["alert"]: prometheus.query(alert["expr"]) for alert in alerts()}
    pending = {name for name, result in results.items() if result}
    # An event loop may wait for a moment while other tests use the CPU; the alert waits minutes.
    allowed = {"SpringtideAlertsNotDelivered", "SpringtideEventLoopLag"}
    assert pending <= allowed, results
