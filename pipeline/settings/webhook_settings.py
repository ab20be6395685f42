"""Settings of the admission webhook."""

from typing import Annotated, Literal

from msgspec import Meta

from pipeline.settings.base import MetricsHost, MetricsPort, Port, Section, Text
from pipeline.settings.feature_gates import FeatureGates


class WebhookSettings(Section, frozen=True, kw_only=True):
    """The webhook, which the API server asks about new and changed pods."""

    mode: Annotated[
        Literal["observe", "act"],
        Meta(
            description="observe: every pod is admitted unchanged; what would be changed or "
            "refused is logged, and noted in the audit log of the API server. act: change and "
            "refuse."
        ),
    ] = "observe"
    host: Annotated[Text, Meta(description="Address to listen on.")] = "0.0.0.0"
    port: Annotated[
        Port, Meta(description="Port for the API server and for probes; 0: any free port.")
    ] = 9443
    connections_per_address: Annotated[
        Annotated[int, Meta(ge=1, le=65_536)],
        Meta(description="Open connections of one client address; more are closed unanswered."),
    ] = 1000
    tls_cert_file: Annotated[
        Text | None,
        Meta(description="Certificate chain (PEM), reloaded when it changes. Required."),
    ] = None
    tls_key_file: Annotated[
        Text | None, Meta(description="Private key (PEM) of tls_cert_file. Required.")
    ] = None
    tls_client_ca_file: Annotated[
        Text | None,
        Meta(
            description="CA certificates (PEM) of client certificates, which reviews then require: "
            "the API server shows one if its AdmissionConfiguration has one. null: not required."
        ),
    ] = None
    feature_gates: Annotated[
        FeatureGates,
        Meta(
            description="Feature gates that differ from their defaults, such as "
            "PodValidatingWebhook=false; the reference of the webhook lists them."
        ),
    ] = ""
    metrics_host: MetricsHost = "0.0.0.0"
    metrics_port: MetricsPort = 9112
