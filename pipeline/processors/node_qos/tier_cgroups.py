"""CPU shares, CPU quota and memory limit of pods that run on Batch or Mid, and of their containers.

The kubelet does not know these resources: to it such pods are BestEffort, with the smallest shares
and without limits.
"""

from collections.abc import Callable, Iterator, Mapping

from pipeline.processors.node_qos.cgroup_values import (
    UNLIMITED,
    Knob,
    Place,
    Value,
    quota_us_of_millicores,
    shares_of_millicores,
)
from pipeline.processors.node_qos.claims import Claim, held
from pipeline.processors.node_qos.node_state import NodeState, PodState
from pipeline.processors.node_qos.normalized_quota import normalized_quota_us
from pipeline.processors.node_qos.tier_amounts import TierAmounts
from pipeline.topics.resource_amounts import Resources

_NOTHING = Resources()

AmountsByPath = Mapping[str, TierAmounts]
"""What a pod and its containers state, by the path of their cgroup."""


def tier_claims(
    feature: str,
    state: NodeState,
    former: Mapping[Place, Value],
    amounts_of: Callable[[PodState], AmountsByPath],
) -> list[Claim]:
    """Claim the values of all pods of a tier; `amounts_of` a pod of another tier is empty.

    What states no amount stays as it is: a pod, or a container such as a sidecar, which may have
    native requests and limits. Claims of a pod that the view does not have, or has
    without its containers, are repeated: the pod may only have left the view.
    """
    if state.slo is None:
        return held(former, feature)
    claims: list[Claim] = []
    unknown: set[str] = set()
    for pod in state.pods:
        amounts = amounts_of(pod)
        stated = {path: part for path, part in amounts.items() if part != (_NOTHING, _NOTHING)}
        if stated:
            why = f"{feature} of pod {pod.namespace}/{pod.name}"
            values = _values(state, pod, {pod.path: amounts[pod.path], **stated})
            claims += [Claim(place, value, feature, why) for place, value in values]
        elif amounts or not pod.listed:
            unknown.add(pod.path)
    return claims + held(former, feature, unknown)


def _values(
    state: NodeState, pod: PodState, amounts: AmountsByPath
) -> Iterator[tuple[Place, Value]]:
    """As Koordinator's batch resources. Quotas are unlimited while the policy `cfsQuota` limits all
    best-effort pods together: the kernel refuses a child with more quota than its parent."""
    parent_has_quota = pod.is_best_effort and _suppresses_by_quota(state)
    for path, (requests, limits) in amounts.items():
        quota_us = quota_us_of_millicores(0 if parent_has_quota else limits.cpu_millicores or 0)
        yield Place(path, Knob.CPU_SHARES), shares_of_millicores(requests.cpu_millicores or 0)
        yield (
            Place(path, Knob.CPU_QUOTA),
            normalized_quota_us(quota_us, state.cpu_normalization),
        )
        yield Place(path, Knob.MEMORY_LIMIT), limits.memory_bytes or UNLIMITED


def _suppresses_by_quota(state: NodeState) -> bool:
    threshold = state.slo and state.slo.resource_used_threshold_with_be
    return bool(threshold and threshold.enable and threshold.cpu_suppress_policy == "cfsQuota")
