"""Settings of the provider, which brings usage that others have measured."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, field

from pipeline.settings.base import SECONDS_OF_A_DAY, Port, Section, Text

_Label = Annotated[
    str,
    Meta(
        pattern=r"^[a-zA-Z_][a-zA-Z0-9_]{0,127}$",
        title="a name of letters, digits and _, at most 128",
    ),
]


class ProviderSettings(Section, frozen=True, kw_only=True):
    """Usage from elsewhere, for clusters without our exporter."""

    kind: Annotated[
        Literal["stream", "prometheus", "metrics-server"],
        Meta(
            description="Where usage comes from. stream: our own exporters, who publish by "
            "themselves. prometheus: node-exporter's and cAdvisor's metrics. metrics-server: the "
            "API metrics.k8s.io, by the settings of the section kubernetes."
        ),
    ] = "stream"
    window_seconds: Annotated[
        int,
        Meta(
            ge=5,
            le=3600,
            description="Length of a window. Must divide a day, so that windows lie on one grid of "
            "UTC; at least twice the interval at which is scraped.",
        ),
    ] = 60
    delay_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=600,
            description="How long after its end a window is asked for: what was scraped in it has "
            "to be there by then.",
        ),
    ] = 5.0
    lease: Annotated[
        bool,
        Meta(
            description="Whether one of several works, by a Lease at the API server of the section "
            "kubernetes. false, where there is none: run one."
        ),
    ] = True
    url: Annotated[
        str,
        Meta(
            pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$",
            title="http:// or https://, a host without user and password, and a path where it has "
            "one",
            description="Where Prometheus is; /api/v1/query comes behind it.",
        ),
    ] = "http://127.0.0.1:9090"
    token_file: Annotated[
        Path | None,
        Meta(description="File with the bearer token for Prometheus; read for each request."),
    ] = None
    ca_file: Annotated[
        Path | None,
        Meta(description="CA certificates (PEM) for Prometheus; null: those of the system."),
    ] = None
    insecure_skip_verify: Annotated[
        bool, Meta(description="Whether the certificate of Prometheus is taken as it is.")
    ] = False
    query_timeout_seconds: Annotated[
        float, Meta(gt=0, le=600, description="How long a query may wait for its answer.")
    ] = 10.0
    step_seconds: Annotated[
        int,
        Meta(
            ge=1,
            le=3600,
            description="Time between two points of a window from Prometheus; a divisor of "
            "window_seconds, and best the interval at which is scraped.",
        ),
    ] = 15
    rate_seconds: Annotated[
        int,
        Meta(
            ge=1,
            le=86_400,
            description="Range of the rates that CPU usage is made of: at least two scrapes must "
            "lie in it, better four.",
        ),
    ] = 60
    node_label: Annotated[
        _Label,
        Meta(
            description="Label of node-exporter's series that has the node's name; a port behind "
            "it is cut off."
        ),
    ] = "instance"
    pod_node_label: Annotated[
        _Label, Meta(description="Label of cAdvisor's series that has the node's name.")
    ] = "node"
    queries: Annotated[
        dict[str, str | None],
        Meta(
            description="PromQL in place of the default queries, by what it gives, such as "
            "{node.cpu_cores: ...}; null: not asked for. docs/reference/provider.md has them all."
        ),
    ] = field(default_factory=dict)
    poll_seconds: Annotated[
        float,
        Meta(
            ge=1,
            le=600,
            description="How often metrics-server is asked: as often as it looks at nodes "
            "(--metric-resolution), so that none of its readings is missed.",
        ),
    ] = 15.0
    host: Annotated[Text, Meta(description="Address to listen on for health and metrics.")] = (
        "0.0.0.0"
    )
    port: Annotated[
        Port | None, Meta(description="Port for health and metrics; 0: any free one, null: none.")
    ] = 9105

    def problems(self) -> Mapping[str, str]:
        found = {}
        if SECONDS_OF_A_DAY % self.window_seconds:
            found["window_seconds"] = "a divisor of 86400 (15, 20, 30, 60, 120, 300, ...)"
        elif self.window_seconds % self.step_seconds:
            found["step_seconds"] = f"a divisor of window_seconds ({self.window_seconds})"
        return found
