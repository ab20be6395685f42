"""The `spec` of a node's NodeMetric: how usage is measured, and how peaks are predicted.

It follows from the policy in the node's record, which stays while the ConfigMap is invalid.
"""

from typing import Any

from pipeline.processors.kubernetes.durations import duration_text, timestamp_seconds
from pipeline.processors.policy.colocation_config import (
    COLOCATION,
    DEFAULTS,
    MEMORY_COLLECT_POLICIES,
    Colocation,
    bounded,
)
from pipeline.processors.policy.config_sections import document
from pipeline.processors.slo.nodemetric import PredictPolicy
from pipeline.topics.nodes import NodeRecord


def metric_spec(node: NodeRecord) -> dict[str, Any] | None:
    """The spec of this node's NodeMetric; None before the first valid policy: leave it unchanged.

    Defaults hold if colocation is off and for fields that are not set. An invalid duration is left
    out, an unknown memory policy is the default, and implausibly large values are limited.
    """
    if node.colocation is None:
        return None
    policy = DEFAULTS
    if node.overcommit is not None:
        policy = bounded(COLOCATION.convert(node.colocation))
    spec: dict[str, Any] = {"metricCollectPolicy": _collect_policy(policy)}
    if predict := document(policy.node_predict_policy or PredictPolicy()):
        spec["predictPolicy"] = predict
    return spec


def _collect_policy(policy: Colocation) -> dict[str, Any]:
    memory = policy.metric_memory_collect_policy
    aggregate = policy.metric_aggregate_policy or DEFAULTS.metric_aggregate_policy
    assert aggregate is not None
    seconds = [timestamp_seconds(text) for text in aggregate.durations or ()]
    return {
        "aggregateDurationSeconds": policy.metric_aggregate_duration_seconds
        or DEFAULTS.metric_aggregate_duration_seconds,
        "reportIntervalSeconds": policy.metric_report_interval_seconds
        or DEFAULTS.metric_report_interval_seconds,
        "nodeAggregatePolicy": {
            "durations": [duration_text(length) for length in seconds if length]
        },
        "nodeMemoryCollectPolicy": memory
        if memory in MEMORY_COLLECT_POLICIES
        else DEFAULTS.metric_memory_collect_policy,
    }
