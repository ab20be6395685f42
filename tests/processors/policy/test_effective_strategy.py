"""The colocation strategy of a node, from the policy and the node's own settings."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.policy.colocation_config import COLOCATION, DEFAULTS, Colocation
from pipeline.processors.policy.effective_strategy import (
    ANNOTATION,
    RATIO_LABELS,
    effective_strategy,
)
from pipeline.processors.policy.load_configmap import Policy, load_section
from pipeline.processors.policy.selectors import Requirement, Selector, check_selector

KEY = COLOCATION.key

CPU_RATIO = "node.koordinator.sh/cpu-reclaim-ratio"


def policy(**config: Any) -> Policy[Colocation]:
    result = load_section(COLOCATION, {KEY: json.dumps(config)}).policy
    assert result is not None
    return result


@pytest.mark.parametrize(
    ("cluster", "node", "is_on"),
    [(True, None, True), (True, False, False), (False, True, False), (None, True, False)],
)
def test_a_node_can_only_switch_itself_off(
    cluster: bool | None, node: bool | None, is_on: bool
) -> None:
    annotations = {} if node is None else {ANNOTATION: json.dumps({"enable": node})}
    assert effective_strategy(policy(enable=cluster), {}, annotations).is_on is is_on


@pytest.mark.parametrize(
    ("ratio", "percent"),
    [
        ("0.29", 29), ("0.57", 57), ("0.58", 58), ("1", 100), ("+1.5", 150), (".125", 12),
        ("1e-1", 10), ("0", 0),
    ],
)  # fmt: skip
def test_ratio_labels_are_exact_percentages(ratio: str, percent: int) -> None:
    for label, field in RATIO_LABELS.items():
        result = effective_strategy(Policy(DEFAULTS), {label: ratio}, {})
        assert getattr(result.strategy, field) == percent
        assert all(problem.in_force for problem in result.problems)


@pytest.mark.parametrize(
    "ratio", ["NaN", "Inf", "+Inf", "-0.1", "-0", "", " 1", "1_0", "0x1p-2", "1e9", "one", "1e999"]
)
def test_invalid_ratio_labels_are_reported_and_ignored(ratio: str) -> None:
    result = effective_strategy(Policy(DEFAULTS), {CPU_RATIO: ratio}, {})
    assert result.strategy == Policy(DEFAULTS).cluster
    assert str(result.problems[0]).startswith(f"label {CPU_RATIO}: {ratio!r} is not a ratio")


def test_an_unusual_ratio_label_is_a_warning() -> None:
    label = "node.koordinator.sh/mid-static-cpu-reserved-ratio"
    result = effective_strategy(Policy(DEFAULTS), {label: "1.5", CPU_RATIO: "1.5"}, {})
    assert result.strategy.mid_static_cpu_reserved_percent == 150
    (problem,) = result.problems
    assert str(problem) == f"label {label}: midStaticCPUReservedPercent is 150, usual is 0 to 100"


def test_values_of_an_annotation_are_checked() -> None:
    text = json.dumps({"degradeTimeMinutes": -1, "midUnallocatedPercent": 10})
    result = effective_strategy(policy(degradeTimeMinutes=20), {}, {ANNOTATION: text})
    strategy, (problem,) = result.strategy, result.problems
    assert (strategy.degrade_time_minutes, strategy.mid_unallocated_percent) == (20, 10)
    assert "degradeTimeMinutes is -1, allowed is 1 or more; it is not in force" in str(problem)


@pytest.mark.parametrize("text", ["{", "null", "[]", '{"enable":"yes"}', ""])
def test_an_unreadable_annotation_is_ignored_and_reported(text: str) -> None:
    result = effective_strategy(policy(enable=True), {}, {ANNOTATION: text})
    assert result.strategy == policy(enable=True).cluster
    assert len(result.problems) == 1


def test_labels_come_over_the_annotation() -> None:
    text = json.dumps({"cpuReclaimThresholdPercent": 100})
    result = effective_strategy(Policy(DEFAULTS), {CPU_RATIO: "0.8"}, {ANNOTATION: text})
    assert result.strategy.cpu_reclaim_threshold_percent == 80


KEYS = st.sampled_from(["a", "b", "x.io/c"])
VALUES = st.sampled_from(["", "1", "2"])
LABELS = st.dictionaries(KEYS, VALUES)
REQUIREMENTS = st.one_of(
    st.builds(
        Requirement,
        key=KEYS,
        operator=st.sampled_from(["In", "NotIn"]),
        values=st.lists(VALUES, min_size=1).map(tuple),
    ),
    st.builds(Requirement, key=KEYS, operator=st.sampled_from(["Exists", "DoesNotExist"])),
)


@given(LABELS, LABELS, st.lists(REQUIREMENTS).map(tuple))
def test_selectors_match_by_their_operators(
    labels: dict[str, str], wanted: dict[str, str], requirements: tuple[Requirement, ...]
) -> None:
    selector = Selector(match_labels=wanted, match_expressions=requirements)
    check_selector(selector)
    expected = wanted.items() <= labels.items()
    for one in requirements:
        has = one.key in labels
        among = has and labels[one.key] in (one.values or ())
        holds = {"In": among, "NotIn": not among, "Exists": has, "DoesNotExist": not has}
        expected = expected and holds[one.operator]
    assert selector.matches(labels) is expected
    assert Selector().matches(labels)


def test_unset_fields_stay_unset() -> None:
    assert effective_strategy(Policy(Colocation()), {}, {}).strategy == Colocation()
