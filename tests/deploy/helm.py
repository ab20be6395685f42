"""The real Helm, and the chart as it renders it."""

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final

import yaml

from pipeline.local.build_programs import ensure_helm
from tests.processes import ROOT

CHART: Final = ROOT / "deploy/chart"
NAMESPACE: Final = "springtide-system"

ROLES: Final = (
    "exporter", "node-actuator", "worker", "watcher", "provider", "actuator", "planner", "evictor",
    "extender", "notifier", "archive", "webhook",
)  # fmt: skip
DEFAULT_ROLES: Final = tuple(
    role for role in ROLES if role not in ("provider", "notifier", "archive", "webhook")
)
EVERYTHING: Final = (
    "provider.enabled=true", "notifier.enabled=true", "archive.enabled=true",
    "evictor.migrationJobs=true", "nodeActuator.cpuManagerState=true",
    "settings.node_actuator.features.resctrl=observe",
    "settings.node_actuator.features.node_sysctl=observe",
    "settings.node_actuator.features.memory_emergency=act",
    "settings.node_actuator.nri_socket=/var/run/nri/nri.sock",
    "settings.provider.kind=metrics-server",
    "settings.kubernetes.config_namespace=koordinator-system",
    "settings.kafka.security_protocol=SASL_SSL", "settings.kafka.sasl_mechanism=SCRAM-SHA-512",
    "kafka.caSecret=kafka-ca", "kafka.userSecret=springtide-ROLE",
    "webhook.enabled=true", "webhook.tls.caBundle=Q0E=", "webhook.tls.secretName=hook-tls",
    "webhook.secret=client-ca", "priorityClasses.create=true",
    "monitoring.dashboards=true",
    "settings.webhook.tls_client_ca_file=/etc/springtide/secret/ca.crt",
    "extender.tls.secretName=extender-tls", "extender.tls.clientCertificates=true",
    "extender.secret=extender-files",
    "settings.extender.query_token_file=/etc/springtide/secret/tokens",
    "schedulerConfig.profiles[0].schedulerName=own",
    "networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.name=monitoring",
)  # fmt: skip
"""Values that switch on every part that needs no custom resource of others."""

# Helm writes its caches there instead of into the home of the user.
_HOME = tempfile.TemporaryDirectory(prefix="helm-", ignore_cleanup_errors=True)


def helm_environment(kubeconfig: Path | None) -> dict[str, str]:
    """The variables of Helm: without a kubeconfig it finds no cluster."""
    folders = {f"HELM_{name}_HOME": f"{_HOME.name}/{name}" for name in ("CACHE", "CONFIG", "DATA")}
    return os.environ | folders | {"KUBECONFIG": str(kubeconfig or "/nonexistent")}


def helm(*arguments: str, kubeconfig: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run Helm with these arguments. Its exit code is not checked."""
    return subprocess.run(
        [str(ensure_helm()), *arguments], env=helm_environment(kubeconfig), capture_output=True,
        text=True, cwd=ROOT, check=False, timeout=600,
    )  # fmt: skip


def run_helm(*arguments: str, kubeconfig: Path | None = None) -> str:
    """The standard output of Helm, which must succeed without a word on standard error."""
    completed = helm(*arguments, kubeconfig=kubeconfig)
    assert completed.returncode == 0, completed.stderr
    assert completed.stderr == "", completed.stderr
    return completed.stdout


def with_values(values: tuple[str, ...]) -> list[str]:
    return [word for value in values for word in ("--set", value)]


def rendered(*values: str, namespace: str = NAMESPACE, name: str = "springtide") -> list[Any]:
    """The objects of the chart with these values, as `--set` takes them."""
    text = run_helm("template", name, str(CHART), "--namespace", namespace, *with_values(values))
    return [tree for tree in yaml.safe_load_all(text) if tree is not None]


def object_of(objects: list[Any], kind: str, name: str) -> Any:
    """The object of this kind and name."""
    (found,) = (o for o in objects if o["kind"] == kind and o["metadata"]["name"] == name)
    return found


def pods_of(objects: list[Any]) -> dict[str, Any]:
    """The pod of each workload, by role."""
    return {
        o["metadata"]["labels"]["app.kubernetes.io/component"]: o["spec"]["template"]["spec"]
        for o in objects
        if "template" in o.get("spec", {})
    }
