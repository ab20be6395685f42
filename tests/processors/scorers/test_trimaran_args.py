"""Arguments of Trimaran's plugins: what is refused by its key, and what holds instead."""

from typing import Any

import pytest

from pipeline.errors import InvalidPolicyError
from pipeline.processors.scorers.trimaran_args import (
    LoadVariationRiskBalancingArgs,
    LowRiskOverCommitmentArgs,
    TargetLoadPackingArgs,
    oddities,
    read_args,
    stated,
)


@pytest.mark.parametrize("version", ["v1beta2", "v1beta3", "v1"])
def test_samples_of_upstream_are_taken(version: str) -> None:
    head = {"apiVersion": f"kubescheduler.config.k8s.io/{version}"}
    provider = {"type": "Prometheus", "address": "http://p:9090"}
    packing = read_args(
        head
        | {
            "kind": "TargetLoadPackingArgs",
            "metricProvider": provider,
            "targetUtilization": 70,
            "defaultRequests": {"cpu": "2000m"},
            "defaultRequestsMultiplier": "1",
        },
        TargetLoadPackingArgs,
    )
    assert (packing.target_utilization, packing.default_millicores, packing.multiplier) == (
        70, 2000, 1.0,
    )  # fmt: skip
    assert packing.metric_provider is not None
    assert packing.metric_provider.insecure_skip_verify is True
    balancing = read_args(
        head | {"safeVarianceMargin": 1, "watcherAddress": "http://w:2020"},
        LoadVariationRiskBalancingArgs,
    )
    assert balancing.metric_provider is None
    assert balancing.safe_variance_sensitivity == 1.0


@pytest.mark.parametrize(
    ("kind", "tree", "says"),
    [
        (TargetLoadPackingArgs, {"targetUtilisation": 40}, "targetUtilisation"),
        (TargetLoadPackingArgs, {"targetUtilization": "40"}, "targetUtilization"),
        (TargetLoadPackingArgs, {"defaultRequests": {"cpu": "much"}}, "no Kubernetes quantity"),
        (TargetLoadPackingArgs, {"defaultRequests": {"cpu": "-1"}}, "less than 0"),
        (TargetLoadPackingArgs, {"defaultRequestsMultiplier": "x"}, "defaultRequestsMultiplier"),
        (TargetLoadPackingArgs, {"defaultRequestsMultiplier": 1.5}, "defaultRequestsMultiplier"),
        (TargetLoadPackingArgs, {"metricProvider": {"type": "Datadog"}}, "metricProvider.type"),
        (LowRiskOverCommitmentArgs, {"riskLimitWeights": {"cpu": "1"}}, "riskLimitWeights"),
        (LowRiskOverCommitmentArgs, {"safeVarianceMargin": 1}, "safeVarianceMargin"),
    ],
)
def test_what_cannot_be_read_is_refused_by_its_key(kind: Any, tree: Any, says: str) -> None:
    with pytest.raises(InvalidPolicyError, match=kind.__name__) as raised:
        read_args(tree, kind)
    assert says in raised.value.message


@pytest.mark.parametrize(
    ("kind", "tree", "says"),
    [
        (TargetLoadPackingArgs, {"targetUtilization": 0}, ["targetUtilization: 0 is of no use"]),
        (LoadVariationRiskBalancingArgs, {"safeVarianceSensitivity": 0}, []),
        (
            LoadVariationRiskBalancingArgs,
            {"safeVarianceMargin": float("nan")},
            ["safeVarianceMargin: nan is of no use, 1.0 holds"],
        ),
        (LowRiskOverCommitmentArgs, {"smoothingWindowSize": -3}, ["smoothingWindowSize: -3"]),
        (LowRiskOverCommitmentArgs, {"riskLimitWeights": {"cpu": 7}}, ["riskLimitWeights"]),
    ],
)
def test_what_is_of_no_use_is_told(kind: Any, tree: Any, says: list[str]) -> None:
    found = list(oddities(stated(tree, kind)))
    assert len(found) == len(says)
    assert all(text in one for text, one in zip(says, found, strict=True))
