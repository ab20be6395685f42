"""What a view says is decoded; an invalid annotation counts as none."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.kubernetes.node_reservation import ANNOTATION as RESERVATION
from pipeline.processors.node_qos.extended_resource_spec import ANNOTATION as EXTENDED
from pipeline.processors.node_qos.view_facts import CPU_MANAGER, SYSTEM_QOS, ViewFacts, view_facts
from pipeline.processors.policy.normalization import RATIO
from pipeline.topics.node_views import NodeViewRecord, ViewPod
from pipeline.topics.pods import Container
from pipeline.topics.resource_amounts import BATCH, MID, Resources
from tests.topics import golden

ODD_TEXTS = [
    "[]", "null", "1", "[" * 2000, '"x"', "{}", '{"cpuset": "0-9999999"}', '{"policy": 1}',
    '{"cpuset": null}', "nan", "-inf", "1e400",
]  # fmt: skip
TEXTS = st.one_of(
    st.text(),
    st.sampled_from(ODD_TEXTS),
    st.dictionaries(
        st.sampled_from(["cpuset", "cpusetExclusive", "policy", "containers", "resources"]),
        st.one_of(st.text(), st.integers(), st.none(), st.lists(st.text())),
    ).map(lambda tree: msgspec.json.encode(tree).decode()),
)


def facts(annotations: dict[str, str] | None = None, **fields: Any) -> ViewFacts:
    return view_facts(
        NodeViewRecord(node="n1", generation=1, annotations=annotations or {}, **fields)
    )


def pod(**fields: Any) -> ViewPod:
    return ViewPod(uid="u", cgroup_uid="c", namespace="d", name="p", **fields)


def test_annotations_of_the_node_are_read() -> None:
    read = facts({
        SYSTEM_QOS: '{"cpuset": "0-1,4"}', CPU_MANAGER: '{"policy": "static", "options": {}}',
        RESERVATION: '{"reservedCPUs": "7"}', RATIO: "1.25",
    })  # fmt: skip
    assert (read.system_cpus, read.system_cpus_exclusive) == (frozenset({0, 1, 4}), True)
    assert (read.cpu_manager_policy, read.cpu_normalization) == ("static", 1.25)
    assert read.reservation.cpus == {7}
    assert not facts({SYSTEM_QOS: '{"cpusetExclusive": false}'}).system_cpus_exclusive


@given(system=TEXTS, manager=TEXTS, ratio=TEXTS, extended=TEXTS)
def test_an_invalid_annotation_counts_as_none(
    system: str, manager: str, ratio: str, extended: str
) -> None:
    read = facts(
        {SYSTEM_QOS: system, CPU_MANAGER: manager, RATIO: ratio},
        pods=(pod(containers=(Container(name="a"),), annotations={EXTENDED: extended}),),
    )
    assert read.cpu_normalization is None or 1 <= read.cpu_normalization <= 100
    assert len(read.system_cpus) <= 8192
    assert read.pods["c"].batch == Resources()


def test_amounts_on_offer_are_those_of_the_resources() -> None:
    resources = golden.NODE_RESOURCES
    read = facts(resources=resources)
    assert (read.offered_batch, read.offered_mid) == (resources.batch, resources.mid)
    assert facts().offered_batch == Resources()


def test_a_policy_that_is_invalid_is_none_and_says_why() -> None:
    valid = msgspec.Raw(b'{"resourceUsedThresholdWithBE": {"enable": true}}')
    read = facts(slo=valid)
    assert read.slo is not None
    assert (read.problem, facts().slo, facts().problem) == ("", None, "")
    read = facts(slo=msgspec.Raw(b'{"resourceUsedThresholdWithBE": {"enable": 1}}'))
    assert read.slo is None
    assert "enable" in read.problem


def test_pods_are_by_the_name_of_their_cgroup_and_containers_by_id() -> None:
    main = Container(
        name="main", requests=Resources(cpu_millicores=5), scalars={BATCH[0]: 1000, BATCH[1]: 2**20}
    )
    mesh = Container(name="mesh", scalars={MID[0]: 500}, scalar_limits={}, restartable=True)
    read = facts(
        pods=(
            pod(
                qos="BE", phase="Running", deleting=True, priority=5500, pod_class="batch",
                containers=(main,), init_containers=(mesh,),
                labels={"koordinator.sh/qosClass": "BE"},
                container_ids={"main": "a1", "mesh": "b2", "stranger": "c3"},
            ),
        )
    )  # fmt: skip
    of_view = read.pods["c"]
    assert (of_view.uid, of_view.qos, of_view.qos_label, of_view.deleting) == (
        "u",
        "BE",
        "BE",
        True,
    )
    assert of_view.batch == Resources(cpu_millicores=1000, memory_bytes=2**20)
    assert of_view.mid == Resources(cpu_millicores=500)
    containers = read.containers["c"]
    assert {id: container.name for id, container in containers.items()} == {
        "a1": "main", "b2": "mesh",
    }  # fmt: skip
    assert containers["a1"].requests == Resources(cpu_millicores=5)
    assert containers["a1"].batch_limits == Resources(cpu_millicores=1000, memory_bytes=2**20)
    assert (containers["b2"].mid, containers["b2"].mid_limits) == (
        Resources(cpu_millicores=500), Resources(),
    )  # fmt: skip


@pytest.mark.parametrize(("label", "states"), [("LSR", "LSR"), ("x", ""), (None, "")])
def test_only_a_known_class_is_a_label(label: str | None, states: str) -> None:
    labels = {} if label is None else {"koordinator.sh/qosClass": label}
    assert facts(pods=(pod(labels=labels),)).pods["c"].qos_label == states


def test_batch_of_the_annotation_counts_where_the_container_states_none() -> None:
    amounts = {BATCH[0]: "500", BATCH[1]: "1Gi", "example.com/gpu": "3"}
    spec = {"containers": {
        "a": {"requests": amounts, "limits": {BATCH[0]: 1000}},
        "b": {"requests": amounts, "limits": amounts},
        "other": {"requests": amounts},
    }}  # fmt: skip
    containers = (
        Container(name="a", scalars={"example.com/gpu": 1}),
        Container(name="b", scalars={BATCH[0]: 100}),
        Container(name="c"),
    )
    read = facts(
        pods=(
            pod(
                containers=containers, container_ids={name: name for name in "abc"},
                annotations={EXTENDED: msgspec.json.encode(spec).decode()},
            ),
        )
    ).containers["c"]  # fmt: skip
    assert read["a"].batch == Resources(cpu_millicores=500, memory_bytes=2**30)
    assert read["a"].batch_limits == Resources(cpu_millicores=1000)
    assert read["b"].batch == read["b"].batch_limits == Resources(cpu_millicores=100)
    assert read["c"].batch == Resources()


@pytest.mark.parametrize("amount", ["-5", "x", "1e", None, [], "9" * 400, {"a": 1}])
def test_an_absurd_amount_of_the_annotation_is_not_taken(amount: object) -> None:
    spec = {"containers": {"a": {"requests": {BATCH[0]: amount}}}}
    annotations = {EXTENDED: msgspec.json.encode(spec).decode()}
    read = facts(pods=(pod(containers=(Container(name="a"),), annotations=annotations),))
    assert (read.pods["c"].batch.cpu_millicores or 0) <= 2**53
