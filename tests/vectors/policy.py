"""Vector groups of the colocation policy.

What each passes through:

- `node_strategy`: `effective.effective`, over a policy whose cluster part is what the case gives,
  without the defaults; entries are read by `loading.load` as in a ConfigMap.
- `strategy_valid`: `colocation.problems_of`.
- `configmap_sync`: `loading.load`.
"""

import json
from typing import Any

from pipeline.processors.policy.colocation_config import (
    COLOCATION,
    DEFAULTS,
    Colocation,
    problems_of,
)
from pipeline.processors.policy.config_sections import document
from pipeline.processors.policy.effective_strategy import effective
from pipeline.processors.policy.load_configmap import Policy, load

KEY = COLOCATION.key

Case = dict[str, Any]

_CACHES = {
    "none": None,
    "default": Policy(DEFAULTS),
    "old": Policy(Colocation(metric_aggregate_duration_seconds=5)),
}


def node_strategy(case: Case) -> object:
    config, node = case["config"], case["node"]
    if config is None or node is None:
        return {"strategy": None}
    loaded = load(COLOCATION, {KEY: json.dumps(config)}).policy
    assert loaded is not None
    said = COLOCATION.convert(
        {name: value for name, value in config.items() if name != "nodeConfigs"}
    )
    found = effective(
        Policy(said, loaded.entries), node.get("labels", {}), node.get("annotations", {})
    )
    return {"strategy": document(found.strategy)}


def strategy_valid(case: Case) -> object:
    strategy = case["strategy"]
    return {"valid": strategy is not None and not list(problems_of(COLOCATION.convert(strategy)))}


def configmap_sync(case: Case) -> object:
    last = _CACHES[case["cache"]]
    loaded = load(COLOCATION, case["configmap"], last)
    found: Case = {
        "changed": loaded.policy != last,
        # What was usable before stays so.
        "available": case["cache_available"] or loaded.policy is not None,
        "error": loaded.failed,
        "effective": "kept",
        "node_configs": "kept",
    }
    if loaded.policy is not None and (not loaded.failed or case["configmap"] is None):
        found |= _read(loaded.policy)
    return found


def _read(policy: Policy[Colocation]) -> Case:
    usual = document(DEFAULTS)
    cluster = document(policy.cluster)
    differs = {name: value for name, value in cluster.items() if usual.get(name) != value}
    return {"effective": differs, "node_configs": [document(own) for _, _, own in policy.entries]}


ADAPTERS = {
    "node_strategy": node_strategy,
    "strategy_valid": strategy_valid,
    "configmap_sync": configmap_sync,
}
