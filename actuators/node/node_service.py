"""Run the node actuator: follow the view, read usage, hold limits; or restore everything."""

import asyncio
import gc
import logging
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

from actuators.action_log import Actions
from actuators.node import node_metrics, resctrl_step
from actuators.node.cgroup_files import (
    CgroupFiles,
    Hierarchy,
    detect_hierarchies,
    node_hierarchies,
)
from actuators.node.cgroup_inotify import CgroupInotify
from actuators.node.cgroup_writer import CgroupWriter
from actuators.node.container_start import ContainerStart
from actuators.node.cpu_manager_state import CpuManagerState
from actuators.node.eviction_requests import EvictionRequests
from actuators.node.koordlet_metrics import KoordletMetrics
from actuators.node.live_usage import LiveUsage
from actuators.node.memory_emergency import EmergencyKiller, emergency_mode
from actuators.node.newest_view import NewestView
from actuators.node.node_actuator import NodeActuator
from actuators.node.node_reading import NodeReading
from actuators.node.nri_plugin import NriPlugin
from actuators.node.original_values import OriginalValues
from actuators.node.pod_cgroups import PodCgroups
from actuators.node.resctrl_step import ResctrlStep, remove_groups, resctrl_marker
from actuators.node.runtime_values import RuntimeValues
from actuators.node.view_poll import ViewServer, follow_server
from actuators.node.view_topic import follow_topic
from actuators.node.write_access import check_write_access
from node_exporter.kernel.cgroup import detect_layout
from node_exporter.kernel.node_files import boot_id
from pipeline.clock import Clock, SystemClock
from pipeline.errors import SettingsError, StateError
from pipeline.logs import get_logger
from pipeline.metrics import serve_metrics
from pipeline.metrics_server import Readiness
from pipeline.open_files import raise_file_limit
from pipeline.processors.node_qos import memory_emergency
from pipeline.processors.node_qos.block_io import BlockIo
from pipeline.processors.node_qos.cpu_burst import CpuBurst
from pipeline.processors.node_qos.cpu_suppression import CpuSuppression
from pipeline.processors.node_qos.eviction_victims import EvictionFeature
from pipeline.processors.node_qos.features import built_features
from pipeline.processors.node_qos.memory_qos import MemoryProtection
from pipeline.processors.node_qos.node_sysctl import NodeSysctl
from pipeline.settings import ExporterSettings, NodeActuatorSettings, Settings, node_name
from pipeline.settings.feature_gates import Gate, gates_in_force
from pipeline.settings.node_actuator_settings import FeatureMode
from pipeline.tasks import run_all, work_until_stopped

log = get_logger(__name__)


async def run(settings: Settings, environ: Mapping[str, str]) -> None:
    """Run until SIGTERM or SIGINT; limits stay. Raises `KernelFileError` or `SettingsError` if the
    actuator cannot start or may not write what it should, `StateError` if another one runs on this
    node."""
    section, exporter, clock = settings.node_actuator, settings.exporter, SystemClock()
    node = node_name(exporter, environ)
    if exporter.socket_path is None:
        raise SettingsError(
            "exporter.socket_path: the node actuator needs the exporter's socket",
            key="exporter.socket_path",
            hint="set the path that the exporter of this node listens on",
        )
    raise_file_limit()
    if settings.log.level != "debug":
        # aiokafka logs each failed attempt several times; views and actions log an outage once.
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    with ExitStack() as stack:
        layout = detect_layout(str(exporter.cgroup_root))
        cgroups = detect_hierarchies(str(exporter.cgroup_root))
        features = built_features(
            section.suppression_pressure_percent, section.suppression_forecast_sigmas
        )
        modes = feature_modes(section, [*(f.name for f in features), resctrl_step.NAME])
        of_cgroups = [feature.name for feature in features if feature.name != NodeSysctl.name]
        writes = any(modes[name] == "act" for name in of_cgroups)
        check_write_access(cgroups, exporter.cgroup_parent, writes=writes)
        hierarchies = cgroups | _node_hierarchies(exporter)
        files = CgroupFiles(hierarchies)
        stack.callback(files.close)
        originals = OriginalValues(
            section.state_file, boot_id(str(exporter.proc_root)), files.value_of
        )
        stack.callback(originals.close)
        news = asyncio.Event()
        view = NewestView(node, clock, news)
        inotify = CgroupInotify(layout.cpu, news)
        stack.callback(inotify.close)
        usage = LiveUsage(exporter.socket_path, node, clock)
        cpu_manager = CpuManagerState(section.cpu_manager_state_file, clock)
        pod_cgroups = PodCgroups(layout, exporter.cgroup_parent, inotify.changed, clock)
        reading = NodeReading(exporter, layout, files, view, usage, cpu_manager, pod_cgroups, clock)
        stack.callback(reading.close)
        actions = Actions(settings.kafka, node_metrics.ACTIONS_LOST)
        evictions = EvictionRequests(node, modes, settings.kafka, actions.put, clock)
        after_round = [evictions.step]
        resctrl = exporter.sys_root / "fs/resctrl"
        after_round.append(
            ResctrlStep(
                node, modes[resctrl_step.NAME], resctrl, exporter.proc_root, Path(layout.cpu),
                resctrl_marker(section.state_file), actions.put, clock,
            ).step
        )  # fmt: skip
        if (memory := hierarchies.get("memory")) is not None:
            mode = emergency_mode(section.features)
            after_round.append(EmergencyKiller(node, mode, memory, actions.put, clock).step)
        writer = CgroupWriter(files, originals)
        series = KoordletMetrics(writer.claimed, clock)
        after_round.append(series.step)
        series.serve()
        stack.callback(series.close)
        replaced = RuntimeValues(files, originals, clock)
        actuator = NodeActuator(
            section, modes, features, reading, writer, replaced, inotify.follow, after_round,
            actions, clock, news,
        )  # fmt: skip
        page = serve_metrics(
            "node_actuator", section.metrics_host, section.metrics_port,
            Readiness(partial(_trouble, originals, modes)),
        )  # fmt: skip
        if page is not None:
            stack.callback(page.stop)
        gc.freeze()  # what the start has made lives on, and need not be looked at again and again
        log.info("node actuator started", node=node, modes=modes)
        work = [
            actuator.run(), evictions.run(), actions.run(),
            _follow_view(settings, view, clock),
        ]  # fmt: skip
        if section.nri_socket is not None:
            of_starts = CgroupFiles(cgroups)
            stack.callback(of_starts.close)
            starts = ContainerStart(view, of_starts, originals, layout, exporter.cgroup_parent)
            work.append(NriPlugin(section.nri_socket, starts, actuator.copy, replaced, clock).run())
        await work_until_stopped(run_all(work))
        log.info("node actuator stopped, its limits stay", held=len(originals.values))


def _trouble(originals: OriginalValues, modes: Mapping[str, FeatureMode]) -> str:
    """Why the actuator is not ready: no feature acts, and not everything is as it was. Empty if it
    is ready."""
    remaining = 0 if "act" in modes.values() else len(originals.values)
    return f"restoring what was written: {remaining} values remain" if remaining else ""


def _node_hierarchies(exporter: ExporterSettings) -> dict[str, Hierarchy]:
    return node_hierarchies(str(exporter.proc_root), str(exporter.sys_root))


_GATED: Final[Mapping[str, str]] = {
    "BECPUSuppress": CpuSuppression.name,
    "CPUBurst": CpuBurst.name,
    "CgroupReconcile": MemoryProtection.name,
    "BlkIOReconcile": BlockIo.name,
    "RdtResctrl": resctrl_step.NAME,
    "SystemConfig": NodeSysctl.name,
    **{feature.value: feature.setting for feature in EvictionFeature},
}
GATES: Final[Mapping[str, Gate]] = {
    gate: Gate(True, f"`{feature}`") for gate, feature in _GATED.items()
}
"""Gates of koordlet, for the features that it has, too. Our features have modes beside them, so
every gate is open by default: in mode observe a feature changes nothing."""


def feature_modes(
    settings: NodeActuatorSettings, features: Sequence[str]
) -> dict[str, FeatureMode]:
    """The mode of each feature, of those that ask for evictions too. Raises `SettingsError` for a
    name that no feature has, and for an unknown gate."""
    names = [*features, *(feature.setting for feature in EvictionFeature)]
    unknown = sorted(settings.features.keys() - {*names, memory_emergency.NAME})
    if unknown:
        raise SettingsError(
            f"node_actuator.features: there is no feature {unknown[0]!r:.100}",
            key="node_actuator.features",
            hint=f"features are {', '.join([*names, memory_emergency.NAME])}",
        )
    gates = gates_in_force(settings.feature_gates, GATES, "node_actuator.feature_gates")
    closed = {_GATED[gate] for gate, is_open in gates.items() if not is_open}
    return {
        name: "off" if name in closed else settings.features.get(name, settings.mode)
        for name in names
    }


def _follow_view(settings: Settings, view: NewestView, clock: Clock) -> Coroutine[Any, Any, None]:
    section = settings.node_actuator
    if section.extender_url is None:
        return follow_topic(settings.kafka, view, clock)
    server = ViewServer(section.extender_url, section.extender_ca_file, section.extender_token_file)
    return follow_server(server, view, clock)


def undo_all(settings: Settings) -> None:
    """Restore everything that was written on this node. Raises `StateError` while an actuator runs,
    and for values that cannot be restored."""
    exporter = settings.exporter
    cgroups = detect_hierarchies(str(exporter.cgroup_root))
    files = CgroupFiles(cgroups | _node_hierarchies(exporter))
    originals = OriginalValues(
        settings.node_actuator.state_file, boot_id(str(exporter.proc_root)), files.value_of
    )
    try:
        # What is not visible here, as in another cgroup namespace, would count as ended.
        if originals.values and not any(map(files.sees_tree_of, originals.values)):
            raise StateError(
                f"no cgroup that was limited is below {exporter.cgroup_root}",
                hint="set exporter.cgroup_root to the root of the node's cgroups",
            )
        changes = CgroupWriter(files, originals).undo()
        lost = originals.lost_because
        left = len(originals.values)
    finally:
        files.close()
        originals.close()
    marker = resctrl_marker(settings.node_actuator.state_file)
    remove_groups(exporter.sys_root / "fs/resctrl", marker)
    failed = next((change for change in changes if change.outcome == "failed"), None)
    if failed is not None or left:
        why = f"{failed.place}: {failed.error}" if failed else "they were changed by others"
        raise StateError(f"{left} values are not restored: {why}", hint="see the log, try again")
    if lost is not None:
        raise StateError(
            f"original values were lost: {lost}",
            hint="restart the node; if only pods were limited, restart them and remove "
            f"{settings.node_actuator.state_file}",
        )
    log.info("restored", values=sum(change.outcome == "done" for change in changes))
