"""The `spec` of a node's NodeMetric: how usage is measured, and how peaks are predicted.

It follows from the policy in the node's record, which stays while the ConfigMap is invalid.
"""

from typing import Any, Final

from pipeline.processors.kubernetes.durations import duration_text, timestamp_seconds
from pipeline.processors.policy.colocation_config import (
    COLOCATION,
    DEFAULTS,
    Colocation,
    bounded,
)
from pipeline.processors.policy.config_sections import document
from pipeline.processors.slo.nodemetric import PredictPolicy
from pipeline.settings.base import MemoryCollectPolicy
from pipeline.topics.nodes import NodeRecord, Strategy

_DEFAULT: Final = Strategy().memory_collect_policy


def metric_spec(
    node: NodeRecord, default_memory_policy: MemoryCollectPolicy = _DEFAULT
) -> dict[str, Any] | None:
    """The spec of this node's NodeMetric; None before the first valid policy: leave it unchanged.

    Defaults hold if colocation is off and for fields that are not set. An invalid duration is left
    out, and implausibly large values are limited. The memory policy is that of the node's windows:
    `default_memory_policy`, the worker's, unless the node's strategy names another.
    """
    if node.colocation is None:
        return None
    policy = DEFAULTS
    if node.overcommit is not None:
        policy = bounded(COLOCATION.convert(node.colocation))
    memory = node.strategy and node.strategy.memory_collect_policy
    spec: dict[str, Any] = {
        "metricCollectPolicy": _collect_policy(policy)
        | {"nodeMemoryCollectPolicy": memory or default_memory_policy}
    }
    if predict := document(policy.node_predict_policy or PredictPolicy()):
        spec["predictPolicy"] = predict
    return spec


def _collect_policy(policy: Colocation) -> dict[str, Any]:
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
    }
