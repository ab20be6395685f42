"""Names of cgroup directories: both drivers, four runtimes, static pods, host applications."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_exporter.kernel import cgroup_paths
from node_exporter.kernel.cgroup_paths import Driver, KubeQOS
from pipeline.errors import KernelError

UUIDS = st.uuids().map(str)
HASHES = st.binary(min_size=16, max_size=16).map(bytes.hex)  # static pods


@given(
    uid=st.one_of(UUIDS, HASHES), driver=st.sampled_from(Driver), kube_qos=st.sampled_from(KubeQOS),
    parent=st.sampled_from(["", "kubelet.slice", "springtide-test"]),
)  # fmt: skip
def test_uid_of_a_pod_is_parsed_from_its_directory(
    uid: str, driver: Driver, kube_qos: KubeQOS, parent: str
) -> None:
    path = cgroup_paths.pod_dir(driver, kube_qos, uid, parent)
    assert cgroup_paths.parse_pod_dir(driver, path.rsplit("/", 1)[1]) == uid
    assert cgroup_paths.kube_qos_of_path(path) is kube_qos
    assert path.startswith(cgroup_paths.qos_dir(driver, kube_qos, parent) + "/")


@pytest.mark.parametrize("driver", Driver)
@pytest.mark.parametrize("runtime", ["docker", "containerd", "pouch", "cri-o"])
def test_container_is_parsed_from_its_directory(driver: Driver, runtime: str) -> None:
    id = "0a" * 32
    name = cgroup_paths.container_dir(driver, runtime, id)
    assert cgroup_paths.parse_container_dir(driver, name) == id


@pytest.mark.parametrize("driver", Driver)
@pytest.mark.parametrize("runtime_and_id", [("crio", "a"), ("", "a"), ("docker", ""),
                                            ("docker", "../a")])  # fmt: skip
def test_a_container_of_an_unknown_runtime_has_no_directory(
    driver: Driver, runtime_and_id: tuple[str, str]
) -> None:
    with pytest.raises(KernelError):
        cgroup_paths.container_dir(driver, *runtime_and_id)


def test_containers_of_crio_are_parsed_and_their_monitors_are_not() -> None:
    name = "0a" * 32
    assert cgroup_paths.parse_container_dir(Driver.CGROUPFS, f"crio-{name}") == name
    assert cgroup_paths.parse_container_dir(Driver.CGROUPFS, f"crio-conmon-{name}") is None
    assert cgroup_paths.parse_container_dir(Driver.SYSTEMD, f"crio-conmon-{name}.scope") is None


@pytest.mark.parametrize(
    ("driver", "names"),
    [
        (Driver.SYSTEMD, ["kubepods-besteffort.slice", "system.slice", "kubepods-pod.slice",
                          "poduid1", "x.scope", ""]),
        (Driver.CGROUPFS, ["burstable", "besteffort", "pod", "podman/x", "cgroup.procs"]),
    ],
)  # fmt: skip
def test_other_directories_are_not_pods(driver: Driver, names: list[str]) -> None:
    assert {cgroup_paths.parse_pod_dir(driver, name) for name in names} == {None}


def test_pod_directory_of_the_kubelet_of_kind() -> None:
    uid = "0f3a-7c"
    assert cgroup_paths.pod_dir(Driver.SYSTEMD, KubeQOS.BURSTABLE, uid, "kubelet.slice") == (
        "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/"
        "kubelet-kubepods-burstable-pod0f3a_7c.slice"
    )


@pytest.mark.parametrize(("qos", "top"), [("LSE", "host-latency-sensitive/"), ("", "")])
def test_host_application_without_a_path_is_placed_by_its_qos_class(qos: str, top: str) -> None:
    assert cgroup_paths.host_app_dir(Driver.SYSTEMD, "nginx", qos) == f"{top}nginx"


@given(
    st.text("./ab", max_size=12), st.text("./ab", max_size=12), st.sampled_from([None, "Kubepods"])
)
def test_host_application_never_leaves_its_base(
    parent_dir: str, relative: str, base: str | None
) -> None:
    try:
        path = cgroup_paths.host_app_dir(
            Driver.CGROUPFS, "x", base=base, parent_dir=parent_dir, relative_path=relative
        )
    except KernelError:
        return
    parts = path.split("/")
    assert ".." not in parts
    assert "" not in (parts[0], parts[-1])
    assert base is None or parts[0] == "kubepods"


@pytest.mark.parametrize("relative", ["..", "../x", "a/../../x", ".", "/"])
def test_path_outside_of_the_tree_is_refused(relative: str) -> None:
    with pytest.raises(KernelError, match="not a directory below"):
        cgroup_paths.host_app_dir(Driver.SYSTEMD, "x", base="CgroupRoot", relative_path=relative)


def test_unknown_base_is_refused() -> None:
    with pytest.raises(KernelError, match="KubepodsBesteffort"):
        cgroup_paths.host_app_dir(Driver.SYSTEMD, "x", base="System", relative_path="y")
