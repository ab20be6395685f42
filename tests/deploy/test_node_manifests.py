"""The manifests of deploy/node agree with the settings, and the API server accepts them."""

from pathlib import PurePosixPath
from typing import Any

import click
import pytest
import yaml

from actuators.node.node_service import feature_modes
from actuators.node.resctrl_step import NAME as RESCTRL
from actuators.node.stop_file import STOP_FILE
from pipeline.cli.main import cli
from pipeline.local.control_plane import ControlPlane
from pipeline.processors.node_qos.features import built_features
from pipeline.settings import Settings
from pipeline.settings.load import load_settings
from tests.cluster.objects import apply, items, node
from tests.deploy.manifest_container import MANIFESTS, manifest, pod_of
from tests.processes import ROOT

ROLES = ("exporter", "node-actuator")
HOST_PATHS = {
    "cgroup": "/sys/fs/cgroup", "proc": "/proc", "sys": "/sys", "run": "/run/springtide",
}  # fmt: skip


def container_of(role: str) -> Any:
    (container,) = pod_of(role)["containers"]
    return container


@pytest.fixture
def settings(tmp_path: Any) -> Settings:
    (text,) = manifest("settings")["data"].values()
    file = tmp_path / "springtide.yaml"
    file.write_text(text)
    return load_settings(file, {}, {})


def mounts_of(role: str) -> dict[str, dict[str, Any]]:
    return {mount["name"]: mount for mount in container_of(role)["volumeMounts"]}


@pytest.mark.parametrize("role", ROLES)
def test_a_container_runs_a_command_with_the_settings_of_the_config_map(role: str) -> None:
    container = container_of(role)
    program, *words = container["command"]
    assert program == "springtide"
    context = click.Context(cli)
    command = cli.get_command(context, words[0])
    assert command is not None
    command.make_context(words[0], words[1:], parent=context, resilient_parsing=False)
    file = PurePosixPath({e["name"]: e.get("value") for e in container["env"]}["SPRINGTIDE_CONFIG"])
    assert str(file.parent) == mounts_of(role)["settings"]["mountPath"]
    assert [file.name] == [*manifest("settings")["data"]]
    volumes = {volume["name"]: volume for volume in pod_of(role)["volumes"]}
    assert volumes["settings"]["configMap"]["name"] == manifest("settings")["metadata"]["name"]


@pytest.mark.parametrize("role", ROLES)
def test_the_trees_of_the_host_are_where_the_settings_have_them(
    role: str, settings: Settings
) -> None:
    volumes = {volume["name"]: volume for volume in pod_of(role)["volumes"]}
    assert {name: volumes[name]["hostPath"]["path"] for name in HOST_PATHS} == HOST_PATHS
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


def test_ports_and_features_exist(settings: Settings) -> None:
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
    assert not {"hostPID", "hostNetwork", "hostIPC", "serviceAccountName"} & pod.keys()
    assert pod["automountServiceAccountToken"] is False
    assert pod["priorityClassName"] == "system-node-critical"
    assert pod["tolerations"] == [{"operator": "Exists"}]
    assert container["securityContext"] == {
        "runAsUser": 0, "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"},
    }  # fmt: skip
    assert container["resources"].keys() == {"requests", "limits"}
    assert "cpu" not in container["resources"]["limits"]


def commands_of_the_guide() -> list[list[str]]:
    """The kubectl commands of the guide in their order, with paths of this tree."""
    lines = (ROOT / "docs/how-to/run-on-nodes.md").read_text().splitlines()
    texts = [line.strip() for line in lines if line.lstrip().startswith("kubectl ")]
    return [
        [str(ROOT / word) if word.startswith("deploy/") else word for word in text.split()[1:]]
        for text in texts
    ]


@pytest.mark.plane
@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_the_commands_of_the_guide_run_both_on_every_node(plane: ControlPlane) -> None:
    of_linux = {"kubernetes.io/os": "linux"}
    tainted = node("tainted-node", labels=of_linux)
    taint = {"key": "example.com/dedicated", "value": "x", "effect": "NoExecute"}
    apply(plane, node("plain-node", labels=of_linux), tainted | {"spec": {"taints": [taint]}})

    def running() -> set[tuple[str, str]]:
        pods = items(plane, "pods", "-n", "springtide-system")
        assert all(pod["spec"]["priority"] == 2_000_001_000 for pod in pods)
        return {
            (pod["spec"]["containers"][0]["name"], pod["spec"].get("nodeName", ""))
            for pod in pods
            if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
        }

    most = set[tuple[str, str]]()
    verified = 0
    for words in commands_of_the_guide():
        if words[:2] == ["create", "namespace"]:  # the plane of tests has it
            continue
        if words[0] == "apply":
            flags = ("--dry-run=server", "--validate=strict")
            verified += plane.kubectl(*words, *flags).count("server dry run")
        plane.kubectl(*words)
        if words[:2] == ["rollout", "status"]:
            most |= running()
    plane.kubectl("delete", "node", "plain-node", "tainted-node")
    assert verified == 4  # the settings twice
    assert most == {(role, name) for role in ROLES for name in ("plain-node", "tainted-node")}
    assert not items(plane, "daemonsets", "-n", "springtide-system")


def test_all_manifests_are_covered() -> None:
    names = {path.name for path in MANIFESTS.iterdir()}
    assert names == {"settings.yaml", *(f"{role}.yaml" for role in ROLES)}
    for name in names:
        assert yaml.safe_load((MANIFESTS / name).read_text())["metadata"]["namespace"] == (
            "springtide-system"
        )
