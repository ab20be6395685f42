"""The demo's pods: real cgroups, weighted as a kubelet does, and gone afterwards."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from node_exporter.kernel.cgroup import detect_layout
from node_exporter.kernel.cgroup_paths import Driver
from node_exporter.kernel.discovery import list_pods
from pipeline.errors import KernelError
from pipeline.local.demo_workload import (
    CGROUP_ROOT,
    PODS,
    Workload,
    demo_name,
    node_object,
    pod_object,
    remove_leftovers,
)
from pipeline.processors.kubernetes.object_records import node_record, pod_record
from tests.processes import eventually, is_alive

cgroups = pytest.mark.cgroups


@pytest.fixture
def tree() -> Iterator[Workload]:
    # Not a name of a demo: one that runs beside this test must not take it for a leftover.
    workload = Workload(f"springtide-test-workload-{os.getpid()}")
    try:
        yield workload
    finally:
        workload.close()


def directories(name: str) -> list[Path]:
    return list(CGROUP_ROOT.glob(f"*/{name}"))


@cgroups
def test_exporter_finds_every_pod_with_one_process_each(tree: Workload) -> None:
    tree.start()
    layout = detect_layout(str(CGROUP_ROOT))
    pods = {pod.uid: pod for pod in list_pods(layout, Driver.CGROUPFS, tree.name)}
    assert {pod.uid: pod.kube_qos for pod in PODS} == {
        uid: pod.kube_qos for uid, pod in pods.items()
    }
    for pod in pods.values():
        (container,) = [path for path in (Path(layout.cpu) / pod.path).iterdir() if path.is_dir()]
        assert len((container / "cgroup.procs").read_text().split()) == 1
    assert tree.ended() == []


@cgroups
def test_cgroup_weights_are_those_of_the_kubelet(tree: Workload) -> None:
    tree.start()
    layout = detect_layout(str(CGROUP_ROOT))
    file = "cpu.shares" if layout.version == 1 else "cpu.weight"
    by_name = {pod.name: pod.uid for pod in PODS}
    for relative, shares in (
        ("kubepods", 1024 * (os.cpu_count() or 1)),
        ("kubepods/besteffort", 2),
        (f"kubepods/burstable/pod{by_name['bursty-api']}", 1024),
        (f"kubepods/burstable/pod{by_name['steady-web']}", 512),
    ):
        wanted = shares if layout.version == 1 else 1 + (shares - 2) * 9999 // 262142
        assert int((Path(layout.bandwidth) / tree.name / relative / file).read_text()) == wanted


@cgroups
def test_close_removes_cgroups_and_processes(tree: Workload) -> None:
    tree.start()
    pids = [process.pid for process in tree.processes]
    tree.close()
    assert directories(tree.name) == []
    assert not any(is_alive(pid) for pid in pids)
    tree.close()


@cgroups
def test_ended_names_the_pod_whose_process_ended(tree: Workload) -> None:
    tree.start(PODS[:2])
    tree.processes[1].kill()
    assert eventually(lambda: tree.ended() == [PODS[1].name])


@cgroups
def test_only_leftovers_of_dead_demos_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    living = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    sleeper = subprocess.Popen(["sleep", "60"])
    alive = Workload(demo_name(living.pid))
    # The same process id, but of a process that began at another time: another process.
    dead = Workload(f"springtide-demo-{living.pid}-1")
    try:
        for workload in (alive, dead):
            workload.make_cgroup(f"{workload.name}/kubepods")
            (tmp_path / workload.name).mkdir()
        (tmp_path / "springtide-demo-notes").mkdir()
        (directories(dead.name)[0] / "kubepods/cgroup.procs").write_text(str(sleeper.pid))
        assert dead.name in remove_leftovers()
        assert directories(dead.name) == []
        assert sleeper.wait(10) == -signal.SIGKILL
        assert directories(alive.name) != []
        assert {path.name for path in tmp_path.iterdir()} == {alive.name, "springtide-demo-notes"}
    finally:
        living.communicate()
        sleeper.kill()
        alive.close()
        dead.close()


@cgroups
def test_hierarchy_without_controllers_is_an_error_and_is_left_unchanged() -> None:
    unified = CGROUP_ROOT / "unified"
    if not (unified / "cgroup.controllers").exists():
        # On a v2 machine this is no special case: no controller can be missing.
        assert detect_layout(str(CGROUP_ROOT)).version == 2
        return
    before = sorted(unified.iterdir())
    workload = Workload("springtide-test-no-controllers", unified)
    with pytest.raises(KernelError, match="cannot create a cgroup"):
        workload.make_cgroup(f"{workload.name}/kubepods")
    workload.close()
    assert sorted(unified.iterdir()) == before


def test_objects_are_read_as_those_of_kubectl() -> None:
    node = node_record(node_object("node-1"))
    assert node.allocatable == node.capacity
    assert node.allocatable.cpu_millicores == 1000 * (os.cpu_count() or 1)
    now = time.time()
    pods = {pod.name: pod_record(pod_object(pod, "node-1", now)) for pod in PODS}
    assert {pod.node for pod in pods.values()} == {"node-1"}
    steady, batch = pods["steady-web"], pods["batch-crunch"]
    assert (steady.pod_class, steady.requests.cpu_millicores) == ("prod", 500)
    assert (batch.pod_class, batch.requests.cpu_millicores) == ("batch", None)
    assert pods["hungry-cache"].limits.memory_bytes == 512 << 20
    assert all(pods[pod.name].cgroup_uid == pod.uid for pod in PODS)
