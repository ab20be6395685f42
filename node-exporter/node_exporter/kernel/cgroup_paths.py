"""Names of cgroup directories as kubelet, container runtimes and Koordinator choose them.

Paths are relative to the root of a controller (v1) or of the single hierarchy (v2), without leading
or trailing slash. The two cgroup drivers name pods differently, the four runtimes name containers
differently. The UID of a static pod is the hash of its manifest instead of a UUID.
"""

import posixpath
import re
from enum import StrEnum
from typing import Final

from pipeline.errors import KernelError


class Driver(StrEnum):
    SYSTEMD = "systemd"
    CGROUPFS = "cgroupfs"


class KubeQOS(StrEnum):
    """Quality of service class of a pod, as Kubernetes derives it from requests and limits."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


_QOS_SEGMENT: Final = {KubeQOS.BURSTABLE: "burstable", KubeQOS.BEST_EFFORT: "besteffort"}

_UID = r"(?P<uid>[0-9A-Za-z][0-9A-Za-z_.-]*)"
_POD: Final = {
    # A kubelet with its own --cgroup-root (kind) prefixes each name with it.
    Driver.SYSTEMD: re.compile(rf"(?:.*-)?kubepods(?:-burstable|-besteffort)?-pod{_UID}\.slice"),
    Driver.CGROUPFS: re.compile(rf"pod{_UID}"),
}
# CRI-O's monitor of a container has a cgroup of its own: crio-conmon-<id>.
_SCOPE: Final = re.compile(
    r"(?:docker|cri-containerd|pouch|crio)-(?!conmon-)([0-9A-Za-z_.-]+)\.scope"
)
_BARE_ID: Final = re.compile(r"(?:crio-)?([0-9A-Za-z]{8,})")
_CONTAINER_ID: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]*")
_SCOPE_PREFIX: Final = {
    "docker": "docker",
    "containerd": "cri-containerd",
    "pouch": "pouch",
    "cri-o": "crio",
}
_HOST_APP_BASE: Final = {
    "CgroupRoot": None,
    "Kubepods": KubeQOS.GUARANTEED,
    "KubepodsBurstable": KubeQOS.BURSTABLE,
    "KubepodsBesteffort": KubeQOS.BEST_EFFORT,
}
_HOST_APP_PARENT: Final = {
    "LSE": "host-latency-sensitive",
    "LSR": "host-latency-sensitive",
    "LS": "host-latency-sensitive",
    "BE": "host-best-effort",
}


def qos_dir(driver: Driver, kube_qos: KubeQOS, parent: str = "") -> str:
    """Directory of the pods of a QoS class; for Guaranteed it is kubepods itself.

    `parent` is the kubelet's --cgroup-root, empty unless the kubelet runs nested.
    """
    segment = _QOS_SEGMENT.get(kube_qos)
    if driver is Driver.CGROUPFS:
        return posixpath.join(parent, "kubepods", segment or "").rstrip("/")
    prefix = _slice_prefix(parent)
    top = posixpath.join(parent, f"{prefix}kubepods.slice")
    return f"{top}/{prefix}kubepods-{segment}.slice" if segment else top


def pod_dir(driver: Driver, kube_qos: KubeQOS, uid: str, parent: str = "") -> str:
    """Directory of a pod; systemd reads '-' as a path separator, so '_' replaces it there."""
    top = qos_dir(driver, kube_qos, parent)
    if driver is Driver.CGROUPFS:
        return f"{top}/pod{uid}"
    stem = posixpath.basename(top).removesuffix(".slice")
    return f"{top}/{stem}-pod{uid.replace('-', '_')}.slice"


def parse_pod_dir(driver: Driver, name: str) -> str | None:
    """UID of the pod with a directory of this name, '_' replaced by '-'; None for other names."""
    match = _POD[driver].fullmatch(name)
    return match["uid"].replace("_", "-") if match else None


def parse_container_dir(driver: Driver, name: str) -> str | None:
    """Id of the container with a directory of this name; None for other names."""
    pattern = _BARE_ID if driver is Driver.CGROUPFS else _SCOPE
    match = pattern.fullmatch(name)
    return match[1] if match else None


def container_dir(driver: Driver, runtime: str, id: str) -> str:
    """Name of the directory of a container, below that of its pod. Raises `KernelError` for a
    runtime other than docker, containerd, pouch and cri-o, and for an id that is none."""
    prefix = _SCOPE_PREFIX.get(runtime)
    if prefix is None or not _CONTAINER_ID.fullmatch(id):
        raise KernelError(
            f"{runtime}://{id}"[:200],
            path="container",
            hint=f"an id of one of {', '.join(_SCOPE_PREFIX)}",
        )
    return id if driver is Driver.CGROUPFS else f"{prefix}-{id}.scope"


def kube_qos_of_path(path: str) -> KubeQOS:
    """QoS class of a pod by the path of its cgroup."""
    for kube_qos in (KubeQOS.BEST_EFFORT, KubeQOS.BURSTABLE):
        if _QOS_SEGMENT[kube_qos] in path:
            return kube_qos
    return KubeQOS.GUARANTEED


def host_app_dir(
    driver: Driver,
    name: str,
    qos: str = "",
    *,
    base: str | None = None,
    parent_dir: str | None = None,
    relative_path: str | None = None,
    parent: str = "",
) -> str:
    """Directory of a host application, by Koordinator's `cgroupPath`, else by name and QoS class.

    `base` is CgroupRoot, Kubepods, KubepodsBurstable or KubepodsBesteffort. Raises `KernelError`
    for any other base, and for a path that is empty or leaves the base.
    """
    if base is None and not parent_dir and not relative_path:
        top, below = _HOST_APP_PARENT.get(qos, ""), name
    else:
        if base not in (None, *_HOST_APP_BASE):
            raise KernelError(
                f"unknown base {base!r}",
                path=f"host application {name}",
                hint=f"one of {', '.join(_HOST_APP_BASE)}",
            )
        kube_qos = _HOST_APP_BASE[base] if base else None
        top = qos_dir(driver, kube_qos, parent) if kube_qos else ""
        below = posixpath.join((parent_dir or "").strip("/"), (relative_path or "").strip("/"))
    path = posixpath.normpath(posixpath.join(top, below.strip("/") or "."))
    inside = posixpath.normpath(below).split("/", 1)[0] != ".."
    named = below.strip("/") not in ("", ".") and path not in (top, ".", "")
    if not inside or not named or "\0" in path:
        raise KernelError(
            f"{below!r} is not a directory below {top or 'the cgroup root'!r}",
            path=f"host application {name}",
            hint="give a parentDir or relativePath, without '..'",
        )
    return path


def holds_pods(driver: Driver, path: str, parent: str = "") -> bool:
    """Whether the cgroup at `path` contains processes of pods, or may contain them later.

    True for kubepods, the QoS classes, their ancestors, and pods and their descendants; False for a
    directory of another name next to the pods.
    """
    classes = [qos_dir(driver, kube_qos, parent) for kube_qos in KubeQOS]
    if any(is_within(directory, path) for directory in classes):
        return True
    return any(
        parse_pod_dir(driver, path[len(directory) + 1 :].split("/", 1)[0]) is not None
        for directory in classes
        if is_within(path, directory)
    )


def is_within(path: str, directory: str) -> bool:
    """Whether `path` is `directory` or a descendant of it."""
    return path == directory or path.startswith(f"{directory}/")


def _slice_prefix(parent: str) -> str:
    # systemd: kubelet.slice/kubelet-kubepods.slice; only a slice becomes a prefix.
    name = posixpath.basename(parent)
    return f"{name.removesuffix('.slice')}-" if name.endswith(".slice") else ""
