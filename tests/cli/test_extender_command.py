"""The command `springtide extender` in a process of its own, without a broker."""

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from pipeline.local.port_probe import free_port
from tests.processes import environment, eventually


def test_an_extender_without_kafka_logs_once_per_feed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    arguments = ("--bootstrap-servers", "127.0.0.1:1", "--port", str(free_port()))
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "pipeline.cli.main", "extender", *arguments],
            stderr=stderr, env=environment(),
        )  # fmt: skip
        try:
            assert eventually(lambda: "not fed" in log.read_text())
            time.sleep(2)  # several attempts to connect
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        finally:
            process.kill()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    events = Counter(line["event"] for line in lines if line["level"] in ("warning", "error"))
    assert {line["logger"] for line in lines} == {
        "pipeline.extender.service", "pipeline.table.table_feed"
    }  # fmt: skip
    assert set(events.values()) == {1}
