"""`springtide kafka` as a user runs it, with a real broker and folders of its own."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.local.kafka_jars import cache_dir
from pipeline.local.port_probe import free_port, is_free
from pipeline.local.process_guard import die_with_parent
from tests.processes import eventually, is_alive, springtide

ROOT = Path(__file__).parents[2]
COMMAND = springtide("kafka")


class Cli:
    """Runs the command with state and data below one folder, the jars from where they are."""

    def __init__(self, home: Path) -> None:
        self.environ = {
            **os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(home / "state"),
            "XDG_DATA_HOME": str(home / "data"), "LC_ALL": "C", "TERM": "dumb",
        }  # fmt: skip

    def start(self, *args: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*COMMAND, *args], env=self.environ, cwd="/", stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, preexec_fn=die_with_parent,
        )  # fmt: skip

    def __call__(self, *args: str) -> tuple[int, str, str]:
        process = self.start(*args)
        # A detached broker that held our pipes open would hang this.
        out, err = process.communicate(timeout=120)
        return process.returncode, out, err


@pytest.fixture
def home(tmp_path: Path) -> Path:
    # Homes have such names, and Java's files and paths have their own encodings.
    return tmp_path / "José \\ söker 雪🌊"


@pytest.fixture
def cli(home: Path) -> Iterator[Cli]:
    cli = Cli(home)
    yield cli
    for broker in json.loads(cli("status", "-o", "json")[1])["items"]:
        cli("stop", "--port", str(broker["port"]))


def test_no_broker_is_reported_without_one(cli: Cli) -> None:
    code, out, err = cli("status")
    assert (code, out) == (4, "")
    assert "no local Kafka broker is running" in err
    assert "springtide kafka start" in err
    assert json.loads(cli("status", "-o", "json")[1])["items"] == []
    code, out, _ = cli("stop")
    assert (code, out) == (0, "no local Kafka broker is running\n")


@pytest.mark.broker
def test_detached_broker_is_listed_used_and_stopped(cli: Cli, home: Path) -> None:
    port = str(free_port())
    code, out, err = cli("start", "--detach", "--port", port)
    assert (code, f"ready at 127.0.0.1:{port}" in out) == (0, True), err
    code, out, _ = cli("status")
    assert code == 0
    for shown in (
        rf"127\.0\.0\.1:{port}",
        r"answers +yes",
        r"Java \d+",
        r"kafka\.log",
        r"uptime +\d+s",
    ):
        assert re.search(shown, out), shown
    (broker,) = json.loads(cli("status", "-o", "json")[1])["items"]
    assert broker["answers"] is True
    assert Path(broker["data_dir"]) == home / "data" / "springtide" / "kafka"

    code, _, err = cli("start", "--detach", "--port", port)
    assert (code, "already runs" in err) == (1, True)
    code, _, err = cli("start", "--detach", "--port", str(free_port()))
    assert (code, "uses the data directory" in err) == (1, True)

    code, out, _ = cli("stop")
    assert (code, "stopped the broker" in out) == (0, True)
    assert is_free(int(port))
    assert eventually(lambda: not is_alive(broker["pid"]))
    assert eventually(lambda: not is_alive(broker["guard_pid"]))
    assert (Path(broker["data_dir"]) / "data" / "meta.properties").exists()
    assert cli("status")[0] == 4


@pytest.mark.broker
def test_of_two_starts_at_once_one_names_the_other_broker(cli: Cli) -> None:
    port = str(free_port())
    starts = [cli.start("start", "--detach", "--port", port) for _ in range(2)]
    ended = [(*process.communicate(timeout=120), process.returncode) for process in starts]
    (out, _, _), (_, error, _) = sorted(ended, key=lambda run: run[2])
    assert sorted(code for *_, code in ended) == [0, 1], ended
    assert f"stop  springtide kafka stop --port {port}\n" in out
    assert f"a local broker already runs at 127.0.0.1:{port}" in error
    assert f"`springtide kafka stop --port {port}`" in error


@pytest.mark.broker
@pytest.mark.slow
def test_a_secure_broker_has_users_with_rights_on_the_given_prefix(cli: Cli, home: Path) -> None:
    port, data_dir = str(free_port()), home / "secure"
    start = ("start", "--secure", "--detach", "--port", port, "--data-dir", str(data_dir))
    code, _, err = cli(*start, "--topic-prefix", "shared")
    assert code == 0, err
    config = ("--config", str(data_dir / "security" / "operator.yaml"))
    for command in ("apply", "check"):
        ended = subprocess.run(
            springtide("topics", command, *config, "--partitions", "1"),
            env=cli.environ, cwd="/", capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr
    assert "topics are as declared" in ended.stdout
    reader = subprocess.run(
        springtide("top", "--once", "--config", str(data_dir / "security" / "reader.yaml")),
        env=cli.environ, cwd="/", capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "missing" not in reader.stderr


@pytest.mark.broker
def test_detached_broker_survives_a_closed_output(cli: Cli) -> None:
    """`springtide kafka start --detach | head -1`, and `| true`."""
    port = free_port()
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run(
        [*COMMAND, "start", "--detach", "--port", str(port)],
        env=cli.environ, cwd="/", stdout=writing, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    os.close(writing)
    assert "Traceback" not in ended.stderr
    code, out, err = cli("status")
    assert (code, f"127.0.0.1:{port}" in out) == (0, True), err


@pytest.mark.broker
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_stops_a_foreground_broker(cli: Cli, number: signal.Signals) -> None:
    port = free_port()
    process = cli.start("start", "--port", str(port))
    assert process.stdout is not None
    assert f"ready at 127.0.0.1:{port}" in process.stdout.readline()
    assert cli("status")[0] == 0
    process.send_signal(number)
    _, err = process.communicate(timeout=90)
    assert process.returncode == 0, err
    assert "Traceback" not in err
    assert is_free(port)
    assert cli("status")[0] == 4


@pytest.mark.broker
def test_leftovers_of_a_crash_are_ignored(cli: Cli, home: Path) -> None:
    port = str(free_port())
    assert cli("start", "--detach", "--port", port)[0] == 0
    (broker,) = json.loads(cli("status", "-o", "json")[1])["items"]
    os.kill(broker["guard_pid"], signal.SIGKILL)
    assert eventually(lambda: not is_alive(broker["pid"]))
    assert list((home / "state" / "springtide" / "kafka").glob("*.json"))
    assert cli("status")[0] == 4
    assert "no local Kafka broker is running" in cli("stop")[1]


@pytest.mark.broker
def test_death_of_java_is_an_error_with_the_log(cli: Cli) -> None:
    process = cli.start("start", "--port", str(free_port()))
    assert process.stdout is not None
    process.stdout.readline()
    (broker,) = json.loads(cli("status", "-o", "json")[1])["items"]
    os.kill(broker["pid"], signal.SIGKILL)
    _, err = process.communicate(timeout=90)
    assert process.returncode == 1
    assert "ended with exit code -9" in err
    assert "KafkaRaftServer" in err


def test_fetch_prints_the_directory_of_the_jars(cli: Cli) -> None:
    code, out, _ = cli("fetch")
    assert code == 0
    assert str(cache_dir()) in out
    assert out.startswith("46 jars")


def test_unwritable_state_directory_is_an_error_before_the_start(home: Path) -> None:
    cli = Cli(home)
    cli.environ["XDG_STATE_HOME"] = "/proc"
    code, out, err = cli("start", "--port", str(free_port()))
    assert (code, out) == (1, "")
    assert "error: cannot create /proc/springtide" in err
    assert "set XDG_STATE_HOME" in err
    assert "starting" not in err
