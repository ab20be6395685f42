"""Targets are judged many at a time as they are one by one."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.processors.descheduling.cluster_columns import ClusterNodes, ClusterPods
from pipeline.processors.descheduling.landing import MOST_REJECTED, Arrival, Rejected
from pipeline.processors.descheduling.node_fit import FitSimulator, placement_objection
from pipeline.processors.descheduling.pod_order import pod_ranks
from pipeline.topics.nodes import Taint
from pipeline.topics.pods import PodRecord

ROOM = 8.0
_TAINTS = st.sampled_from([
    (), (Taint(key="gpu", value="a", effect="NoSchedule"),),
    (Taint(key="soft", value="", effect="PreferNoSchedule"),),
])  # fmt: skip
_NODES = st.tuples(
    st.sampled_from([{}, {"zone": "a"}, {"zone": "b"}]), _TAINTS, st.booleans(),
    st.sampled_from([0.0, 5.0, 8.0, np.nan]),
)  # fmt: skip
_ZONE_A = {"key": "zone", "operator": "In", "values": ["a"]}
_IN_ZONE_A = {"nodeSelectorTerms": [{"matchExpressions": [_ZONE_A]}]}
_PODS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "node_selector": st.sampled_from([{}, {"zone": "a"}]),
        "affinity": st.sampled_from([
            None, {}, {"podAntiAffinity": {}}, {"nodeAffinity": {}}, {"nodeAffinity": None},
            {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": _IN_ZONE_A}},
        ]),
        "tolerations": st.sampled_from([(), ({"operator": "Exists"},)]),
    },
)  # fmt: skip


def pod_record(**fields: Any) -> PodRecord:
    return PodRecord(
        node="", uid="u", cgroup_uid="u", namespace="d", name="p", pod_class="prod", **fields
    )


@settings(deadline=None)
@given(
    st.lists(_NODES, min_size=1, max_size=6),
    st.lists(st.tuples(_PODS, st.sampled_from([0.0, 1.0, 4.0])), min_size=1, max_size=4),
    st.data(),
)
def test_many_targets_are_judged_as_one_by_one(
    rooms: list[tuple[dict[str, str], tuple[Taint, ...], bool, float]],
    wanted: list[tuple[dict[str, Any], float]], data: st.DataObject,
) -> None:  # fmt: skip
    count, amounts = len(rooms), np.array([[amount] for _, amount in wanted])
    requested = np.array([[requested] for *_, requested in rooms])
    whole = np.full((count, 1), ROOM)
    nodes = ClusterNodes(
        names=[f"n{index}" for index in range(count)], resources=("cpu",), capacity=whole,
        usage=requested, prod_usage=requested, allocatable=whole, requested=requested,
        is_cordoned=np.array([cordoned for _, _, cordoned, _ in rooms], np.bool_),
        labels=[labels for labels, *_ in rooms], taints=[taints for _, taints, *_ in rooms],
    )  # fmt: skip
    records = [pod_record(**fields) for fields, _ in wanted]
    pods = ClusterPods(
        node=np.zeros(len(records), np.int64), usage=amounts, expected=amounts, requests=amounts,
        is_prod=np.ones(len(records), np.bool_), may_move=np.ones(len(records), np.bool_),
        ranks=pod_ranks(records), records=records, objections={},
    )  # fmt: skip
    fit, arrivals = FitSimulator(nodes, pods), list[Arrival]()
    place, pod = st.integers(0, count - 1), st.integers(0, len(records) - 1)
    for number in data.draw(st.lists(pod, max_size=4)):
        asked = np.array(data.draw(st.permutations(range(count))))
        expected, refused = [], set(np.flatnonzero(fit.is_refused(number)).tolist())
        for node in asked.tolist():
            used = sum(amounts[a.pod, 0] for a in arrivals if a.node == node)
            free = ROOM - requested[node, 0] - used
            objection = placement_objection(
                records[number], nodes.names[node], nodes.labels[node], nodes.taints[node]
            )
            assert node not in refused or objection is not None
            if nodes.is_cordoned[node]:
                objection = "the node is cordoned"
            elif amounts[number, 0] > 0 and not amounts[number, 0] <= free:
                objection = "requests of cpu exceed what is left of allocatable"
            expected.append(objection)
        is_refused = fit.refused(number, asked, arrivals)
        assert is_refused.tolist() == [reason is not None for reason in expected]
        reasons = [
            Rejected(node, reason)
            for node, reason in zip(asked.tolist(), expected, strict=True)
            if reason is not None
        ]
        assert fit.rejected(number, asked[is_refused]) == (*reasons[:MOST_REJECTED],)
        arrivals.append(Arrival(number, data.draw(place)))
