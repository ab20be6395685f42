"""Running Springtide's roles as users run them, for the benchmarks."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.local.process_guard import die_with_parent

ROOT = Path(__file__).parent.parent
STOP_SECONDS = 60


@contextmanager
def springtide(*arguments: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`springtide ARGUMENTS` as a child, ended with the block; its output goes to `log`."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "node-exporter")])
    with log.open("wb") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", "pipeline.cli.main", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=os.environ | {"PYTHONPATH": path},
            preexec_fn=die_with_parent,
        )
        try:
            yield child
            if child.poll() is not None:
                raise SystemExit(f"{arguments[0]} ended with {child.returncode}, see {log}")
        finally:
            child.terminate()
            child.wait(STOP_SECONDS)


def resident_mib(pid: int) -> float:
    """Memory of a process, by /proc."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise SystemExit(f"process {pid} has no memory: it has ended")
