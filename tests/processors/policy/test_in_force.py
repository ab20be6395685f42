"""What a node's record carries of the policy, and what stays where it cannot be used."""

import json
from typing import Any

import pytest

from pipeline.processors.policy.effective import ANNOTATION as OF_KOORDINATOR
from pipeline.processors.policy.in_force import Policies, load_policies, with_policy
from pipeline.processors.policy.springtide import ANNOTATION
from pipeline.topics.codec import decode_json, encode_json
from pipeline.topics.nodes import NodeRecord, NodeStrategy
from pipeline.topics.overcommit import Overcommit

ON = {"enable": True}


def data(colocation: Any = None, springtide: Any = None) -> dict[str, str]:
    said = {"colocation-config": colocation, "springtide-config": springtide}
    return {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in said.items()
        if value is not None
    }


def policies(colocation: Any = None, springtide: Any = None) -> Policies:
    found, problems = load_policies(data(colocation, springtide))
    assert not problems
    return found


def node(**said: Any) -> NodeRecord:
    return NodeRecord(node="n1", **said)


def in_force(of: Policies, record: NodeRecord | None = None) -> NodeRecord:
    found, problems = with_policy(record or node(), of)
    assert not problems
    return found


def test_a_cluster_without_a_policy_takes_no_part() -> None:
    found, problems = load_policies(None)
    assert [str(problem) for problem in problems] == ["slo-controller-config: there is none"]
    record = in_force(found)
    assert record.overcommit is None
    assert record.strategy is None
    assert record.colocation is not None


def test_what_is_said_nowhere_is_as_koordinator_has_it() -> None:
    assert in_force(policies(ON)).overcommit == Overcommit()


def test_both_sections_reach_the_record_and_come_back_from_it() -> None:
    record = in_force(
        policies(
            {
                **ON,
                "cpuReclaimThresholdPercent": 70,
                "metricReportIntervalSeconds": 30,
                "nodePredictPolicy": {
                    "resourceDiffThresholdPercent": 7,
                    "coldStartPeriodSeconds": 600,
                },
            },
            {
                "predictor": "nsigma-v1",
                "safetyMarginPercent": 15,
                "midFormula": "proposal",
                "midReclaimPercent": 80,
                "promiseOnce": True,
                "bufferPercent": 5,
            },
        )
    )
    assert record.overcommit == Overcommit(
        cpu_reclaim_threshold_percent=70,
        mid_formula="proposal",
        mid_reclaim_percent=80,
        buffer_percent=5,
    )
    assert record.strategy == NodeStrategy(
        predictor="nsigma-v1",
        safety_margin_percent=15,
        cold_start_seconds=600,
        resource_diff_threshold_percent=7,
        report_interval_seconds=30,
    )
    assert decode_json(NodeRecord, encode_json(record)) == record


def test_an_entry_and_an_annotation_are_for_their_nodes_alone() -> None:
    gold = {"nodeSelector": {"matchLabels": {"pool": "gold"}}}
    found = policies(
        {**ON, "nodeConfigs": [{**gold, "midUnallocatedPercent": 20}]},
        {"nodeConfigs": [{**gold, "predictor": "max"}]},
    )
    of_gold, other = in_force(found, node(labels={"pool": "gold"})), in_force(found)
    own = node(
        annotations={
            OF_KOORDINATOR: '{"midUnallocatedPercent": 30}',
            ANNOTATION: '{"bufferPercent": 10}',
        }
    )
    annotated = in_force(found, own)
    assert of_gold.overcommit == Overcommit(mid_unallocated_percent=20)
    assert of_gold.strategy == NodeStrategy(predictor="max")
    assert (other.overcommit, other.strategy) == (Overcommit(), None)
    assert annotated.overcommit == Overcommit(mid_unallocated_percent=30, buffer_percent=10)
    hashes = [record.strategy_hash for record in (of_gold, other, annotated)]
    assert len(set(hashes)) == 3
    assert in_force(found, node(labels={"pool": "gold"})).strategy_hash == hashes[0]


@pytest.mark.parametrize(
    ("own", "says"),
    [
        ('{"predictor": ""}', "predictor is not a name"),
        ('{"safetyMarginPercent": -1}', "safetyMarginPercent is -1.0, allowed is 0 to 1000"),
        ('{"safetyMarginPercent": 1e999}', "not JSON"),
        ('{"midFormula": "v9"}', "midFormula is 'v9', which is none of proposal"),
        ('{"bufferPercent": 101}', "bufferPercent is 101, allowed is 0 to 100"),
        ('{"promiseOnce": "yes"}', "promiseOnce"),
        ("null", "NoneType, not an object"),
    ],
)
def test_a_broken_section_keeps_its_last_and_leaves_the_other_alone(own: str, says: str) -> None:
    last = policies(ON, {"bufferPercent": 3})
    found, problems = load_policies(data({**ON, "midUnallocatedPercent": 20}, own), last)
    (problem,) = problems
    assert says in str(problem)
    assert not problem.taken
    record = in_force(found)
    assert record.overcommit == Overcommit(mid_unallocated_percent=20, buffer_percent=3)


def test_a_start_with_a_broken_policy_keeps_what_was_published() -> None:
    before = in_force(policies(ON, {"predictor": "max"}))
    broken, problems = load_policies(data("{"))
    assert problems
    now = node(labels={"pool": "new"})
    assert with_policy(now, broken, before)[0] == NodeRecord(
        node="n1",
        labels={"pool": "new"},
        strategy=before.strategy,
        overcommit=before.overcommit,
        colocation=before.colocation,
        springtide=before.springtide,
        strategy_hash=before.strategy_hash,
    )
    assert with_policy(now, broken) == (now, ())


def test_values_beyond_belief_fit_into_a_record() -> None:
    huge = 2**62
    record = in_force(
        policies(
            {
                **ON,
                "cpuReclaimThresholdPercent": 100,
                "batchMemoryThresholdPercent": huge,
                "degradeTimeMinutes": huge,
                "updateTimeThresholdSeconds": huge,
                "metricReportIntervalSeconds": huge,
                "nodePredictPolicy": {
                    "resourceDiffThresholdPercent": huge,
                    "coldStartPeriodSeconds": huge,
                },
            },
        )
    )
    assert decode_json(NodeRecord, encode_json(record)) == record


@pytest.mark.parametrize(
    ("colocation", "own", "says"),
    [
        ({}, {"promiseOnce": False}, "promised the same idle capacity"),
        ({"cpuReclaimThresholdPercent": 120}, {}, "set batchCPUThresholdPercent"),
        ({"memoryReclaimThresholdPercent": 120}, {}, "set batchMemoryThresholdPercent"),
        ({"metricReportIntervalSeconds": 1200}, {}, "longer than degradeTimeMinutes"),
        (
            {"updateTimeThresholdSeconds": 120, "degradeTimeMinutes": 1},
            {},
            "updateTimeThresholdSeconds is 120, longer",
        ),
        ({"midReclaimMode": "static"}, {}, "there is no Mid"),
    ],
)
def test_contradictions_are_told_when_they_are_set(
    colocation: dict[str, Any], own: dict[str, Any], says: str
) -> None:
    _, problems = load_policies(data({**ON, **colocation}, own))
    (problem,) = problems
    assert says in str(problem)
    assert problem.taken
    assert not load_policies(data({**colocation, "enable": False}, own))[1]
