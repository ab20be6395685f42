"""Which pods a relief plan may evict at all, by the rules of Koordinator's descheduler.

The API server enforces disruption budgets; they are not part of these rules.
"""

from collections.abc import Iterator
from typing import Final

from pipeline.processors.eviction.eviction_objections import PREEMPTIBLE
from pipeline.processors.eviction.migration_policy import SYSTEM_CRITICAL, Protections
from pipeline.processors.eviction.refusals import Refusal
from pipeline.processors.kubernetes.objects import CONFIG_MIRROR
from pipeline.topics.pods import PodRecord

EVICT: Final = "descheduler.alpha.kubernetes.io/evict"
"""A pod with this annotation, whatever its value, has none of the protections of a policy."""
EVICTION_COST: Final = "scheduling.koordinator.sh/eviction-cost"
DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
NEVER_EVICTED_COST: Final = 2**31 - 1
"""A pod of this eviction cost is never evicted."""

_SOURCE: Final = "kubernetes.io/config.source"


def cost(text: str | None) -> int:
    """The value of a cost annotation, 0 if it is invalid.

    >>> [cost(text) for text in ("7", "-3", "-008", "+7", "007", "2147483648", "much", None)]
    [7, -3, -8, 0, 0, 0, 0, 0]
    """
    return read_cost(text) or 0


def read_cost(text: str | None) -> int | None:
    """The value of a cost annotation; None if it is no 32-bit integer as Koordinator reads them: a
    plus sign and leading zeros of a positive number are invalid."""
    if text is None or len(text) > 64 or not text.isascii() or not text.removeprefix("-").isdigit():
        return None
    if text.startswith("0") and text != "0":
        return None
    value = int(text)
    return value if -(2**31) <= value < 2**31 else None


def lasting_objections(pod: PodRecord) -> Iterator[Refusal]:
    """Yield the reasons that hold for every plan and every policy."""
    if pod.deleted_at is not None:
        yield Refusal("Terminating", "the pod is being deleted")
    if pod.labels.get(PREEMPTIBLE) == "false":
        yield Refusal("NotPreemptible", f"the pod has the label {PREEMPTIBLE}: false")


def protections_of(pod: PodRecord, policy: Protections) -> Iterator[Refusal]:
    """Yield the reasons why no relief plan may evict the pod; reasons that cannot be skipped come
    first. With the annotation `EVICT` no protection of the policy applies."""
    yield from lasting_objections(pod)
    if policy.scheduler_names is not None and pod.scheduler_name not in policy.scheduler_names:
        yield Refusal("OtherScheduler", f"the pod's scheduler is {pod.scheduler_name!r:.80}")
    if EVICT in pod.annotations:
        return
    if CONFIG_MIRROR in pod.annotations or (pod.owner is not None and pod.owner.kind == "Node"):
        yield Refusal("MirrorPod", "the pod mirrors a static pod of its node")
    if pod.annotations.get(_SOURCE, "api") != "api":
        yield Refusal("StaticPod", "the kubelet started the pod itself")
    if pod.owner is not None and pod.owner.kind == "DaemonSet":
        yield Refusal("DaemonSet", f"DaemonSet {pod.owner.name} would start it on its node again")
    if cost(pod.annotations.get(EVICTION_COST)) == NEVER_EVICTED_COST:
        yield Refusal("EvictionCost", f"{EVICTION_COST} is {NEVER_EVICTED_COST}")
    yield from _skippable(pod, policy)


def _skippable(pod: PodRecord, policy: Protections) -> Iterator[Refusal]:
    is_allowed_bare = policy.evict_failed_bare_pods and pod.phase == "Failed"
    if pod.owner is None and not (policy.evict_all_bare_pods or is_allowed_bare):
        yield Refusal("BarePod", "no controller would start the pod again", "BarePods")
    priority, threshold = pod.priority, policy.priority_threshold
    if priority is not None:
        if priority >= SYSTEM_CRITICAL and not policy.evict_system_critical_pods:
            text = f"priority {priority} is critical for the system"
            yield Refusal("SystemCritical", text, "SystemCritical")
        if threshold is not None and priority >= threshold:
            text = f"priority {priority} is not below {threshold}"
            yield Refusal("PriorityThreshold", text, "PriorityThreshold")
    local = [kind for kind in pod.volumes if kind in ("emptyDir", "hostPath")]
    if local and not policy.evict_local_storage_pods:
        text = f"the pod has volumes of kind {', '.join(local)}"
        yield Refusal("LocalStorage", text, "LocalStorage")
    if policy.ignore_pvc_pods and "persistentVolumeClaim" in pod.volumes:
        yield Refusal("PVC", "the pod has a persistent volume claim", "PVC")
    if policy.label_selector is not None and not policy.label_selector.matches(pod.labels):
        yield Refusal(
            "LabelSelector", "the label selector does not select the pod", "LabelSelector"
        )
    included, excluded = policy.namespaces_included, policy.namespaces_excluded
    if (included is not None and pod.namespace not in included) or (
        excluded is not None and pod.namespace in excluded
    ):
        yield Refusal("Namespace", f"pods of {pod.namespace} are not evicted", "Namespaces")
