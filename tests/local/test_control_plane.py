"""The local control plane: real etcd, API server, controllers and scheduler, with KWOK's nodes."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import ControlPlaneError
from pipeline.local.control_plane import ControlPlane, local_control_plane
from pipeline.local.process_guard import die_with_parent
from tests.cluster.objects import apply, deployment, items, node
from tests.processes import command_lines, eventually

# The first may have to wait until the programs are built.
pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(1800)]


AUDITED = {
    "apiVersion": "audit.k8s.io/v1", "kind": "Policy",
    "rules": [
        {"level": "Metadata", "verbs": ["create"], "resources": [{"resources": ["configmaps"]}]},
        {"level": "None"},
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with local_control_plane(audit_policy=AUDITED) as plane:
        apply(plane, *(node(f"n{i}") for i in range(3)))
        assert eventually(lambda: all(map(is_ready, items(plane, "nodes"))))
        yield plane


def is_ready(manifest: dict[str, Any]) -> bool:
    conditions = manifest["status"].get("conditions", ())
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def phases(plane: ControlPlane, app: str) -> list[str]:
    return sorted(pod["status"]["phase"] for pod in items(plane, "pods", "-l", f"app={app}"))


def test_plane_runs_the_pinned_kubernetes(plane: ControlPlane) -> None:
    answer = json.loads(plane.kubectl("version", "-o", "json"))
    pinned = (Path(__file__).parents[2] / "deploy/controlplane/go.mod").read_text()
    assert f"k8s.io/kubernetes {answer['serverVersion']['gitVersion']}\n" in pinned
    assert answer["serverVersion"]["major"] == "1"


def test_the_api_server_logs_what_its_audit_policy_selects(plane: ControlPlane) -> None:
    plane.kubectl("create", "configmap", "audited")
    plane.kubectl("delete", "configmap", "audited")
    (log,) = plane.audit_log
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    named = [line["verb"] for line in lines if line["objectRef"].get("name") == "audited"]
    assert {*named} == {"create"}


def test_pods_are_bound_run_and_recreated(plane: ControlPlane) -> None:
    apply(plane, deployment("web", 4, cpu="1"))
    assert eventually(lambda: phases(plane, "web") == ["Running"] * 4)
    first = items(plane, "pods", "-l", "app=web")[0]["metadata"]["name"]
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": first, "namespace": "default"},
    }
    path = f"/api/v1/namespaces/default/pods/{first}/eviction"
    plane.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))

    def came_back() -> bool:
        names = {pod["metadata"]["name"] for pod in items(plane, "pods", "-l", "app=web")}
        return first not in names and phases(plane, "web") == ["Running"] * 4

    assert eventually(came_back)


def test_rbac_limits_users(plane: ControlPlane) -> None:
    stranger = plane.kubeconfig("ann", ["readers"])
    with pytest.raises(ControlPlaneError, match=r"ann.*cannot list resource.*nodes"):
        plane.kubectl("get", "nodes", user=stranger)
    plane.kubectl("create", "clusterrole", "nodes", "--verb=get,list", "--resource=nodes")
    plane.kubectl("create", "clusterrolebinding", "r", "--clusterrole=nodes", "--group=readers")
    assert eventually(lambda: "n0" in _list_nodes(plane, stranger))
    with pytest.raises(ControlPlaneError, match="cannot delete"):
        plane.kubectl("delete", "node", "n2", user=stranger)


def _list_nodes(plane: ControlPlane, user: Path) -> str:
    try:
        return plane.kubectl("get", "nodes", user=user)
    except ControlPlaneError:
        return ""


def test_kubeconfig_can_have_another_server(plane: ControlPlane) -> None:
    direct, around = plane.kubeconfig(), plane.kubeconfig(server="https://127.0.0.1:1")
    assert direct != around
    with pytest.raises(ControlPlaneError, match=r"127\.0\.0\.1:1"):
        plane.kubectl("get", "nodes", user=around)
    assert "n0" in plane.kubectl("get", "nodes", user=direct)


def test_kubeconfig_is_written_atomically(plane: ControlPlane) -> None:
    path = plane.kubeconfig()
    with ThreadPoolExecutor(2) as others:
        written = [
            others.submit(lambda: [plane.kubeconfig() for _ in range(500)]) for _ in range(2)
        ]
        while not all(each.done() for each in written):
            assert json.loads(path.read_text())["kind"] == "Config"
        assert [len(each.result()) for each in written] == [500, 500]


def test_kubectl_leaves_nothing_in_the_home_directory(
    plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    plane.kubectl("get", "nodes")
    assert list(tmp_path.iterdir()) == []


def test_restarted_api_server_has_its_objects(plane: ControlPlane) -> None:
    before = {n["metadata"]["uid"] for n in items(plane, "nodes")}
    plane.api.kill()
    assert not plane.api.is_running
    with pytest.raises(ControlPlaneError, match=r"kubectl get nodes: .*refused"):
        plane.kubectl("get", "nodes")
    plane.api.start()
    plane.wait_ready(time.monotonic() + 120)
    assert {n["metadata"]["uid"] for n in items(plane, "nodes")} == before
    apply(plane, deployment("later", 2, cpu="1"))
    assert eventually(lambda: phases(plane, "later") == ["Running"] * 2, 60)


def test_scheduler_configuration_is_applied() -> None:
    profiles = [{"schedulerName": "other"}]
    with local_control_plane(scheduler={"profiles": profiles}) as plane:
        apply(plane, node("n"))
        for name in ("default-scheduler", "other"):
            manifest = deployment(name, 1, cpu="1")
            manifest["spec"]["template"]["spec"]["schedulerName"] = name
            apply(plane, manifest)
        assert eventually(lambda: phases(plane, "other") == ["Running"])
        assert eventually(lambda: phases(plane, "default-scheduler") == ["Pending"])
        folder = plane.folder
    assert not folder.exists()


def test_kill_9_of_the_program_leaves_no_process_and_no_directory() -> None:
    program = (
        "import time\n"
        "from pipeline.local.control_plane import local_control_plane\n"
        "with local_control_plane() as plane:\n"
        "    print(plane.folder, flush=True)\n"
        "    time.sleep(300)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True,
        cwd=Path(__file__).parents[2], preexec_fn=die_with_parent,
    )  # fmt: skip
    assert parent.stdout is not None
    folder = Path(parent.stdout.readline().strip())
    assert len(command_lines(folder)) >= 5
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert eventually(lambda: not folder.exists() and not command_lines(folder), 60)


def test_early_end_of_a_part_is_an_error_with_its_log() -> None:
    with (
        pytest.raises(ControlPlaneError, match=r"kube-apiserver ended;[^$]*no-such-flag"),
        local_control_plane(api_flags=["--no-such-flag"]),
    ):
        pass
