"""Settings of the collector on every node."""

import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct, field
from msgspec.structs import force_setattr

from pipeline.errors import SettingsError
from pipeline.settings.base import NODE_NAME, SECONDS_OF_A_DAY, NodeName, Port, Section, Text


class HostApplicationCgroup(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a host application's cgroup is, in Koordinator's spelling."""

    base: Literal["CgroupRoot", "Kubepods", "KubepodsBurstable", "KubepodsBesteffort"] = (
        "CgroupRoot"
    )
    parent_dir: str = field(name="parentDir", default="")
    relative_path: str = field(name="relativePath", default="")


class HostApplication(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A process group outside Kubernetes whose usage is measured by itself."""

    name: Annotated[
        str,
        Meta(
            # What readers of samples take as an id.
            pattern=r'^[^\x00-\x1f"\\\x7f-\x9f]{1,253}$',
            title="a name without control characters, quotes and backslashes",
        ),
    ]
    priority: Literal["koord-prod", "koord-mid", "koord-batch", "koord-free", ""] = ""
    qos: Literal["LSE", "LSR", "LS", "BE", "SYSTEM", ""] = ""
    # None: host-latency-sensitive/<name>, host-best-effort/<name> or <name>, by the QoS.
    cgroup_path: HostApplicationCgroup | None = field(name="cgroupPath", default=None)


class ExporterSettings(Section, frozen=True, kw_only=True):
    """The collector on every node."""

    node_name: Annotated[
        NodeName | None,
        Meta(
            description="Name of the Node object of this machine; null: the variable NODE_NAME, "
            "else the host name in lower case."
        ),
    ] = None
    collect_interval_seconds: Annotated[
        float, Meta(ge=0.1, le=60, description="Time between two readings of the kernel's files.")
    ] = 1.0
    window_seconds: Annotated[
        int,
        Meta(
            ge=1,
            le=3600,
            description="Length of a window. Must divide a day, so that windows lie on one grid of "
            "UTC on all nodes.",
        ),
    ] = 30
    system_outdated_seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=3600,
            description="The system remainder (node minus pods minus host applications) of a "
            "second is unknown when the newest reading of one of its parts is older than this. The "
            "system's models learn from it; the local socket and the metrics page show it.",
        ),
    ] = 10.0
    memory_collect_policy: Annotated[
        Literal["usageWithoutPageCache", "usageWithHotPageCache", "usageWithPageCache"],
        Meta(description="Which of the three measured memory figures the own metrics show."),
    ] = "usageWithoutPageCache"
    cgroup_root: Annotated[
        Path, Meta(description="Where cgroups are mounted; in a container the host's mount.")
    ] = Path("/sys/fs/cgroup")
    proc_root: Annotated[Path, Meta(description="Where the host's /proc is mounted.")] = Path(
        "/proc"
    )
    sys_root: Annotated[Path, Meta(description="Where the host's /sys is mounted.")] = Path("/sys")
    cgroup_driver: Annotated[
        Literal["auto", "systemd", "cgroupfs"],
        Meta(description="How the kubelet names pod cgroups; auto looks."),
    ] = "auto"
    cgroup_parent: Annotated[
        str,
        Meta(
            description="Directory that holds kubepods, below the cgroup root: the kubelet's "
            "--cgroup-root, such as /kubelet.slice under kind. Empty: kubepods is at the top."
        ),
    ] = ""
    host_applications: Annotated[
        tuple[HostApplication, ...],
        Meta(
            description="Process groups outside Kubernetes to measure by themselves: a list of "
            "{name, priority, qos, cgroupPath: {base, parentDir, relativePath}}."
        ),
    ] = ()
    buffer_bytes: Annotated[
        int,
        Meta(
            ge=65_536,
            le=2**32,
            description="Windows kept in memory while Kafka is away; the oldest are dropped first "
            "and counted.",
        ),
    ] = 33_554_432
    socket_path: Annotated[
        Path | None,
        Meta(
            description="Local socket on which the last seconds are served; null: none. A path "
            "that cannot be used is an error, the default one a warning."
        ),
    ] = Path("/run/springtide/exporter.sock")
    metrics_host: Annotated[
        Text, Meta(description="Address of the metrics page; Prometheus comes from outside.")
    ] = "0.0.0.0"
    metrics_port: Annotated[
        Port | None, Meta(description="Port of the metrics page; 0: any free one, null: none.")
    ] = 9101

    def __post_init__(self) -> None:
        # The kubelet writes it with a slash in front, which would leave our cgroup root.
        parts = (part for part in self.cgroup_parent.split("/") if part not in ("", "."))
        force_setattr(self, "cgroup_parent", "/".join(parts))

    def problems(self) -> Mapping[str, str]:
        found = {}
        if ".." in self.cgroup_parent.split("/"):
            found["cgroup_parent"] = "a directory below the cgroup root, without .."
        if SECONDS_OF_A_DAY % self.window_seconds:
            found["window_seconds"] = "a divisor of 86400 (5, 10, 15, 20, 30, 60, 120, 300, ...)"
        if self.collect_interval_seconds > self.window_seconds:
            found["collect_interval_seconds"] = f"at most window_seconds ({self.window_seconds})"
        names = [application.name for application in self.host_applications]
        if len(set(names)) < len(names):
            found["host_applications"] = "each name once"
        return found


def node_name(exporter: ExporterSettings, environ: Mapping[str, str]) -> str:
    """The name of this node: the setting, else `NODE_NAME`, else the host name in lower case.

    Raises SettingsError if what was found is no name that a Node can have.
    """
    if exporter.node_name is not None:
        return exporter.node_name
    given = environ.get("NODE_NAME", "")
    name, source = (given, "NODE_NAME") if given else (socket.gethostname().lower(), "host name")
    if not re.fullmatch(NODE_NAME, name):
        raise SettingsError(
            f"{source} {name!r:.100} is no Node name",
            key="exporter.node_name",
            source=source,
            hint="set exporter.node_name: lower-case letters, digits, - and ., at most 253",
        )
    return name
