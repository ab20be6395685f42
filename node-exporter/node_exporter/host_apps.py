"""Where host applications have their cgroups, so that nothing is measured twice.

The system is what is left of the node after pods and host applications: an application whose
directory held pods, or another application, would be subtracted twice.
"""

from collections.abc import Iterable, Sequence

from node_exporter.kernel.cgroup_paths import Driver, holds_pods, host_app_dir, is_within
from pipeline.errors import KernelError
from pipeline.settings import HostApplication


def check_host_apps(
    applications: Sequence[HostApplication], drivers: Iterable[Driver], parent: str
) -> None:
    """Raise `KernelError` for an application that overlaps with pods or with another one.

    `drivers` are those that the kubelet of this node may turn out to have.
    """
    for driver in drivers:
        paths = [(app.name, host_app_path(app, driver, parent)) for app in applications]
        for at, (name, path) in enumerate(paths):
            if holds_pods(driver, path, parent):
                _refuse(name, path, "is where pods are")
            for other, its in paths[:at]:
                if is_within(path, its) or is_within(its, path):
                    _refuse(name, path, f"and {its!r} of {other} contain the same processes")


def host_app_path(app: HostApplication, driver: Driver, parent: str) -> str:
    """Its directory below the cgroup root. Raises `KernelError` if it is none."""
    given = app.cgroup_path
    return host_app_dir(
        driver,
        app.name,
        app.qos,
        base=given.base if given else None,
        parent_dir=given.parent_dir if given else None,
        relative_path=given.relative_path if given else None,
        parent=parent,
    )


def _refuse(name: str, path: str, why: str) -> None:
    raise KernelError(
        f"{path!r} {why}: usage would count twice",
        path=f"host application {name}",
        hint="give it a cgroup of its own in exporter.host_applications",
    )
