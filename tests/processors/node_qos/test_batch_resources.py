"""Pods on Batch and Mid get the shares, quotas and memory limits that they state."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.node_qos.batch_resources import BatchResources
from pipeline.processors.node_qos.cgroup_values import UNLIMITED, Knob, Place
from pipeline.processors.node_qos.mid_resources import MidResources
from pipeline.processors.node_qos.node_state import Feature, PodState
from pipeline.processors.node_qos.normalized_quota import normalized_quota_us
from pipeline.processors.slo.nodeslo import NodeSLOSpec, ThresholdStrategy
from tests.processors.node_qos.worlds import GIB, amounts, claimed, container, node, pod

POD = "kubepods/besteffort/poda"
SHARES, QUOTA, MEMORY = Knob.CPU_SHARES, Knob.CPU_QUOTA, Knob.MEMORY_LIMIT


def tier_pod(tier: str, **fields: object) -> PodState:
    """A pod with a container that states amounts, and a sidecar with native ones."""
    stated = {tier: amounts(500, GIB), f"{tier}_limits": amounts(1000, GIB)}
    pod_level = {tier: amounts(500, GIB), f"{tier}_limits": amounts(None, None)}
    classes = {"qos": "BE"} if tier == "batch" else {"qos": "LS", "pod_class": "mid"}
    return pod(
        "a",
        container("main", **stated),
        container("sidecar", requests=amounts(200, GIB), limits=amounts(400, GIB)),
        **{"kube_qos": "BestEffort", **pod_level, **classes, **fields},
    )


FEATURES = pytest.mark.parametrize(
    ("tier", "feature"), [("batch", BatchResources()), ("mid", MidResources())]
)


@FEATURES
def test_a_container_gets_what_it_states_its_pod_the_sum_and_a_sidecar_keeps_its_own(
    tier: str, feature: Feature
) -> None:
    assert claimed(feature, node(tier_pod(tier))) == {
        Place(POD, SHARES): 512, Place(POD, QUOTA): UNLIMITED, Place(POD, MEMORY): UNLIMITED,
        Place(f"{POD}/main", SHARES): 512, Place(f"{POD}/main", QUOTA): 100_000,
        Place(f"{POD}/main", MEMORY): GIB,
    }  # fmt: skip


@FEATURES
def test_quotas_are_unlimited_while_the_common_parent_has_one(tier: str, feature: Feature) -> None:
    threshold = ThresholdStrategy(enable=True, cpu_suppress_policy="cfsQuota")
    suppressed = NodeSLOSpec(resource_used_threshold_with_be=threshold)
    for kube_qos, unlimited in (("BestEffort", True), ("Burstable", tier == "batch")):
        values = claimed(feature, node(tier_pod(tier, kube_qos=kube_qos), slo=suppressed))
        quotas = {value for place, value in values.items() if place.knob is QUOTA}
        assert quotas == ({UNLIMITED} if unlimited else {UNLIMITED, 100_000})


@FEATURES
def test_claims_stay_while_the_pod_or_the_policy_is_unknown(tier: str, feature: Feature) -> None:
    former = claimed(feature, node(tier_pod(tier)))
    assert former
    # Control: with the pod gone, nothing is claimed.
    assert claimed(feature, node(), former) == {}
    assert claimed(feature, node(slo=None), former) == former
    unlisted = pod("a", kube_qos="BestEffort", listed=False)
    assert claimed(feature, node(unlisted), former) == former
    qos, pod_class = ("BE", "batch") if tier == "batch" else ("LS", "mid")
    without_containers = pod("a", kube_qos="BestEffort", qos=qos, pod_class=pod_class)
    assert claimed(feature, node(without_containers), former) == former


@FEATURES
def test_pods_of_other_classes_and_pods_without_amounts_are_left_alone(
    tier: str, feature: Feature
) -> None:
    other = tier_pod(tier, qos="LS", pod_class="prod")
    plain = pod("b", container(), kube_qos="BestEffort", qos="BE", pod_class="mid")
    assert claimed(feature, node(other, plain)) == {}
    assert claimed(feature, node(other), {Place(POD, SHARES): 512}) == {}


RATIOS = st.one_of(st.none(), st.floats(), st.floats(1, 5))


@given(st.integers(1000, 2**53), RATIOS)
def test_normalization_never_raises_a_quota_nor_goes_below_what_the_kernel_accepts(
    quota_us: int, ratio: float | None
) -> None:
    quota = normalized_quota_us(quota_us, ratio)
    assert 1000 <= quota <= quota_us
    assert quota >= quota_us / 5
    if ratio is not None and 1 < ratio <= 5 and quota > 1000:
        assert quota == math.ceil(quota_us / ratio)
    assert normalized_quota_us(UNLIMITED, ratio) == UNLIMITED
