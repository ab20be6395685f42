"""The metrics page of a running exporter as Prometheus scrapes it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cgroup_tree import CgroupTree, cgroup_tree
from tests.node_exporter.test_budget import page
from tests.node_exporter.test_command import running
from tests.processes import eventually

pytestmark = pytest.mark.cgroups


@pytest.fixture
def tree() -> Iterator[CgroupTree]:
    with cgroup_tree("page") as tree:
        tree.write("cpu", "", "cpu.shares", 16384)
        tree.make("outside")
        yield tree


def test_metrics_page_reports_cost_and_usage_of_host_applications(
    tree: CgroupTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.python("outside", f"x = b'x' * {64 << 20}\nwhile True: pass")
    application = {
        "name": "nginx", "priority": "koord-prod", "qos": "LS",
        "cgroupPath": {"parentDir": tree.name, "relativePath": "outside"},
    }  # fmt: skip
    monkeypatch.setenv("SPRINGTIDE_EXPORTER_HOST_APPLICATIONS", json.dumps([application]))
    flags = {
        "bootstrap-servers": "127.0.0.1:1", "socket-path": tmp_path / "x.sock",
        "metrics-host": "127.0.0.1", "metrics-port": 0, "cgroup-parent": tree.name,
        "window-seconds": 1, "collect-interval-seconds": 0.5,
    }  # fmt: skip
    log = tmp_path / "log"

    own = "springtide_exporter"
    windows = f"{own}_update_duration_seconds_count"
    with running(log, *(f"--{name}={value}" for name, value in flags.items())):
        assert eventually(lambda: "exporter started" in log.read_text())
        assert eventually(lambda: page(log)[windows] >= 3)
        assert eventually(lambda: page(log).get(f'{own}_errors_total{{kind="kafka"}}', 0) >= 1)
        metrics = page(log)
    assert metrics[f"{own}_collection_duration_seconds_count"] >= 3
    assert 0 < metrics[f"{own}_collection_duration_seconds_sum"] < 5
    assert 0 < metrics[f"{own}_update_duration_seconds_sum"] < 5
    assert metrics[f"{own}_pods"] == 0
    labels = 'app="nginx",node="n1",priority="koord-prod",qos="LS"'
    name = "koordlet_host_application_resource_usage"
    assert 0.3 < metrics[f'{name}{{{labels},resource="cpu",unit="core"}}'] < 1.2
    assert metrics[f'{name}{{{labels},resource="memory",unit="byte"}}'] > 64 << 20
    assert metrics['koordlet_node_used_cpu_cores{node="n1"}'] > 0.3
    assert metrics['koordlet_node_used_memory_bytes{node="n1"}'] > 64 << 20
    assert metrics[f"{own}_system_used_cpu_cores"] >= 0
