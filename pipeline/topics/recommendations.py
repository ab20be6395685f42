"""`springtide.recommendations`: requests recommended for workloads, keyed `namespace/kind/name`.

The worker that owns partition 0 writes a record for each workload, and a tombstone when no models
of the workload are left. The namespace decides the partition. The field `recommendation` has the
form of `status.recommendation` of a VerticalPodAutoscaler.
"""

import msgspec

from pipeline.topics.codec import Record

ResourceList = dict[str, str]
"""Quantities by resource; unknown ones are missing."""


class ContainerRecommendation(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True
):
    """Recommended requests of a container, or of a pod as a whole.

    container_name: Name of the container; missing for the pod as a whole.
    target: Recommended request.
    lower_bound: A request below it should be raised.
    upper_bound: A request above it should be lowered.
    uncapped_target: The target, because no policy caps it.
    """

    container_name: str = ""
    target: ResourceList
    lower_bound: ResourceList
    upper_bound: ResourceList
    uncapped_target: ResourceList


class PodRecommendation(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Recommendations by container: one, without a name, for the pod as a whole.

    container_recommendations: The recommendations.
    """

    container_recommendations: tuple[ContainerRecommendation, ...]


class OomKills(msgspec.Struct, frozen=True, kw_only=True):
    """OOM kills of the pods of a workload.

    last_at: When the last one was; RFC 3339, UTC.
    peak: Memory as which it counts: what the pod used or requested, and 20% or 100 MiB more.
    kills: Kills that counted, of nodes whose last one was at most 8 days ago.
    """

    last_at: str
    peak: str
    kills: int


class RecommendationRecord(Record, frozen=True, kw_only=True):
    """The requests recommended for each pod of a workload.

    namespace: Namespace.
    kind: Kind of the workload: a Deployment, not its ReplicaSet.
    name: Name.
    as_of: End of the newest window with a sample of the workload; RFC 3339, UTC.
    pods: Pods in the newest windows of their nodes; 0 if the workload is scaled to zero.
    pods_seen: Pods that ever ran on a node, as long as the workload has a model there.
    samples: Samples of cpu.
    history_days: Length of the history, by which the bounds widen.
    replicas: Those of `pods` that have not ended and are not being deleted; null if unknown.
    requested: What `replicas` request together; a resource is missing if the request of one of them
        is unknown.
    recommendation: The recommendation.
    oom_kills: OOM kills that count as peaks of memory; null: none.
    containers: Recommendations for each container by name; empty if none is known.
    """

    namespace: str
    kind: str
    name: str
    as_of: str
    pods: int
    pods_seen: int
    samples: int
    history_days: float
    replicas: int | None = None
    requested: ResourceList = msgspec.field(default_factory=dict)
    recommendation: PodRecommendation
    oom_kills: OomKills | None = None
    containers: tuple[ContainerRecommendation, ...] = ()
