"""The metrics page of a role."""

import socket
from urllib.request import urlopen

import pytest

from pipeline import metrics
from pipeline.errors import SettingsError


def fetch(port: int) -> str:
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        text: bytes = answer.read()
    return text.decode()


def test_page_has_build_info_process_memory_and_own_metrics() -> None:
    made = metrics.counter("test_records", "Records of this test.", ["reason"])
    made.labels("undecodable").inc(3)
    server = metrics.serve_metrics("exporter", "127.0.0.1", 0)
    assert server is not None
    try:
        text = fetch(server.server_port)
    finally:
        server.shutdown()
        server.server_close()
    assert 'springtide_test_records_total{reason="undecodable"} 3.0' in text
    assert "springtide_build_info{" in text
    assert 'role="exporter"' in text
    assert "process_resident_memory_bytes" in text
    assert text.encode().count(b"springtide_test_records_total{") == 1


def test_without_a_port_there_is_no_page() -> None:
    assert metrics.serve_metrics("worker", "127.0.0.1", None) is None


def test_port_in_use_is_an_error_with_the_setting() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(SettingsError) as caught:
            metrics.serve_metrics("worker", "127.0.0.1", taken.getsockname()[1])
    assert caught.value.key == "worker.metrics_port"
