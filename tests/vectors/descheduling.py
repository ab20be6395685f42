"""Groups of a DeschedulerConfiguration, read as from its ConfigMap."""

import json
from decimal import Decimal
from typing import Any

from pipeline.processors.descheduling.descheduler_config import (
    CONFIG_MAP_KEY,
    Descheduling,
    load_descheduling,
)
from pipeline.processors.kubernetes.durations import duration_text
from pipeline.processors.policy.load_configmap import PolicyProblem
from tests.vectors.cases import Case, plain
from tests.vectors.runner import Difference, group

_PLUGINS = {
    "validate_low_node_load": "LowNodeLoad", "defaults_low_node_load": "LowNodeLoad",
    "validate_migration": "MigrationController",
}  # fmt: skip


def read(plugin: str, args: Case, **keys: Any) -> tuple[Descheduling, list[PolicyProblem]]:
    """Read a configuration with the arguments of a plugin; return the problems not in force."""
    tree = {
        "apiVersion": "descheduler/v1alpha2", "kind": "DeschedulerConfiguration",
        "profiles": [{"name": "a", "pluginConfig": [{"name": plugin, "args": args}]}], **keys,
    }  # fmt: skip
    descheduling, problems = load_descheduling({CONFIG_MAP_KEY: json.dumps(tree)})
    assert descheduling is not None
    return descheduling, [problem for problem in problems if not problem.in_force]


def _zero_is_not_set(given: Case, expected: Case) -> Difference | None:
    runs = (given.get("args") or {}).get("anomalyCondition") or {}
    if expected.get("valid") is not False or 0 not in runs.values():
        return None
    return Difference(
        "a run of 0 windows is not set, as when Koordinator completes a file",
        "the window count of 0 gets its default of 3",
        {"valid": True},
    )


@group("load_descheduling", differs=_zero_is_not_set)
def config(case: Case) -> object:
    if case["kind"] == "detector_cache":
        args = {"detectorCacheTimeout": f"{case['detector_cache_timeout_s']}s"}
        interval = f"{case['descheduling_interval_s']}s"
        low = read("LowNodeLoad", args, deschedulingInterval=interval)[0].low_node_load
        assert low is not None
        return {"effective_s": int(low.args.detector_cache_seconds)}
    args = {
        key.removesuffix("_seconds"): f"{value}s" if key.endswith("_seconds") else value
        for key, value in plain(case["args"]).items()
    }
    descheduling, problems = read(_PLUGINS[case["kind"]], args)
    if case["kind"] == "defaults_low_node_load":
        return {"args": _completed(descheduling)}
    return {"valid": not problems}


def _completed(descheduling: Descheduling) -> Case:
    """The arguments of LowNodeLoad in force, by the keys that Koordinator completes."""
    low = descheduling.low_node_load
    assert low is not None
    *pools, top = [
        {
            "name": pool.name,
            "anomalyCondition": {
                "timeout": _text(pool.anomaly_timeout_seconds),
                "consecutiveAbnormalities": pool.open_windows,
                "consecutiveNormalities": pool.close_windows,
            },
            "resourceWeights": pool.resource_weights,
        }
        for pool in low.pools
    ]
    return {
        **{key: value for key, value in top.items() if key != "name"},
        "nodeFit": low.args.node_fit,
        "nodeMetricExpirationSeconds": low.args.usage_expiration_seconds,
        "detectorCacheTimeout": _text(low.args.detector_cache_seconds),
        "nodePools": pools or None,
    }


def _text(seconds: float) -> str:
    return duration_text(Decimal(seconds))


def eviction_order_result(case: Case) -> object:
    """What is wrong with the tiers of CustomPriority."""
    tiers = [
        {"name": tier["name"], "nodeSelector": labels and {"matchLabels": labels}}
        for tier in plain(case["eviction_order"])
        for labels in [tier.get("node_selector")]
    ]
    _, problems = read("CustomPriority", {"evictionOrder": tiers})
    results = {"not 2 or more": "too_few", "has no nodeSelector": "no_selector"}
    found = [results[part] for part in results for p in problems if p.text.endswith(part)]
    return {"result": found[0] if len(found) == len(problems) == 1 else None}
