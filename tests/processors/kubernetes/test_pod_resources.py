"""Requests, limits and QoS of pods by Kubernetes' own rules, whatever the resource."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from pipeline.processors.kubernetes.object_records import pod_record
from pipeline.processors.kubernetes.pod_resources import StatedResources
from pipeline.processors.kubernetes.pod_resources import kube_qos as qos_of
from pipeline.topics.codec import decode_json, encode_json
from pipeline.topics.pods import Container, CountedPod, PodRecord
from pipeline.topics.resource_amounts import Resources

DISK = "ephemeral-storage"
PAGES = "hugepages-2Mi"
GPU = "nvidia.com/gpu"
BATCH_CPU = "kubernetes.io/batch-cpu"


def asked(cpu: int | None = None, memory: int | None = None) -> dict[str, int]:
    stated = {"cpu": cpu, "memory": memory}
    return {name: amount for name, amount in stated.items() if amount is not None}


NONE = asked()


# ---- what becomes of it in a record


def container(requests: Any = None, limits: Any = None, restart: str = "") -> dict[str, Any]:
    stated = {"requests": requests, "limits": limits}
    return {"name": "c", "resources": stated, "restartPolicy": restart}


def record(*containers: Any, **spec: Any) -> PodRecord:
    metadata = {"name": "p", "namespace": "d", "uid": "u"}
    return pod_record({"metadata": metadata, "spec": {"containers": [*containers], **spec}})


def limits_of(pod: PodRecord) -> dict[str, int]:
    return pod.scalars or {} if pod.scalar_limits is UNSET else pod.scalar_limits


def always(**stated: Any) -> dict[str, Any]:
    return container(**stated, restart="Always")


@pytest.mark.parametrize(
    ("spec", "requests", "limits"),
    [
        # A limit above the request, and one alone, which is the request then.
        ({"containers": [container({DISK: "1Gi"}, {DISK: "4Gi"})]}, 1 << 30, 4 << 30),
        ({"containers": [container(None, {DISK: 7})]}, 7, 7),
        # Parts of a unit are rounded up.
        ({"containers": [container({DISK: "1500m"}, {DISK: "2000001u"})]}, 2, 3),
        ({"containers": [container({DISK: 7})]}, 7, None),
        ({"containers": [container({DISK: 0}, {DISK: 7})]}, None, 7),
        # Who states no limit adds none.
        ({"containers": [container({DISK: 1}, {DISK: 5}), container({DISK: 2})]}, 3, 5),
        # The larger of the containers and any init container, of limits by limits.
        ({"containers": [container({DISK: 3}, {DISK: 4}), container({DISK: 3}, {DISK: 4})],
          "initContainers": [container({DISK: 1}, {DISK: 9}), container({DISK: 5}, {DISK: 5})]},
         6, 9),
        # Sidecars run beside the containers, and beside the init containers after them.
        ({"containers": [container({DISK: 1}, {DISK: 10})],
          "initContainers": [container({DISK: 2}, {DISK: 20}),
                             always(requests={DISK: 1}, limits={DISK: 4})]}, 2, 20),
        ({"containers": [container({DISK: 1}, {DISK: 10})],
          "initContainers": [always(requests={DISK: 1}, limits={DISK: 4}),
                             container({DISK: 2}, {DISK: 20})]}, 3, 24),
        ({"containers": [container({DISK: 1}, {DISK: 10})],
          "initContainers": [always(requests={DISK: 1}, limits={DISK: 4})] * 2}, 3, 18),
        # Overhead is reserved whatever is asked for, and is on top of a limit alone.
        ({"containers": [container({DISK: 1}, {DISK: 2})], "overhead": {DISK: 100}}, 101, 102),
        ({"containers": [container({DISK: 1})], "overhead": {DISK: 100}}, 101, None),
        ({"containers": [container(None, {DISK: 0})], "overhead": {DISK: 100}}, 100, None),
        ({"containers": [container()], "overhead": {DISK: 100}}, 100, None),
        ({"initContainers": [container({DISK: 5}, {DISK: 9})], "overhead": {DISK: "1k"}},
         1005, 1009),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", [DISK, PAGES, GPU, BATCH_CPU])
def test_requests_and_limits_of_another_resource(
    spec: dict[str, Any], requests: int | None, limits: int | None, name: str
) -> None:
    result = record(**json.loads(json.dumps(spec).replace(DISK, name)))
    assert (result.scalars or {}).get(name) == requests
    assert limits_of(result).get(name) == limits
    assert result.requests == result.limits == Resources()


def test_pod_level_resources_are_cpu_memory_and_huge_pages() -> None:
    """As Kubernetes has it, which looks at nothing else there."""
    inner = container({PAGES: "4Mi", DISK: 1}, {PAGES: "4Mi", DISK: 3})
    whole = {"requests": {DISK: 50}, "limits": {PAGES: "64Mi", "memory": "1Gi", GPU: "no amount"}}
    result = record(inner, resources=whole, overhead={PAGES: "2Mi"})
    assert (result.scalars, result.scalar_limits, result.limits) == (
        {PAGES: 66 << 20, DISK: 1}, {PAGES: 66 << 20, DISK: 3}, Resources(memory_bytes=1 << 30),
    )  # fmt: skip
    assert result.containers[0].scalars == {PAGES: 4 << 20, DISK: 1}


def test_scalar_limits_are_recorded_only_where_they_differ_from_requests() -> None:
    """Of a million pods hardly any does."""
    alike = record(container({GPU: 1, DISK: "1Gi"}, {GPU: "1", DISK: 1 << 30}))
    for pod in (alike, record(container()), record(container({"cpu": 1}, {"cpu": 2}))):
        assert pod.scalar_limits is pod.scalar_overhead is UNSET
        assert b"scalar_" not in encode_json(pod)
    other = record(container({GPU: 1, DISK: 1}, {GPU: 1}), container(), overhead={DISK: 2})
    assert (other.scalar_limits, other.scalar_overhead) == ({GPU: 1}, {DISK: 2})
    assert (other.containers[0].scalar_limits, other.containers[1]) == (
        {GPU: 1}, Container(name="c"),
    )  # fmt: skip
    assert record(container({DISK: 1})).scalar_limits == {}
    for pod in (alike, other):
        assert decode_json(PodRecord, encode_json(pod)) == pod
        counted = decode_json(CountedPod, encode_json(pod))
        expected = pod.scalar_limits, pod.scalar_overhead
        assert (counted.scalar_limits, counted.scalar_overhead) == expected


# ---- against the start of a pod, played through

_names = ("cpu", "memory", DISK, PAGES, GPU, BATCH_CPU)
_of = st.dictionaries(st.sampled_from(_names), st.integers(0, 9), max_size=4)
_container = st.builds(container, _of, _of, st.sampled_from(["", "Always", "Never"]))
_containers = st.lists(_container, max_size=4)
_whole = st.builds(lambda requests, limits: {"requests": requests, "limits": limits}, _of, _of)


def stated(resources: dict[str, Any], kind: str, name: str) -> int | None:
    result: int | None = resources.get(kind, {}).get(name)
    if result is None and kind == "requests" and name not in ("cpu", "memory"):
        result = resources.get("limits", {}).get(name)
    return result


def needed(spec: dict[str, Any], kind: str, name: str) -> int | None:
    """By playing the start through: one init container after the other, restartable ones stay."""
    pod_amount = stated(spec["resources"], kind, name)
    if pod_amount is not None and name in ("cpu", "memory", PAGES):
        return pod_amount
    running: list[Any] = []
    moments = []
    for container in spec["initContainers"]:
        moments.append([*running, container])
        if container["restartPolicy"] == "Always":
            running.append(container)
    moments.append([*running, *spec["containers"]])
    amounts = [[stated(c["resources"], kind, name) for c in active] for active in moments]
    if all(amount is None for active in amounts for amount in active):
        return None
    return max(sum(amount or 0 for amount in active) for active in amounts)


@given(_containers, _containers, st.just({}) | _whole, st.just({}) | _of)
def test_requests_and_limits_are_the_highest_need_at_any_moment(
    main: list[Any], init: list[Any], whole: dict[str, Any], overhead: dict[str, int]
) -> None:
    spec = {
        "containers": main, "initContainers": init, "resources": whole, "overhead": overhead,
    }  # fmt: skip
    result = record(**spec)
    requests, limits = by_name(result.requests), by_name(result.limits)
    for name in _names:
        request, limit = needed(spec, "requests", name), needed(spec, "limits", name)
        more = overhead.get(name)
        request = request if more is None else (request or 0) + more
        limit = limit + (more or 0) if limit else limit
        if name in requests:
            assert (requests[name], limits[name]) == (request, limit)
        else:
            assert (result.scalars or {}).get(name, 0) == (request or 0)
            assert limits_of(result).get(name, 0) == (limit or 0)


def by_name(amounts: Resources) -> dict[str, int | None]:
    cores = None if amounts.cpu_millicores is None else amounts.cpu_millicores // 1000
    return {"cpu": cores, "memory": amounts.memory_bytes}


# ---- QoS


FULL = StatedResources(asked(100, 10), asked(100, 10))
NOTHING = StatedResources(NONE, NONE)


@pytest.mark.parametrize(
    ("containers", "of_pod", "expected"),
    [
        ([], NOTHING, "BestEffort"),
        ([NOTHING], NOTHING, "BestEffort"),
        ([StatedResources(asked(0, 0), NONE)], NOTHING, "BestEffort"),
        ([StatedResources({DISK: 1}, {DISK: 1})], NOTHING, "BestEffort"),
        ([FULL], NOTHING, "Guaranteed"),
        ([FULL, FULL], NOTHING, "Guaranteed"),
        ([FULL, NOTHING], NOTHING, "Burstable"),
        ([StatedResources(asked(50, 10), asked(100, 10))], NOTHING, "Burstable"),
        ([StatedResources(asked(100), asked(100))], NOTHING, "Burstable"),
        ([StatedResources(NONE, asked(100, 10))], NOTHING, "Burstable"),
        ([StatedResources(asked(1), NONE)], NOTHING, "Burstable"),
        ([NOTHING], FULL, "Guaranteed"),
        ([FULL], StatedResources(asked(100), NONE), "Burstable"),
    ],
)
def test_kube_qos_follows_the_api_servers_rules(
    containers: list[StatedResources], of_pod: StatedResources, expected: str
) -> None:
    assert qos_of(containers, of_pod) == expected
