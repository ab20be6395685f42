"""The metrics page of a role."""

import re
import socket
import subprocess
import sys
from urllib.request import urlopen

import pytest

from pipeline import metrics
from pipeline.errors import SettingsError


def test_page_has_build_info_process_memory_and_own_metrics() -> None:
    made = metrics.counter("test_records", "Records of this test.", ["reason"])
    made.labels("undecodable").inc(3)
    server = metrics.serve_metrics("exporter", "127.0.0.1", 0)
    assert server
    try:
        url = f"http://127.0.0.1:{server.server_port}/metrics"
        with urlopen(url, timeout=5) as answer:
            text = answer.read().decode()
    finally:
        server.shutdown()
        server.server_close()
    samples = re.findall(r"^springtide_test_records_total.*", text, re.MULTILINE)
    assert samples == ['springtide_test_records_total{reason="undecodable"} 3.0']
    assert re.search(r'^springtide_build_info{.*role="exporter"', text, re.MULTILINE)
    assert "process_resident_memory_bytes" in text


@pytest.mark.parametrize("role", ["actuator", "evictor"])
def test_a_role_has_no_metrics_of_another_role(role: str) -> None:
    program = (
        f"import pipeline.cli.{role}\nfrom pipeline.metrics import REGISTRY\n"
        "print(*(metric.name for metric in REGISTRY.collect()))"
    )
    names = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True)
    owners = {*re.findall(r"\bspringtide_([a-z]+)_", names.stdout.decode())}
    assert owners == {"build", "kubernetes", role}


def test_without_a_port_there_is_no_page() -> None:
    assert metrics.serve_metrics("worker", "127.0.0.1", None) is None


def test_port_in_use_is_an_error_with_the_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SettingsError) as caught:
        metrics.serve_metrics("worker", "127.0.0.1", taken.getsockname()[1])
    assert caught.value.key == "worker.metrics_port"
