"""Groups of what a policy means for the objects of a node."""

import json

from pipeline.processors.policy.amplification import (
    AMPLIFICATION,
    amplification_ratios,
    ratios_text,
)
from pipeline.processors.policy.colocation_config import DEFAULTS
from pipeline.processors.policy.load_configmap import Policy
from pipeline.processors.policy.nodemetric_spec import metric_spec
from pipeline.processors.policy.normalization import (
    CPU_INFO,
    ENABLED,
    NORMALIZATION,
    RATIO,
    ratio_text,
    read_cpu_info,
    read_ratio,
)
from pipeline.processors.policy.policy_in_force import Policies, load_policies, with_policy
from pipeline.processors.policy.springtide_config import DEFAULTS as OWN_DEFAULTS
from pipeline.topics.codec import decode_json
from pipeline.topics.nodes import NodeRecord
from tests.vectors.cases import Case, plain
from tests.vectors.runner import ERROR, Difference, NotBuiltError, group


def _last_good_configuration(given: Case, expected: Case) -> Difference | None:
    """While the configuration is invalid, upstream leaves an existing spec alone."""
    old = given["old_spec"]
    if old is None or expected.get("metricCollectPolicy") != old:
        return None
    defaults = {
        "aggregateDurationSeconds": 300, "reportIntervalSeconds": 60,
        "nodeAggregatePolicy": {"durations": ["5m0s", "10m0s", "30m0s"]},
        "nodeMemoryCollectPolicy": "usageWithoutPageCache",
    }  # fmt: skip
    return Difference(
        "while the configuration is invalid, the last valid one decides the spec",
        "a NodeMetric that was edited by hand is set back although the configuration is invalid",
        {"metricCollectPolicy": defaults},
    )


@group("load_policies, with_policy, metric_spec", differs=_last_good_configuration)
def nodemetric_spec(case: Case) -> object:
    """The spec that the actuator gives a NodeMetric, from a cache that holds the defaults."""
    node = plain(case["node"])
    plain(case["old_spec"])
    configmap = plain(case["configmap"])
    if node is None:
        return ERROR
    record = decode_json(NodeRecord, json.dumps({"version": 1, "node": "a", **node}).encode())
    policies, _ = load_policies(configmap, Policies(Policy(DEFAULTS), Policy(OWN_DEFAULTS)))
    return metric_spec(with_policy(record, policies)[0])


@group("normalization.ratio_text")
def cpu_normalization(case: Case) -> object:
    if "old" in case:
        raise NotBuiltError("nobody writes the annotation of CPU ratios")
    info = case["cpu_info"]
    annotations = {} if info is None else {CPU_INFO: json.dumps(plain(info))}
    labels = {ENABLED: case["node_label"]} if case.get("node_label") is not None else {}
    strategy = NORMALIZATION.convert(plain(case["strategy"]))
    return {"annotation": ratio_text(strategy, labels, read_cpu_info(annotations))}


@group("amplification.ratios_text")
def resource_amplification(case: Case) -> object:
    if "config" not in case:
        raise NotBuiltError("nobody admits Nodes and Pods with amplified amounts")
    text = case["cpu_normalization_ratio"]
    normalization = read_ratio({} if text is None else {RATIO: text})
    config = AMPLIFICATION.convert(plain(case["config"]))
    written = ratios_text(amplification_ratios(config, normalization))
    return {"annotation": written and json.loads(written, parse_float=str)}
