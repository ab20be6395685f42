"""The spec of a NodeMetric follows the ConfigMap; durations are read and written as in Go."""

import json
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.kubernetes.durations import duration_text, timestamp_seconds
from pipeline.processors.policy.colocation_config import COLOCATION
from pipeline.processors.policy.effective_strategy import ANNOTATION
from pipeline.processors.policy.nodemetric_spec import metric_spec
from pipeline.processors.policy.policy_in_force import load_policies, with_policy
from pipeline.processors.policy.springtide_config import SPRINGTIDE
from pipeline.topics.nodes import NodeRecord, NodeStrategy

USUAL = {
    "aggregateDurationSeconds": 300,
    "reportIntervalSeconds": 60,
    "nodeAggregatePolicy": {"durations": ["5m0s", "10m0s", "30m0s"]},
    "nodeMemoryCollectPolicy": "usageWithoutPageCache",
}


def spec(config: Any, labels: dict[str, str] | None = None) -> Any:
    policies, _ = load_policies({COLOCATION.key: json.dumps(config)})
    record = NodeRecord(node="a", labels=labels or {})
    return metric_spec(with_policy(record, policies)[0])


def test_the_spec_follows_the_nodes_policy() -> None:
    entry = {
        "nodeSelector": {"matchLabels": {"pool": "gold"}},
        "metricReportIntervalSeconds": 20,
        "metricAggregatePolicy": {"durations": ["1m", "1h30m"]},
        "nodePredictPolicy": {"coldStartPeriodSeconds": 3600},
    }
    config = {
        "enable": True,
        "metricAggregateDurationSeconds": 120,
        "metricMemoryCollectPolicy": "usageWithPageCache",
        "nodePredictPolicy": {"resourceDiffThresholdPercent": 7, "coldStartPeriodSeconds": 60},
        "nodeConfigs": [entry],
    }
    cluster = {
        **USUAL,
        "aggregateDurationSeconds": 120,
        "nodeMemoryCollectPolicy": "usageWithPageCache",
    }
    assert spec(config) == {
        "metricCollectPolicy": cluster,
        "predictPolicy": {"resourceDiffThresholdPercent": 7, "coldStartPeriodSeconds": 60},
    }
    assert spec(config, {"pool": "gold"}) == {
        "metricCollectPolicy": {
            **cluster,
            "reportIntervalSeconds": 20,
            "nodeAggregatePolicy": {"durations": ["1m0s", "1h30m0s"]},
        },
        "predictPolicy": {"resourceDiffThresholdPercent": 7, "coldStartPeriodSeconds": 3600},
    }


def test_without_colocation_the_spec_has_the_defaults() -> None:
    config = {"metricReportIntervalSeconds": 20, "nodePredictPolicy": {"coldStartPeriodSeconds": 1}}
    assert spec(config) == {"metricCollectPolicy": USUAL}
    annotated = {"enable": True, **config}
    off = {"nodeSelector": {}, "enable": False}
    assert spec({**annotated, "nodeConfigs": [off]}) == {"metricCollectPolicy": USUAL}


@pytest.mark.parametrize(
    ("of", "annotations", "is_on"),
    [
        ({"enable": True}, {}, True),
        ({"enable": False}, {}, False),
        ({}, {}, False),
        ({"enable": True, "nodeConfigs": [{"nodeSelector": {}, "enable": False}]}, {}, False),
        ({"enable": True}, {ANNOTATION: '{"enable":false}'}, False),
    ],
)
def test_node_and_worker_get_the_same_settings(
    of: dict[str, Any], annotations: dict[str, str], is_on: bool
) -> None:
    """The report interval, the memory figure, the cold start; `springtide-config` without it."""
    stated = {
        "metricReportIntervalSeconds": 20,
        "metricMemoryCollectPolicy": "usageWithPageCache",
        "nodePredictPolicy": {"coldStartPeriodSeconds": 90, "resourceDiffThresholdPercent": 7},
    }
    texts = {COLOCATION.key: json.dumps({**stated, **of}), SPRINGTIDE.key: '{"predictor":"max"}'}
    policies, _ = load_policies(texts)
    record, _ = with_policy(NodeRecord(node="a", annotations=annotations), policies)
    asked = metric_spec(record)
    assert asked is not None
    predict = asked.get("predictPolicy", {})
    assert record.strategy == NodeStrategy(
        predictor="max",
        report_interval_seconds=20 if is_on else None,
        memory_collect_policy="usageWithPageCache" if is_on else None,
        cold_start_seconds=predict.get("coldStartPeriodSeconds"),
        resource_diff_threshold_percent=predict.get("resourceDiffThresholdPercent"),
    )
    assert asked["metricCollectPolicy"]["reportIntervalSeconds"] == (20 if is_on else 60)
    assert bool(predict) is is_on
    memory = "usageWithPageCache" if is_on else "usageWithHotPageCache"
    asked = metric_spec(record, default_memory_policy="usageWithHotPageCache")
    assert asked is not None
    assert asked["metricCollectPolicy"]["nodeMemoryCollectPolicy"] == memory


@pytest.mark.parametrize("huge", [31_536_001, 2**62, 2**63 - 1])
def test_huge_values_are_limited(huge: int) -> None:
    config = {
        "enable": True,
        "metricAggregateDurationSeconds": huge,
        "metricReportIntervalSeconds": huge,
        "nodePredictPolicy": {"coldStartPeriodSeconds": huge, "resourceDiffThresholdPercent": huge},
    }
    policies, problems = load_policies({COLOCATION.key: json.dumps(config)})
    record, _ = with_policy(NodeRecord(node="a"), policies)
    day, year = 86_400, 31_536_000
    assert metric_spec(record) == {
        "metricCollectPolicy": {
            **USUAL, "reportIntervalSeconds": day, "aggregateDurationSeconds": day,
        },
        "predictPolicy": {"coldStartPeriodSeconds": year, "resourceDiffThresholdPercent": 1000},
    }  # fmt: skip
    assert record.strategy == NodeStrategy(
        report_interval_seconds=day,
        cold_start_seconds=year,
        resource_diff_threshold_percent=1000,
    )
    assert {(problem.text, problem.in_force) for problem in problems} >= {
        (f"{key} is {huge}, usual is {most}", True)
        for key, most in (
            ("metricAggregateDurationSeconds", "1 to 86400"),
            ("metricReportIntervalSeconds", "1 to 86400"),
            ("coldStartPeriodSeconds", "0 to 31536000"),
            ("resourceDiffThresholdPercent", "0 to 1000"),
        )
    }
    assert all(problem.in_force for problem in problems)


def test_without_any_valid_policy_the_spec_is_unknown() -> None:
    assert metric_spec(NodeRecord(node="a")) is None
    assert spec({"degradeTimeMinutes": -1}) is None


@pytest.mark.parametrize("stated", [{}, {"metricMemoryCollectPolicy": "usageOfEverything"}])
def test_an_unset_or_unknown_memory_policy_counts_as_the_default(stated: dict[str, str]) -> None:
    assert spec({"enable": True, **stated}) == {"metricCollectPolicy": USUAL}


def test_an_empty_or_invalid_strategy_in_a_record_gives_the_defaults() -> None:
    record = NodeRecord(node="a", colocation={})
    policies, _ = load_policies({COLOCATION.key: '{"enable":true}'})
    on = msgspec.structs.replace(with_policy(record, policies)[0], colocation={})
    assert metric_spec(on) == {"metricCollectPolicy": USUAL}
    stated = {"metricAggregatePolicy": {"durations": ["x", "5m"]}}
    result = metric_spec(msgspec.structs.replace(on, colocation=stated))
    assert result is not None
    assert result["metricCollectPolicy"]["nodeAggregatePolicy"] == {"durations": ["5m0s"]}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5m0s", "300"), ("+1h30m", "5400"), ("1.5s", "1.5"), ("1500ms", "1.5"), ("2000000µs", "2"),
        (".5h", "1800"), ("1m1m", "120"), ("8760h", "31536000"), ("8761h", None), ("999ms", None),
        ("0", None), ("0s", None), ("-5m", None), ("5", None), ("5 m", None), ("m", None),
        ("5d", None), ("", None), ("1e3s", None), ("٥m", None),
    ],
)  # fmt: skip
def test_a_span_is_read_as_go_reads_it(text: str, seconds: str | None) -> None:
    assert timestamp_seconds(text) == (None if seconds is None else Decimal(seconds))


@given(st.integers(1000, 31_536_000_000))
def test_a_span_that_was_written_is_read_again(milliseconds: int) -> None:
    seconds = Decimal(milliseconds) / 1000
    assert timestamp_seconds(duration_text(seconds)) == seconds


@given(st.text())
def test_no_text_breaks_it(text: str) -> None:
    seconds = timestamp_seconds(text)
    assert seconds is None or 1 <= seconds <= 31_536_000
