"""Each protection of a pod alone, and each gate that skips one."""

from typing import Any

import msgspec
import pytest

from pipeline.processors.eviction.evictability import protections_of
from pipeline.processors.eviction.migration_policy import Gate, Protections
from pipeline.processors.eviction.refusals import verdict
from pipeline.processors.policy.selectors import Selector
from pipeline.topics.pods import Owner, PodRecord

POD = PodRecord(
    node="n", uid="a", cgroup_uid="a", namespace="shop", name="a", phase="Running",
    owner=Owner(kind="ReplicaSet", name="web"), scheduler_name="default-scheduler",
)  # fmt: skip
COST = "scheduling.koordinator.sh/eviction-cost"

CASES: list[tuple[dict[str, Any], dict[str, Any], str, Gate | None]] = [
    ({"owner": Owner(kind="DaemonSet", name="d")}, {}, "DaemonSet", None),
    ({"owner": Owner(kind="Node", name="n")}, {}, "MirrorPod", None),
    ({"annotations": {"kubernetes.io/config.mirror": "hash"}}, {}, "MirrorPod", None),
    ({"annotations": {"kubernetes.io/config.source": "file"}}, {}, "StaticPod", None),
    ({"deleted_at": "2026-01-01T00:00:00Z"}, {}, "Terminating", None),
    ({"labels": {"quota.scheduling.koordinator.sh/preemptible": "false"}}, {}, "NotPreemptible",
     None),
    ({"annotations": {COST: "2147483647"}}, {}, "EvictionCost", None),
    ({}, {"scheduler_names": frozenset({"koord-scheduler"})}, "OtherScheduler", None),
    ({"owner": None}, {}, "BarePod", "BarePods"),
    ({"owner": None}, {"evict_failed_bare_pods": True}, "BarePod", "BarePods"),
    ({"priority": 2_000_000_000}, {}, "SystemCritical", "SystemCritical"),
    ({"priority": 800}, {"priority_threshold": 800}, "PriorityThreshold", "PriorityThreshold"),
    ({"volumes": ("emptyDir",)}, {}, "LocalStorage", "LocalStorage"),
    ({"volumes": ("hostPath",)}, {}, "LocalStorage", "LocalStorage"),
    ({"volumes": ("persistentVolumeClaim",)}, {"ignore_pvc_pods": True}, "PVC", "PVC"),
    ({}, {"label_selector": Selector(match_labels={"a": "b"})}, "LabelSelector", "LabelSelector"),
    ({}, {"namespaces_included": frozenset({"other"})}, "Namespace", "Namespaces"),
    ({}, {"namespaces_excluded": frozenset({"shop"})}, "Namespace", "Namespaces"),
]  # fmt: skip


def changed(**changes: Any) -> PodRecord:
    return msgspec.structs.replace(POD, **changes)


def test_a_pod_of_a_deployment_may_be_evicted() -> None:
    assert [*protections_of(POD, Protections())] == []


@pytest.mark.parametrize(("changes", "policy", "reason", "gate"), CASES)
def test_a_protected_pod_is_refused_with_its_reason(
    changes: dict[str, Any], policy: dict[str, Any], reason: str, gate: Gate | None
) -> None:
    (refusal,) = protections_of(changed(**changes), Protections(**policy))
    assert (refusal.reason, refusal.gate) == (reason, gate)


@pytest.mark.parametrize(
    ("changes", "policy", "gate"), [(c, p, gate) for c, p, _, gate in CASES if gate is not None]
)
def test_a_gate_skips_its_protection_alone_and_is_reported(
    changes: dict[str, Any], policy: dict[str, Any], gate: Gate
) -> None:
    refusals = [*protections_of(changed(**changes), Protections(**policy))]
    assert verdict(refusals, {gate}) == (None, (gate,))
    others: set[Gate] = {"NodeFit", "ExpectedReplicas"}
    assert verdict(refusals, others).refusal == refusals[0]


@pytest.mark.parametrize(
    ("changes", "policy"),
    [
        ({"owner": None}, {"evict_all_bare_pods": True}),
        ({"owner": None, "phase": "Failed"}, {"evict_failed_bare_pods": True}),
        ({"volumes": ("emptyDir", "hostPath")}, {"evict_local_storage_pods": True}),
        ({"priority": 2_000_000_000}, {"evict_system_critical_pods": True}),
        ({"volumes": ("persistentVolumeClaim",)}, {}),
        ({"priority": 799}, {"priority_threshold": 800}),
        ({"annotations": {"kubernetes.io/config.source": "api"}}, {}),
        ({"annotations": {COST: "+2147483647"}}, {}),
    ],
)
def test_what_a_policy_allows_is_not_refused(
    changes: dict[str, Any], policy: dict[str, Any]
) -> None:
    assert [*protections_of(changed(**changes), Protections(**policy))] == []


def test_the_annotation_lifts_protections_but_evicts_no_pod_that_is_being_deleted() -> None:
    annotations = {"descheduler.alpha.kubernetes.io/evict": "", COST: "2147483647"}
    bare = changed(annotations=annotations, owner=None, volumes=("emptyDir",))
    assert [*protections_of(bare, Protections())] == []
    deleted = msgspec.structs.replace(bare, deleted_at="2026-01-01T00:00:00Z")
    assert [r.reason for r in protections_of(deleted, Protections())] == ["Terminating"]
    other = Protections(scheduler_names=frozenset({"other"}))
    assert [r.reason for r in protections_of(bare, other)] == ["OtherScheduler"]
