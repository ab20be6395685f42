"""Files of results are whole or not there: on a full disk, and when a command is interrupted."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.model_export import write_atomically
from pipeline.errors import SpringtideError
from tests.processes import ROOT, environment, springtide

TRACES = str(ROOT / "tests" / "data" / "traces")
POLICY = "model: {half_life_seconds: {cpu: 7200}}"
COMMANDS = {
    "backtest": ("backtest", TRACES, "--peers", "--parquet", "machines.parquet",
                 "--html", "report.html"),
    "calibrate": ("calibrate", TRACES, "--violation", "0.1", "-o", "json"),
    "what-if": ("what-if", TRACES, "--policy", "policy.yaml", "-o", "json"),
}  # fmt: skip


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "none", disk], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_a_full_disk_leaves_the_old_file_and_no_part(small_disk: Path) -> None:
    file = small_disk / "results.json"
    for before in (None, b"old"):
        if before is not None:
            file.write_bytes(before)
        with pytest.raises(SpringtideError, match="No space left on device") as raised:
            write_atomically(file, bytes(100_000))
        assert "free space" in (raised.value.hint or "")
        assert {path.name: path.read_bytes() for path in small_disk.iterdir()} == (
            {} if before is None else {"results.json": before}
        )


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_a_report_on_a_full_disk_is_an_error_of_two_lines(small_disk: Path) -> None:
    ended = subprocess.run(
        springtide("backtest", TRACES, "--html", str(small_disk / "report.html")),
        env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ended.returncode, [*small_disk.iterdir()]) == (1, [])
    assert "violation" in ended.stdout  # the result is not lost
    assert ended.stderr.splitlines()[-2:] == [
        f"error: cannot write {small_disk}/report.html: No space left on device",
        "  fix: free space, or choose a file on another disk",
    ]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_a_file_is_written_leaves_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    write_bytes = Path.write_bytes

    def write_and_signal(self: Path, content: Any) -> int:
        written = write_bytes(self, content[:1])
        os.kill(os.getpid(), number)
        return written

    monkeypatch.setattr(Path, "write_bytes", write_and_signal)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "results.json", b"new")
    assert [*tmp_path.iterdir()] == []
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("name", COMMANDS)
def test_an_interrupted_command_writes_nothing(tmp_path: Path, name: str, number: int) -> None:
    (tmp_path / "policy.yaml").write_text(POLICY)
    process = subprocess.Popen(
        springtide(*COMMANDS[name]), env=environment(), cwd=tmp_path, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert process.stderr is not None
    # It works: it reports progress once, after two seconds.
    reported = next(line for line in process.stderr if " steps" in line)
    assert reported
    time.sleep(random.Random(f"{name} {number}").uniform(0, 2))
    assert process.poll() is None
    process.send_signal(number)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == (130 if number == signal.SIGINT else -signal.SIGTERM), errors
    assert (output, "Traceback" in errors) == ("", False), errors
    assert [path.name for path in tmp_path.iterdir()] == ["policy.yaml"]
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
