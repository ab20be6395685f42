"""Settings of the provider, which imports usage from other systems."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, field

from pipeline.settings.base import SECONDS_OF_A_DAY, HttpAddress, Port, Section, Text

_Label = Annotated[
    str,
    Meta(
        pattern=r"^[a-zA-Z_][a-zA-Z0-9_]{0,127}$",
        title="a name of letters, digits and _, at most 128",
    ),
]


class ProviderSettings(Section, frozen=True, kw_only=True):
    """The provider, which imports usage for nodes without an exporter."""

    kind: Annotated[
        Text,
        Meta(
            description="Sample source, built in or of a package: `springtide provider --help-all` "
            "lists them."
        ),
    ] = "stream"
    options: Annotated[
        dict[str, Any],
        Meta(description="Options of the sample source that `kind` names, if it declares any."),
    ] = field(default_factory=dict)
    name: Annotated[
        Annotated[
            str,
            Meta(
                pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$",
                title="a name of lower-case letters, digits and -, at most 63",
            ),
        ]
        | None,
        Meta(
            description="Name of this source beside another provider, with a Lease of its own; "
            "null: that of kind, and the Lease of all providers."
        ),
    ] = None
    corroborate: Annotated[
        bool,
        Meta(
            description="Publish usage of nodes with an exporter, too, so that workers report "
            "where the two differ."
        ),
    ] = False
    window_seconds: Annotated[
        Annotated[int, Meta(ge=5, le=3600)],
        Meta(
            description="Length of a window. Must divide a day, and be at least twice the scrape "
            "interval."
        ),
    ] = 60
    delay_seconds: Annotated[
        Annotated[float, Meta(ge=0, le=600)],
        Meta(
            description="Delay after the end of a window before it is queried, so that its scrapes "
            "are complete."
        ),
    ] = 5.0
    lease: Annotated[
        bool,
        Meta(
            description="Elect a leader of several providers by a Lease. Without an API server use "
            "false, and run one provider."
        ),
    ] = True
    url: Annotated[
        HttpAddress, Meta(description="Base address of Prometheus, without /api/v1/query.")
    ] = "http://127.0.0.1:9090"
    token_file: Annotated[
        Path | None,
        Meta(description="File with a bearer token for Prometheus, read for each request."),
    ] = None
    ca_file: Annotated[
        Path | None,
        Meta(description="CA certificates (PEM) for Prometheus; null: those of the system."),
    ] = None
    insecure_skip_verify: Annotated[
        bool, Meta(description="Do not verify the certificate of Prometheus.")
    ] = False
    query_timeout_seconds: Annotated[
        float, Meta(gt=0, le=600, description="Time-out of a query.")
    ] = 10.0
    step_seconds: Annotated[
        Annotated[int, Meta(ge=1, le=3600)],
        Meta(
            description="Step between points of a window. Must divide window_seconds; best is the "
            "scrape interval."
        ),
    ] = 15
    rate_seconds: Annotated[
        Annotated[int, Meta(ge=1, le=86_400)],
        Meta(
            description="Range of the rates for CPU usage. Must contain two scrapes, better four."
        ),
    ] = 60
    node_label: Annotated[
        _Label,
        Meta(
            description="Label of node-exporter's series with the node's name. A port is removed."
        ),
    ] = "instance"
    pod_node_label: Annotated[
        _Label, Meta(description="Label of cAdvisor's series with the node's name.")
    ] = "node"
    queries: Annotated[
        dict[str, str | None],
        Meta(
            description="PromQL that replaces default queries, such as {node.cpu_cores: ...}; "
            "null omits a query. `springtide provider --show-queries` lists them."
        ),
    ] = field(default_factory=dict)
    poll_seconds: Annotated[
        Annotated[float, Meta(ge=1, le=600)],
        Meta(
            description="Interval of requests to metrics-server. Use its --metric-resolution, so "
            "that no reading is missed."
        ),
    ] = 15.0
    host: Annotated[Text, Meta(description="Address to listen on for health and metrics.")] = (
        "0.0.0.0"
    )
    port: Annotated[
        Port | None, Meta(description="Port for health and metrics; 0: any free port, null: none.")
    ] = 9105

    def problems(self) -> Mapping[str, str]:
        problems = {}
        if SECONDS_OF_A_DAY % self.window_seconds:
            problems["window_seconds"] = "a divisor of 86400 (15, 20, 30, 60, 120, 300, ...)"
        elif self.window_seconds % self.step_seconds:
            problems["step_seconds"] = f"a divisor of window_seconds ({self.window_seconds})"
        return problems
