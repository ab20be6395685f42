"""The demo's directory, and the settings of its roles.

The roles listen on free ports of 127.0.0.1. The user's own settings have no effect on them.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from pipeline.errors import DemoError, SettingsError, UsageError
from pipeline.local.demo_workload import demo_name
from pipeline.local.port_probe import HOST
from pipeline.settings import ExporterSettings, node_name

WINDOW_SECONDS: Final = 5
COLD_START_SECONDS: Final = 10
COLD_START_SAMPLES: Final = 2
STALE_AFTER_SECONDS: Final = 60.0
# Without a fleet the only node is mostly idle: with the default of 65% it would never be refused.
LOWERED_CPU_PERCENT: Final = 25.0
POLICY_FILE: Final = "slo-controller-config.json"
ROLES_CGROUP: Final = "springtide"  # the cgroup of the roles, measured as a host application

_SOCKET = "exporter.sock"
_LONGEST_SOCKET_PATH = 107  # unix(7)


@contextmanager
def demo_home(keep: Path | None) -> Iterator[Path]:
    """Create the directory for settings, logs and socket; remove it at the end.

    Settings and logs are copied to `keep` first; an empty `keep` is removed if it did not exist.
    Raises `UsageError` if a directory cannot be created, `DemoError` if a file cannot be copied.
    """
    home = Path(tempfile.gettempdir()) / demo_name(os.getpid())
    if len(str(home / _SOCKET)) > _LONGEST_SOCKET_PATH:
        raise UsageError(
            f"the path {home} is too long for a directory with a Unix socket",
            hint="set TMPDIR to a shorter path",
        )
    is_new = keep is not None and not keep.exists()
    try:
        if keep is not None:
            keep.mkdir(exist_ok=True)
        home.mkdir(mode=0o700)
    except OSError as error:
        _remove_if_empty(keep if is_new else None)
        raise UsageError(
            f"cannot create {error.filename}: {error.strerror}", hint="check TMPDIR and --keep"
        ) from error
    try:
        yield home
    finally:
        try:
            if keep is not None:
                _copy_output(home, keep)
        finally:
            shutil.rmtree(home, ignore_errors=True)
            _remove_if_empty(keep if is_new else None)


def _remove_if_empty(folder: Path | None) -> None:
    if folder is not None:
        with suppress(OSError):
            folder.rmdir()


def _copy_output(home: Path, keep: Path) -> None:
    try:
        for file in [*home.glob("*.log"), *home.glob("*.yaml"), *home.glob("*.json")]:
            shutil.copy(file, keep)
    except OSError as error:
        raise DemoError(
            f"cannot copy logs and settings to {keep}: {error.strerror}",
            hint="give another directory with --keep",
        ) from error


def settings_document(
    bootstrap_servers: str, home: Path, node: str, *, port: int, cgroup_parent: str, fleet: bool
) -> dict[str, Any]:
    """Return the settings file of all roles, with metrics pages on free ports of 127.0.0.1."""
    page = {"metrics_host": HOST, "metrics_port": 0}
    exporter: dict[str, Any] = {
        "node_name": node,
        "window_seconds": WINDOW_SECONDS,
        "cgroup_parent": cgroup_parent,
        "socket_path": str(home / _SOCKET),
        **page,
    }
    if cgroup_parent:
        path = {"relativePath": f"{cgroup_parent}/{ROLES_CGROUP}"}
        exporter["host_applications"] = [
            {"name": "springtide", "priority": "koord-prod", "qos": "LS", "cgroupPath": path}
        ]
    extender: dict[str, Any] = {"mode": "act", "host": HOST, "port": port}
    if not fleet:
        extender["cpu_threshold_percent"] = LOWERED_CPU_PERCENT
    document: dict[str, Any] = {
        "kafka": {"bootstrap_servers": bootstrap_servers},
        "exporter": exporter,
        "worker": {
            "id": "springtide-demo",
            "data_dir": str(home / "worker"),
            "nodes_file": str(home / "nodes.json"),
            "pods_file": str(home / "pods.json"),
            "session_timeout_seconds": 10,
            "checkpoint_interval_seconds": 15,
            **page,
        },
        "model": {
            "cold_start_seconds": COLD_START_SECONDS,
            "cold_start_samples": COLD_START_SAMPLES,
            "force_update_seconds": WINDOW_SECONDS,
        },
        "extender": extender | {"stale_after_seconds": STALE_AFTER_SECONDS},
        "log": {"format": "human"},
    }
    if cgroup_parent:
        document["worker"]["policy_file"] = str(home / POLICY_FILE)
        document["node_actuator"] = {
            "mode": "off",  # nothing but the demo's pods is changed
            "features": {"cpu_suppression": "act"},
            "state_file": str(home / "node-actuator.json"),
            # With a forecast the room of the next burst stays free, and after pressure it grows by
            # 1% of the node a second: both hide that it grows back between bursts.
            "suppression_forecast_sigmas": None,
            "suppression_pressure_percent": None,
            **page,
        }
    return document


def local_node_name() -> str:
    """Return the name of this machine's node; `this-machine` if the host name is not valid."""
    try:
        return node_name(ExporterSettings(), {})
    except SettingsError:
        return "this-machine"
