"""Satisfaction of best-effort pods, against the rules in exact fractions."""

from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.processors.node_qos.be_cpu_satisfaction import (
    BestEffortCpu,
    SatisfactionRule,
    limit_millicores,
    real_limit_millicores,
    release_millicores,
    satisfaction_rule,
)
from pipeline.processors.node_qos.cgroup_values import UNLIMITED
from pipeline.processors.slo.nodeslo import ThresholdStrategy

PERCENT = st.integers(-1, 101)
CPU = st.builds(
    BestEffortCpu, st.integers(-1, 200_000), st.integers(0, 200_000), st.integers(0, 200_000)
)
RULES = st.integers(1, 60).flatmap(
    lambda lower: st.builds(
        SatisfactionRule, st.just(lower), st.integers(lower, 99), st.integers(0, 100)
    )
)


def reference(rule: SatisfactionRule, cpu: BestEffortCpu) -> int:
    """The rules one by one, as section 8 of the description of Koordinator's agent has them."""
    limit, usage, request = map(Fraction, cpu)
    if limit <= 0 or request <= 0:
        return 0
    if limit >= 1000 and usage / limit < Fraction(rule.usage_threshold_percent, 100):
        return 0
    satisfaction = limit / request
    if satisfaction > Fraction(rule.lower_percent, 100):
        return 0
    return max(int(request * (Fraction(rule.upper_percent, 100) - satisfaction)), 0)


@given(RULES, CPU, CPU)
@example(SatisfactionRule(30, 40), BestEffortCpu(13000, 12000, 50000), BestEffortCpu(1, 0, 9))
def test_the_smaller_release_of_mean_and_present_counts(
    rule: SatisfactionRule, mean: BestEffortCpu, current: BestEffortCpu
) -> None:
    expected = min(reference(rule, mean), reference(rule, current))
    assert release_millicores(rule, mean, current) == expected


@given(RULES, CPU)
def test_no_more_leaves_than_is_requested(rule: SatisfactionRule, cpu: BestEffortCpu) -> None:
    release = release_millicores(rule, cpu, cpu)
    assert 0 <= release <= cpu.request_millicores
    assert release == 0 or cpu.limit_millicores * 100 <= rule.lower_percent * cpu.request_millicores


@given(PERCENT, PERCENT, st.none() | PERCENT)
def test_a_rule_is_valid_as_in_koordinator(lower: int, upper: int, usage: int | None) -> None:
    rule = satisfaction_rule(
        ThresholdStrategy(
            cpu_evict_be_satisfaction_lower_percent=lower,
            cpu_evict_be_satisfaction_upper_percent=upper,
            cpu_evict_be_usage_threshold_percent=usage,
        )
    )
    is_valid = 0 < lower <= 60 and 0 < upper < 100 and upper >= lower
    assert rule == (SatisfactionRule(lower, upper, 90 if usage is None else usage)
                    if is_valid else None)  # fmt: skip


def test_a_policy_without_both_percentages_has_no_rule() -> None:
    assert satisfaction_rule(ThresholdStrategy()) is None
    assert satisfaction_rule(ThresholdStrategy(cpu_evict_be_satisfaction_lower_percent=30)) is None
    assert satisfaction_rule(ThresholdStrategy(cpu_evict_be_satisfaction_upper_percent=30)) is None


@pytest.mark.parametrize(
    ("policy", "real", "offered", "limit"),
    [
        ("evictByRealLimit", 3000, 500, 3000), (None, 3000, 500, 3000), (None, None, 500, None),
        ("evictByAllocatable", 3000, 500, 500), ("evictByAllocatable", None, 500, 500),
        ("evictByAllocatable", 3000, 0, 1), ("evictByAllocatable", 3000, None, None),
    ],
)  # fmt: skip
def test_the_limit_by_policy(
    policy: str | None, real: int | None, offered: int | None, limit: int | None
) -> None:
    assert limit_millicores(policy, real, offered) == limit  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sizes", "quota", "limit"),
    [
        ([8], UNLIMITED, 8000), ([8, 4, 6], UNLIMITED, 4000), ([8], 250_000, 2500),
        ([2], 250_000, 2000), ([], 1500, 15), ([0], 50_000, 500), ([], UNLIMITED, None),
    ],
)  # fmt: skip
def test_the_kernel_allows_the_smaller_of_quota_and_cpu_sets(
    sizes: list[int], quota: int, limit: int | None
) -> None:
    assert real_limit_millicores((frozenset(range(n)) for n in sizes), quota) == limit
