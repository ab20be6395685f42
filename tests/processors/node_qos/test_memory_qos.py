"""Protection of memory adds up along the tree, and only stated rules are written."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.node_qos.cgroup_values import UNLIMITED, Knob, Place, Value
from pipeline.processors.node_qos.memory_qos import ANNOTATION, MemoryProtection
from pipeline.processors.node_qos.node_state import KubeQos, NodeState, PodState
from pipeline.processors.node_qos.page_cache_limit import page_cache_limit
from pipeline.processors.policy.slo_defaults import QOS
from pipeline.processors.slo.nodeslo import MemoryQos, NodeSLOSpec, QosClass, QosStrategy
from pipeline.topics.resource_amounts import Resources
from tests.processors.node_qos.worlds import (
    DIRECTORIES,
    GIB,
    amounts,
    claimed,
    container,
    node,
    pod,
)

POD = "kubepods/burstable/poda"
MAIN = f"{POD}/main"
MIN, LOW, HIGH = Knob.MEMORY_MIN, Knob.MEMORY_LOW, Knob.MEMORY_HIGH
RULES = {"min_limit_percent": 100, "low_limit_percent": 50, "throttling_percent": 80}


def memory_node(*pods: PodState, **rules: Any) -> NodeState:
    """A node whose class LS has these rules."""
    memory = MemoryQos(**{"enable": True, **rules})
    strategy = QosStrategy(ls_class=QosClass(memory_qos=memory))
    slo = NodeSLOSpec(resource_qos_strategy=strategy)
    return node(*pods, slo=slo, allocatable=amounts(memory_bytes=16 * GIB))


def memory_pod(name: str = "a", request: int = GIB, **fields: Any) -> PodState:
    part = container(
        requests=amounts(memory_bytes=request), limits=amounts(memory_bytes=2 * request)
    )
    given = {"qos": "LS", "requests": part.requests, "cgroup_limits": part.limits}
    return pod(name, part, **given | fields)


def annotated(**own: Any) -> PodState:
    return memory_pod(annotations={ANNOTATION: json.dumps(own)})


def test_rules_of_a_class_hold_for_its_pods_containers_and_directories() -> None:
    values = claimed(MemoryProtection(), memory_node(memory_pod(), **RULES))
    assert values == {
        Place(POD, MIN): GIB, Place(POD, LOW): GIB,
        Place(MAIN, MIN): GIB, Place(MAIN, LOW): GIB,
        Place(MAIN, HIGH): (GIB + GIB * 80 // 100) // 4096 * 4096,
        Place("kubepods", MIN): GIB, Place("kubepods", LOW): GIB // 2,
        Place("kubepods/burstable", MIN): GIB, Place("kubepods/burstable", LOW): GIB // 2,
    }  # fmt: skip


def test_a_limit_of_0_throttles_nothing_since_kubernetes_takes_it_for_none() -> None:
    def high(limits: Resources) -> Value:
        part = container(limits=limits)
        pod_without_limit = pod("a", part, qos="LS")
        return claimed(MemoryProtection(), memory_node(pod_without_limit, **RULES))[
            Place(MAIN, HIGH)
        ]

    assert high(amounts(memory_bytes=0)) == high(amounts()) == 16 * GIB * 80 // 100 // 4096 * 4096


def test_the_kernel_may_not_kill_all_pods_of_a_class_at_once() -> None:
    values = claimed(MemoryProtection(), memory_node(memory_pod(), oom_kill_group=1, **RULES))
    paths = {place.path for place in values if place.knob is Knob.MEMORY_OOM_GROUP}
    assert paths == {POD, MAIN}


@pytest.mark.parametrize("fields", [{"phase": "Succeeded"}, {"qos": "BE"}, {"qos": "LSR"}])
def test_other_pods_and_their_directories_are_left_alone(fields: dict[str, Any]) -> None:
    assert claimed(MemoryProtection(), memory_node(memory_pod(**fields), **RULES)) == {}


def test_a_class_that_is_switched_off_claims_nothing() -> None:
    assert claimed(MemoryProtection(), memory_node(memory_pod(), **RULES, enable=False)) == {}


def test_policies_of_the_annotation() -> None:
    feature, on = MemoryProtection(), memory_node(memory_pod(), **RULES)
    from_node = claimed(feature, on)
    assert claimed(feature, memory_node(annotated(policy="none", minLimitPercent=1), **RULES)) == {}
    for policy in ("default", "", None):
        assert claimed(feature, memory_node(annotated(policy=policy), **RULES)) == from_node
    own = claimed(feature, memory_node(annotated(minLimitPercent=50), **RULES))
    assert own == from_node | {
        Place(POD, MIN): GIB // 2, Place(MAIN, MIN): GIB // 2, Place(POD, LOW): GIB // 2,
        Place(MAIN, LOW): GIB // 2, Place("kubepods", MIN): GIB // 2,
        Place("kubepods/burstable", MIN): GIB // 2,
    }  # fmt: skip
    # auto: the defaults of the class, although it is switched off on the node.
    assert QOS.ls_class is not None
    assert (default := QOS.ls_class.memory_qos) is not None
    auto = claimed(feature, memory_node(annotated(policy="auto"), enable=False))
    assert auto[Place(POD, Knob.MEMORY_WMARK_RATIO)] == default.wmark_ratio
    assert auto[Place(MAIN, HIGH)] == UNLIMITED


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"policy": "all"}', '{"minLimitPercent": 101}', '{"wmarkMinAdj": -26}',
     '{"lowLimitPercent": 1e99}', '{"pageCacheLimitSize": "much"}', '{"pageCacheLimitSize": -1}'],
)  # fmt: skip
def test_an_invalid_annotation_is_as_none(text: str) -> None:
    hostile = memory_pod(annotations={ANNOTATION: text})
    feature = MemoryProtection()
    assert claimed(feature, memory_node(hostile, **RULES)) == claimed(
        feature, memory_node(memory_pod(), **RULES)
    )


def test_best_effort_pods_count_their_batch_memory() -> None:
    batch = memory_pod(
        kube_qos="BestEffort", qos="BE", batch=amounts(memory_bytes=4 * GIB),
        annotations={ANNOTATION: '{"minLimitPercent": 50}'},
    )  # fmt: skip
    values = claimed(MemoryProtection(), memory_node(batch))
    for path in ("kubepods/besteffort/poda", "kubepods/besteffort", "kubepods"):
        assert values[Place(path, MIN)] == 2 * GIB
    assert Place("kubepods/burstable", MIN) not in values


def test_claims_stay_while_the_policy_the_pod_or_its_limit_is_unknown() -> None:
    feature = MemoryProtection()
    former = claimed(feature, memory_node(memory_pod(), **RULES))
    assert claimed(feature, node(slo=None), former) == former
    assert claimed(feature, node(), former) == former
    unlisted = claimed(feature, memory_node(pod("a", listed=False), **RULES), former)
    # `memory.low` of the pod is lifted, and counts so in its directories.
    lifted = {Place(path, LOW): GIB for path in ("kubepods", "kubepods/burstable")}
    assert unlisted == former | lifted
    main = container(requests=amounts(memory_bytes=GIB))
    without_limit = pod("a", main, qos="LS", requests=main.requests)
    known = memory_node(without_limit, **RULES)
    before = claimed(feature, known)
    assert before[Place(MAIN, HIGH)] == (GIB + 15 * GIB * 80 // 100) // 4096 * 4096
    unknown = node(without_limit, slo=known.slo)
    assert claimed(feature, unknown, before) == before
    # Control: without pods, nothing is claimed.
    assert claimed(feature, memory_node(**RULES), former) == {}


PERCENT = st.one_of(st.none(), st.integers(0, 100))
QOS_NAMES: list[KubeQos] = ["Guaranteed", "Burstable", "BestEffort"]


@given(
    st.lists(
        st.tuples(st.sampled_from(QOS_NAMES), st.integers(0, 2**48), PERCENT, PERCENT, PERCENT),
        max_size=6,
    )
)
def test_directories_protect_what_their_pods_are_promised(
    pods: list[tuple[KubeQos, int, int | None, int | None, int | None]],
) -> None:
    states, total = [], dict[str, int]()
    for number, (kube_qos, request, low, least, throttling) in enumerate(pods):
        own = {"minLimitPercent": least, "lowLimitPercent": low, "throttlingPercent": throttling}
        fields = {"batch": amounts(memory_bytes=request)} if kube_qos == "BestEffort" else {}
        qos = "BE" if fields else "LS"
        states.append(
            memory_pod(
                str(number), request, kube_qos=kube_qos, qos=qos,
                annotations={ANNOTATION: json.dumps(own)}, **fields,
            )
        )  # fmt: skip
        if least is not None:
            for path in {DIRECTORIES[kube_qos], "kubepods"}:
                total[path] = total.get(path, 0) + request * least // 100
    values = claimed(MemoryProtection(), memory_node(*states))
    assert {path: values.get(Place(path, MIN)) for path in total} == total
    for place, value in values.items():
        assert isinstance(value, int)
        assert 0 <= value <= UNLIMITED
        if place.knob is HIGH:
            assert value >= number_at(values, place.path, MIN)
        if place.knob is LOW and place.path not in DIRECTORIES.values():
            assert value == 0 or value >= number_at(values, place.path, MIN)


def number_at(values: dict[Place, Value], path: str, knob: Knob) -> int:
    value = values.get(Place(path, knob), 0)
    assert isinstance(value, int)
    return value


@given(
    size=st.one_of(st.none(), st.integers(0, 2**60)),
    percent=PERCENT,
    enable=st.one_of(st.none(), st.booleans()),
    limit=st.one_of(st.none(), st.integers(1, 2**60)),
)
def test_a_page_cache_limit_is_within_the_memory_limit(
    size: int | None, percent: int | None, enable: bool | None, limit: int | None
) -> None:
    rules = MemoryQos(
        page_cache_limit_size=size, page_cache_limit_percent=percent, page_cache_enable=enable
    )
    cache = page_cache_limit(rules, limit)
    if cache.size_bytes is not None:
        assert 0 <= cache.size_bytes <= (limit or size or 0)
        assert size is None or cache.size_bytes == min(size, limit or size)
        assert enable is not None or cache.enable == (cache.size_bytes > 0)
    assert enable is None or cache.enable == enable
