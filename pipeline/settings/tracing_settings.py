"""Settings of traces."""

from typing import Annotated

from msgspec import Meta

from pipeline.settings.base import HttpAddress, Section


class TracingSettings(Section, frozen=True, kw_only=True):
    """Traces of windows and of requests of schedulers, sent to an OpenTelemetry collector."""

    endpoint: Annotated[
        HttpAddress | None,
        Meta(
            description="Base address of a collector that takes OTLP over HTTP, without "
            "/v1/traces; null: no traces. Headers, certificates and the time-out are those of the "
            "standard variables OTEL_EXPORTER_OTLP_HEADERS and so on."
        ),
    ] = None
    sample_ratio: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="Share of the windows of all nodes that are traced, and of the requests of "
            "schedulers. Workers decide about a window, by a hash of node and window; other roles "
            "follow. Extenders decide about a request, unless its header traceparent does.",
        ),
    ] = 0.01
