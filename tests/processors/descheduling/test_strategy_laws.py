"""Laws that hold for every strategy, whatever it goes by."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings

from pipeline.processors.arrays import IntArray
from pipeline.processors.descheduling.fragmentation import FragmentationStrategy
from pipeline.processors.descheduling.landing import Arrival, Landing, Rejected
from pipeline.processors.descheduling.load_balancing import LowNodeLoadStrategy
from pipeline.processors.descheduling.low_node_load import NodePool
from pipeline.processors.descheduling.node_fit import FitSimulator
from pipeline.processors.descheduling.node_requests import NodeRequest
from pipeline.processors.descheduling.requested_relief import RequestStrategy
from pipeline.processors.descheduling.reserved_cpus import ReservationStrategy
from pipeline.processors.descheduling.scale_down import ScaleDownStrategy
from pipeline.processors.descheduling.strategy import MOST_FAILED_LANDINGS, Strategy, after_plan
from pipeline.processors.descheduling.tier_moves import TierStrategy
from pipeline.processors.kubernetes.node_reservation import RESOURCE_STATUS
from pipeline.processors.policy.selectors import Selector
from tests.processors.descheduling.test_load_balancing import Case, case, clusters, node, pod
from tests.vectors.strategies import balance_world

_TIERS = tuple(Selector(match_labels={"tier": tier}) for tier in ("gold", "silver"))
_POOL = NodePool(
    high_percent={"cpu": 70.0}, low_percent={"cpu": 45.0}, resource_weights={"cpu": 1, "memory": 1}
)
STRATEGIES: dict[str, Callable[..., Strategy]] = {
    "LowNodeLoad": lambda **fields: LowNodeLoadStrategy(pool=_POOL, **fields),
    "CustomPriority": lambda **fields: TierStrategy(selectors=_TIERS, **fields),
    "DrainNode": lambda **fields: TierStrategy(selectors=_TIERS, mode="DrainNode", **fields),
    "ScaleDownBinPack": lambda **fields: ScaleDownStrategy(most_pods=3, **fields),
    "NodeReservation": lambda **fields: ReservationStrategy(**fields),
    "NodeRequests": lambda **fields: RequestStrategy(**fields),
    "FragmentationAware": lambda **fields: FragmentationStrategy(
        imbalance_threshold=0.05, min_improvement=0.01, **fields
    ),
}


class _Refusing:
    """Lands no pod; `asked` are the pods that it was asked about."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def land(self, pod: int, targets: IntArray, arrivals: Sequence[Arrival]) -> Landing:
        self.asked.append(pod)
        rejected = tuple(Rejected(node, "full") for node in targets[:3].tolist())
        return Landing(None, None, rejected, len(targets))


def world(cluster: Case) -> tuple[Any, Any]:
    """The cluster with every other node in the tier `gold`. Two of three pods have a CPU for
    themselves, which all nodes but the first reserve; these also ask for relief."""
    nodes = [
        {**node, "labels": {"tier": ("gold", "silver")[index % 2]}}
        for index, node in enumerate(cluster["nodes"])
    ]
    _, columns, pods = balance_world({**cluster, "nodes": nodes})
    records = [
        msgspec.structs.replace(record, annotations={RESOURCE_STATUS: '{"cpuset": "2-3"}'})
        if place % 3
        else record
        for place, record in enumerate(pods.records)
    ]
    others = range(1, len(columns))
    taken = {node: frozenset({2}) for node in others}
    request = NodeRequest("r", 1500, 0, frozenset({"prod", "mid"}), "", 0.0)
    columns = replace(columns, taken_cpus=taken, asked=dict.fromkeys(others, request))
    return columns, replace(pods, records=records)


@pytest.mark.parametrize("name", STRATEGIES)
@settings(max_examples=60, deadline=None)
@given(cluster=clusters())
def test_moves_are_of_pods_that_may_move_to_nodes_that_take_them(name: str, cluster: Case) -> None:
    nodes, pods = world(cluster)
    strategy = STRATEGIES[name]()
    plan = strategy.plan(nodes, pods, FitSimulator(nodes, pods))
    moved = [move.pod for move in plan.moves]
    assert len(moved) == len({*moved})
    assert bool(plan.moves) != bool(plan.reason)
    sources = {*strategy.sources(nodes).tolist()}
    for move in plan.moves:
        assert pods.may_move[move.pod]
        assert pods.node[move.pod] == move.source != move.target
        assert move.source in sources
        assert move.target is not None
        assert not nodes.is_cordoned[move.target]
        assert move.why
    after, left = after_plan(nodes, pods, plan)
    assert not left.may_move[moved].any()
    targets = [move.target for move in plan.moves if move.target is not None]
    needed = after.requested[targets] <= nodes.allocatable[targets]
    assert (needed | (after.requested[targets] <= nodes.requested[targets])).all()


@pytest.mark.parametrize("name", STRATEGIES)
@settings(max_examples=30, deadline=None)
@given(cluster=clusters())
def test_nothing_moves_without_a_landing(name: str, cluster: Case) -> None:
    nodes, pods = world(cluster)
    assert STRATEGIES[name]().plan(nodes, pods, _Refusing()).moves == ()


@pytest.mark.parametrize("name", STRATEGIES)
@settings(max_examples=30, deadline=None)
@given(cluster=clusters())
def test_no_protected_pod_moves(name: str, cluster: Case) -> None:
    nodes, pods = world(cluster)
    protected = replace(pods, may_move=np.zeros(len(pods), np.bool_))
    plan = STRATEGIES[name]().plan(nodes, protected, FitSimulator(nodes, protected))
    assert plan.moves == ()


@pytest.mark.parametrize("name", STRATEGIES)
def test_few_landings_are_tried_of_a_node_whose_pods_fit_nowhere(name: str) -> None:
    """Each asks all nodes: a node of many pods would hold the planner up for minutes."""
    crowded = [node(name) for name in ("a", "b", "c", "d")]
    small = [pod(f"{on}-{i}", on, 200, 100) for on in ("a", "b") for i in range(40)]
    nodes, pods = world(case(crowded, small))
    refusing = _Refusing()
    assert STRATEGIES[name]().plan(nodes, pods, refusing).moves == ()
    asked = Counter(pods.node[refusing.asked].tolist())
    assert 0 < max(asked.values()) <= MOST_FAILED_LANDINGS
