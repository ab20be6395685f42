"""Settings of the node actuator."""

from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, field

from pipeline.settings.base import HttpAddress, MetricsHost, MetricsPort, Section
from pipeline.settings.feature_gates import FeatureGates

FeatureMode = Literal["off", "observe", "act"]


class NodeActuatorSettings(Section, frozen=True, kw_only=True):
    """The node actuator, which writes limits to the cgroups of its node.

    The roots of cgroups, /proc and /sys, the cgroup driver and the local socket are those of the
    section exporter: both run on the same node.
    """

    mode: Annotated[
        FeatureMode,
        Meta(
            description="Mode of features that node_actuator.features does not name. observe: "
            "publish what would be written on springtide.actions. act: write it. off: neither. "
            "What a feature wrote is restored when it leaves the mode act."
        ),
    ] = "observe"
    features: Annotated[
        dict[str, FeatureMode],
        Meta(
            description="Mode of single features, such as {cpu_suppression: act, cpu_burst: off}; "
            "the reference of the node actuator lists them."
        ),
    ] = field(default_factory=dict)
    feature_gates: Annotated[
        FeatureGates,
        Meta(
            description="Gates of koordlet, such as BECPUSuppress=true,CPUBurst=false: with false "
            "the feature is off, with true, the default, it has its mode."
        ),
    ] = ""
    interval_seconds: Annotated[
        float, Meta(ge=0.1, le=60, description="Interval of rounds: read, decide, write.")
    ] = 1.0
    extender_url: Annotated[
        HttpAddress | None,
        Meta(
            description="Address of an extender that serves the view of this node, so that the "
            "node does not read the views of others; null: read springtide.node-views.",
        ),
    ] = None
    extender_ca_file: Annotated[
        Path | None,
        Meta(description="CA certificates (PEM) for the extender; null: those of the system."),
    ] = None
    extender_token_file: Annotated[
        Path | None,
        Meta(description="File with a bearer token for the extender, read for each request."),
    ] = None
    view_max_age_seconds: Annotated[
        float,
        Meta(
            ge=10,
            le=86_400,
            description="Age of the last view above which limits are only narrowed, not widened.",
        ),
    ] = 600.0
    state_file: Annotated[
        Path,
        Meta(
            description="File with the original values of what was written; it must survive a "
            "restart of the actuator, but not of the node."
        ),
    ] = Path("/run/springtide/node-actuator.json")
    cpu_manager_state_file: Annotated[
        Path | None,
        Meta(
            description="State file of the kubelet's CPU manager, which has its policy; null, or "
            "while there is no file: the annotation kubelet.koordinator.sh/cpu-manager-policy of "
            "the Node, else none."
        ),
    ] = Path("/var/lib/kubelet/cpu_manager_state")
    nri_socket: Annotated[
        Path | None,
        Meta(
            description="Socket of the container runtime's NRI, normally /var/run/nri/nri.sock, so "
            "that containers start with their limits; null: they get them a moment later."
        ),
    ] = None
    suppression_pressure_percent: Annotated[
        Annotated[float, Meta(ge=1, le=100)] | None,
        Meta(
            description="CPU pressure at which best-effort work gets less: the share of the last "
            "10 seconds in which another pod waited for CPU; null: pressure is ignored."
        ),
    ] = 10.0
    suppression_forecast_sigmas: Annotated[
        Annotated[float, Meta(ge=0, le=10)] | None,
        Meta(
            description="CPU that is kept free for the next minute of other pods: standard "
            "deviations above their mean of the last minute; null: only their present usage."
        ),
    ] = 3.0
    metrics_host: MetricsHost = "0.0.0.0"
    metrics_port: MetricsPort = 9110
