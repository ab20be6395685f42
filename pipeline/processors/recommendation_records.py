"""Recommendations as records of `springtide.recommendations`, in the terms of a VPA's status, and
what they would save."""

import math

from pipeline.errors import InvalidRecordError
from pipeline.processors.model.model_config import RESOURCES
from pipeline.processors.model.oom_peaks import WorkloadOomKills
from pipeline.processors.recommendation import Advice, Recommendation
from pipeline.times import format_time
from pipeline.topics.recommendations import (
    ContainerRecommendation,
    OomKills,
    PodRecommendation,
    RecommendationRecord,
    ResourceList,
)
from pipeline.topics.resource_amounts import millicores, whole_bytes


def recommendation_record(recommendation: Recommendation) -> RecommendationRecord:
    """The record of a recommendation; unknown amounts are left out."""
    pod = _amounts(recommendation.cpu, recommendation.memory)
    namespace, kind, name = recommendation.workload
    return RecommendationRecord(
        namespace=namespace,
        kind=kind,
        name=name,
        as_of=format_time(recommendation.last_ms / 1000),
        pods=recommendation.pods,
        pods_seen=recommendation.pods_seen,
        samples=recommendation.samples,
        history_days=round(recommendation.history_days, 4),
        replicas=recommendation.replicas,
        requested=_resource_list(
            recommendation.requested_millicores, recommendation.requested_bytes
        ),
        recommendation=PodRecommendation(container_recommendations=(pod,)),
        oom_kills=_oom_kills(recommendation.oom_kills),
        containers=tuple(
            _amounts(each.cpu, each.memory, each.name) for each in recommendation.containers
        ),
    )


def _amounts(cpu: Advice, memory: Advice, container_name: str = "") -> ContainerRecommendation:
    target = _resource_list(1000 * cpu.target, memory.target)
    return ContainerRecommendation(
        container_name=container_name,
        target=target,
        lower_bound=_resource_list(1000 * cpu.lower, memory.lower),
        upper_bound=_resource_list(1000 * cpu.upper, memory.upper),
        uncapped_target=target,
    )


def _oom_kills(kills: WorkloadOomKills | None) -> OomKills | None:
    if kills is None:
        return None
    return OomKills(
        last_at=format_time(kills.killed_ms / 1000),
        peak=f"{math.ceil(kills.peak_bytes)}",
        kills=kills.kills,
    )


def savings(record: RecommendationRecord) -> ResourceList:
    """What all replicas together would request less with the target; negative: more.

    Requests of the replicas - target * replicas, in whole millicores or bytes. A resource is
    missing if a request or the target is unknown, or is not a quantity.
    """
    if record.replicas is None:
        return {}
    saved: dict[str, str] = {}
    for container in record.recommendation.container_recommendations:
        for name in RESOURCES:
            if name not in record.requested or name not in container.target:
                continue
            amount = millicores if name == "cpu" else whole_bytes
            try:
                requested, target = amount(record.requested[name]), amount(container.target[name])
            except InvalidRecordError:
                continue
            saved[name] = f"{requested - target * record.replicas}{'m' * (name == 'cpu')}"
    return saved


def _resource_list(cpu_millicores: float, memory_bytes: float) -> ResourceList:
    """The known ones of these amounts, rounded up as Kubernetes rounds."""
    amounts = (("cpu", "m", cpu_millicores), ("memory", "", memory_bytes))
    return {
        name: f"{math.ceil(amount)}{unit}"
        for name, unit, amount in amounts
        if not math.isnan(amount)
    }
