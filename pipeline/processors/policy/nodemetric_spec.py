"""What a NodeMetric is to ask of its node: how usage is measured, and how peaks are predicted.

Owes the rest: the `spec` of the object, from what the node's record says is in force (colocation 3,
NP-13). While a ConfigMap cannot be used the record keeps what was good, and so does the spec.
"""

from typing import Any

from pipeline.processors.kubernetes.durations import duration_text, seconds_of
from pipeline.processors.policy.colocation_config import (
    COLOCATION,
    DEFAULTS,
    MEMORY_COLLECT_POLICIES,
    Colocation,
    PredictPolicy,
    bounded,
)
from pipeline.processors.policy.config_sections import document
from pipeline.topics.nodes import NodeRecord


def metric_spec(node: NodeRecord) -> dict[str, Any] | None:
    """The spec of the NodeMetric of this node; None while no usable policy was ever read, and it is
    not to be touched.

    Where colocation is off, or something is not said, it is that of the defaults. A span that is no
    duration is left out, a definition of memory that nobody knows is the default, and of a value
    beyond belief the largest that is taken is there.
    """
    if node.colocation is None:
        return None
    said = DEFAULTS
    if node.overcommit is not None:
        said = bounded(COLOCATION.convert(node.colocation))
    spec: dict[str, Any] = {"metricCollectPolicy": _collect_policy(said)}
    if predict := document(said.node_predict_policy or PredictPolicy()):
        spec["predictPolicy"] = predict
    return spec


def _collect_policy(said: Colocation) -> dict[str, Any]:
    memory = said.metric_memory_collect_policy
    policy = said.metric_aggregate_policy or DEFAULTS.metric_aggregate_policy
    assert policy is not None
    seconds = [seconds_of(text) for text in policy.durations or ()]
    return {
        "aggregateDurationSeconds": said.metric_aggregate_duration_seconds
        or DEFAULTS.metric_aggregate_duration_seconds,
        "reportIntervalSeconds": said.metric_report_interval_seconds
        or DEFAULTS.metric_report_interval_seconds,
        "nodeAggregatePolicy": {"durations": [duration_text(one) for one in seconds if one]},
        "nodeMemoryCollectPolicy": memory
        if memory in MEMORY_COLLECT_POLICIES
        else DEFAULTS.metric_memory_collect_policy,
    }
