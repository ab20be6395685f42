"""List the pods and containers of this node by the names of their cgroups.

A pod exists while its directory exists; neither the kubelet nor the API server is involved. Three
directories are listed (kubepods and two QoS classes), cheap enough for every second. Link counts
are no substitute: they do not change when one pod replaces another.
"""

import os
from functools import lru_cache
from typing import NamedTuple

from node_exporter.kernel.cgroup import Layout
from node_exporter.kernel.cgroup_paths import (
    Driver,
    KubeQOS,
    parse_container_dir,
    parse_pod_dir,
    qos_dir,
)
from pipeline.errors import CgroupGoneError, KernelFileError


class PodDir(NamedTuple):
    """A pod's cgroup: `path` is relative to the roots of the layout."""

    uid: str
    kube_qos: KubeQOS
    path: str


def detect_driver(layout: Layout, parent: str = "") -> Driver | None:
    """The kubelet's cgroup driver, by its kubepods directory below `parent`; None without one.

    If both drivers have one, the driver with more pods wins: a kubelet that changes its driver
    leaves empty directories behind. A node that just started may have none yet.
    """
    drivers = [d for d in (Driver.SYSTEMD, Driver.CGROUPFS) if has_kubepods(layout, d, parent)]
    if len(drivers) < 2:
        return drivers[0] if drivers else None
    return max(drivers, key=lambda driver: len(list_pods(layout, driver, parent)))


def has_kubepods(layout: Layout, driver: Driver, parent: str = "") -> bool:
    return os.path.isdir(os.path.join(layout.cpu, qos_dir(driver, KubeQOS.GUARANTEED, parent)))


def list_pods(layout: Layout, driver: Driver, parent: str = "") -> list[PodDir]:
    """All pods that have a cgroup now, by UID; empty if kubepods does not exist."""
    pods: list[PodDir] = []
    for kube_qos in KubeQOS:
        directory = qos_dir(driver, kube_qos, parent)
        names = tuple(_subdirectories(os.path.join(layout.cpu, directory)))
        pods += _pods_of(driver, kube_qos, directory, names)
    pods.sort()
    return pods


@lru_cache(maxsize=16)  # pods change less often than every second
def _pods_of(
    driver: Driver, kube_qos: KubeQOS, directory: str, names: tuple[str, ...]
) -> tuple[PodDir, ...]:
    return tuple(
        PodDir(uid, kube_qos, f"{directory}/{name}")
        for name in names
        if (uid := parse_pod_dir(driver, name)) is not None
    )


def list_containers(layout: Layout, driver: Driver, pod: PodDir) -> dict[str, str]:
    """Cgroup paths of a pod's containers by id, its sandbox included. Raises `CgroupGoneError` if
    the pod has ended."""
    directory = os.path.join(layout.cpu, pod.path)
    names = _subdirectories(directory)
    if not names and not os.path.isdir(directory):
        raise CgroupGoneError("the pod has ended", path=directory)
    return {
        id: f"{pod.path}/{name}"
        for name in names
        if (id := parse_container_dir(driver, name)) is not None
    }


def count_links(layout: Layout, pod: PodDir) -> int:
    """Links to a pod's directory: two, and one of each directory in it. Raises `CgroupGoneError` if
    the pod has ended, `KernelFileError` if it cannot be looked at."""
    directory = os.path.join(layout.cpu, pod.path)
    try:
        return os.stat(directory).st_nlink
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CgroupGoneError("the pod has ended", path=directory) from error
    except OSError as error:
        raise KernelFileError(error.strerror or "cannot be read", path=directory) from error


def _subdirectories(directory: str) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise KernelFileError(
            error.strerror or "cannot be listed",
            path=directory,
            hint="run as root, or give this user read access",
        ) from error
