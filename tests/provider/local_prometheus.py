"""Run a real Prometheus on loopback, for tests.

with local_prometheus([{"job_name": "node", "static_configs": [...]}]) as prometheus:
    prometheus.url
"""

import json
import shutil
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pipeline.local.build_programs import ensure_prometheus
from pipeline.local.control_plane import Component
from pipeline.local.port_probe import HOST, free_port

_READY_SECONDS: Final = 30.0
_REQUEST_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.1


class LocalPrometheus:
    """A running Prometheus at `url`."""

    def __init__(self, url: str, component: Component) -> None:
        self.url = url
        self.component = component

    def query(self, text: str) -> Any:
        """Run an instant query, and return its result."""
        with urllib.request.urlopen(
            f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': text})}",
            timeout=_REQUEST_SECONDS,
        ) as answer:
            return json.load(answer)["data"]["result"]

    def is_ready(self) -> bool:
        """Return whether it answers queries."""
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=_REQUEST_SECONDS):
                return True
        except (OSError, urllib.error.URLError):
            return False


@contextmanager
def local_prometheus(
    jobs: Sequence[Mapping[str, Any]], rules: Mapping[str, str] | None = None
) -> Iterator[LocalPrometheus]:
    """Start a Prometheus, and close it at the end of the `with` block.

    `jobs` are entries of `scrape_configs`, `rules` are recording rules: PromQL by name. Raises
    `ControlPlaneError` if it does not become ready.
    """
    program = ensure_prometheus()
    folder = Path(tempfile.mkdtemp(prefix="springtide-prometheus-"))
    port = free_port()
    _configure(folder, jobs, rules or {})
    component = Component("prometheus", folder, folder)
    component.argv = [
        str(program), f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={HOST}:{port}",
    ]  # fmt: skip
    try:
        component.start()
        prometheus = LocalPrometheus(f"http://{HOST}:{port}", component)
        deadline = time.monotonic() + _READY_SECONDS
        while not prometheus.is_ready():
            if not component.is_running or time.monotonic() > deadline:
                raise component.error("did not become ready")
            time.sleep(_POLL_SECONDS)
        yield prometheus
    finally:
        component.close()
        shutil.rmtree(folder, ignore_errors=True)


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
