"""Batch against a plain oracle in whole numbers, and the laws that it keeps."""

from fractions import Fraction
from random import Random
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from pipeline.processors.overcommit.batch import batch
from pipeline.processors.overcommit.resource_columns import PodAmounts as PodColumns
from pipeline.processors.overcommit.resource_columns import percent_of, sum_by_node
from pipeline.processors.overcommit.tier import Tier
from pipeline.processors.policy.colocation_config import DEFAULTS
from pipeline.processors.policy.config_sections import merge
from tests.processors.overcommit.fleets import AMOUNT, FLEET, Fleet, Node, Pod, columns

CAPS = ("batch_cpu_threshold_percent", "batch_memory_threshold_percent")


def oracle(node: Node, pods: list[Pod], r: int, mid: int = 0) -> int:
    """Batch of one resource by Koordinator's formula; `mid` is promised to Mid."""
    own = merge(DEFAULTS, node.own)
    threshold = (own.cpu_reclaim_threshold_percent, own.memory_reclaim_threshold_percent)[r]
    policy = (own.cpu_calculate_policy, own.memory_calculate_policy)[r]
    cap = (own.batch_cpu_threshold_percent, own.batch_memory_threshold_percent)[r]
    assert threshold is not None
    capacity = node.capacity[r]
    left = capacity - int(Fraction(capacity * (100 - threshold), 100))
    reserved = max(node.kubelet[r], node.annotated[r])
    high = [pod for pod in pods if pod.of not in ("batch", "free")]
    if policy == "request" and r == 1:
        left -= reserved + sum(pod.request[r] for pod in high if pod.is_listed)
        counted_of_mid = sum(pod.request[r] for pod in high if pod.is_listed and pod.of == "mid")
    else:
        left -= max(node.system[r] + node.prod_apps[r] + node.mid_apps[r], reserved)
        counted_of_mid = 0
        for pod in high:
            counted = pod.request[r] if pod.usage is None else pod.usage[r]
            if policy == "maxUsageRequest":
                counted = max(counted, pod.request[r] if pod.is_listed else 0)
            elif pod.is_lse and pod.is_listed and r == 0:
                counted = pod.request[r]
            left -= counted
            counted_of_mid += counted if pod.of == "mid" else 0
    left = max(left - max(mid - counted_of_mid, 0), 0)
    return left if cap is None else min(left, capacity * cap // 100)


def compute(fleet: Fleet) -> Tier:
    return batch(*columns(fleet))


@given(FLEET)
def test_batch_equals_the_oracle_for_every_node(fleet: Fleet) -> None:
    expected = [[oracle(node, pods, r) for r in range(2)] for node, pods in fleet]
    assert compute(fleet).amount.tolist() == expected


@given(FLEET, st.lists(AMOUNT, min_size=4, max_size=4))
def test_batch_excludes_capacity_promised_to_mid(
    fleet: Fleet, promised: list[tuple[int, int]]
) -> None:
    mid = np.array(promised[: len(fleet)], np.int64)
    expected = [
        [oracle(node, pods, r, promised[i][r]) for r in range(2)]
        for i, (node, pods) in enumerate(fleet)
    ]
    found = batch(*columns(fleet), mid)
    assert found.amount.tolist() == expected


@given(FLEET, st.lists(AMOUNT, min_size=4, max_size=4))
def test_mid_and_batch_fit_into_idle_capacity(
    fleet: Fleet, promised: list[tuple[int, int]]
) -> None:
    uncapped = [
        (node._replace(own=structs.replace(node.own, **dict.fromkeys(CAPS, None))), pods)
        for node, pods in fleet
    ]
    mid = np.array(promised[: len(fleet)], np.int64)
    idle = compute(uncapped).amount
    found = batch(*columns(uncapped), mid)
    assert (found.amount + np.minimum(found.terms["promised"], idle) == idle).all()


@given(FLEET)
def test_other_nodes_change_nothing(fleet: Fleet) -> None:
    together = compute(fleet)
    alone = [compute([one]) for one in fleet]
    assert (together.amount == np.concatenate([tier.amount for tier in alone])).all()
    for name, term in together.terms.items():
        assert (term == np.concatenate([tier.terms[name] for tier in alone])).all()


@given(FLEET, st.sampled_from(["system", "kubelet", "annotated", "prod_apps"]))
def test_batch_is_not_negative_and_shrinks_with_other_usage(fleet: Fleet, field: str) -> None:
    zero: dict[str, Any] = {field: (0, 0)}
    less = [(node._replace(**zero), pods) for node, pods in fleet]
    amount = compute(fleet).amount
    assert (amount >= 0).all()
    assert (amount <= compute(less).amount).all()


@given(st.integers(0, 2**53), st.integers(-10_000, 10_000))
def test_percentages_are_truncated_at_any_size(amount: int, percent: int) -> None:
    found = percent_of(np.array([[amount]]), np.array([[percent]]))
    assert found.item() == int(Fraction(amount * percent, 100))


def test_no_nodes_give_an_empty_result() -> None:
    assert compute([]).amount.shape == (0, 2)


@given(FLEET, st.randoms(use_true_random=False))
def test_order_of_pods_changes_nothing(fleet: Fleet, random: Random) -> None:
    nodes, pods, of = columns(fleet)
    order = list(range(len(pods.node)))
    random.shuffle(order)
    at = np.array(order, np.int64)
    shuffled = PodColumns._make(column[at] for column in pods)
    tier, other = batch(nodes, pods, of), batch(nodes, shuffled, of)
    assert tier.amount.tolist() == other.amount.tolist()
    for name, term in tier.terms.items():
        assert term.tolist() == other.terms[name].tolist()


def test_sums_beyond_the_range_of_floats_are_exact() -> None:
    large = 2**62 - 1
    pods = PodColumns(
        node=np.array([2, 0, 2]),
        class_code=np.zeros(3, np.int64),
        is_lse=np.zeros(3, bool),
        is_listed=np.ones(3, bool),
        has_usage=np.ones(3, bool),
        request=np.array([[large, 1], [3, 2**53 + 1], [large, 2**53]]),
        usage=np.zeros((3, 2), np.int64),
    )
    assert sum_by_node(4, pods, pods.request).tolist() == [
        [3, 2**53 + 1], [0, 0], [2 * large, 2**53 + 1], [0, 0],
    ]  # fmt: skip
    assert sum_by_node(4, pods, pods.request, ~pods.is_listed).tolist() == [[0, 0]] * 4
