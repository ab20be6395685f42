"""Settings of the exporter."""

import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct, field
from msgspec.structs import force_setattr

from pipeline.errors import SettingsError
from pipeline.settings.base import (
    NODE_NAME,
    SECONDS_OF_A_DAY,
    MemoryCollectPolicy,
    MetricsHost,
    MetricsPort,
    NodeName,
    Section,
)


class HostApplicationCgroup(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The cgroup of a host application, with Koordinator's field names."""

    base: Literal["CgroupRoot", "Kubepods", "KubepodsBurstable", "KubepodsBesteffort"] = (
        "CgroupRoot"
    )
    parent_dir: str = field(name="parentDir", default="")
    relative_path: str = field(name="relativePath", default="")


class HostApplication(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A group of processes outside Kubernetes whose usage is measured."""

    name: Annotated[
        str,
        Meta(
            # Characters that samples allow in an id.
            pattern=r'^[^\x00-\x1f"\\\x7f-\x9f]{1,253}$',
            title="a name without control characters, quotes and backslashes",
        ),
    ]
    priority: Literal["koord-prod", "koord-mid", "koord-batch", "koord-free", ""] = ""
    qos: Literal["LSE", "LSR", "LS", "BE", "SYSTEM", ""] = ""
    # None: host-latency-sensitive/<name>, host-best-effort/<name> or <name>, by the QoS.
    cgroup_path: HostApplicationCgroup | None = field(name="cgroupPath", default=None)


class ExporterSettings(Section, frozen=True, kw_only=True):
    """The exporter on each node."""

    node_name: Annotated[
        NodeName | None,
        Meta(
            description="Name of this machine's Node object; null: the variable NODE_NAME, "
            "else the host name in lower case."
        ),
    ] = None
    collect_interval_seconds: Annotated[
        float, Meta(ge=0.1, le=60, description="Interval of measurements.")
    ] = 1.0
    window_seconds: Annotated[
        Annotated[int, Meta(ge=1, le=3600)],
        Meta(
            description="Length of a window. Must divide a day, so that the windows of all nodes "
            "are aligned to UTC."
        ),
    ] = 30
    system_outdated_seconds: Annotated[
        Annotated[float, Meta(gt=0, le=3600)],
        Meta(
            description="System usage (node minus pods minus host applications) is unknown while "
            "the last measurement of one of these is older than this."
        ),
    ] = 10.0
    memory_collect_policy: Annotated[
        MemoryCollectPolicy,
        Meta(
            description="Memory figure in the exporter's own metrics, unless "
            "metricMemoryCollectPolicy names another for the node."
        ),
    ] = "usageWithoutPageCache"
    cgroup_root: Annotated[
        Path, Meta(description="Mount point of cgroups; in a container that of the host's.")
    ] = Path("/sys/fs/cgroup")
    proc_root: Annotated[Path, Meta(description="Mount point of the host's /proc.")] = Path("/proc")
    sys_root: Annotated[Path, Meta(description="Mount point of the host's /sys.")] = Path("/sys")
    cgroup_driver: Annotated[
        Literal["auto", "systemd", "cgroupfs"],
        Meta(description="Cgroup driver of the kubelet; auto: detect it."),
    ] = "auto"
    cgroup_parent: Annotated[
        str,
        Meta(
            description="Parent of kubepods below the cgroup root: the kubelet's --cgroup-root, "
            "such as /kubelet.slice in kind. Empty: the cgroup root itself."
        ),
    ] = ""
    host_applications: Annotated[
        tuple[HostApplication, ...],
        Meta(
            description="Groups of processes outside Kubernetes to measure: a list of "
            "{name, priority, qos, cgroupPath: {base, parentDir, relativePath}}."
        ),
    ] = ()
    gauges: Annotated[
        dict[str, str],
        Meta(
            description="Files with one number each, to be published under the name of an extended "
            "resource, such as {example.com/conntrack: "
            "/proc/sys/net/netfilter/nf_conntrack_count}; at most 8."
        ),
    ] = field(default_factory=dict)
    buffer_bytes: Annotated[
        Annotated[int, Meta(ge=65_536, le=2**32)],
        Meta(
            description="Memory for windows while Kafka is unavailable; the oldest are dropped "
            "first, and counted."
        ),
    ] = 33_554_432
    socket_path: Annotated[
        Path | None,
        Meta(
            description="Unix socket that serves the last seconds; null: none. An unusable path is "
            "an error; if it is the default path, a warning."
        ),
    ] = Path("/run/springtide/exporter.sock")
    metrics_host: MetricsHost = "0.0.0.0"
    metrics_port: MetricsPort = 9101

    def __post_init__(self) -> None:
        # The kubelet's value has a leading slash, which would escape the cgroup root.
        parts = (part for part in self.cgroup_parent.split("/") if part not in ("", "."))
        force_setattr(self, "cgroup_parent", "/".join(parts))

    def problems(self) -> Mapping[str, str]:
        problems = {}
        if ".." in self.cgroup_parent.split("/"):
            problems["cgroup_parent"] = "a directory below the cgroup root, without .."
        if SECONDS_OF_A_DAY % self.window_seconds:
            problems["window_seconds"] = "a divisor of 86400 (5, 10, 15, 20, 30, 60, 120, 300, ...)"
        if self.collect_interval_seconds > self.window_seconds:
            problems["collect_interval_seconds"] = f"at most window_seconds ({self.window_seconds})"
        names = [application.name for application in self.host_applications]
        if len(set(names)) < len(names):
            problems["host_applications"] = "each name once"
        return problems


def node_name(exporter: ExporterSettings, environ: Mapping[str, str]) -> str:
    """Return the name of this node: the setting, `NODE_NAME`, or the host name in lower case.
    Raises `SettingsError` if it is not a valid name of a Node."""
    if exporter.node_name is not None:
        return exporter.node_name
    variable = environ.get("NODE_NAME", "")
    name, source = (
        (variable, "NODE_NAME") if variable else (socket.gethostname().lower(), "host name")
    )
    if not re.fullmatch(NODE_NAME, name):
        raise SettingsError(
            f"{source} {name!r:.100} is not a valid Node name",
            key="exporter.node_name",
            source=source,
            hint="set exporter.node_name: lower-case letters, digits, - and ., at most 253",
        )
    return name
