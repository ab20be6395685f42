"""Mid by each formula against a plain oracle in whole numbers, and the laws that it keeps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.overcommit.mid import FORMULAS, allocated, mid
from pipeline.processors.overcommit.tier import Tier
from pipeline.processors.policy.colocation_config import DEFAULTS, Colocation
from pipeline.processors.policy.config_sections import merge
from pipeline.topics.overcommit_policy import MID_FORMULAS
from tests.processors.overcommit.fleets import CONFIG, FLEET, Fleet, Node, Pod, columns

NAMES = sorted(FORMULAS)


def test_every_formula_of_the_policy_exists() -> None:
    assert tuple(FORMULAS) == MID_FORMULAS


def for_resource(cpu: int | None, memory: int | None, r: int) -> int:
    found = (cpu, memory)[r]
    assert found is not None
    return found


def oracle(node: Node, pods: list[Pod], r: int, formula: str) -> int:
    """Mid of one resource, as the page of each formula says it, in words."""
    own = merge(DEFAULTS, node.own)
    threshold = for_resource(own.mid_cpu_threshold_percent, own.mid_memory_threshold_percent, r)
    share = own.mid_unallocated_percent or 0
    capacity, allocatable = node.capacity[r], node.allocatable[r]
    if own.mid_reclaim_mode == "static":
        static = for_resource(
            own.mid_static_cpu_reserved_percent, own.mid_static_memory_reserved_percent, r
        )
        return min(capacity * static // 100, capacity * threshold // 100)
    prod = [pod for pod in pods if pod.of in ("prod", "none", "unknown") and pod.is_listed]
    allocated = sum(pod.request[r] for pod in prod)
    unused = 0 if node.usage is None else max(capacity - node.usage[r], 0)
    taken = max(node.system[r] + node.prod_apps[r], node.kubelet[r], node.annotated[r])
    if formula == "source":
        more = max(capacity - taken - allocated, 0) * share // 100
        return min(min(node.reclaimable[r], unused) + more, capacity * threshold // 100)
    # The pages have all of allocatable; what is outside of Kubernetes is not for Mid.
    limit, rest = (
        allocatable * threshold // 100,
        max(min(allocatable, capacity - taken) - allocated, 0),
    )
    peak = node.peak and node.peak[r]
    if formula.startswith("proposal"):
        share_of_prod = allocated * (CONFIG.mid_reclaim_percent or 0) // 100
        left = 0 if peak is None else max(share_of_prod - peak, 0)
        return min(left, limit) + (rest if formula == "proposal-unallocated" else 0)
    left = 0 if peak is None else max(allocated - peak, 0)
    if formula == "v1.3":
        return min(left, limit)
    return min(left, unused, limit) + rest * share // 100


def compute(fleet: Fleet, formula: str) -> Tier:
    nodes, pods, of = columns(fleet)
    return mid(nodes, allocated(len(fleet), pods), of, formula)


@given(FLEET, st.sampled_from(NAMES))
def test_mid_equals_the_oracle_for_every_node(fleet: Fleet, formula: str) -> None:
    expected = [[oracle(node, pods, r, formula) for r in range(2)] for node, pods in fleet]
    found = compute(fleet, formula)
    assert found.amount.tolist() == expected
    assert (found.amount >= 0).all()


@given(FLEET, st.sampled_from(NAMES))
def test_other_nodes_change_nothing(fleet: Fleet, formula: str) -> None:
    together = compute(fleet, formula)
    alone = [compute([node], formula) for node in fleet]
    assert (together.amount == np.concatenate([tier.amount for tier in alone])).all()
    for name, term in together.terms.items():
        assert (term == np.concatenate([tier.terms[name] for tier in alone])).all()


@given(FLEET)
def test_reclaimable_is_at_most_the_idle_capacity(fleet: Fleet) -> None:
    for formula in ("v1.6", "source"):
        found = compute(fleet, formula)
        assert (found.terms["reclaimable"] <= found.terms["unused"]).all()


def test_mid_of_an_empty_node_is_its_share_of_unallocated() -> None:
    zero = (0, 0)
    own = Colocation(mid_unallocated_percent=50)
    node = Node((4000, 800), zero, zero, zero, zero, zero, (3000, 600), zero, zero, None, own)
    amounts = {name: compute([(node, [])], name).amount.tolist()[0] for name in NAMES}
    assert amounts == {
        "proposal": [0, 0],
        "proposal-unallocated": [3000, 600],
        "source": [2000, 400],
        "v1.3": [0, 0],
        "v1.6": [1500, 300],
    }


def test_unknown_formula_is_an_error() -> None:
    with pytest.raises(KeyError, match="v2"):
        compute([], "v2")
