"""Masks and bandwidths are such that a kernel accepts them, and groups are few enough."""

import json
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import InvalidPolicyError, KernelFileError
from pipeline.processors.node_qos.node_state import NodeState, PodState
from pipeline.processors.node_qos.resctrl_groups import (
    ANNOTATION,
    ResctrlInfo,
    kept_groups,
    pod_schemata,
    resctrl_groups,
)
from pipeline.processors.node_qos.resctrl_schemata import (
    Schemata,
    bandwidth,
    parse_mask,
    parse_schemata,
    way_mask,
)
from pipeline.processors.slo.nodeslo import NodeSLOSpec, QosClass, QosStrategy, ResctrlQos
from tests.processors.node_qos.worlds import node, pod

IDS = frozenset({0, 8})
INFO = ResctrlInfo("intel", 0xFFF, 1, IDS, IDS, 16)


def rules(start: int, end: int, percent: int | None = None, enable: bool = True) -> QosClass:
    resctrl = ResctrlQos(
        enable=enable, cat_range_start_percent=start, cat_range_end_percent=end, mba_percent=percent
    )
    return QosClass(resctrl_qos=resctrl)


def cache_node(*pods: PodState, **classes: Any) -> NodeState:
    return node(*pods, slo=NodeSLOSpec(resource_qos_strategy=QosStrategy(**classes)))


def annotated(name: str, own: Any, **fields: Any) -> PodState:
    text = own if isinstance(own, str) else json.dumps(own)
    return pod(name, **{"qos": "BE", "annotations": {ANNOTATION: text}, **fields})


OWN = {
    "llc": {
        "schemata": {"range": [0, 50]},
        "schemataPerCache": [{"cacheID": 8, "range": [50, 100]}, {"cacheID": 7, "range": [0, 1]}],
    },
    "mb": {"schemata": {"percent": 25}},
}


def test_classes_and_annotated_pods_have_groups() -> None:
    state = cache_node(
        annotated("own", OWN), pod("be", qos="BE"), pod("lse", qos="LSE"), pod("ls", qos="LS"),
        be_class=rules(0, 30, 50), lsr_class=rules(0, 100), ls_class=rules(0, 100, enable=False),
    )  # fmt: skip
    groups = resctrl_groups(state, INFO)
    assert groups is not None
    assert {group.name: group.cgroups for group in groups} == {
        "BE": ("kubepods/burstable/podbe",), "LSR": ("kubepods/burstable/podlse",),
        "koordlet-own": ("kubepods/burstable/podown",),
    }  # fmt: skip
    assert {group.name: [*group.schemata.lines()] for group in groups} == {
        "BE": ["L3:0=f;8=f", "MB:0=50;8=50"], "LSR": ["L3:0=fff;8=fff"],
        "koordlet-own": ["L3:0=3f;8=fc0", "MB:0=30;8=30"],
    }  # fmt: skip


def test_pods_beyond_the_last_group_of_the_cpu_share_that_of_their_class() -> None:
    pods = [annotated(f"p{n}", OWN) for n in range(5)]
    state = cache_node(*pods, be_class=rules(0, 30))
    groups = resctrl_groups(state, INFO._replace(max_groups=4))
    assert groups is not None
    assert [group.name for group in groups] == ["BE", "koordlet-p0", "koordlet-p1"]
    assert groups[0].cgroups == tuple(f"kubepods/burstable/podp{n}" for n in (2, 3, 4))


def test_groups_of_pods_that_left_the_view_are_kept() -> None:
    state = cache_node(pod("own", listed=False))
    assert resctrl_groups(state, INFO) == ()
    assert kept_groups(state) == {"koordlet-own": "kubepods/burstable/podown"}
    assert resctrl_groups(node(slo=None), INFO) is None


@pytest.mark.parametrize(
    "own",
    ["", "{", "[]", "{}", {"llc": 3}, {"llc": {"schemata": {"range": [30, 30]}}},
     {"llc": {"schemata": {"range": [0]}}}, {"llc": {"schemata": {"range": [0, 101]}}},
     {"llc": {"schemata": {"range": [-1, 5]}}}, {"llc": {"schemata": {"range": [0, 1, 2]}}},
     {"mb": {"schemata": {"percent": 101}}}, {"mb": {"schemata": {"percent": 1e9}}},
     {"llc": {"schemataPerCache": [{"range": [0, 50]}]}}],
)  # fmt: skip
def test_an_invalid_annotation_gives_no_group(own: Any) -> None:
    assert pod_schemata(annotated("a", OWN), INFO) is not None
    assert pod_schemata(annotated("a", own), INFO) is None


@given(
    ways=st.integers(1, 32), start=st.integers(-5, 105), end=st.integers(-5, 105),
    least=st.integers(1, 4),
)  # fmt: skip
def test_a_mask_is_a_run_of_ways_within_the_cache(
    ways: int, start: int, end: int, least: int
) -> None:
    full = (1 << ways) - 1
    if not 0 <= start < end <= 100:
        with pytest.raises(InvalidPolicyError):
            way_mask(full, start, end, least)
        return
    mask = way_mask(full, start, end, least)
    assert 0 < mask <= full
    run = mask >> ((mask & -mask).bit_length() - 1)
    assert run & (run + 1) == 0, "a hole"
    assert run.bit_length() >= min(least, ways)
    assert (start, end) != (0, 100) or mask == full


@pytest.mark.parametrize("text", ["", "4", "5", "0", "-1", "xyz", "ff,ff"])
def test_a_mask_that_is_no_run_from_way_0_is_refused(text: str) -> None:
    assert parse_mask("fffff\n") == 0xFFFFF
    with pytest.raises(KernelFileError):
        parse_mask(text)


VENDORS: list[Literal["intel", "amd"]] = ["intel", "amd"]


@given(st.sampled_from(VENDORS), st.integers(-(10**9), 10**9))
def test_bandwidth_is_in_the_range_that_the_kernel_accepts(
    vendor: Literal["intel", "amd"], percent: int
) -> None:
    amount = bandwidth(vendor, percent)
    assert (amount is None) == (not 1 <= percent <= 100)
    if amount is not None:
        assert 1 <= amount <= (100 if vendor == "intel" else 2048)
        assert vendor == "amd" or amount % 10 == 0


SHARES = st.dictionaries(st.integers(0, 300), st.integers(1, 2**32), max_size=4)


@given(SHARES, SHARES)
def test_lines_are_read_as_they_were_written(l3: dict[int, int], mb: dict[int, int]) -> None:
    schemata = Schemata(l3, mb)
    padded = "".join(f"    {line};\n" for line in schemata.lines())
    assert parse_schemata("SMBA:0=2048\n" + padded) == schemata


@pytest.mark.parametrize("text", ["L3:0", "L3:0=xyz", "MB:a=1", "MB:0=f"])
def test_a_broken_schemata_is_refused(text: str) -> None:
    with pytest.raises(KernelFileError):
        parse_schemata(text)
