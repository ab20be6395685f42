"""Translation of cpu and memory into the resources of Batch and Mid."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import InvalidRecordError
from pipeline.processors.admission.tier_resources import extended_resource_spec, translate
from pipeline.processors.kubernetes.objects import PodSpec, convert_object
from pipeline.processors.kubernetes.pod_resources import pod_resources
from tests.processors.admission.pods import container

BATCH_CPU, BATCH_MEMORY = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"


def translated(priority_class: str, **resources: Any) -> dict[str, Any]:
    spec = {"containers": [container(**copy.deepcopy(resources))]}
    translate(spec, priority_class)
    found: dict[str, Any] = spec["containers"][0]["resources"]
    return found


@pytest.mark.parametrize(
    ("cpu", "memory", "millicores", "bytes_"),
    [
        ("1", "1Gi", "1000", "1Gi"),
        ("500m", "64Mi", "500", "64Mi"),
        ("1.5", "1.5Gi", "1500", "1.5Gi"),
        ("0.0005", "100m", "1", "1"),
        ("1u", "0", "1", "0"),
        (2, 1024, "2000", "1024"),
        ("2e3", "1e3", "2000000", "1e3"),
    ],
)
def test_cpu_becomes_millicores_and_memory_keeps_its_bytes(
    cpu: Any, memory: Any, millicores: str, bytes_: str
) -> None:
    stated = {"cpu": cpu, "memory": memory, "ephemeral-storage": "1Gi"}
    found = translated("batch", requests=stated, limits=stated)
    expected = {BATCH_CPU: millicores, BATCH_MEMORY: bytes_, "ephemeral-storage": "1Gi"}
    assert found == {"requests": expected, "limits": expected}
    mid = translated("mid", requests={"cpu": cpu})
    assert mid == {"requests": {"kubernetes.io/mid-cpu": millicores}}


@pytest.mark.parametrize("priority_class", ["prod", "free", "none", "unknown"])
def test_other_classes_keep_cpu_and_memory(priority_class: str) -> None:
    resources = {"requests": {"cpu": "1"}, "limits": {"memory": "1Gi"}}
    assert translated(priority_class, **resources) == resources


def test_limit_without_a_request_is_also_the_request() -> None:
    found = translated("batch", limits={"cpu": "1", "memory": "1Gi"})
    assert found["requests"] == found["limits"] == {BATCH_CPU: "1000", BATCH_MEMORY: "1Gi"}


def test_stated_batch_stays_where_a_limit_range_adds_cpu_again() -> None:
    found = translated("batch", requests={"cpu": "100m", BATCH_CPU: "4000"})
    assert found == {"requests": {BATCH_CPU: "4000"}}
    # Its default limit would be below the request, and the API server would refuse the pod.
    added = {"requests": {"cpu": "100m"}, "limits": {"cpu": "500m", "memory": "64Mi"}}
    found = translated("batch", **added | {"requests": {"cpu": "100m", BATCH_CPU: "4000"}})
    assert found == {
        "requests": {BATCH_CPU: "4000", BATCH_MEMORY: "64Mi"}, "limits": {BATCH_MEMORY: "64Mi"},
    }  # fmt: skip
    found = translated("batch", **added | {"limits": {"cpu": "500m", BATCH_CPU: "4000"}})
    assert found == {"requests": {BATCH_CPU: "4000"}, "limits": {BATCH_CPU: "4000"}}


def test_init_containers_are_translated_and_containers_without_resources_stay() -> None:
    spec: dict[str, Any] = {
        "initContainers": [container("i", requests={"cpu": "1"})],
        "containers": [{"name": "bare"}, {"name": "null", "resources": None}],
        "overhead": {"cpu": "250m"},
    }
    assert translate(spec, "batch")
    assert spec["initContainers"][0]["resources"] == {"requests": {BATCH_CPU: "1000"}}
    assert spec["containers"] == [{"name": "bare"}, {"name": "null", "resources": None}]
    # The API server refuses an overhead that differs from that of the RuntimeClass.
    assert spec["overhead"] == {"cpu": "250m"}
    assert not translate(spec, "batch")


def test_invalid_quantity_is_an_error() -> None:
    with pytest.raises(InvalidRecordError, match="quantity"):
        translated("batch", requests={"cpu": "much"})


amounts = st.fixed_dictionaries(
    {},
    optional={
        "cpu": st.integers(0, 10**6).map(lambda m: f"{m}m"),
        "memory": st.integers(0, 2**50),
        "nvidia.com/gpu": st.integers(0, 8),
    },
)
containers = st.lists(st.tuples(amounts, amounts), min_size=1, max_size=4)


@given(containers, containers, st.sampled_from(["batch", "mid"]))
def test_pod_requests_the_same_amounts_in_its_tier(
    main: list[Any], init: list[Any], priority_class: str
) -> None:
    """By the sums of the scheduler: what was cpu and memory is the tier's, and nothing else has
    changed. A second translation changes nothing."""
    spec: dict[str, Any] = {
        part: [
            # The API server sets a missing request to the limit before it calls webhooks.
            container(f"c{n}", requests={**limits, **requests}, limits=limits)
            for n, (requests, limits) in enumerate(given)
        ]
        for part, given in (("containers", main), ("initContainers", init))
    }
    before = pod_resources(convert_object(spec, PodSpec, "Pod"))
    translate(spec, priority_class)
    after = pod_resources(convert_object(spec, PodSpec, "Pod"))
    for old, new, scalars, old_scalars in (
        (before.requests, after.requests, after.scalars, before.scalars),
    ):
        assert (new.cpu_millicores, new.memory_bytes) == (None, None)
        moved = {
            f"kubernetes.io/{priority_class}-cpu": old.cpu_millicores,
            f"kubernetes.io/{priority_class}-memory": old.memory_bytes,
        }
        expected = {name: amount for name, amount in moved.items() if amount}
        assert (scalars or {}) == {**(old_scalars or {}), **expected}
    once = copy.deepcopy(spec)
    assert not translate(spec, priority_class)
    assert spec == once


def test_annotation_for_agents_has_batch_and_mid_by_container() -> None:
    spec = {
        "containers": [
            container("a", requests={BATCH_CPU: "1000"}, limits={BATCH_CPU: "2000", "cpu": "1"}),
            container("b", requests={"cpu": "1"}),
        ]
    }
    assert extended_resource_spec(spec) == (
        '{"containers":{"a":{"limits":{"kubernetes.io/batch-cpu":"2000"},'
        '"requests":{"kubernetes.io/batch-cpu":"1000"}}}}'
    )
    assert extended_resource_spec({"containers": [container("b", requests={"cpu": "1"})]}) is None
