"""What devices come to, and what is no Device object."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import InvalidRecordError
from pipeline.processors.overcommit.devices import (
    GPU,
    GPU_CORE,
    GPU_SHARED,
    LABELS,
    RDMA,
    VENDOR,
    gpu_labels,
    gpu_resources,
    rdma_resources,
)

MEMORY = "koordinator.sh/gpu-memory"


def gpu(core: Any = 100, *, health: bool = True, **more: Any) -> dict[str, Any]:
    resources = {GPU_CORE: core, MEMORY: "8Gi", **more}
    return {"type": "gpu", "health": health, "minor": 0, "resources": resources}


def device(*devices: Any, **labels: str) -> dict[str, Any]:
    return {"kind": "Device", "metadata": {"labels": labels}, "spec": {"devices": devices}}


def said(of: dict[str, int | None]) -> dict[str, int]:
    return {name: amount for name, amount in of.items() if amount is not None}


@given(st.lists(st.tuples(st.integers(0, 100), st.booleans())))
def test_only_healthy_devices_count(gpus: list[tuple[int, bool]]) -> None:
    cores = [core for core, health in gpus if health]
    found = gpu_resources(device(*(gpu(c, health=h) for c, h in gpus)), shared=True)
    total = sum(cores) if cores else None
    assert (found[GPU_CORE], found[GPU]) == (total, total)
    assert found[GPU_SHARED] == (100 * len(cores) or None)
    assert found[MEMORY] == (len(cores) * 2**33 or None)


@pytest.mark.parametrize(("vendor", "is_said"), [("nvidia", True), ("", True), ("huawei", False)])
def test_other_vendors_have_no_gpu_of_the_common_name(vendor: str, is_said: bool) -> None:
    found = gpu_resources(device(gpu(), **{VENDOR: vendor}), shared=False)
    assert (found[GPU], found[GPU_CORE]) == (100 if is_said else None, 100)
    assert found[GPU_SHARED] is None


@pytest.mark.parametrize("of", [None, {}, device(), {"spec": {"devices": None}}])
def test_without_devices_everything_goes(of: Any) -> None:
    assert said(gpu_resources(of, shared=True)) == {}
    assert said(rdma_resources(of)) == {}
    assert gpu_labels(of) == dict.fromkeys(LABELS)


def test_a_device_gives_a_node_nothing_but_what_devices_are() -> None:
    found = gpu_resources(device(gpu(cpu="1000", **{GPU_SHARED: 7, GPU: 9})), shared=False)
    assert said(found) == {GPU: 100, GPU_CORE: 100, MEMORY: 2**33}


def test_rdma_is_what_each_says_or_a_whole_one() -> None:
    nics = [
        {"type": "rdma", "health": True},
        {"type": "rdma", "health": True, "resources": {RDMA: "50"}},
        {"type": "rdma", "health": False, "resources": {RDMA: 100}},
        gpu(),
    ]
    assert rdma_resources(device(*nics)) == {RDMA: 150}


def test_labels_are_those_of_the_object_and_go_with_the_devices() -> None:
    """Upstream leaves them where they are."""
    labels = {VENDOR: "nvidia", LABELS[1]: "A100", "other": "x"}
    assert gpu_labels(device(gpu(), **labels)) == {VENDOR: "nvidia", LABELS[1]: "A100"}
    assert gpu_labels(device(gpu(health=False), **labels)) == dict.fromkeys(LABELS)


@pytest.mark.parametrize(
    "of",
    [
        device(7),
        {"spec": []},
        {"metadata": {"labels": {"a": 1}}},
        device({"type": "gpu", "health": "yes"}),
        device(gpu("many")),
        device(gpu(-1)),
        device(gpu(float("nan"))),
        device(gpu("1e15"), gpu("1e16")),
        device(gpu([])),
    ],
)
def test_an_object_that_cannot_be_read_is_an_error_that_names_it(of: Any) -> None:
    with pytest.raises(InvalidRecordError, match="Device object"):
        gpu_resources(of, shared=True)


def test_fractions_add_up_before_they_are_rounded() -> None:
    assert gpu_resources(device(gpu("1500m"), gpu("1500m")), shared=False)[GPU_CORE] == 3
