"""Choose the host applications to measure, and check their cgroup paths for overlaps.

The system usage is node minus pods minus host applications: a directory that contained pods or
another application would be subtracted twice.
"""

from collections.abc import Iterable, Sequence

from node_exporter.kernel.cgroup_paths import Driver, holds_pods, host_app_dir, is_within
from pipeline.errors import KernelError
from pipeline.settings import HostApplication


def check_host_apps(
    applications: Sequence[HostApplication], drivers: Iterable[Driver], parent: str
) -> None:
    """Raise `KernelError` for an application that overlaps with pods or another application.

    `drivers` are the possible cgroup drivers of this node's kubelet.
    """
    for driver in drivers:
        paths = [(app.name, host_app_path(app, driver, parent)) for app in applications]
        for index, (name, path) in enumerate(paths):
            if holds_pods(driver, path, parent):
                raise _overlap(name, f"{path!r} contains pods")
            for other, other_path in paths[:index]:
                if is_within(path, other_path) or is_within(other_path, path):
                    raise _overlap(
                        name, f"{path!r} and {other_path!r} of {other} contain the same processes"
                    )


def add_host_apps(
    configured: Sequence[HostApplication],
    of_policy: Iterable[HostApplication],
    drivers: Sequence[Driver],
    parent: str,
) -> tuple[tuple[HostApplication, ...], list[KernelError]]:
    """The configured applications and those of the node's policy, which win where both have a name.
    An application of the policy that overlaps with others is left out, for the returned reason."""
    wanted = {app.name: app for app in of_policy}
    accepted = [app for app in configured if app.name not in wanted]
    errors = []
    for app in wanted.values():
        try:
            check_host_apps([*accepted, app], drivers, parent)
        except KernelError as error:
            errors.append(error)
        else:
            accepted.append(app)
    return tuple(accepted), errors


def host_app_path(app: HostApplication, driver: Driver, parent: str) -> str:
    """Directory of an application below the cgroup root. Raises `KernelError` if it is invalid."""
    path = app.cgroup_path
    return host_app_dir(
        driver,
        app.name,
        app.qos,
        base=path.base if path else None,
        parent_dir=path.parent_dir if path else None,
        relative_path=path.relative_path if path else None,
        parent=parent,
    )


def _overlap(name: str, reason: str) -> KernelError:
    return KernelError(
        f"{reason}: their usage would count twice",
        path=f"host application {name}",
        hint="set a cgroup of its own in exporter.host_applications",
    )
