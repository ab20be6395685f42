"""Contradicting settings are reported once when they are set, and are in force."""

import json
from typing import Any

import pytest

from pipeline.processors.policy.contradictions import FilterLimits
from pipeline.processors.policy.load_configmap import PolicyProblem
from pipeline.processors.policy.policy_in_force import load_policies

ON = {"enable": True}
NAMES = ("colocation-config", "springtide-config", "resource-threshold-config")
GOLD = {"nodeSelector": {"matchLabels": {"pool": "gold"}}}


def reports(
    colocation: Any, own: Any = None, rules: Any = None, limits: FilterLimits | None = None
) -> list[PolicyProblem]:
    stated = dict(zip(NAMES, (colocation, own or {}, rules or {}), strict=True))
    policies, problems = load_policies({k: json.dumps(v) for k, v in stated.items()}, None, limits)
    assert policies.is_usable
    assert all(problem.in_force for problem in problems)
    return list(problems)


@pytest.mark.parametrize(
    ("colocation", "own", "where", "says"),
    [
        ({}, {"promiseOnce": False}, NAMES[1], "promised the same idle capacity"),
        (
            {"midCPUThresholdPercent": 0, "midMemoryThresholdPercent": 0,
             "midUnallocatedPercent": 1},
            {"promiseOnce": False}, NAMES[1], "promised the same idle capacity",
        ),
        ({"cpuReclaimThresholdPercent": 120}, {}, NAMES[0], "set batchCPUThresholdPercent"),
        ({"memoryReclaimThresholdPercent": 120}, {}, NAMES[0], "set batchMemoryThresholdPercent"),
        ({"metricReportIntervalSeconds": 1200}, {}, NAMES[0], "longer than degradeTimeMinutes"),
        (
            {"updateTimeThresholdSeconds": 120, "degradeTimeMinutes": 1},
            {}, NAMES[0], "updateTimeThresholdSeconds is 120, longer",
        ),
        ({"midReclaimMode": "static"}, {}, NAMES[0], "there is no Mid"),
    ],
)  # fmt: skip
def test_contradictions_within_colocation_are_reported(
    colocation: dict[str, Any], own: dict[str, Any], where: str, says: str
) -> None:
    (problem,) = reports({**ON, **colocation}, own)
    assert problem.where == where
    assert says in problem.text
    assert not reports({**colocation, "enable": False}, own)
    (of_entry,) = reports({**ON, "nodeConfigs": [{**GOLD, **colocation}]},
                       {"nodeConfigs": [{**GOLD, **own}]})  # fmt: skip
    assert of_entry.text.startswith('nodes of {"matchLabels":{"pool":"gold"}')
    assert says in of_entry.text


@pytest.mark.parametrize(
    "colocation",
    [
        {"midCPUThresholdPercent": 0, "midMemoryThresholdPercent": 0},
        {"midReclaimMode": "static", "midStaticCPUReservedPercent": 0},
    ],
)
def test_nothing_is_promised_twice_where_there_is_no_mid(colocation: dict[str, Any]) -> None:
    result = reports({**ON, **colocation}, {"promiseOnce": False})
    assert not [problem for problem in result if "promiseOnce" in problem.text]


@pytest.mark.parametrize(
    ("colocation", "rules", "says"),
    [
        ({"cpuReclaimThresholdPercent": 80}, {},
         "cpuSuppressThresholdPercent is 65, below cpuReclaimThresholdPercent of "
         "colocation-config, which is 80"),
        ({}, {"memoryEvictThresholdPercent": 64},
         "memoryEvictThresholdPercent is 64, below memoryReclaimThresholdPercent of "
         "colocation-config, which is 65"),
    ],
)  # fmt: skip
def test_offers_above_the_nodes_limits_are_contradictions(
    colocation: dict[str, Any], rules: dict[str, Any], says: str
) -> None:
    (problem,) = reports({**ON, **colocation}, {}, {"clusterStrategy": {**ON, **rules}})
    assert (problem.where, problem.text.startswith(says)) == (NAMES[2], True)
    assert not reports({**ON, **colocation}, {}, {"clusterStrategy": rules})
    assert not reports(colocation, {}, {"clusterStrategy": {**ON, **rules}})
    (of_entry,) = reports(
        {**ON, "nodeConfigs": [{**GOLD, **colocation}]},
        {},
        {"nodeStrategies": [{**GOLD, **ON, "name": "gold", **rules}]},
    )
    assert says in of_entry.text


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        (FilterLimits(65, 70), ()),
        (FilterLimits(65.5, 70), ("the setting extender.cpu_threshold_percent, which is 65.5",)),
        (FilterLimits(65, 95), ("the setting extender.memory_threshold_percent, which is 95",)),
        (FilterLimits(0, 0), ("which is 0 (no limit)", "which is 0 (no limit)")),
        (None, ()),
    ],
)
def test_scheduler_thresholds_above_the_nodes_limits_are_contradictions(
    limits: FilterLimits | None, says: tuple[str, ...]
) -> None:
    result = reports({}, {}, {"clusterStrategy": ON}, limits)
    assert len(result) == len(says)
    for problem, text in zip(result, says, strict=True):
        assert problem.where == NAMES[2]
        assert text in problem.text
    assert not reports({}, {}, {}, limits)


def test_an_entry_reports_only_contradictions_that_the_cluster_lacks() -> None:
    both = {"clusterStrategy": ON, "nodeStrategies": [{**GOLD, "cpuSuppressPolicy": "cpuset"}]}
    assert len(reports({}, {}, both, FilterLimits(65, 95))) == 1
    own = {"nodeStrategies": [{**GOLD, **ON, "name": "gold", "memoryEvictThresholdPercent": 60}]}
    (problem,) = reports({}, {}, own, FilterLimits(65, 65))
    assert problem.text.startswith("nodes of 'gold': memoryEvictThresholdPercent is 60, below")
