"""The chart on a real control plane: admitted whole, with the rights that roles need and no more,
upgraded, rolled back and removed. KWOK stands for the kubelets: no container runs."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from pipeline.errors import ControlPlaneError
from pipeline.kafka.topic_admin import apply_topics
from pipeline.local.build_programs import ensure_helm, ensure_programs
from pipeline.local.control_plane import ControlPlane, local_control_plane
from pipeline.local.local_kafka import LocalKafka
from pipeline.local.port_probe import free_port
from pipeline.settings import KubernetesSettings, Settings
from pipeline.topics.registry import NODES
from tests.broker import latest, own_topics
from tests.cluster.objects import apply, assert_forbidden, items, node, pod, service_account_token
from tests.cluster.roles import Role
from tests.deploy.helm import (
    CHART,
    DEFAULT_ROLES,
    EVERYTHING,
    NAMESPACE,
    helm_environment,
    rendered,
    run_helm,
    with_values,
)
from tests.processes import ROOT, eventually, until

pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(1800)]

NODE_NAMES = ("plain-node", "tainted-node")
KINDS = (
    "serviceaccount,configmap,secret,service,deployment,statefulset,daemonset,job,pod,"
    "persistentvolumeclaim,poddisruptionbudget,networkpolicy,role,rolebinding,lease"
)
CLUSTER_KINDS = "clusterrole,clusterrolebinding,priorityclass,namespace"


@pytest.fixture(scope="module")
def cluster() -> Iterator[ControlPlane]:
    """A control plane of its own, because definitions of custom resources stay, with two
    nodes."""
    with local_control_plane() as plane:
        of_linux = {"kubernetes.io/os": "linux"}
        taint = {"key": "example.com/dedicated", "value": "x", "effect": "NoExecute"}
        plain, tainted = (node(name, labels=of_linux) for name in NODE_NAMES)
        apply(plane, plain, tainted | {"spec": {"taints": [taint]}})
        yield plane


@pytest.fixture
def release(cluster: ControlPlane) -> ControlPlane:
    """The control plane with the chart installed with default values."""
    spaces = {o["metadata"]["name"] for o in items(cluster, "namespaces")}
    if NAMESPACE not in spaces:
        cluster.kubectl("create", "namespace", NAMESPACE)
        label = "pod-security.kubernetes.io/enforce=privileged"
        cluster.kubectl("label", "namespace", NAMESPACE, label)
    names = run_helm("list", "--short", "--namespace", NAMESPACE, kubeconfig=cluster.kubeconfig())
    if "springtide" not in names:
        install(cluster)
    return cluster


def install(cluster: ControlPlane, *values: str, flags: tuple[str, ...] = ()) -> None:
    """Install or upgrade the release, and wait until its pods are ready."""
    run_helm(
        "upgrade", "--install", "springtide", str(CHART), "--namespace", NAMESPACE, "--wait",
        "--timeout", "5m", *flags, *with_values(values), kubeconfig=cluster.kubeconfig(),
    )  # fmt: skip


def identities(cluster: ControlPlane) -> dict[str, str]:
    """The UID of each object of the release that must outlive an upgrade."""
    kinds = "serviceaccount,configmap,service,deployment,statefulset,daemonset,role,rolebinding"
    found = items(cluster, kinds, "-n", NAMESPACE, "-l", "app.kubernetes.io/name=springtide")
    return {f"{o['kind']}/{o['metadata']['name']}": o["metadata"]["uid"] for o in found}


def everything_in(cluster: ControlPlane) -> set[tuple[str, str]]:
    """Kind and name of all objects in our namespace and of those of the cluster that are ours, but
    what each namespace has."""
    objects = items(cluster, KINDS, "-n", NAMESPACE)
    objects += items(cluster, CLUSTER_KINDS, "-l", "app.kubernetes.io/name=springtide")
    names = {(o["kind"], o["metadata"]["name"]) for o in objects}
    return names - {("ServiceAccount", "default"), ("ConfigMap", "kube-root-ca.crt")}


def test_default_values_are_admitted_and_run_on_every_node(release: ControlPlane) -> None:
    pods = items(release, "pods", "-n", NAMESPACE)
    on_nodes = {
        (o["spec"]["containers"][0]["name"], o["spec"]["nodeName"])
        for o in pods
        if o["spec"]["priorityClassName"] == "system-node-critical"
    }
    assert on_nodes == {
        (role, name) for role in ("exporter", "node-actuator") for name in NODE_NAMES
    }
    assert {o["spec"]["containers"][0]["name"] for o in pods} == {*DEFAULT_ROLES, "topics"}
    assert {o["spec"]["serviceAccountName"] for o in pods} == {
        f"springtide-{role}" for role in (*DEFAULT_ROLES, "topics")
    }
    names = {o["metadata"]["name"] for o in items(release, "crd")}
    assert "podmigrationjobs.scheduling.koordinator.sh" in names


def test_only_pods_on_nodes_need_a_privileged_namespace(cluster: ControlPlane) -> None:
    """Pod security warns, and Helm and kubectl print that on standard error."""
    cluster.kubectl("create", "namespace", "restricted")
    cluster.kubectl("create", "namespace", "koordinator-system")
    for level in ("enforce", "warn"):
        label = f"pod-security.kubernetes.io/{level}=restricted"
        cluster.kubectl("label", "namespace", "restricted", label)

    dry_run = ("apply", "--dry-run=server", "--warnings-as-errors", "-f", "-")

    def manifests(*values: str) -> str:
        return json.dumps({
            "apiVersion": "v1", "kind": "List",
            "items": rendered(*EVERYTHING, *values, namespace="restricted"),
        })  # fmt: skip

    beside_nodes = ("exporter.enabled=false", "nodeActuator.enabled=false")
    for user in ("runAsUser=1000680000", "runAsUser=null"):
        cluster.kubectl(*dry_run, stdin=manifests(*beside_nodes, user))
    with pytest.raises(ControlPlaneError, match='would violate PodSecurity "restricted') as raised:
        cluster.kubectl(*dry_run, stdin=manifests())
    assert "exporter" in str(raised.value)
    assert "node-actuator" in str(raised.value)
    cluster.kubectl("delete", "namespace", "restricted", "koordinator-system")


def test_workers_keep_their_number_when_helm_stops_setting_it(release: ControlPlane) -> None:
    """As with KEDA, whose resources this control plane does not have."""

    def replicas() -> int:
        (workers,) = items(release, "statefulset", "-n", NAMESPACE)
        number: int = workers["spec"]["replicas"]
        return number

    (scale,) = (c for c in commands_of("run-on-strimzi.md") if c.startswith("kubectl scale"))
    before = replicas()
    run_command(release, scale)
    chosen = replicas()
    assert chosen != before
    install(release, "worker.replicas=null")
    assert replicas() == chosen
    with pytest.raises(AssertionError, match=r"conflict with .*spec\.replicas"):
        install(release, f"worker.replicas={before}")
    install(release, f"worker.replicas={before}", flags=("--force-conflicts",))
    assert replicas() == before


class Rights(NamedTuple):
    """What a role must be able to do, and what it must not, as arguments of kubectl."""

    needs: tuple[str, ...]
    lacks: tuple[str, ...]


LEASE = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
RIGHTS = {
    "watcher": Rights(
        needs=("get nodes", "get pods -A", "get deployments -A", "get pdb -A"),
        lacks=("delete pod victim", "get secrets -A", "label node plain-node x=y"),
    ),
    "actuator": Rights(
        needs=(
            "get nodes",
            "get nodemetrics",
            "auth can-i patch nodes --subresource=status",
            "auth can-i get nodeslos/plain-node",
        ),
        lacks=("get pods -A", "label node plain-node x=y", "delete node plain-node"),
    ),
    "planner": Rights(
        needs=("get configmap koord-descheduler-config -n springtide-system",),
        lacks=("get pods -A", "get nodes", "get configmap other -n springtide-system"),
    ),
    "evictor": Rights(
        needs=("get pods -A", "get nodes", "get pdb -A"),
        lacks=("delete pod victim", "get podmigrationjobs", "get secrets -A"),
    ),
}
"""Roles that talk to the API server."""
WEBHOOK_RIGHTS = Rights(
    needs=(
        "get clustercolocationprofiles",
        "get priorityclasses",
        "get namespaces",
        "get --raw /openapi/v3/api/v1",
        "auth can-i create events -n default",
    ),
    lacks=("get pods -A", "get nodes", "get secrets -A", "delete priorityclass koord-batch"),
)


@pytest.mark.parametrize("role", RIGHTS)
def test_a_role_may_do_what_it_needs_and_no_more(
    release: ControlPlane, role: str, tmp_path: Path
) -> None:
    apply(release, pod("victim", on="plain-node"), {
        "apiVersion": "v1", "kind": "ConfigMap", "data": {},
        "metadata": {"name": "koord-descheduler-config", "namespace": NAMESPACE},
    })  # fmt: skip
    account = service_account_token(release, f"springtide-{role}", tmp_path / "kubeconfig")
    # Its Lease, once in every namespace but ours.
    lease = json.dumps(LEASE | {"metadata": {"name": f"springtide-{role}"}})
    release.kubectl("create", "-n", NAMESPACE, "-f", "-", stdin=lease, user=account)
    release.kubectl("get", "lease", f"springtide-{role}", "-n", NAMESPACE, user=account)
    with pytest.raises(ControlPlaneError, match="orbidden"):
        release.kubectl("create", "-n", "default", "-f", "-", stdin=lease, user=account)
    assert_forbidden(release, account, *RIGHTS[role].lacks)
    for command in RIGHTS[role].needs:
        release.kubectl(*command.split(), user=account)
    # Helm does not know the Leases of roles: they stay until the namespace is deleted.
    release.kubectl("delete", "lease", f"springtide-{role}", "-n", NAMESPACE)


def test_an_evictor_evicts_and_cannot_delete(release: ControlPlane, tmp_path: Path) -> None:
    apply(release, pod("evicted", on="plain-node"))
    account = service_account_token(release, "springtide-evictor", tmp_path / "kubeconfig")
    eviction = {
        "apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": {"name": "evicted", "namespace": "default"},
    }  # fmt: skip
    path = "/api/v1/namespaces/default/pods/evicted/eviction"
    release.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction), user=account)
    names = {o["metadata"]["name"] for o in items(release, "pods")}
    assert "evicted" not in names
    assert_forbidden(release, account, "delete pod victim")


def test_a_webhook_comes_with_its_rights_and_goes(release: ControlPlane, tmp_path: Path) -> None:
    """Nothing answers the API server here: pods are admitted meanwhile."""
    chosen = ("webhook.enabled=true", "webhook.tls.caBundle=Q0E=", "priorityClasses.create=true")
    configurations = "mutatingwebhookconfiguration,validatingwebhookconfiguration"
    install(release, *chosen)
    assert len(items(release, configurations, "springtide-webhook")) == 2
    account = service_account_token(release, "springtide-webhook", tmp_path / "kubeconfig")
    for command in WEBHOOK_RIGHTS.needs:
        release.kubectl(*command.split(), user=account)
    assert_forbidden(release, account, *WEBHOOK_RIGHTS.lacks)
    apply(release, pod("admitted", on="plain-node", priority_class="koord-batch"))

    # Without any value Helm would keep those of before.
    install(release, "webhook.enabled=false")
    assert not items(release, configurations, "-l", "app.kubernetes.io/name=springtide")
    classes = ("priorityclass", "-l", "app.kubernetes.io/component=priority-classes")
    # The pod's workload would need it.
    assert len(items(release, *classes)) == 4
    release.kubectl("delete", *classes)


async def test_roles_work_and_are_ready_as_their_service_accounts(
    release: ControlPlane, broker: LocalKafka, tmp_path: Path
) -> None:
    kafka = own_topics(broker)
    await apply_topics(kafka)
    ports = {role: free_port() for role in RIGHTS}
    with ExitStack() as stack:
        for role, port in ports.items():
            account = service_account_token(release, f"springtide-{role}", tmp_path / role)
            settings = Settings(kafka=kafka, kubernetes=KubernetesSettings(kubeconfig=account))
            flags = ("--config-namespace", NAMESPACE, "--metrics-port", str(port))
            stack.enter_context(Role(role, settings, *flags))
        for port in ports.values():
            await until(lambda port=port: is_leading_and_ready(port), 180)
        leases = {o["metadata"]["name"] for o in items(release, "leases", "-n", NAMESPACE)}
        assert {f"springtide-{role}" for role in RIGHTS} <= leases
        records = await latest(kafka, NODES)
        assert {*records} == {*NODE_NAMES}
    release.kubectl("delete", "leases", "--all", "-n", NAMESPACE)


def is_leading_and_ready(port: int) -> bool:
    """Whether the probe of a pod would succeed, for a role that leads."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=30) as answer:
            return json.load(answer) == {"status": "ready", "message": "leading"}
    except OSError:
        return False


@pytest.mark.parametrize("role", [role for role in DEFAULT_ROLES if role not in RIGHTS])
def test_a_role_that_needs_no_api_has_no_token_and_no_right(
    release: ControlPlane, role: str, tmp_path: Path
) -> None:
    pods = items(release, "pods", "-n", NAMESPACE, "-l", f"app.kubernetes.io/component={role}")
    assert pods
    for each in pods:
        assert not [v for v in each["spec"]["volumes"] if "projected" in v]
    account = service_account_token(release, f"springtide-{role}", tmp_path / "kubeconfig")
    assert_forbidden(release, account, "get nodes", "get pods -A", f"get pods -n {NAMESPACE}")


def commands_of(guide: str) -> list[str]:
    """The commands of helm and kubectl in indented lines of a guide, in their order."""
    lines = (ROOT / "docs/how-to" / guide).read_text().splitlines()
    return [line.strip() for line in lines if line.startswith(("    helm ", "    kubectl "))]


def test_the_guides_install_upgrade_roll_back_and_remove(cluster: ControlPlane) -> None:
    names = run_helm("list", "--short", "--namespace", NAMESPACE, kubeconfig=cluster.kubeconfig())
    if "springtide" in names:
        flags = ("--namespace", NAMESPACE, "--wait", "--timeout", "5m")
        run_helm("uninstall", "springtide", *flags, kubeconfig=cluster.kubeconfig())
    cluster.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found")
    commands = commands_of("install-with-helm.md")
    undo = next(i for i, command in enumerate(commands) if "undo=true" in command)
    commands[undo:undo] = commands_of("run-on-nodes.md")

    before: dict[str, str] = {}
    revisions = dict[str, str]()
    for command in commands:
        output = run_command(cluster, command)
        action = " ".join(command.split()[:2])
        if action == "helm install":
            before, revisions = identities(cluster), checksums(cluster)
            assert len(before) > 20
        elif action in ("helm upgrade", "helm rollback"):
            assert identities(cluster) == before, command
        if "settings.actuator.mode=act" in command:
            changed = {r for r, checksum in checksums(cluster).items() if checksum != revisions[r]}
            assert changed == {"actuator"}
        elif "undo=true" in command:
            assert "undo is set" in output
        elif action == "helm uninstall":
            # Helm does not wait until the pods of what it deleted are gone.
            assert eventually(lambda: not everything_in(cluster), 120), everything_in(cluster)
            # Deleting definitions would delete the objects of users.
            assert items(cluster, "crd")
        elif action == "helm template":
            assert "kind: CustomResourceDefinition" in output
    assert not items(cluster, "crd")


def test_the_guide_from_koordinator_takes_over_what_its_chart_made(
    cluster: ControlPlane, tmp_path: Path
) -> None:
    """Objects stand for those of Koordinator's chart; no program of it runs."""
    run_command(cluster, f"helm uninstall springtide -n {NAMESPACE} --ignore-not-found --wait")
    for name in (NAMESPACE, "koordinator-system"):
        cluster.kubectl("delete", "namespace", name, "--ignore-not-found")
        cluster.kubectl("create", "namespace", name)
    apply(cluster, node("node-1"), *koordinators_objects())
    cluster.kubectl("apply", "-f", str(ROOT / "deploy/chart/webhook/priority-classes.yaml"))
    # The guide runs in a checkout, to which it writes files.
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    commands = commands_of("migrate-from-koordinator.md")
    # The undoing of the first step comes last here.
    commands.sort(key=lambda command: command.startswith("helm uninstall"))

    roles = [changed_by(cluster, command, tmp_path) for command in commands]
    upgrades = [changed for changed in roles if changed]
    assert upgrades[1:-1] == [{"actuator"}, {"actuator"}, {"node-actuator"}, {"actuator"}]
    manager = items(cluster, "deployment", "-n", "koordinator-system")[0]["spec"]
    assert manager["replicas"] == 0
    arguments = manager["template"]["spec"]["containers"][0]["args"]
    assert arguments == ["--controllers=nodemetric,nodeslo"]
    assert not items(cluster, "mutatingwebhookconfiguration,validatingwebhookconfiguration")
    for name, count in (("policy", 2), ("profiles", 0), ("classes", 4)):
        saved = yaml.safe_load((tmp_path / f"{name}.yaml").read_text())
        assert len(saved["items"]) == count
    cluster.kubectl("delete", "-f", str(ROOT / "deploy/chart/webhook/priority-classes.yaml"))
    cluster.kubectl("delete", "namespace", NAMESPACE, "koordinator-system")
    cluster.kubectl("delete", "node", "node-1")
    cluster.kubectl("delete", "-f", str(CHART / "crds"))


def koordinators_objects() -> list[dict[str, Any]]:
    """The objects of Koordinator's chart that the guide names."""
    metadata = {"namespace": "koordinator-system"}
    labels = {"koord-app": "koord-manager"}
    manager = {"name": "manager", "image": "none", "args": ["--v=4"]}
    policy = {"colocation-config": '{"enable": true}'}
    descheduler = json.dumps({
        "apiVersion": "descheduler/v1alpha2", "kind": "DeschedulerConfiguration",
        "profiles": [
            {"name": "usage", "plugins": {"balance": {"enabled": [{"name": "LowNodeLoad"}]}},
             "pluginConfig": [{"name": "LowNodeLoad", "args": {"highThresholds": {"cpu": 75}}}]}
        ],
    })  # fmt: skip
    hooks: list[dict[str, Any]] = [
        {"apiVersion": "admissionregistration.k8s.io/v1", "webhooks": [],
         "kind": f"{kind.capitalize()}WebhookConfiguration",
         "metadata": {"name": f"koordinator-{kind}-webhook-configuration"}}
        for kind in ("mutating", "validating")
    ]  # fmt: skip
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "data": policy,
         "metadata": metadata | {"name": "slo-controller-config"}},
        {"apiVersion": "v1", "kind": "ConfigMap",
         "data": {"koord-descheduler-config": descheduler},
         "metadata": metadata | {"name": "koord-descheduler-config"}},
        {"apiVersion": "apps/v1", "kind": "Deployment",
         "metadata": metadata | {"name": "koord-manager"},
         "spec": {"selector": {"matchLabels": labels},
                  "template": {"metadata": {"labels": labels}, "spec": {"containers": [manager]}}}},
        *hooks,
    ]  # fmt: skip


def changed_by(cluster: ControlPlane, command: str, folder: Path) -> set[str]:
    """Run a command of a guide; returns the roles whose settings it changed."""
    before = checksums(cluster)
    run_command(cluster, command, folder)
    after = checksums(cluster)
    return {role for role in before | after if before.get(role) != after.get(role)}


def run_command(cluster: ControlPlane, command: str, folder: Path = ROOT) -> str:
    """The output of a command of a guide, in a shell in which helm, kubectl and springtide are the
    real ones and the control plane is the default cluster. An editor sets koord-manager's
    arguments."""
    programs = (ensure_helm(), ensure_programs()["kubectl"], Path(sys.executable))
    environment = helm_environment(cluster.kubeconfig())
    environment["PATH"] = ":".join([*(str(p.parent) for p in programs), environment["PATH"]])
    environment["KUBE_EDITOR"] = "sed -i s/--v=4/--controllers=nodemetric,nodeslo/"
    completed = subprocess.run(
        ["bash", "-ec", f"set -o pipefail; {command}"], env=environment, capture_output=True,
        text=True, cwd=folder, check=False, timeout=900,
    )  # fmt: skip
    assert completed.returncode == 0, f"{command}: {completed.stderr}"
    return completed.stdout


def checksums(cluster: ControlPlane) -> dict[str, str]:
    """The checksum of the settings of each workload, by role."""
    workloads = items(cluster, "deployment,statefulset,daemonset", "-n", NAMESPACE)
    return {
        o["metadata"]["labels"]["app.kubernetes.io/component"]: o["spec"]["template"]["metadata"][
            "annotations"
        ]["checksum/settings"]
        for o in workloads
    }
