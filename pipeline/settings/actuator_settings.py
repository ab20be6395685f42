"""Settings of the actuators: cluster actuator, evictor and notifier."""

from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, field

from pipeline.settings.base import HTTP_ADDRESS, MetricsHost, MetricsPort, ObjectName, Section


class ActuatorSettings(Section, frozen=True, kw_only=True):
    """The cluster actuator, which writes Mid and Batch to Nodes."""

    mode: Annotated[
        Literal["observe", "recommend", "act"],
        Meta(
            description="observe: publish intended writes on springtide.actions only. recommend: "
            "write the intended offer as an annotation of the Node. act: write Mid and Batch to "
            "the status of Nodes. What another mode wrote is removed."
        ),
    ] = "observe"
    node_metrics: Annotated[
        bool,
        Meta(
            description="In mode act write NodeMetric objects, for Koordinator's scheduler and "
            "manager."
        ),
    ] = False
    node_slos: Annotated[
        bool, Meta(description="In mode act write NodeSLO objects, for Koordinator's node agent.")
    ] = False
    writes_per_second: Annotated[
        Annotated[float, Meta(gt=0, le=10_000)] | None,
        Meta(
            description="Most writes to the API server, of all kinds together; by default 20, or "
            "one in 30 s for each Node if that is more."
        ),
    ] = None
    metrics_host: MetricsHost = "0.0.0.0"
    metrics_port: MetricsPort = 9104


class EvictorSettings(Section, frozen=True, kw_only=True):
    """The evictor, which carries out eviction plans."""

    mode: Annotated[
        Literal["observe", "recommend", "act"],
        Meta(
            description="observe: publish intended evictions on springtide.actions only. "
            "recommend: also report them in an Event of the waiting pod. act: evict."
        ),
    ] = "observe"
    evictions_per_minute: Annotated[
        float, Meta(gt=0, le=10_000, description="Most evictions in the cluster.")
    ] = 10.0
    stop_config_map: Annotated[
        ObjectName,
        Meta(
            description="Kill switch: while a ConfigMap of this name exists in "
            "kubernetes.namespace, no pod is evicted."
        ),
    ] = "springtide-stop-evictions"
    metrics_host: MetricsHost = "0.0.0.0"
    metrics_port: MetricsPort = 9107


class PlannerSettings(Section, frozen=True, kw_only=True):
    """The planner, which plans how hot nodes are relieved."""

    metrics_host: MetricsHost = "0.0.0.0"
    metrics_port: MetricsPort = 9109


class NotifierSettings(Section, frozen=True, kw_only=True):
    """The notifier, which sends the alerts of hot nodes to Alertmanager."""

    alertmanager_urls: Annotated[
        str,
        Meta(
            pattern=rf"^{HTTP_ADDRESS}(,{HTTP_ADDRESS})*$",
            title="http:// or https://, a host without user and password, optional port and path; "
            "several separated by commas",
            description="Addresses of all replicas of Alertmanager, without /api/v2.",
        ),
    ] = "http://127.0.0.1:9093"
    labels: Annotated[
        dict[str, str],
        Meta(description="Labels of every alert, such as the name of the cluster."),
    ] = field(default_factory=dict)
    resend_seconds: Annotated[
        float,
        Meta(
            ge=1,
            le=3600,
            description="Time after which an open alert is sent again. Alertmanager ends an alert "
            "that was not sent for four times as long.",
        ),
    ] = 60.0
    token_file: Annotated[
        Path | None,
        Meta(description="File with a bearer token for Alertmanager, read for each request."),
    ] = None
    ca_file: Annotated[
        Path | None,
        Meta(description="CA certificates (PEM) for Alertmanager; null: those of the system."),
    ] = None
    metrics_host: MetricsHost = "0.0.0.0"
    metrics_port: MetricsPort = 9108
