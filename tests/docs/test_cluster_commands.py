"""Commands of helm and kubectl in docs, page by page, on a real control plane.

KWOK stands for the kubelets, and only the definitions of other operators are there: what they would
do, a test does.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from pipeline.local.control_plane import ControlPlane, local_control_plane
from pipeline.settings import KafkaSettings
from tests.cluster.objects import apply, define, deployment, items, node, pod
from tests.deploy.helm import CHART, NAMESPACE, run_helm
from tests.docs.guide_shell import Shell
from tests.processes import ROOT, eventually

DOCS: Final = ROOT / "docs"
RUN_ELSEWHERE: Final = {
    "how-to/install-with-helm.md": "tests/deploy/test_chart_on_plane.py",
    "how-to/migrate-from-koordinator.md": "tests/deploy/test_chart_on_plane.py",
    "how-to/run-on-nodes.md": "tests/deploy/test_chart_on_plane.py",
    "how-to/migrate-from-vpa.md": "tests/docs/test_migration_guides.py",
    "how-to/use-vpa-objects.md": "tests/docs/test_migration_guides.py",
    "tutorials/batch-quick-start.md": "tests/deploy/test_batch_quick_start.py",
    "how-to/install.md": "tests/cli/test_kubectl_plugin.py",
}
"""Pages whose commands another test runs, or the same commands."""
WITH_RELEASE: Final = {"how-to/admit-batch-pods.md", "how-to/monitor.md"}
"""Pages for whose readers the chart is installed."""
NOT_RUN: Final = ("kubectl logs ", "kubectl --namespace springtide-system port-forward ")
"""No container runs here."""
SETUP: Final = re.compile(r"kubectl create namespace (\S+)")


_COMMAND: Final = re.compile(
    r"^ {4,}((?:helm|kubectl) (?:.*<<'END'\n(?:.*\n)*? +END|(?:.*\\\n)*.*))$", re.M
)


def commands_of(page: str) -> list[str]:
    """Commands of helm and kubectl in indented lines, with the lines that continue them."""
    text = re.sub(r"^```.*?^```$", "", (DOCS / page).read_text(), flags=re.M | re.S)
    found = _COMMAND.findall(text)
    return [re.sub(r"^ {4}", "", each, flags=re.M) for each in found]


PAGES: Final = sorted(
    str(path.relative_to(DOCS))
    for path in DOCS.glob("**/*.md")
    if commands_of(str(path.relative_to(DOCS)))
)


def test_pages_run_elsewhere_have_commands_and_a_test() -> None:
    assert {*RUN_ELSEWHERE} <= {*PAGES}
    for test in RUN_ELSEWHERE.values():
        assert (ROOT / test).exists()


@pytest.fixture(scope="module")
def cluster() -> Iterator[ControlPlane]:
    """A control plane of its own, because definitions of custom resources stay."""
    with local_control_plane() as plane:
        define(plane, str(ROOT / "tests/data/operators/definitions.jsonl"))
        apply(plane, node("node-1", labels={"kubernetes.io/os": "linux"}))
        yield plane


@pytest.mark.plane
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", [page for page in PAGES if page not in RUN_ELSEWHERE])
def test_commands_of_a_page_run(cluster: ControlPlane, page: str, tmp_path: Path) -> None:
    clear(cluster)
    shell = Shell(tmp_path, KafkaSettings(), cluster)
    prepare(cluster, page, tmp_path)
    profile = re.findall(r"^```yaml\n(.*?)^```$", (DOCS / page).read_text(), re.M | re.S)
    before: dict[str, Callable[[], object]] = {
        "kubectl wait -n kafka kafka/springtide": lambda: make_ready(cluster),
        "kubectl describe clustercolocationprofile": lambda: cluster.kubectl(
            "apply", "-f", "-", stdin=profile[0]
        ),
        "kubectl get pod POD": lambda: apply(cluster, pod("web-0")),
        # A reader applies it in place of what the chart has.
        "kubectl scale statefulset": lambda: cluster.kubectl(
            "delete", "-n", "springtide-system", "-f", str(ROOT / "deploy/kafka/keda.yaml")
        ),
    }
    for command in commands_of(page):
        namespace = SETUP.match(command)
        if command.startswith(NOT_RUN) or (namespace and namespace[1] in namespaces(cluster)):
            continue
        for start, act in before.items():
            if command.startswith(start):
                act()
        typed = command.replace("POD", "web-0")
        if typed.startswith("kubectl get"):
            # The API server serves a definition a moment after it was applied.
            assert eventually(partial(succeeds, shell, typed), 60), typed
        else:
            shell.run(typed)


def succeeds(shell: Shell, command: str) -> bool:
    with suppress(AssertionError):
        shell.run(command)
        return True
    return False


def namespaces(cluster: ControlPlane) -> set[str]:
    return {each["metadata"]["name"] for each in items(cluster, "namespaces")}


def clear(cluster: ControlPlane) -> None:
    """Remove what the page before left."""
    run_helm(
        "uninstall", "springtide", "--namespace", NAMESPACE, "--ignore-not-found", "--wait",
        kubeconfig=cluster.kubeconfig(),
    )  # fmt: skip
    cluster.kubectl("delete", "pods", "--all", "--force")
    # Helm takes over no objects that pages applied.
    cluster.kubectl("delete", "-f", str(CHART / "rbac"), "--ignore-not-found")
    for name in (NAMESPACE, "koordinator-system", "kafka"):
        cluster.kubectl("delete", "namespace", name, "--ignore-not-found")


def prepare(cluster: ControlPlane, page: str, folder: Path) -> None:
    """Make what a reader of the page has already."""
    text = (DOCS / page).read_text()
    needed = {NAMESPACE, "koordinator-system"} - {*SETUP.findall(text)}
    for name in (*needed, *(["kafka"] if "kafka" in page or "strimzi" in page else [])):
        cluster.kubectl("create", "namespace", name)
    if page in WITH_RELEASE:
        run_helm(
            "install", "springtide", str(CHART), "--namespace", NAMESPACE, "--wait",
            kubeconfig=cluster.kubeconfig(),
        )  # fmt: skip
    if "kind: Node" in text:
        cluster.kubectl("delete", "node", "node-1")
    if page == "how-to/relieve-hot-nodes.md":
        # koord-descheduler and its configuration.
        cluster.kubectl("create", "namespace", "koordinator-system")
        configuration = folder / "descheduler.yaml"
        configuration.write_text(_DESCHEDULER)
        cluster.kubectl(
            "create", "configmap", "koord-descheduler-config", "-n", "koordinator-system",
            f"--from-file=koord-descheduler-config={configuration}",
        )  # fmt: skip
        descheduler = deployment("koord-descheduler", 1)
        descheduler["metadata"]["namespace"] = "koordinator-system"
        apply(cluster, descheduler)


def make_ready(cluster: ControlPlane) -> None:
    """Do what Strimzi's operator does at last."""
    condition = '{"status": {"conditions": [{"type": "Ready", "status": "True"}]}}'
    cluster.kubectl(
        "patch", "kafka", "springtide", "-n", "kafka", "--subresource=status", "--type=merge",
        "-p", condition,
    )  # fmt: skip


_DESCHEDULER: Final = """
apiVersion: descheduler/v1alpha2
kind: DeschedulerConfiguration
profiles:
- name: usage
  plugins: {balance: {enabled: [{name: LowNodeLoad}]}}
  pluginConfig:
  - name: LowNodeLoad
    args: {highThresholds: {cpu: 75}, lowThresholds: {cpu: 45}}
"""
