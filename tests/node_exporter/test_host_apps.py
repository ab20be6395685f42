"""Host applications are measured by themselves, or refused: nothing counts twice (K14-35)."""

import pytest

from node_exporter.host_apps import check_host_apps
from node_exporter.kernel.cgroup_paths import Driver
from pipeline.errors import KernelError
from pipeline.settings import HostApplication, HostApplicationCgroup


def app(
    base: str = "CgroupRoot", path: str = "", parent: str = "", name: str = "x"
) -> HostApplication:
    place = HostApplicationCgroup(base=base, parent_dir=parent, relative_path=path)  # type: ignore[arg-type]
    return HostApplication(name=name, cgroup_path=place)


@pytest.mark.parametrize("base", ["Kubepods", "KubepodsBurstable", "KubepodsBesteffort"])
@pytest.mark.parametrize("path", ["", "/", ".", "a/.."])
def test_a_base_alone_is_refused(base: str, path: str) -> None:
    with pytest.raises(KernelError, match="host application x"):
        check_host_apps([app(base, path)], Driver, "")


@pytest.mark.parametrize(
    ("path", "parent"),
    [
        ("kubepods", ""),
        ("kubepods.slice", ""),
        ("kubepods/burstable", ""),
        ("kubepods.slice/kubepods-besteffort.slice", ""),
        ("kubepods/burstable/pod1234", ""),
        ("kubepods/pod1234/container", ""),
        ("kubepods.slice/kubepods-pod1234.slice", ""),
        ("kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice/x", ""),
        ("kubelet", "kubelet"),
        ("kubelet.slice", "kubelet.slice"),
        ("a", "a/b"),
    ],
)
def test_a_directory_with_pods_is_refused(path: str, parent: str) -> None:
    with pytest.raises(KernelError, match="contains pods"):
        check_host_apps([app(path=path)], Driver, parent)


@pytest.mark.parametrize(
    "given",
    [
        app("Kubepods", "web"),
        app("KubepodsBesteffort", "cache/nginx"),
        app(path="kubepods-not"),
        app(path="kubepods/web"),
        app(path="kubelet.slice"),
        app(path="web/pod1234"),
        HostApplication(name="x", qos="LS"),
    ],
)
def test_a_directory_of_its_own_is_taken(given: HostApplication) -> None:
    check_host_apps([given, app(path="elsewhere", name="y")], Driver, "")


@pytest.mark.parametrize(
    ("one", "other"),
    [("web", "web"), ("web", "web/nginx"), ("web/nginx/", "web")],
)
def test_two_applications_do_not_contain_each_other(one: str, other: str) -> None:
    with pytest.raises(KernelError, match="contain the same processes"):
        check_host_apps([app(path=one), app(path=other, name="y")], Driver, "")
    check_host_apps([app(path="web/nginx"), app(path="web/nginx2", name="y")], Driver, "")


def test_only_the_driver_that_is_set_counts() -> None:
    check_host_apps([app(path="kubepods")], [Driver.SYSTEMD], "")
