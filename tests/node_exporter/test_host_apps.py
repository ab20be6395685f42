"""Host applications that overlap with pods or with each other are refused: nothing counts twice."""

import pytest

from node_exporter.host_apps import check_host_apps
from node_exporter.kernel.cgroup_paths import Driver
from pipeline.errors import KernelError
from pipeline.settings import HostApplication, HostApplicationCgroup


def app(
    base: str = "CgroupRoot", path: str = "", parent: str = "", name: str = "x"
) -> HostApplication:
    cgroup = HostApplicationCgroup(base=base, parent_dir=parent, relative_path=path)  # type: ignore[arg-type]
    return HostApplication(name=name, cgroup_path=cgroup)


@pytest.mark.parametrize("base", ["Kubepods", "KubepodsBurstable", "KubepodsBesteffort"])
@pytest.mark.parametrize("path", ["", "/", ".", "a/.."])
def test_base_without_path_is_refused(base: str, path: str) -> None:
    with pytest.raises(KernelError, match="host application x"):
        check_host_apps([app(base, path)], Driver, "")


@pytest.mark.parametrize(
    ("path", "parent"),
    [
        ("kubepods", ""), ("kubepods.slice", ""), ("kubepods/burstable", ""),
        ("kubepods.slice/kubepods-besteffort.slice", ""), ("kubepods/burstable/pod1234", ""),
        ("kubepods/pod1234/container", ""), ("kubepods.slice/kubepods-pod1234.slice", ""),
        ("kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice/x", ""),
        ("kubelet", "kubelet"), ("kubelet.slice", "kubelet.slice"), ("a", "a/b"),
    ],
)  # fmt: skip
def test_directory_with_pods_is_refused(path: str, parent: str) -> None:
    with pytest.raises(KernelError, match="contains pods"):
        check_host_apps([app(path=path)], Driver, parent)


@pytest.mark.parametrize(
    "application",
    [app("Kubepods", "web"), app("KubepodsBesteffort", "cache/nginx"), app(path="kubepods-not"),
     app(path="kubepods/web"), app(path="kubelet.slice"), app(path="web/pod1234"),
     HostApplication(name="x", qos="LS")],
)  # fmt: skip
def test_separate_directory_is_accepted(application: HostApplication) -> None:
    check_host_apps([application, app(path="elsewhere", name="y")], Driver, "")


@pytest.mark.parametrize(
    ("path", "other_path"), [("web", "web"), ("web", "web/nginx"), ("web/nginx/", "web")]
)
def test_applications_with_nested_directories_are_refused(path: str, other_path: str) -> None:
    with pytest.raises(KernelError, match="contain the same processes"):
        check_host_apps([app(path=path), app(path=other_path, name="y")], Driver, "")
    check_host_apps([app(path="web/nginx"), app(path="web/nginx2", name="y")], Driver, "")


def test_only_the_given_drivers_are_checked() -> None:
    check_host_apps([app(path="kubepods")], [Driver.SYSTEMD], "")
