"""The pods on nodes have the paths of their settings, least rights, and more where a feature needs
them."""

from pathlib import Path
from typing import Any

import pytest

from actuators.node.node_service import feature_modes
from actuators.node.resctrl_step import NAME as RESCTRL
from actuators.node.stop_file import STOP_FILE
from pipeline.processors.node_qos.features import built_features
from pipeline.settings import Settings
from pipeline.settings.load import load_settings
from tests.deploy.helm import pods_of, rendered
from tests.deploy.manifest_container import pod_of, settings_text

pytestmark = [pytest.mark.plane, pytest.mark.timeout(1200)]

ROLES = ("exporter", "node-actuator")
HOST_PATHS = {
    "cgroup": "/sys/fs/cgroup", "proc": "/proc", "sys": "/sys", "run": "/run/springtide",
}  # fmt: skip


def container_of(role: str) -> Any:
    (container,) = pod_of(role)["containers"]
    return container


def settings_of(role: str, folder: Path) -> Settings:
    file = folder / f"{role}.yaml"
    file.write_text(settings_text(role))
    return load_settings(file, {}, {})


def mounts_of(role: str) -> dict[str, dict[str, Any]]:
    return {mount["name"]: mount for mount in container_of(role)["volumeMounts"]}


@pytest.mark.parametrize("role", ROLES)
def test_the_trees_of_the_host_are_where_the_settings_have_them(role: str, tmp_path: Path) -> None:
    volumes = {volume["name"]: volume for volume in pod_of(role)["volumes"]}
    assert {name: volumes[name]["hostPath"]["path"] for name in HOST_PATHS} == HOST_PATHS
    settings = settings_of(role, tmp_path)
    exporter, actuator = settings.exporter, settings.node_actuator
    assert exporter.socket_path is not None
    paths = {name: mount["mountPath"] for name, mount in mounts_of(role).items()}
    assert paths["cgroup"] == str(exporter.cgroup_root)
    assert paths["proc"] == str(exporter.proc_root)
    assert paths["sys"] == str(exporter.sys_root)
    for file in (exporter.socket_path, actuator.state_file, STOP_FILE):
        assert str(file.parent) == paths["run"]
    # Both have the socket and the state at the default paths, as `--undo` and tools expect.
    assert exporter.socket_path == Settings().exporter.socket_path
    assert actuator.state_file == Settings().node_actuator.state_file
    writable = {name for name, mount in mounts_of(role).items() if not mount.get("readOnly")}
    assert writable == ({"run"} if role == "exporter" else {"cgroup", "run"})


def test_ports_and_features_exist(tmp_path: Path) -> None:
    settings = settings_of("node-actuator", tmp_path)
    ports = {role: container_of(role)["ports"][0]["containerPort"] for role in ROLES}
    assert ports == {
        "exporter": settings.exporter.metrics_port,
        "node-actuator": settings.node_actuator.metrics_port,
    }
    modes = feature_modes(
        settings.node_actuator, [*(f.name for f in built_features(None, None)), RESCTRL]
    )
    assert settings.node_actuator.mode == "observe"
    assert {name for name, mode in modes.items() if mode == "off"} == {"node_sysctl", RESCTRL}


@pytest.mark.parametrize("role", ROLES)
def test_a_pod_has_least_rights_and_runs_on_every_node(role: str) -> None:
    pod, container = pod_of(role), container_of(role)
    assert not {"hostPID", "hostNetwork", "hostIPC"} & pod.keys()
    assert pod["automountServiceAccountToken"] is False
    assert pod["priorityClassName"] == "system-node-critical"
    assert pod["tolerations"] == [{"operator": "Exists"}]
    assert container["securityContext"] == {
        "runAsUser": 0, "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"},
    }  # fmt: skip
    assert "cpu" not in container["resources"]["limits"]


def writable_with(*values: str) -> tuple[set[str], Any, Any]:
    """With these values: volumes that the node actuator may write, its pod and its container."""
    pod = pods_of(rendered(*values))["node-actuator"]
    (container,) = pod["containers"]
    writable = {m["name"] for m in container["volumeMounts"] if not m.get("readOnly")}
    return writable, pod, container


def test_a_feature_that_is_on_has_the_rights_that_it_needs() -> None:
    writable, pod, _ = writable_with("settings.node_actuator.features.node_sysctl=act")
    assert writable == {"cgroup", "run", "proc", "sys"}
    assert "hostPID" not in pod
    writable, pod, _ = writable_with("settings.node_actuator.features.resctrl=act")
    assert writable == {"cgroup", "run", "sys"}
    assert pod["hostPID"] is True
    _, pod, container = writable_with("settings.node_actuator.features.memory_emergency=act")
    assert pod["hostPID"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["KILL"]}
    writable, _, container = writable_with(
        "nodeActuator.cpuManagerState=true",
        "settings.node_actuator.nri_socket=/var/run/nri/nri.sock",
    )
    paths = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert writable == {"cgroup", "run", "nri"}
    assert paths["nri"] == "/var/run/nri"
    assert paths["cpu-manager"] == str(Settings().node_actuator.cpu_manager_state_file)
