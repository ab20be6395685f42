"""The metrics page of a role."""

import asyncio
import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pipeline import event_loop_lag, metrics, metrics_server
from pipeline.errors import SettingsError
from pipeline.metrics import histogram
from tests.processes import until


def test_page_has_build_info_process_memory_and_own_metrics() -> None:
    made = metrics.counter("test_records", "Records of this test.", ["reason"])
    made.labels("undecodable").inc(3)
    server = metrics.serve_metrics("exporter", "127.0.0.1", 0)
    assert server
    try:
        url = f"http://127.0.0.1:{server.server_port}/metrics"
        with urlopen(url, timeout=60) as answer:
            text = answer.read().decode()
    finally:
        server.stop()
    samples = re.findall(r"^springtide_test_records_total.*", text, re.MULTILINE)
    assert samples == ['springtide_test_records_total{reason="undecodable"} 3.0']
    assert re.search(r'^springtide_build_info{.*role="exporter"', text, re.MULTILINE)
    assert "process_resident_memory_bytes" in text


def test_clients_that_send_no_request_hold_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server._Handler, "timeout", 0.3)
    server = metrics.serve_metrics("worker", "127.0.0.1", 0)
    assert server
    address, before = ("127.0.0.1", server.server_port), threading.active_count()
    silent = [socket.create_connection(address, timeout=60) for _ in range(100)]
    try:
        assert threading.active_count() <= before + metrics_server.MOST_REQUESTS
        # All are closed, the last ones at once for lack of a place.
        assert [client.recv(1) for client in silent] == [b""] * 100
        with urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=60) as answer:
            assert answer.status == 200
    finally:
        for client in silent:
            client.close()
        server.stop()


@pytest.mark.parametrize(
    ("role", "more"), [("actuator", set()), ("evictor", set()), ("planner", {"decisions"})]
)
def test_a_role_has_no_metrics_of_another_role(role: str, more: set[str]) -> None:
    program = (
        f"import pipeline.cli.{role}\nfrom pipeline.metrics import REGISTRY\n"
        "print(*(metric.name for metric in REGISTRY.collect()))"
    )
    names = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True)
    owners = {*re.findall(r"\bspringtide_([a-z]+)_", names.stdout.decode())}
    # Of every role (four), of clients of the API server, of roles with a leader, and of feeds.
    of_all = {"build", "event", "tracing", "certificate"}
    assert owners == of_all | {"kubernetes", "standby", "refused", role} | more


def test_a_label_without_a_bound_is_refused() -> None:
    with pytest.raises(ValueError, match=r"state the bound of 'pod_uid' in pipeline/metric_labels"):
        metrics.gauge("test_pods", "Pods of this test.", ["reason", "pod_uid"])
    assert "springtide_test_pods" not in metrics.DECLARED


async def test_a_blocked_event_loop_shows_in_its_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_loop_lag, "INTERVAL_SECONDS", 0.05)
    measured = histogram("test_lag_seconds", "Lag in this test.", buckets=(1.0,))
    monkeypatch.setattr(event_loop_lag, "LAG", measured)
    event_loop_lag.measure_event_loop_lag()
    await asyncio.sleep(0)
    time.sleep(0.55)  # noqa: ASYNC251 (it blocks the loop)
    await until(lambda: sum_of_samples(measured, "_count") >= 3)
    assert sum_of_samples(measured, "_sum") > 0.45


def sum_of_samples(measured: Histogram, suffix: str) -> float:
    samples = [sample for metric in measured.collect() for sample in metric.samples]
    return float(sum(sample.value for sample in samples if sample.name.endswith(suffix)))


def test_without_a_port_there_is_no_page() -> None:
    assert metrics.serve_metrics("worker", "127.0.0.1", None) is None


def test_only_the_metrics_page_answers() -> None:
    server = metrics_server.MetricsServer("127.0.0.1", 0, CollectorRegistry())
    try:
        answers = {}
        for path in ("/", "/metrics", "/readyz", "/healthz"):
            connection = HTTPConnection("127.0.0.1", server.server_port, timeout=60)
            connection.request("GET", path)
            answers[path] = connection.getresponse().status
            connection.close()
    finally:
        server.stop()
    assert answers == {"/": 200, "/metrics": 200, "/readyz": 404, "/healthz": 404}


def test_a_role_that_stands_by_is_ready_and_a_leader_while_it_works() -> None:
    readiness, troubles = metrics_server.Readiness(), [""]
    server = metrics_server.MetricsServer("127.0.0.1", 0, CollectorRegistry(), readiness)

    def answer(path: str = "/readyz") -> tuple[int, object]:
        connection = HTTPConnection("127.0.0.1", server.server_port, timeout=60)
        connection.request("GET", path)
        response = connection.getresponse()
        body = json.loads(response.read())
        connection.close()
        return response.status, body

    try:
        standing_by = 200, {"status": "ready", "message": "standing by"}
        assert answer() == standing_by
        with readiness.leading(lambda: troubles[0]):
            assert answer() == (200, {"status": "ready", "message": "leading"})
            troubles[0] = "catching up"
            assert answer() == (503, {"status": "not ready", "message": "catching up"})
            assert answer("/healthz") == (200, {"status": "ok"})
        assert answer() == standing_by
    finally:
        server.stop()


def test_port_in_use_is_an_error_with_the_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SettingsError) as caught:
        metrics.serve_metrics("worker", "127.0.0.1", taken.getsockname()[1])
    assert caught.value.key == "worker.metrics_port"


async def test_an_answer_of_several_turns_meets_one_part_of_a_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = 0

    class Parts(Collector):
        def collect(self) -> Iterator[Metric]:
            nonlocal written
            for number in range(10):
                written += 1
                yield GaugeMetricFamily(f"part_{number}", "A part.", 0.0)

    registry = CollectorRegistry()
    registry.register(Parts())
    monkeypatch.setattr(metrics, "REGISTRY", registry)
    monkeypatch.setattr(metrics, "TURN_SECONDS", 0.0)
    page = asyncio.create_task(metrics.page())
    await asyncio.sleep(0)
    before = written
    for _turn in range(4):
        await asyncio.sleep(0)
    assert written - before <= 1
    assert (await page).count(b"# TYPE") == 10
