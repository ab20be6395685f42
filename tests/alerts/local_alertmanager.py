"""Run a real Alertmanager on loopback, for tests."""

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.local.build_programs import ensure_alertmanager
from pipeline.local.control_plane import Component
from tests.http_program import REQUEST_SECONDS, http_program


class LocalAlertmanager(NamedTuple):
    """A running Alertmanager at `url`."""

    url: str
    component: Component

    def alerts(self) -> list[dict[str, Any]]:
        """The alerts that fire."""
        url = f"{self.url}/api/v2/alerts"
        with urllib.request.urlopen(url, timeout=REQUEST_SECONDS) as answer:
            found: list[dict[str, Any]] = json.load(answer)
            return found

    def labels(self) -> list[dict[str, str]]:
        """The labels of the alerts that fire, without the name, in order of rule."""
        labels = [{**alert["labels"]} for alert in self.alerts()]
        assert {of_alert.pop("alertname") for of_alert in labels} <= {"SpringtideHotNode"}
        return sorted(labels, key=lambda of_alert: of_alert["rule"])


@contextmanager
def local_alertmanager(notified_url: str | None = None) -> Iterator[LocalAlertmanager]:
    """Start an Alertmanager, and close it at the end of the block. It posts each alert that begins
    or ends to `notified_url`, at once and by itself; without one it notifies nobody. Raises
    `ControlPlaneError` if it does not become ready."""
    receiver: dict[str, Any] = {"name": "test"}
    if notified_url is not None:
        receiver["webhook_configs"] = [{"url": notified_url}]
    route = {
        "receiver": "test", "group_by": ["..."], "group_wait": "0s", "group_interval": "1s",
        "repeat_interval": "1d",
    }  # fmt: skip

    def arguments(folder: Path, address: str) -> list[str]:
        file = folder / "alertmanager.yml"
        # JSON is YAML.
        file.write_text(json.dumps({"route": route, "receivers": [receiver]}))
        return [
            f"--config.file={file}", f"--storage.path={folder / 'data'}",
            f"--web.listen-address={address}", "--cluster.listen-address=",
        ]  # fmt: skip

    with http_program(ensure_alertmanager(), arguments, "/-/ready") as running:
        yield LocalAlertmanager(running.url, running.component)
