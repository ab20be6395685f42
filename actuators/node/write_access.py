"""Find the cgroup hierarchies that this process cannot write to, before it tries."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from actuators.node import node_metrics
from actuators.node.cgroup_files import Hierarchy
from node_exporter.kernel.cgroup_paths import Driver, KubeQOS, qos_dir
from pipeline.errors import SettingsError
from pipeline.logs import get_logger

ACCESS_HINT: Final = (
    "run the node actuator as root, with the host's /sys/fs/cgroup mounted writable: in a "
    "container, a hostPath volume without readOnly"
)

log = get_logger(__name__)


class MissingAccess(NamedTuple):
    """A controller whose cgroups cannot be written; `path` is the file that was tried."""

    controller: str
    path: Path
    why: str

    def __str__(self) -> str:
        return f"{self.controller} ({self.path}: {self.why})"


def missing_access(hierarchies: Mapping[str, Hierarchy], parent: str = "") -> list[MissingAccess]:
    """The controllers whose cgroups of pods this process cannot write to: because of its user, or
    because they are mounted read-only. `parent` is the kubelet's --cgroup-root."""
    missing = []
    for controller, hierarchy in hierarchies.items():
        directory = _pods_directory(Path(hierarchy.root), parent)
        file = directory / "cgroup.procs"
        path = file if file.exists() else directory
        if not os.access(path, os.W_OK, effective_ids=True):
            missing.append(MissingAccess(controller, path, _reason(path)))
    return missing


def check_write_access(hierarchies: Mapping[str, Hierarchy], parent: str, *, writes: bool) -> None:
    """Report which cgroups cannot be written; `writes` says whether a feature is to write.

    Raises `SettingsError` if none can be and a feature is to: neither a user nor a mount changes
    while a process runs, so that trying again cannot help.
    """
    missing = missing_access(hierarchies, parent)
    for controller in hierarchies:
        is_missing = any(access.controller == controller for access in missing)
        node_metrics.NOT_WRITABLE.labels(controller).set(is_missing)
    if not missing:
        return
    text = ", ".join(map(str, missing))
    if not writes:
        log.info("cgroups cannot be written, which the mode act needs", missing=text)
    elif len(missing) < len(hierarchies):
        log.warning("some cgroups cannot be written", missing=text, hint=ACCESS_HINT)
    else:
        raise SettingsError(
            f"node_actuator.mode: a feature is to act, but no cgroup can be written: {text}",
            key="node_actuator.mode",
            hint=f"{ACCESS_HINT}; or use the mode observe",
        )


def _pods_directory(root: Path, parent: str) -> Path:
    """The directory of all pods; the root before there is one."""
    for driver in Driver:
        directory = root / qos_dir(driver, KubeQOS.GUARANTEED, parent)
        if directory.is_dir():
            return directory
    return root


def _reason(path: Path) -> str:
    try:
        is_read_only = os.statvfs(path).f_flag & os.ST_RDONLY
    except OSError as error:
        return error.strerror or "unknown"
    return "mounted read-only" if is_read_only else f"user {os.geteuid()} may not write"
