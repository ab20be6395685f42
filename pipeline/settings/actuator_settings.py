"""Settings of the actuators: cluster actuator and evictor."""

from typing import Annotated, Literal

from msgspec import Meta

from pipeline.settings.base import MetricsHost, MetricsPort, ObjectName, Section


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
