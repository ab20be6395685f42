"""`springtide node-actuator`: hold limits in the cgroups of this node."""

import asyncio
import os

import click

from pipeline import tracing
from pipeline.cli.help_sections import Command
from pipeline.cli.options import KAFKA_CLIENT, settings_options
from pipeline.settings import Settings


@click.command(
    cls=Command,
    exit_codes={
        0: "stopped by a signal; with --undo: everything is as it was",
        1: "failure: the kernel's files cannot be read, another actuator has the state file; "
        "with --undo: a value cannot be restored, or the saved values were lost",
        2: "invalid usage or settings, or mode act without write access to any cgroup",
    },
)
@click.option(
    "--undo",
    is_flag=True,
    help="Restore everything that the actuator has written on this node, and exit. Stop it first.",
)
@settings_options(
    *KAFKA_CLIENT, "kafka.partitions", "node_actuator.*", "exporter.node_name",
    "exporter.cgroup_root", "exporter.proc_root", "exporter.sys_root", "exporter.cgroup_driver",
    "exporter.cgroup_parent", "exporter.host_applications", "exporter.socket_path",
    shown=("node_actuator.mode", "node_actuator.features"),
)  # fmt: skip
def command(settings: Settings, undo: bool) -> None:
    """Hold pods of low classes down, and protect Prod, by the cgroups of this node.

    Runs as root beside the exporter, whose socket (--socket-path) gives usage once a second. Policy
    and pods come from the view of the node: by default from springtide.node-views, with
    --extender-url from an extender. The policy is Koordinator's slo-controller-config; what it does
    not switch on stays as it is.

    In mode observe, the default, the actuator publishes what it would write on springtide.actions.
    In mode act it writes, widest first from parents to children, and keeps the original values in
    --state-file. A feature that is switched off restores them. So does --undo; a signal does not:
    limits hold while the actuator restarts.

    \b
    Examples:
      springtide node-actuator
      springtide node-actuator --mode act --extender-url http://springtide-extender:9102
      springtide node-actuator --undo
    """
    from actuators.node.node_service import run, undo_all

    if undo:
        undo_all(settings)
        return
    with tracing.exporting("node-actuator", settings.tracing):
        asyncio.run(run(settings, os.environ))
