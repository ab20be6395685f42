"""`springtide run-in-cgroup`: start a process of the host in the cgroup of its application."""

import os
import shutil
from pathlib import Path

import click
import msgspec

from pipeline.cli.help_sections import Command
from pipeline.cli.options import settings_options
from pipeline.errors import KernelError, UsageError
from pipeline.settings import HostApplication, Settings

_BASES = ("CgroupRoot", "Kubepods", "KubepodsBurstable", "KubepodsBesteffort")


@click.command(
    cls=Command,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    exit_codes={
        0: "the exit code is that of the started program",
        1: "failure: the cgroup cannot be made or joined; the program is not started",
        2: "invalid usage or settings, or the program cannot be started",
    },
)
@click.option("--name", required=True, help="Name of the host application.")
@click.option(
    "--qos", type=click.Choice(["LSE", "LSR", "LS", "BE", "SYSTEM"]), default="LS",
    show_default=True, help="QoS class, which chooses the directory without a path.",
)  # fmt: skip
@click.option("--base", type=click.Choice(_BASES), help="cgroupPath.base of the application.")
@click.option("--parent-dir", default="", help="cgroupPath.parentDir of the application.")
@click.option("--relative-path", default="", help="cgroupPath.relativePath of the application.")
@click.argument("program")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@settings_options("exporter.cgroup_root", "exporter.cgroup_driver", "exporter.cgroup_parent")
def command(
    settings: Settings, name: str, qos: str, base: str | None, parent_dir: str,
    relative_path: str, program: str, arguments: tuple[str, ...],
) -> None:  # fmt: skip
    """Start PROGRAM with ARGUMENTS in the cgroup of a host application.

    Without a path the cgroup is host-latency-sensitive/NAME, host-best-effort/NAME (--qos BE) or
    NAME (--qos SYSTEM), as in Koordinator. Give the path that host-application-config has for the
    application, if it has one: exporter and node actuator find the processes there.

    The program replaces this command and is in its cgroup from its first instruction on. Systemd
    units start it in ExecStart=.

    \b
    Examples:
      springtide run-in-cgroup --name backup --qos BE -- tar czf /backup/data.tgz /data
      springtide run-in-cgroup --name cache --base CgroupRoot --parent-dir services -- redis-server
    """
    from actuators.node.process_cgroup import join_cgroup
    from node_exporter.host_apps import host_app_path
    from node_exporter.kernel.cgroup import detect_layout
    from node_exporter.kernel.cgroup_paths import Driver
    from node_exporter.kernel.discovery import detect_driver

    exporter = settings.exporter
    written: dict[str, object] = {"name": name, "qos": qos}
    if base or parent_dir or relative_path:
        written["cgroupPath"] = {
            "base": base or "CgroupRoot", "parentDir": parent_dir, "relativePath": relative_path
        }  # fmt: skip
    root = Path(exporter.cgroup_root)
    driver = (
        detect_driver(detect_layout(str(root)), exporter.cgroup_parent) or Driver.CGROUPFS
        if exporter.cgroup_driver == "auto"
        else Driver(exporter.cgroup_driver)
    )
    try:
        application = msgspec.convert(written, HostApplication)
        path = host_app_path(application, driver, exporter.cgroup_parent)
    except (msgspec.ValidationError, KernelError) as error:
        hint = "give a name, and a path below its base, without '..'"
        raise UsageError(str(error), hint=hint) from error
    if shutil.which(program) is None:
        raise UsageError(
            f"cannot start {program!r:.200}: no program of this name can be executed",
            hint="give its path, or install it",
        )
    join_cgroup(root, path)
    try:
        os.execvp(program, [program, *arguments])
    except OSError as error:
        raise UsageError(
            f"cannot start {program!r:.200}: {error.strerror}", hint="give its path, or install it"
        ) from error
