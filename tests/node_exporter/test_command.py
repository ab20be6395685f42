"""The command `springtide exporter` in a separate process, without a broker."""

import json
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from node_exporter.exporter_service import start_live_server
from node_exporter.live_socket import LiveServer
from pipeline.errors import SettingsError
from pipeline.local.process_guard import die_with_parent
from pipeline.settings import ExporterSettings
from tests.node_exporter.fake_node import FakeNode
from tests.processes import environment, eventually, hears_sigterm, springtide

ENVIRONMENT = environment(NODE_NAME="n1")


def run(*flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        springtide("exporter", *flags), capture_output=True, text=True, env=ENVIRONMENT, timeout=60
    )


def roots(node: FakeNode) -> tuple[str, ...]:
    return (f"--cgroup-root={node.cgroups}", f"--proc-root={node.proc}", f"--sys-root={node.sys}")


@contextmanager
def running(log: Path, *flags: str) -> Iterator[subprocess.Popen[str]]:
    with log.open("w") as output:
        process = subprocess.Popen(
            springtide("exporter", *flags), stdout=output, stderr=output, text=True,
            env=environment(NODE_NAME="n1"), preexec_fn=die_with_parent,
        )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_once_prints_one_fake_window_as_json_lines(tmp_path: Path) -> None:
    node = FakeNode(tmp_path)
    node.pod("a", 0)
    result = run("--once", "--window-seconds=1", "--collect-interval-seconds=0.2", *roots(node))
    assert result.returncode == 0, result.stderr
    header, *rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert (header["kind"], header["node"]) == ("header", "n1")
    assert [(row["kind"], row["id"]) for row in rows] == [
        ("node", ""),
        ("tier", "system"),
        ("pod", "a"),
    ]
    assert 0 < rows[0]["coverage"] <= 1
    assert "Z" in result.stderr  # the log contains the start of the window


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (("--cgroup-root=/nonexistent",), 1, "exporter.cgroup_root"),
        (("--proc-root=/nonexistent", "--window-seconds=2"), 1, "exporter.proc_root"),
        (("--window-seconds=7",), 2, "divisor"),
        (("--node-name=Not A Name",), 2, "node_name"),
        (("--socket-path=/proc/1/x.sock", "--metrics-port=0"), 2, "exporter.socket_path"),
    ],
)
def test_invalid_setting_ends_the_exporter_with_a_hint(
    flags: tuple[str, ...], code: int, words: str
) -> None:
    result = run(*flags, *(() if "socket" in flags[0] else ("--once",)))
    assert (result.returncode, "error: " in result.stderr) == (code, True), result.stderr
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_once_fails_when_the_fake_node_becomes_unreadable(tmp_path: Path) -> None:
    node = FakeNode(tmp_path)
    flags = ("--once", "--window-seconds=1", "--collect-interval-seconds=0.2", *roots(node))
    with running(tmp_path / "log", *flags) as process:
        assert eventually(lambda: "collecting one window" in (tmp_path / "log").read_text())
        (node.proc / "stat").write_text("cpu x\n")
        assert process.wait(60) == 1
    assert "expected 8 fields" in (tmp_path / "log").read_text().splitlines()[-1]


def test_exporter_without_its_metrics_port_leaves_no_socket(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        path = tmp_path / "x.sock"
        page = ("--metrics-host=127.0.0.1", f"--metrics-port={taken.getsockname()[1]}")
        result = run(f"--socket-path={path}", *page, *roots(FakeNode(tmp_path)))
    assert (result.returncode, "cannot listen on" in result.stderr) == (2, True), result.stderr
    assert not path.exists()


async def test_default_socket_is_optional_and_configured_socket_is_required(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(
        "node_exporter.exporter_service.log.warning", lambda event, **_: warnings.append(event)
    )
    monkeypatch.setattr(LiveServer, "start", _fail)
    default = ExporterSettings()
    assert await start_live_server(default, "n1") is None
    assert warnings == ["local socket is not available"]
    with pytest.raises(SettingsError):
        await start_live_server(ExporterSettings(socket_path=tmp_path / "x.sock"), "n1")
    assert await start_live_server(ExporterSettings(socket_path=None), "n1") is None
    assert len(warnings) == 1


async def _fail(self: LiveServer) -> None:
    raise SettingsError("cannot listen", key="exporter.socket_path")


def test_once_raises_the_limit_of_open_files(tmp_path: Path) -> None:
    node = FakeNode(tmp_path)
    for number in range(40):
        node.pod(f"{number:03}", 0)
    limited = ["sh", "-c", 'ulimit -S -n 64; exec "$@"', "sh"]
    flags = ("--once", "--window-seconds=1", "--collect-interval-seconds=0.2", *roots(node))
    result = subprocess.run(
        [*limited, *springtide("exporter", *flags)], capture_output=True, text=True,
        env=ENVIRONMENT, timeout=60,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.splitlines()) == 3 + 40


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_exporter_without_a_broker_warns_rarely_and_stops_in_time(
    tmp_path: Path, number: signal.Signals
) -> None:
    node = FakeNode(tmp_path)
    path, log = tmp_path / "x.sock", tmp_path / "log"
    flags = ("--bootstrap-servers=127.0.0.1:1", f"--socket-path={path}", "--metrics-port=0")
    timing = ("--window-seconds=1", "--collect-interval-seconds=0.1")
    with running(log, *flags, *timing, *roots(node)) as process:
        assert eventually(lambda: "windows are waiting for kafka" in log.read_text())
        time.sleep(4)  # several attempts
        start = time.monotonic()
        process.send_signal(number)
        assert process.wait(60) == 0
        # Before a kubelet kills it.
        assert time.monotonic() - start < 30
    events = [json.loads(line)["event"] for line in log.read_text().splitlines()]
    assert events[:2] == ["metrics page", "exporter started"]
    assert events.count("windows are waiting for kafka") == 1
    assert events[-1] == "exporter stopped, windows were not published"
    assert len(events) <= 6
    assert not path.exists()


@pytest.mark.slow
def test_signals_after_the_first_change_neither_the_clean_up_nor_the_exit_code(
    tmp_path: Path,
) -> None:
    node = FakeNode(tmp_path)
    path, log = tmp_path / "x.sock", tmp_path / "log"
    flags = ("--bootstrap-servers=127.0.0.1:1", f"--socket-path={path}", "--metrics-port=0")
    timing = ("--window-seconds=1", "--collect-interval-seconds=0.1")
    with running(log, *flags, *timing, *roots(node)) as process:
        assert eventually(lambda: hears_sigterm(process.pid))
        while process.poll() is None:
            process.send_signal(signal.SIGTERM)
            time.sleep(0.02)
        assert process.returncode == 0
    assert not path.exists()


def test_help_lists_flags_examples_and_exit_codes() -> None:
    result = run("--help")
    words = ("--once", "--window-seconds", "--cgroup-root", "Examples", "Exit codes")
    assert (result.returncode, [each for each in words if each not in result.stdout]) == (0, [])
