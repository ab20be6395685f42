"""Settings of the pipeline workers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from pipeline.settings.base import MetricsHost, MetricsPort, Name, Section


class WorkerSettings(Section, frozen=True, kw_only=True):
    """The workers, which join samples and predict peaks."""

    id: Annotated[
        Name,
        Meta(
            description="Name of the workers that share the partitions; their consumer group is "
            "`<kafka.topic_prefix>.<worker.id>`. Use the same for all workers of a topic prefix: "
            "two groups write everything twice."
        ),
    ] = "springtide-worker"
    instance_id: Annotated[
        Name | None,
        Meta(
            description="Name of this member for static membership (restarts without a rebalance). "
            "Must be unique in the group. null: dynamic membership."
        ),
    ] = None
    session_timeout_seconds: Annotated[
        Annotated[float, Meta(ge=6, le=1800)],
        Meta(description="Time without a heartbeat after which another worker takes over."),
    ] = 30.0
    checkpoint_interval_seconds: Annotated[
        float, Meta(gt=0, le=86_400, description="Time between the starts of checkpoint rounds.")
    ] = 300.0
    recommendation_interval_seconds: Annotated[
        Annotated[float, Meta(gt=0, le=86_400)],
        Meta(
            description="Time between two publications of recommended requests, for which the "
            "worker of partition 0 reads all checkpoints."
        ),
    ] = 900.0
    data_dir: Annotated[
        Path | None,
        Meta(
            description="Directory for Faust's files, which may be deleted; null: "
            "$XDG_STATE_HOME/springtide, else ~/.local/state/springtide."
        ),
    ] = None
    nodes_file: Annotated[
        Path | None, Meta(description="Node objects, as `kubectl get nodes -o json` prints them.")
    ] = None
    pods_file: Annotated[
        Path | None, Meta(description="Pod objects, as `kubectl get pods -A -o json` prints them.")
    ] = None
    policy_file: Annotated[
        Path | None,
        Meta(
            description="The ConfigMap with the policy for the nodes of nodes_file, YAML or JSON "
            "as kubectl prints it, also with a DeschedulerConfiguration; null: no policy."
        ),
    ] = None
    metrics_host: MetricsHost = "0.0.0.0"
    metrics_port: MetricsPort = 9102
    node_metrics: Annotated[
        Annotated[int, Meta(ge=0, le=100_000)],
        Meta(
            description="Nodes, the first by name, for which a worker exports "
            "koordlet_node_predicted_resource_reclaimable and "
            "koordlet_node_predicted_resource_peak by predictor and resource. 1,000 nodes are 2.4 "
            "MB a scrape. 0: none."
        ),
    ] = 200
    future_tolerance_seconds: Annotated[
        Annotated[float, Meta(ge=0, le=86_400)],
        Meta(
            description="A window that ends this far ahead of the broker's clock is a dead letter."
        ),
    ] = 60.0
    node_expiration_seconds: Annotated[
        Annotated[float, Meta(ge=3600, le=31_536_000)],
        Meta(
            description="Time without windows (event time) after which a node without a record in "
            "springtide.nodes departs, with its models and results."
        ),
    ] = 86_400.0
    batch_size: Annotated[
        Annotated[int, Meta(ge=1, le=10_000)],
        Meta(description="Samples per join; models apply up to twice as many windows at once."),
    ] = 1000
    supervise: Annotated[
        bool,
        Meta(
            description="Run the worker as a child process, and restart it when it ends. Use false "
            "under Kubernetes or systemd."
        ),
    ] = True
    restart_backoff_min_seconds: Annotated[
        float, Meta(gt=0, le=3600, description="Pause before the first restart; doubles each time.")
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
