"""Run a real Prometheus on loopback, for tests.

with local_prometheus([{"job_name": "node", "static_configs": [...]}]) as prometheus:
    prometheus.url
"""

import json
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.local.build_programs import ensure_prometheus, ensure_promtool
from tests.http_program import REQUEST_SECONDS, http_program


class LocalPrometheus(NamedTuple):
    """A running Prometheus at `url`."""

    url: str

    def query(self, text: str) -> Any:
        """Run an instant query, and return its result."""
        with urllib.request.urlopen(
            f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': text})}",
            timeout=REQUEST_SECONDS,
        ) as answer:
            return json.load(answer)["data"]["result"]


@contextmanager
def local_prometheus(
    jobs: Sequence[Mapping[str, Any]],
    rules: Mapping[str, str] | None = None,
    recorded: Iterable[str] = (),
    flags: Sequence[str] = (),
) -> Iterator[LocalPrometheus]:
    """Start a Prometheus, and close it at the end of the `with` block.

    `jobs` are entries of `scrape_configs`, `rules` are recording rules: PromQL by name. `recorded`
    are the lines of an OpenMetrics file whose samples it has from the beginning, `flags` further
    flags. Raises `ControlPlaneError` if it does not become ready.
    """

    def arguments(folder: Path, address: str) -> list[str]:
        _configure(folder, jobs, rules or {})
        _record(recorded, folder)
        return [
            f"--config.file={folder / 'prometheus.yml'}", "--storage.tsdb.retention.time=100y",
            f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={address}",
            *flags,
        ]  # fmt: skip

    with http_program(ensure_prometheus(), arguments, "/-/ready") as running:
        yield LocalPrometheus(running.url)


def _record(lines: Iterable[str], folder: Path) -> None:
    """Write blocks with these samples, as `promtool` makes them; nothing without any line."""
    file = folder / "recorded.txt"
    file.write_text("".join(f"{line}\n" for line in lines))
    if not file.stat().st_size:
        return
    # It reads the file once for each block.
    command = [
        "tsdb", "create-blocks-from", "--max-block-duration=7d", "openmetrics", str(file),
        str(folder / "data"),
    ]  # fmt: skip
    subprocess.run([str(ensure_promtool()), *command], check=True, capture_output=True)


def _configure(folder: Path, jobs: Sequence[Mapping[str, Any]], rules: Mapping[str, str]) -> None:
    # JSON is YAML.
    recorded = [{"record": name, "expr": text} for name, text in rules.items()]
    (folder / "rules.yml").write_text(
        json.dumps({"groups": [{"name": "test", "rules": recorded}] if recorded else []})
    )
    (folder / "prometheus.yml").write_text(
        json.dumps({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yml"],
            "scrape_configs": list(jobs),
        })
    )  # fmt: skip
