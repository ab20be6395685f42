"""Settings of the scheduler extender."""

from typing import Annotated, Literal

from msgspec import Meta

from pipeline.settings.base import Percent, Port, Section, Text


class ExtenderSettings(Section, frozen=True, kw_only=True):
    """The extender, an HTTP service for kube-scheduler."""

    mode: Annotated[
        Literal["observe", "act"],
        Meta(
            description="observe: every node passes, and the actual decision is only logged. act: "
            "the decision applies."
        ),
    ] = "observe"
    push_out: Annotated[
        bool,
        Meta(
            description="In mode act plan which Free, Batch or Mid pods make room for a Prod pod "
            "that every node refuses. An evictor carries out the plans."
        ),
    ] = False
    host: Annotated[Text, Meta(description="Address to listen on.")] = "0.0.0.0"
    port: Annotated[
        Port, Meta(description="Port for the scheduler, health and metrics; 0: any free port.")
    ] = 8888
    connections_per_address: Annotated[
        Annotated[int, Meta(ge=1, le=65_536)],
        Meta(
            description="Open connections of one client address; more are closed unanswered. Raise "
            "it if a proxy or load balancer connects for many nodes."
        ),
    ] = 1000
    tls_cert_file: Annotated[
        Text | None,
        Meta(
            description="Certificate chain (PEM) for HTTPS, reloaded when it changes; null: plain "
            "HTTP."
        ),
    ] = None
    tls_key_file: Annotated[
        Text | None, Meta(description="Private key (PEM) of tls_cert_file.")
    ] = None
    tls_client_ca_file: Annotated[
        Text | None,
        Meta(
            description="CA certificates (PEM) of client certificates, which are then required for "
            "the scheduler's verbs and, unless another setting allows more, for all requests "
            "except probes; null: not required."
        ),
    ] = None
    scheduler_names: Annotated[
        tuple[Text, ...],
        Meta(
            description="Common names of client certificates that may send filter, prioritize and "
            "preempt, such as system:kube-scheduler. Empty: every certificate of the CA."
        ),
    ] = ()
    query_token_file: Annotated[
        Text | None,
        Meta(
            description="File with bearer tokens, one a line without comments, reloaded when it "
            "changes. Queries, /metrics and /watcher then require one of them, or a client "
            "certificate."
        ),
    ] = None
    open_routes: Annotated[
        tuple[Literal["queries", "metrics", "watcher"], ...],
        Meta(
            description="Routes that require neither certificate nor token: /v1 and /openapi.json "
            "(queries), /metrics (metrics), /watcher for Trimaran, which can show neither "
            "(watcher)."
        ),
    ] = ()
    cpu_threshold_percent: Annotated[
        Percent,
        Meta(
            description="Refuse a node whose CPU usage is above this percentage of allocatable, "
            "rounded half up: with 65, 65.4 passes and 65.5 is refused. 0: never."
        ),
    ] = 65.0
    memory_threshold_percent: Annotated[
        Percent,
        Meta(
            description="Refuse a node whose memory usage is above this percentage of allocatable, "
            "rounded half up. 0: never."
        ),
    ] = 95.0
    stale_after_seconds: Annotated[
        Annotated[float, Meta(gt=0, le=86_400)],
        Meta(description="A node whose last window is older is stale: it passes with score 0."),
    ] = 180.0
    scheduler_config_file: Annotated[
        Text | None,
        Meta(
            description="A KubeSchedulerConfiguration whose plugins and arguments apply: "
            "LoadAwareScheduling, Trimaran's and others. Its arguments override the thresholds and "
            "the age above. null: LoadAwareScheduling and PredictedHeadroom with their defaults."
        ),
    ] = None
    scheduler_name: Annotated[
        Text | None,
        Meta(description="Profile of that file to use; null: the only profile with plugins."),
    ] = None
    fine_scores: Annotated[
        bool,
        Meta(
            description="Score 0 to 100 instead of the 0 to 10 of the extender protocol, which "
            "multiplies the weight of the extender by ten. kube-scheduler accepts it."
        ),
    ] = False
    history_windows: Annotated[
        Annotated[int, Meta(ge=1, le=20_000)],
        Meta(
            description="Windows of each node that /v1/nodes/{node}/series can answer with, at 24 "
            "bytes each. A restart reads back half an hour at most."
        ),
    ] = 120
    pod_history_windows: Annotated[
        Annotated[int, Meta(ge=0, le=2_880)],
        Meta(
            description="Windows of each pod that /v1/nodes/{node}/pods/{namespace}/{pod}/series "
            "can answer with, at 8 bytes each; 0: none. The extender then reads the whole topic "
            "windows, which takes about half a millisecond of CPU a window."
        ),
    ] = 0
    snapshot_file: Annotated[
        Text | None,
        Meta(
            description="File for a snapshot of the state table, written every minute and at the "
            "end. A restarted extender answers from it at once, and then catches up. Use one file "
            "per extender. null: read everything from Kafka at the start."
        ),
    ] = None
    in_flight: Annotated[
        Literal["all", "score", "none"],
        Meta(
            description="Which decisions count pods that are assigned to a node and not measured "
            "yet: filter and scores (all), scores (score), or neither (none), which lets a burst "
            "of pods pile up on the best node."
        ),
    ] = "all"
