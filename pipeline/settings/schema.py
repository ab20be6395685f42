"""What can be set: every key with its type, range, default and meaning, and nothing else.

The descriptions here are the only ones: `--help` and docs/reference/settings.md are made from them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from pipeline.settings.base import (
    Name,
    Namespace,
    ObjectName,
    Port,
    Secret,
    Section,
    Servers,
    Text,
)
from pipeline.settings.exporter_settings import ExporterSettings
from pipeline.settings.model_settings import ModelSettings
from pipeline.settings.provider_settings import ProviderSettings


class KafkaSettings(Section, frozen=True, kw_only=True):
    """The broker, and how to reach it."""

    bootstrap_servers: Annotated[
        Servers, Meta(description="Brokers to ask first: host:port, several with commas.")
    ] = "127.0.0.1:9092"
    topic_prefix: Annotated[Name, Meta(description="First part of every topic's name.")] = (
        "springtide"
    )
    partitions: Annotated[
        int,
        Meta(
            ge=1,
            le=4096,
            description="Partitions of every topic that is keyed by node. The same for the life of "
            "the topics: where a node's records lie depends on it.",
        ),
    ] = 16
    replication_factor: Annotated[
        int, Meta(ge=1, le=32, description="Copies of every partition; 3 in production.")
    ] = 1
    request_timeout_seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=3600,
            description="How long a request may wait for an answer. Longer than the broker outage "
            "that is to be survived without a restart.",
        ),
    ] = 40.0
    security_protocol: Annotated[
        Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"],
        Meta(description="How connections are encrypted and authenticated."),
    ] = "PLAINTEXT"
    sasl_mechanism: Annotated[
        Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None,
        Meta(description="Needed with SASL_PLAINTEXT and SASL_SSL."),
    ] = None
    sasl_username: Annotated[Text | None, Meta(description="Needed with a SASL mechanism.")] = None
    sasl_password: Annotated[
        Secret | None,
        Meta(description="Needed with a SASL mechanism; never printed. Best set by environment."),
    ] = None
    ssl_ca_file: Annotated[
        Path | None, Meta(description="CA certificates (PEM); null: those of the system.")
    ] = None
    ssl_cert_file: Annotated[
        Path | None, Meta(description="Certificate of this client (PEM), for mutual TLS.")
    ] = None
    ssl_key_file: Annotated[Path | None, Meta(description="Private key of this client (PEM).")] = (
        None
    )

    def problems(self) -> Mapping[str, str]:
        found = {}
        if self.security_protocol.startswith("SASL"):
            for key in ("sasl_mechanism", "sasl_username", "sasl_password"):
                if getattr(self, key) is None:
                    found[key] = f"a value, because security_protocol is {self.security_protocol}"
        if (self.ssl_cert_file is None) != (self.ssl_key_file is None):
            missing = "ssl_cert_file" if self.ssl_cert_file is None else "ssl_key_file"
            found[missing] = "a file: certificate and key are given together"
        return found


class WorkerSettings(Section, frozen=True, kw_only=True):
    """The pipeline worker: join and model."""

    id: Annotated[
        Name,
        Meta(
            description="Consumer group of the workers that share the partitions; the same for "
            "all workers of a topic prefix: two groups would write everything twice."
        ),
    ] = "springtide-worker"
    instance_id: Annotated[
        Name | None,
        Meta(
            description="Name of this member for static membership (rolling restarts without a "
            "rebalance); never the same on two workers. null: dynamic."
        ),
    ] = None
    session_timeout_seconds: Annotated[
        float,
        Meta(
            ge=6, le=1800, description="After this without a heartbeat another worker takes over."
        ),
    ] = 30.0
    checkpoint_interval_seconds: Annotated[
        float, Meta(gt=0, le=86_400, description="Time from one round of checkpoints to the next.")
    ] = 300.0
    data_dir: Annotated[
        Path | None,
        Meta(
            description="Directory for Faust's own files, nothing of value; null: "
            "$XDG_STATE_HOME/springtide, else ~/.local/state/springtide."
        ),
    ] = None
    nodes_file: Annotated[
        Path | None, Meta(description="Node objects as `kubectl get nodes -o json` prints them.")
    ] = None
    pods_file: Annotated[
        Path | None, Meta(description="Pod objects as `kubectl get pods -A -o json` prints them.")
    ] = None
    policy_file: Annotated[
        Path | None,
        Meta(
            description="The ConfigMap with the policy for the nodes of nodes_file, YAML or JSON "
            "as kubectl prints it; null: they have none."
        ),
    ] = None
    metrics_host: Annotated[
        Text, Meta(description="Address of the metrics page; Prometheus comes from outside.")
    ] = "0.0.0.0"
    metrics_port: Annotated[
        Port | None, Meta(description="Port of the metrics page; 0: any free one, null: none.")
    ] = 9102
    node_metrics: Annotated[
        bool,
        Meta(
            description="Whether the metrics page has koordlet_node_predicted_resource_reclaimable "
            "and koordlet_node_predicted_resource_peak of every node, predictor and resource; "
            "false for fleets of thousands of nodes."
        ),
    ] = True
    future_tolerance_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=86_400,
            description="A window that ends further ahead of the broker's clock is a dead letter.",
        ),
    ] = 60.0
    node_expiration_seconds: Annotated[
        float,
        Meta(
            ge=3600,
            le=31_536_000,
            description="A node that no record of springtide.nodes names departs, with its models "
            "and results, when it has been silent for so long (event time).",
        ),
    ] = 86_400.0
    batch_size: Annotated[
        int,
        Meta(
            ge=1,
            le=10_000,
            description="Samples that are joined at once; models take up to twice as many.",
        ),
    ] = 1000
    supervise: Annotated[
        bool,
        Meta(description="Run as a child that is restarted; false under Kubernetes or systemd."),
    ] = True
    restart_backoff_min_seconds: Annotated[
        float, Meta(gt=0, le=3600, description="Pause before the first restart; then it doubles.")
    ] = 1.0
    restart_backoff_max_seconds: Annotated[
        float, Meta(gt=0, le=3600, description="Longest pause before a restart.")
    ] = 30.0

    def problems(self) -> Mapping[str, str]:
        if self.policy_file is not None and self.nodes_file is None:
            return {"nodes_file": "a file, because policy_file is for the nodes in it"}
        if self.restart_backoff_max_seconds < self.restart_backoff_min_seconds:
            least = self.restart_backoff_min_seconds
            return {
                "restart_backoff_max_seconds": f"at least restart_backoff_min_seconds ({least:g})"
            }
        return {}


class KubernetesSettings(Section, frozen=True, kw_only=True):
    """The API server, and what of the cluster is ours."""

    kubeconfig: Annotated[
        Path | None,
        Meta(
            description="How to reach it; null: as the service account of the pod, else by "
            "$KUBECONFIG, else by ~/.kube/config."
        ),
    ] = None
    context: Annotated[
        Text | None, Meta(description="Context of the kubeconfig; null: its current one.")
    ] = None
    namespace: Annotated[Namespace, Meta(description="Where our leases are.")] = "springtide-system"
    config_namespace: Annotated[
        Name, Meta(description="Where the ConfigMap with the policy is.")
    ] = "koordinator-system"
    config_name: Annotated[Name, Meta(description="Name of the ConfigMap with the policy.")] = (
        "slo-controller-config"
    )
    request_timeout_seconds: Annotated[
        float, Meta(gt=0, le=600, description="How long a request may wait for an answer.")
    ] = 30.0


class WatcherSettings(Section, frozen=True, kw_only=True):
    """The cluster watcher."""

    metrics_host: Annotated[
        Text, Meta(description="Address of the metrics page; Prometheus comes from outside.")
    ] = "0.0.0.0"
    metrics_port: Annotated[
        Port | None, Meta(description="Port of the metrics page; 0: any free one, null: none.")
    ] = 9103


class ActuatorSettings(Section, frozen=True, kw_only=True):
    """The cluster actuator."""

    mode: Annotated[
        Literal["observe", "recommend", "act"],
        Meta(
            description="observe: nothing is changed, what would be done is on springtide.actions. "
            "recommend: an annotation of the Node says what would be offered. act: Mid and Batch "
            "are written to the status of Nodes. What another mode left behind is undone."
        ),
    ] = "observe"
    node_metrics: Annotated[
        bool,
        Meta(
            description="Whether NodeMetric objects are written, for Koordinator's scheduler and "
            "manager, in mode act."
        ),
    ] = False
    node_slos: Annotated[
        bool,
        Meta(
            description="Whether NodeSLO objects are written, for Koordinator's agent of the node, "
            "in mode act."
        ),
    ] = False
    writes_per_second: Annotated[
        float,
        Meta(
            gt=0,
            le=10_000,
            description="The most that is written to the API server, of all kinds together.",
        ),
    ] = 20.0
    metrics_host: Annotated[
        Text, Meta(description="Address of the metrics page; Prometheus comes from outside.")
    ] = "0.0.0.0"
    metrics_port: Annotated[
        Port | None, Meta(description="Port of the metrics page; 0: any free one, null: none.")
    ] = 9104


class EvictorSettings(Section, frozen=True, kw_only=True):
    """The evictor: pods that leave nodes by plan."""

    mode: Annotated[
        Literal["observe", "recommend", "act"],
        Meta(
            description="observe: nobody is evicted, what would be done is on springtide.actions. "
            "recommend: an Event of the pod that waits says so, too. act: pods are evicted."
        ),
    ] = "observe"
    evictions_per_minute: Annotated[
        float, Meta(gt=0, le=10_000, description="The most pods that are evicted in the cluster.")
    ] = 10.0
    stop_config_map: Annotated[
        ObjectName,
        Meta(
            description="The kill switch: while there is a ConfigMap of this name in "
            "kubernetes.namespace, nobody is evicted."
        ),
    ] = "springtide-stop-evictions"
    metrics_host: Annotated[
        Text, Meta(description="Address of the metrics page; Prometheus comes from outside.")
    ] = "0.0.0.0"
    metrics_port: Annotated[
        Port | None, Meta(description="Port of the metrics page; 0: any free one, null: none.")
    ] = 9107


class ExtenderSettings(Section, frozen=True, kw_only=True):
    """The HTTP service that a scheduler asks."""

    mode: Annotated[
        Literal["observe", "act"],
        Meta(
            description="observe: every node passes, the answer that would have been given is "
            "logged. act: the answer counts."
        ),
    ] = "observe"
    push_out: Annotated[
        bool,
        Meta(
            description="Whether, for a Prod pod that every node refuses, it is planned which pods "
            "of Free, Batch or Mid are to leave a node, in mode act. An evictor carries it out."
        ),
    ] = False
    host: Annotated[Text, Meta(description="Address to listen on.")] = "0.0.0.0"
    port: Annotated[
        Port, Meta(description="Port for the scheduler, health and metrics; 0: any free one.")
    ] = 8888
    tls_cert_file: Annotated[
        Text | None,
        Meta(
            description="PEM file of the certificate to serve HTTPS with, and those that signed "
            "it. Unset: plain HTTP. A file that changes is read again."
        ),
    ] = None
    tls_key_file: Annotated[
        Text | None, Meta(description="PEM file of its private key; needed with tls_cert_file.")
    ] = None
    tls_client_ca_file: Annotated[
        Text | None,
        Meta(
            description="PEM file of who may sign clients' certificates; others are turned away, "
            "but for probes. Unset: clients need none."
        ),
    ] = None
    cpu_threshold_percent: Annotated[
        float,
        Meta(
            ge=0,
            le=100,
            description="A node is refused whose CPU use, in percent of its allocatable and "
            "rounded half up to a whole number, is above this: with 65, 65.4 passes and 65.5 does "
            "not. 0: never.",
        ),
    ] = 65.0
    memory_threshold_percent: Annotated[
        float,
        Meta(
            ge=0,
            le=100,
            description="A node is refused whose memory use, in percent of its allocatable and "
            "rounded half up to a whole number, is above this. 0: never.",
        ),
    ] = 95.0
    stale_after_seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=86_400,
            description="A node whose last window is older than this passes and scores 0.",
        ),
    ] = 180.0
    scheduler_config_file: Annotated[
        Text | None,
        Meta(
            description="A KubeSchedulerConfiguration whose plugins and arguments hold here: "
            "LoadAwareScheduling, Trimaran's and others. Its arguments come before the thresholds "
            "and the age above. Unset: LoadAwareScheduling with its defaults."
        ),
    ] = None
    scheduler_name: Annotated[
        Text | None,
        Meta(description="Which profile of that file counts. Unset: the only one with plugins."),
    ] = None
    fine_scores: Annotated[
        bool,
        Meta(
            description="Scores of 0 to 100 instead of the 0 to 10 that the extender protocol "
            "has: ten times as fine, and ten times as heavy. kube-scheduler takes them."
        ),
    ] = False
    snapshot_file: Annotated[
        Text | None,
        Meta(
            description="Where to keep the state table, written once a minute and at the end, so "
            "that an extender that starts again answers at once, and then catches up. One file "
            "for each extender. Unset: none; all is read from Kafka at the start."
        ),
    ] = None
    in_flight: Annotated[
        Literal["all", "score", "none"],
        Meta(
            description="Who counts pods that are on their way to a node, and not measured yet: "
            "all, filter and scores; score, scores alone; none, as if there were no such pods: a "
            "burst of pods piles up on the node that is best."
        ),
    ] = "all"


class LogSettings(Section, frozen=True, kw_only=True):
    """What is said on standard error."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="The least important message that is shown."),
    ] = "info"
    format: Annotated[
        Literal["auto", "human", "json"],
        Meta(description="auto: human on a terminal, JSON lines otherwise."),
    ] = "auto"


class Settings(Struct, frozen=True, kw_only=True):
    """Everything that can be set, by section."""

    kafka: KafkaSettings = KafkaSettings()
    exporter: ExporterSettings = ExporterSettings()
    worker: WorkerSettings = WorkerSettings()
    model: ModelSettings = ModelSettings()
    extender: ExtenderSettings = ExtenderSettings()
    kubernetes: KubernetesSettings = KubernetesSettings()
    watcher: WatcherSettings = WatcherSettings()
    actuator: ActuatorSettings = ActuatorSettings()
    evictor: EvictorSettings = EvictorSettings()
    provider: ProviderSettings = ProviderSettings()
    log: LogSettings = LogSettings()


def state_directory(environ: Mapping[str, str]) -> Path:
    """Where files that may be lost go: `$XDG_STATE_HOME/springtide`, else below the home folder."""
    base = environ.get("XDG_STATE_HOME", "")
    if base and Path(base).is_absolute():
        return Path(base) / "springtide"
    home = environ.get("HOME", "")
    return (Path(home) if home else Path.home()) / ".local" / "state" / "springtide"
