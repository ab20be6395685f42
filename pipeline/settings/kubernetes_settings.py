"""Settings of the API server, and of the watcher, which reads it."""

from pathlib import Path
from typing import Annotated

from msgspec import Meta

from pipeline.settings.base import MetricsHost, MetricsPort, Name, Namespace, Section, Text


class KubernetesSettings(Section, frozen=True, kw_only=True):
    """The API server, and where Springtide's objects are."""

    kubeconfig: Annotated[
        Path | None,
        Meta(
            description="Kubeconfig file; null: the service account of the pod, else $KUBECONFIG, "
            "else ~/.kube/config."
        ),
    ] = None
    context: Annotated[
        Text | None, Meta(description="Context of the kubeconfig; null: its current context.")
    ] = None
    namespace: Annotated[
        Namespace,
        Meta(description="Namespace of the Leases, and of the ConfigMap that stops evictions."),
    ] = "springtide-system"
    config_namespace: Annotated[
        Name,
        Meta(description="Namespace of the ConfigMaps with policy and DeschedulerConfiguration."),
    ] = "koordinator-system"
    config_name: Annotated[Name, Meta(description="Name of the ConfigMap with the policy.")] = (
        "slo-controller-config"
    )
    descheduler_config_name: Annotated[
        Name, Meta(description="Name of the ConfigMap with the DeschedulerConfiguration.")
    ] = "koord-descheduler-config"
    request_timeout_seconds: Annotated[
        float, Meta(gt=0, le=600, description="Time-out of a request to the API server.")
    ] = 30.0


class WatcherSettings(Section, frozen=True, kw_only=True):
    """The watcher, which copies nodes, pods and policy of a cluster to topics."""

    metrics_host: MetricsHost = "0.0.0.0"
    metrics_port: MetricsPort = 9103
