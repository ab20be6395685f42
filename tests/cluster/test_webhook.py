"""The webhook asked by a real API server: pods that come out translated, pods that are refused, a
renewed certificate, and pods that are admitted without a webhook.

The webhook is a process with the permissions of deploy/chart/rbac/webhook.yaml, and the
configuration is that of deploy/chart/webhook with another address.
"""

import asyncio
import itertools
import json
import os
import signal
import socket
import ssl
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from cryptography import x509

from pipeline.clock import SystemClock
from pipeline.errors import ControlPlaneError
from pipeline.local.control_plane import ControlPlane
from pipeline.local.pki import Authority
from pipeline.local.port_probe import HOST, free_port
from pipeline.processors.admission.pod_schema import PodSchema
from pipeline.settings import KubernetesSettings, Settings
from tests.cluster.objects import (
    Object,
    apply,
    assert_forbidden,
    define,
    deployment,
    event_text,
    items,
    node,
    pod,
    service_account,
)
from tests.cluster.roles import Role
from tests.cluster.webhook_objects import WEBHOOK_FILES, configurations, for_app, profile
from tests.crds import FOLDER
from tests.processes import eventually, until

pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
NAMESPACE = "colocated"
BE = {"koordinator.sh/qosClass": "BE"}
PAUSE_SECONDS = 8.0


class Hook(NamedTuple):
    """The running webhook, its CA and the folder of its certificate."""

    role: Role
    authority: Authority
    folder: Path
    port: int

    def write_certificate(self) -> int:
        """Write a new certificate; returns its serial number."""
        pair = self.authority.server("webhook", [HOST], ["localhost"])
        return x509.load_pem_x509_certificate(pair.public.read_bytes()).serial_number

    def shown_certificate_is(self, serial: int) -> bool:
        """Whether a new connection gets the certificate of this serial number."""
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        with (
            socket.create_connection((HOST, self.port), 10) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as secure,
        ):
            shown = secure.getpeercert(binary_form=True)
        assert shown is not None
        return x509.load_der_x509_certificate(shown).serial_number == serial


def own_pod(name: str, app: str, labels: dict[str, str] | None = None, **more: Any) -> Object:
    found = pod(name, labels={"app": app, **(labels or {})}, **more)
    found["metadata"]["namespace"] = NAMESPACE
    return found


def stored(plane: ControlPlane, name: str, namespace: str = NAMESPACE) -> Object:
    found: Object = json.loads(plane.kubectl("get", "pod", name, "-n", namespace, "-o", "json"))
    return found


def resources(found: Object) -> Any:
    return found["spec"]["containers"][0]["resources"]


def with_mid(found: Object) -> Object:
    """A node that offers Mid."""
    for amounts in (found["status"]["capacity"], found["status"]["allocatable"]):
        amounts |= {"kubernetes.io/mid-cpu": "8000", "kubernetes.io/mid-memory": "8Gi"}
    return found


def with_batch(found: Object) -> Object:
    """A pod that states Batch itself."""
    resources(found)["requests"] = {"kubernetes.io/batch-cpu": "100"}
    resources(found)["limits"] = {"kubernetes.io/batch-cpu": "100"}
    return found


@pytest.fixture(scope="module")
def hook(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hook]:
    """The webhook in mode act, asked by the API server."""
    folder, port = tmp_path_factory.mktemp("webhook"), free_port()
    authority = Authority(folder, SystemClock())
    pair = authority.server("webhook", [HOST], ["localhost"])
    define(plane, str(FOLDER))
    plane.kubectl("apply", "-f", str(WEBHOOK_FILES / "priority-classes.yaml"))
    plane.kubectl("create", "namespace", NAMESPACE)
    account = service_account(plane, "webhook", ROOT)
    settings = Settings(kubernetes=KubernetesSettings(kubeconfig=account))
    flags = (
        "--host", HOST, "--port", str(port), "--mode", "act",
        "--tls-cert-file", str(pair.public), "--tls-key-file", str(pair.private),
    )  # fmt: skip
    kinds = "mutatingwebhookconfiguration,validatingwebhookconfiguration"
    try:
        with Role("webhook", settings, *flags) as role:
            hook = Hook(role, authority, folder, port)
            assert eventually(lambda: is_ready(hook), 120), role.text()
            apply(plane, *configurations(authority.certificate, port))
            # The API server reads a configuration within a second or so.
            apply(plane, for_app("probe", labels={"probed": "yes"}))
            assert eventually(lambda: is_asked(plane), 60), role.text()
            yield hook
    finally:
        plane.kubectl("delete", kinds, "springtide-webhook", "--ignore-not-found")
        plane.kubectl("delete", "namespace", NAMESPACE, "--wait=false")
        plane.kubectl("delete", "-f", str(WEBHOOK_FILES / "priority-classes.yaml"))
        plane.kubectl("delete", "-f", str(FOLDER))


def is_ready(hook: Hook) -> bool:
    context = ssl.create_default_context(cafile=str(hook.authority.certificate))
    try:
        with (
            socket.create_connection((HOST, hook.port), 10) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as secure,
        ):
            secure.sendall(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            return secure.recv(100).startswith(b"HTTP/1.1 200")
    except OSError:
        return False


def dry_run(plane: ControlPlane, given: Object) -> Object:
    """A pod as it would be created."""
    text = plane.kubectl(
        "create", "--dry-run=server", "-o", "json", "-f", "-", stdin=json.dumps(given)
    )
    found: Object = json.loads(text)
    return found


def is_asked(plane: ControlPlane) -> bool:
    return "probed" in dry_run(plane, own_pod("probe", "probe"))["metadata"]["labels"]


def pid_of(argv: list[str]) -> int:
    """The process with these arguments."""
    text = b"\0".join(map(os.fsencode, argv)) + b"\0"
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if file.read_bytes() == text:
                return int(file.parent.name)
    raise ProcessLookupError(argv[0])


def reviews(hook: Hook) -> float:
    """How often the webhook was asked about new pods."""
    (page,) = (json.loads(line) for line in hook.role.text().splitlines() if "metrics page" in line)
    with urllib.request.urlopen(f"http://127.0.0.1:{page['port']}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    name = 'springtide_webhook_reviews_total{path="/mutate-pods",'
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


async def test_pods_of_a_workload_come_out_as_batch(plane: ControlPlane, hook: Hook) -> None:
    apply(
        plane,
        for_app("crunch", qosClass="BE", priorityClassName="koord-batch", koordinatorPriority=7,
                labels={"tier": "batch"}, schedulerName="other-scheduler"),
    )  # fmt: skip
    await until(lambda: "tier" in dry_run(plane, own_pod("c", "crunch"))["metadata"]["labels"])
    workload = deployment("crunch", 2, cpu="1500m", memory="1Gi")
    workload["metadata"]["namespace"] = NAMESPACE
    apply(plane, workload)
    selected = ("pods", "-n", NAMESPACE, "-l", "app=crunch")
    await until(lambda: len(items(plane, *selected)) == 2)
    for found in items(plane, *selected):
        amounts = {"kubernetes.io/batch-cpu": "1500", "kubernetes.io/batch-memory": "1Gi"}
        assert resources(found) == {"requests": amounts, "limits": amounts}
        labels, spec = found["metadata"]["labels"], found["spec"]
        assert (labels["tier"], labels["koordinator.sh/priority"]) == ("batch", "7")
        assert labels["koordinator.sh/qosClass"] == "BE"
        assert (spec["priorityClassName"], spec["priority"]) == ("koord-batch", 5000)
        assert spec["schedulerName"] == "other-scheduler"
        note = json.loads(
            found["metadata"]["annotations"]["node.koordinator.sh/extended-resource-spec"]
        )
        assert note["containers"]["main"] == {"requests": amounts, "limits": amounts}


async def test_mid_pod_of_the_reference_is_accepted_and_scheduled(
    plane: ControlPlane, hook: Hook
) -> None:
    """The manifest of docs/reference/webhook.md, as written and by a profile."""
    page = (ROOT / "docs/reference/webhook.md").read_text()
    manifest = yaml.safe_load(page.split("<!-- mid pod -->\n```yaml\n")[1].split("```")[0])
    manifest["metadata"]["namespace"] = NAMESPACE
    by_profile = own_pod("mid-by-profile", "middle", cpu="2", memory="1Gi")
    apply(
        plane, with_mid(node("mid")),
        for_app("middle", qosClass="BE", priorityClassName="koord-mid"),
    )  # fmt: skip
    await until(lambda: "kubernetes.io/mid-cpu" in resources(dry_run(plane, by_profile))["limits"])
    apply(plane, manifest, by_profile)
    names = (manifest["metadata"]["name"], "mid-by-profile")
    await until(lambda: all(stored(plane, n)["spec"].get("nodeName") == "mid" for n in names))
    for found in (stored(plane, name) for name in names):
        assert found["spec"]["priority"] == 7000
        assert found["metadata"]["labels"]["koordinator.sh/qosClass"] == "BE"
        assert set(resources(found)["requests"]) == {
            "kubernetes.io/mid-cpu", "kubernetes.io/mid-memory",
        }  # fmt: skip
    plane.kubectl("delete", "pod", *names, "-n", NAMESPACE, "--force")
    plane.kubectl("delete", "node", "mid")


def test_forbidden_pairs_are_refused_and_classes_cannot_change(
    plane: ControlPlane, hook: Hook
) -> None:
    with pytest.raises(ControlPlaneError, match="priority class koord-prod cannot be combined"):
        apply(plane, own_pod("bad", "bad", labels=BE, priority_class="koord-prod"))
    with pytest.raises(ControlPlaneError, match="must be BE: the pod requests kubernetes"):
        apply(plane, with_batch(own_pod("bad", "bad")))
    apply(plane, own_pod("good", "good", labels=BE, priority_class="koord-batch"))
    with pytest.raises(ControlPlaneError, match="cannot change: it is BE, and would be LS"):
        plane.kubectl("label", "pod", "good", "-n", NAMESPACE, "--overwrite",
                      "koordinator.sh/qosClass=LS")  # fmt: skip
    plane.kubectl("label", "pod", "good", "-n", NAMESPACE, "other=label")
    assert stored(plane, "good")["metadata"]["labels"]["other"] == "label"


async def test_invalid_profiles_are_refused_and_stop_no_pod(
    plane: ControlPlane, hook: Hook
) -> None:
    with pytest.raises(ControlPlaneError, match=r"spec\.probability: 'half' is no percentage"):
        apply(plane, profile("odd", probability="half"))
    with pytest.raises(ControlPlaneError, match="Unsupported value"):
        apply(plane, profile("odd", qosClass="BEST"))
    # One whose fault only a pod shows. A dry run would leave no Event.
    apply(plane, for_app("faulty", priorityClassName="none", labels={"faulty": "yes"}))
    names = (f"faulty-{number}" for number in itertools.count())

    def is_reported() -> bool:
        name = next(names)
        apply(plane, own_pod(name, "faulty", cpu="1"))
        assert stored(plane, name)["metadata"]["labels"] == {"app": "faulty"}
        return "no PriorityClass 'none'" in event_text(plane, "faulty", "-n", "default")

    await until(is_reported)


async def test_patch_has_the_effect_that_it_has_in_kubectl(plane: ControlPlane, hook: Hook) -> None:
    patch = {
        "metadata": {"annotations": {"patched": "yes"}, "labels": {"gone": None}},
        "spec": {
            "containers": [
                {"name": "main", "env": [{"name": "B", "value": "2"}],
                 "securityContext": {"readOnlyRootFilesystem": True}},
                {"name": "added", "image": "sidecar", "ports": [{"containerPort": 80}]},
            ],
            "initContainers": [
                {"name": "new", "image": "n"}, {"name": "second", "image": "changed"},
            ],
            "tolerations": [{"key": "batch", "operator": "Exists", "effect": "NoSchedule"}],
            "nodeSelector": {"pool": "batch"}, "terminationGracePeriodSeconds": 5,
            "volumes": [{"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}}],
        },
    }  # fmt: skip
    given = own_pod("patched", "patched", labels={"gone": "soon"}, cpu="1")
    given["spec"]["containers"][0]["env"] = [{"name": "A", "value": "1"}]
    names = ("first", "second", "third")
    given["spec"]["initContainers"] = [{"name": name, "image": "i"} for name in names]
    schema = PodSchema(json.loads(plane.kubectl("get", "--raw", "/openapi/v3/api/v1")))
    by_kubectl = plane.kubectl(
        "patch", "-f", "-", "--local", "--type=strategic", "-p", json.dumps(patch), "-o", "json",
        stdin=json.dumps(given),
    )  # fmt: skip
    merged = schema.merged(given, patch)
    assert merged == {**json.loads(by_kubectl), "metadata": merged["metadata"]}
    assert merged["metadata"].items() <= json.loads(by_kubectl)["metadata"].items()

    apply(plane, for_app("patched", patch=patch))
    await until(lambda: "annotations" in dry_run(plane, given)["metadata"])
    spec = dry_run(plane, given)["spec"]
    assert [container["name"] for container in spec["containers"]] == ["main", "added"]
    assert spec["containers"][0]["env"] == [
        {"name": "B", "value": "2"}, {"name": "A", "value": "1"},
    ]  # fmt: skip
    assert spec["nodeSelector"] == {"pool": "batch"}


async def test_limit_range_adds_no_cpu_to_a_batch_pod(plane: ControlPlane, hook: Hook) -> None:
    """Its defaults are set again after the webhook, which the API server then asks again. The
    namespace is new, and the profile selects it by a label."""
    apply(
        plane, profile("limited", namespaceSelector={"matchLabels": {"limited": "yes"}},
                       qosClass="BE", priorityClassName="koord-batch"),
        {"apiVersion": "v1", "kind": "Namespace",
         "metadata": {"name": "limited", "labels": {"limited": "yes"}}},
        {"apiVersion": "v1", "kind": "LimitRange",
         "metadata": {"name": "defaults", "namespace": "limited"},
         "spec": {"limits": [{"type": "Container", "default": {"cpu": "100m", "memory": "64Mi"}}]}},
    )  # fmt: skip
    await until(lambda: items(plane, "serviceaccounts", "-n", "limited"))
    given = pod("p", cpu="4", memory="1Gi")
    given["metadata"]["namespace"] = "limited"
    expected = {"kubernetes.io/batch-cpu": "4k", "kubernetes.io/batch-memory": "1Gi"}

    def is_translated() -> bool:
        found: bool = resources(dry_run(plane, given)) == {
            "requests": expected, "limits": expected,
        }  # fmt: skip
        return found

    try:
        await until(is_translated, explain=lambda: resources(dry_run(plane, given)))
    finally:
        plane.kubectl("delete", "clustercolocationprofile", "limited")
        plane.kubectl("delete", "namespace", "limited", "--wait=false")


def test_rights_are_those_of_the_role_alone(plane: ControlPlane, hook: Hook) -> None:
    account = service_account(plane, "webhook", ROOT)
    assert_forbidden(
        plane, account, "get pods -A", "delete clustercolocationprofile probe",
    )  # fmt: skip


async def test_certificates_are_renewed_under_load_and_every_pod_is_reviewed(
    plane: ControlPlane, hook: Hook
) -> None:
    """A call that fails would leave a pod unchanged. Certificate and key are written one after the
    other, so that they do not belong together for a moment."""
    stop, asked = threading.Event(), []

    def ask() -> None:
        while not stop.is_set():
            asked.append(is_asked(plane))

    with ThreadPoolExecutor(2) as pool:
        clients = [pool.submit(ask) for _ in range(2)]
        try:
            renewed = hook.write_certificate()
            await until(lambda: asyncio.to_thread(hook.shown_certificate_is, renewed), 60)
            before = len(asked)
            await until(lambda: len(asked) > before + 3, 60)
        finally:
            stop.set()
        for client in clients:
            client.result()
    assert all(asked), f"{asked.count(False)} of {len(asked)} pods were not reviewed"


async def test_profiles_are_followed_after_the_api_server_was_paused(
    plane: ControlPlane, hook: Hook
) -> None:
    api = pid_of(plane.api.argv)
    os.kill(api, signal.SIGSTOP)
    try:
        assert is_ready(hook)
        await asyncio.sleep(PAUSE_SECONDS)
        assert is_ready(hook)  # a restart could not read profiles
    finally:
        os.kill(api, signal.SIGCONT)
    assert await asyncio.to_thread(is_asked, plane)
    apply(plane, for_app("paused", labels={"paused": "no"}))
    given = own_pod("paused", "paused")
    await until(lambda: "paused" in dry_run(plane, given)["metadata"]["labels"], 60)


async def test_two_installations_append_a_suffix_once(plane: ControlPlane, hook: Hook) -> None:
    """Both webhooks apply all profiles, which belong to no installation; in turn, and again where
    the other changed the pod."""
    seen = {"matchExpressions": [{"key": "suffixed", "operator": "Exists"}]}
    apply(
        plane,
        *(profile(f"suffix-{name}", selector=seen, labelSuffixes={"app": f"-{name}"})
          for name in ("x", "y")),
    )  # fmt: skip
    given = own_pod("suffixed", "web", labels={"suffixed": "yes"})
    await until(lambda: dry_run(plane, given)["metadata"]["labels"]["app"] == "web-x-y")
    (mutating, _) = configurations(hook.authority.certificate, hook.port)
    mutating["metadata"]["name"] = "another-installation"
    mutating["webhooks"][0]["name"] = "mutate-pods.another.io"
    try:
        apply(plane, mutating)

        def are_both_asked() -> bool:
            before = reviews(hook)
            dry_run(plane, given)
            return reviews(hook) - before >= 2

        await until(are_both_asked, 60)
        assert dry_run(plane, given)["metadata"]["labels"]["app"] == "web-x-y"
    finally:
        plane.kubectl("delete", "mutatingwebhookconfiguration", "another-installation")
        plane.kubectl("delete", "clustercolocationprofile", "suffix-x", "suffix-y")


async def test_pods_are_admitted_unchanged_while_the_webhook_is_down(
    plane: ControlPlane, hook: Hook
) -> None:
    """The last test: it kills the webhook."""
    assert is_asked(plane)
    hook.role.kill()
    assert not is_asked(plane)
    apply(plane, own_pod("alone", "probe", labels=BE, priority_class="koord-prod", cpu="1"))
    assert resources(stored(plane, "alone"))["requests"] == {"cpu": "1"}
