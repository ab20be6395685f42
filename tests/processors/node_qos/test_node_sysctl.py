"""Kernel settings are claimed within their ranges, and otherwise left alone."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actuators.node.knob_files import KNOB_FILES
from pipeline.processors.node_qos.cgroup_values import Knob, Place, Value
from pipeline.processors.node_qos.node_sysctl import NodeSysctl
from pipeline.processors.slo.nodeslo import NodeSLOSpec, SystemStrategy
from tests.processors.node_qos.worlds import GIB, amounts, claimed, node

FLAGS = (Knob.NODE_MEMCG_REAP, Knob.NODE_GROUP_IDENTITY, Knob.NODE_PAGE_CACHE_LIMIT)


def settings(
    former: dict[Place, Value] | None = None, *, memory: int | None = 512 * GIB, **strategy: Any
) -> dict[Place, Value]:
    slo = NodeSLOSpec(system_strategy=SystemStrategy(**strategy))
    state = node(slo=slo, capacity=amounts(memory_bytes=memory))
    return claimed(NodeSysctl(), state, former)


def test_all_settings() -> None:
    values = settings(
        min_free_kbytes_factor=100, watermark_scale_factor=150, memcg_reap_back_ground=1,
        sched_group_identity_enabled=0, sched_idle_saver_wmark=10_000,
        page_cache_limit_enabled=1, sched_features={"ID_IDLE_AVG": True, "GENTLE": False},
    )  # fmt: skip
    assert values == {
        Place("", Knob.NODE_MIN_FREE_KBYTES): 5_368_709,
        Place("", Knob.NODE_WATERMARK_SCALE): 150, Place("", Knob.NODE_MEMCG_REAP): 1,
        Place("", Knob.NODE_GROUP_IDENTITY): 0, Place("", Knob.NODE_IDLE_SAVER): 10_000,
        Place("", Knob.NODE_PAGE_CACHE_LIMIT): 1,
        Place("", Knob.NODE_SCHED_FEATURE, "ID_IDLE_AVG"): 1,
        Place("", Knob.NODE_SCHED_FEATURE, "GENTLE"): 0,
    }  # fmt: skip


@pytest.mark.parametrize("name", ["", "a", "NO_X", "A B", "A\n", "../A", "A" * 65])
def test_names_that_no_scheduler_feature_has_are_skipped(name: str) -> None:
    assert settings(sched_features={name: True}) == {}


NUMBER = st.one_of(st.none(), st.integers(-10, 500), st.integers(-(2**70), 2**70))


@given(NUMBER, NUMBER, NUMBER, st.integers(0, 2**60))
def test_only_values_that_the_kernel_accepts_are_claimed(
    factor: int | None, scale: int | None, flag: int | None, memory: int
) -> None:
    values = settings(
        memory=memory, min_free_kbytes_factor=factor, watermark_scale_factor=scale,
        memcg_reap_back_ground=flag, sched_group_identity_enabled=flag,
        page_cache_limit_enabled=flag, sched_idle_saver_wmark=flag,
    )  # fmt: skip
    for place, value in values.items():
        assert KNOB_FILES[2][place.knob][0].text_of(value, "") == str(value)
    assert values.get(Place("", Knob.NODE_MIN_FREE_KBYTES), 10_240) in range(10_240, 10_485_761)
    assert values.get(Place("", Knob.NODE_WATERMARK_SCALE), 10) in range(10, 401)
    assert all(values.get(Place("", knob), 0) in (0, 1) for knob in FLAGS)


def test_claims_stay_while_the_policy_or_the_capacity_is_unknown() -> None:
    former = settings(min_free_kbytes_factor=100)
    assert former
    assert claimed(NodeSysctl(), node(slo=None), former) == former
    assert settings(former, memory=None, min_free_kbytes_factor=100) == former
    # Control: what the strategy no longer sets is not claimed.
    assert settings(former) == {}
    assert settings(former, memory=None) == {}
