"""Groups of the colocation policy, read as from the ConfigMap."""

import json

from pipeline.processors.policy.colocation_config import (
    COLOCATION,
    DEFAULTS,
    Colocation,
    problems_of,
)
from pipeline.processors.policy.config_sections import document
from pipeline.processors.policy.effective_strategy import effective_strategy
from pipeline.processors.policy.load_configmap import Policy, load_section
from tests.vectors.cases import Case, plain
from tests.vectors.runner import group

KEY = COLOCATION.key

_CACHES = {
    "none": None,
    "default": Policy(DEFAULTS),
    "old": Policy(Colocation(metric_aggregate_duration_seconds=5)),
}


@group("load_configmap.load, effective")
def node_strategy(case: Case) -> object:
    """The strategy of a node without the defaults: cluster, entries, annotation, labels."""
    config, node = plain(case["config"]), plain(case["node"])
    if config is None or node is None:
        return {"strategy": None}
    loaded = load_section(COLOCATION, {KEY: json.dumps(config)}).policy
    assert loaded is not None
    cluster = {name: value for name, value in config.items() if name != "nodeConfigs"}
    policy = Policy(COLOCATION.convert(cluster), loaded.entries)
    labels, annotations = node.get("labels") or {}, node.get("annotations") or {}
    return {"strategy": document(effective_strategy(policy, labels, annotations).strategy)}


@group("colocation_config.problems_of")
def strategy_valid(case: Case) -> object:
    strategy = plain(case["strategy"])
    return {"valid": strategy is not None and not [*problems_of(COLOCATION.convert(strategy))]}


@group("load_configmap.load")
def configmap_sync(case: Case) -> object:
    last = _CACHES[case["cache"]]
    configmap = plain(case["configmap"])
    loaded = load_section(COLOCATION, configmap, last)
    answer: Case = {
        "changed": loaded.policy != last,
        # A configuration that was usable before stays in force.
        "available": case["cache_available"] or loaded.policy is not None,
        "error": loaded.failed,
        "effective": "kept",
        "node_configs": "kept",
    }
    if loaded.policy is not None and (not loaded.failed or configmap is None):
        answer |= _read(loaded.policy)
    return answer


def _read(policy: Policy[Colocation]) -> Case:
    usual, cluster = document(DEFAULTS), document(policy.cluster)
    changed = {name: value for name, value in cluster.items() if usual.get(name) != value}
    return {"effective": changed, "node_configs": [document(entry.own) for entry in policy.entries]}
