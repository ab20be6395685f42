"""Arguments of Trimaran's plugins: values that are refused, and values that defaults replace."""

from typing import Any

import pytest

from pipeline.errors import InvalidPolicyError
from pipeline.processors.scorers import (
    load_variation_risk_balancing,
    low_risk_over_commitment,
    target_load_packing,
)
from pipeline.processors.scorers.scorer import Scorer

PACKING = target_load_packing.SCORER
BALANCING = load_variation_risk_balancing.SCORER
LOW_RISK = low_risk_over_commitment.SCORER


@pytest.mark.parametrize("version", ["v1beta2", "v1beta3", "v1"])
def test_upstream_samples_are_read(version: str) -> None:
    head = {"apiVersion": f"kubescheduler.config.k8s.io/{version}"}
    provider = {"type": "Prometheus", "address": "http://p:9090"}
    packing = PACKING.read(
        head
        | {
            "kind": "TargetLoadPackingArgs",
            "metricProvider": provider,
            "targetUtilization": 70,
            "defaultRequests": {"cpu": "2000m"},
            "defaultRequestsMultiplier": "1",
        }
    )
    assert (packing.target_utilization, *packing.packing[1::-1]) == (
        70, 2000, 1.0,
    )  # fmt: skip
    assert packing.metric_provider is not None
    assert packing.metric_provider.insecure_skip_verify is True
    balancing = BALANCING.read(head | {"safeVarianceMargin": 1, "watcherAddress": "http://w:2020"})
    assert (balancing.metric_provider, balancing.safe_variance_sensitivity) == (None, 1.0)


@pytest.mark.parametrize(
    ("scorer", "tree", "says"),
    [
        (PACKING, {"targetUtilisation": 40}, "targetUtilisation"),
        (PACKING, {"targetUtilization": "40"}, "targetUtilization"),
        (PACKING, {"defaultRequests": {"cpu": "much"}}, "is not a Kubernetes quantity"),
        (PACKING, {"defaultRequests": {"cpu": "-1"}}, "less than 0"),
        (PACKING, {"defaultRequestsMultiplier": "x"}, "defaultRequestsMultiplier"),
        (PACKING, {"defaultRequestsMultiplier": 1.5}, "defaultRequestsMultiplier"),
        (PACKING, {"metricProvider": {"type": "Datadog"}}, "metricProvider.type"),
        (LOW_RISK, {"riskLimitWeights": {"cpu": "1"}}, "riskLimitWeights"),
        (LOW_RISK, {"safeVarianceMargin": 1}, "safeVarianceMargin"),
    ],
)
def test_invalid_values_are_refused_by_their_key(scorer: Scorer[Any], tree: Any, says: str) -> None:
    with pytest.raises(InvalidPolicyError, match=f"{scorer.name}Args") as raised:
        scorer.read(tree)
    assert says in raised.value.message


@pytest.mark.parametrize(
    ("scorer", "tree", "says"),
    [
        (PACKING, {"targetUtilization": 0}, ["targetUtilization: 0 is invalid"]),
        (BALANCING, {"safeVarianceSensitivity": 0}, []),
        (BALANCING, {"safeVarianceMargin": float("nan")},
         ["safeVarianceMargin: nan is invalid, 1.0 is used"]),
        (LOW_RISK, {"smoothingWindowSize": -3}, ["smoothingWindowSize: -3"]),
        (LOW_RISK, {"riskLimitWeights": {"cpu": 7}}, ["riskLimitWeights"]),
    ],
)  # fmt: skip
def test_notes_name_values_that_defaults_replace(
    scorer: Scorer[Any], tree: Any, says: list[str]
) -> None:
    result = list(scorer.notes(tree, scorer.read(tree)))
    assert len(result) == len(says)
    assert all(text in note for text, note in zip(says, result, strict=True))
