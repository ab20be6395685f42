"""The predictors of other systems with their defaults, as variants of this one's.

Koordinator, and the buckets of all histograms: koordinator-sh/koordinator. VPA: the recommender of
kubernetes/autoscaler. Crane: gocrane/crane. `RC-like`, `borg-default`, `N-sigma, Google` and `max`:
the simulator of Bashir et al., Take it to the limit (EuroSys 2021). N-sigma v1 and v2 are in a
design note of Koordinator. Pods younger than two hours count their requests.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from pipeline.processors.backtest.replay import Counts, Variant
from pipeline.processors.model.model_config import KOORDINATOR, ModelConfig
from pipeline.topics.nodes import Strategy

_DAY_SECONDS: Final = 86_400.0
_WARM_UP_SECONDS: Final = 7200.0 - 1
"""A pod of two hours counts its own peak."""
_DAILY: Final = replace(KOORDINATOR, half_life_seconds=(_DAY_SECONDS, _DAY_SECONDS))


def _variant(
    name: str,
    predictor: str,
    counts: Counts,
    options: dict[str, Any] | None = None,
    **settings: Any,
) -> Variant:
    profile = settings.pop("profile", KOORDINATOR)
    usual = {
        "safety_margin_percent": 0.0,
        "cold_start_seconds": _WARM_UP_SECONDS,
        "cold_start_samples": 0,
    }
    config = ModelConfig(
        profile=profile,
        options={predictor: options} if options else {},
        strategy=Strategy(predictor=predictor, **usual | settings),
    )
    return Variant(name=name, config=config, counts=counts)


def _percentile_options(percent: int, hours: int) -> dict[str, Any]:
    share = percent / 100
    return {
        "cpu": share,
        "memory": share,
        "history_seconds": hours * 3600,
        "interpolation": "linear",
    }


def _recent_percentile(percent: int, hours: int) -> Variant:
    options = _percentile_options(percent, hours)
    return _variant(f"RC-like p{percent}, {hours}h", "resource-central", "pods", options)


def _recent_nsigma(sigmas: int, hours: int) -> Variant:
    return _variant(
        f"N-sigma {sigmas}, Google, {hours}h",
        "recent-nsigma",
        "node",
        {"history_seconds": hours * 3600},
        nsigma_multiplier=float(sigmas),
    )


def _maximum(hours: int) -> Variant:
    members = {
        "recent-nsigma": {"history_seconds": hours * 3600},
        "resource-central": _percentile_options(99, hours),
    }
    return _variant(
        f"max(N-sigma 5, RC p99), {hours}h",
        "max",
        "node",
        {"members": [*members], "options": members},
        nsigma_multiplier=5.0,
    )


def _quantile(name: str, percent: int, margin_percent: int) -> Variant:
    return _variant(
        name,
        "percentile",
        "limited",
        {"cpu": percent / 100, "memory": percent / 100},
        profile=_DAILY,
        safety_margin_percent=float(margin_percent),
    )


PEERS: Final = (
    _variant("borg-default 0.9", "borg-default", "node", {"a": 1 / 0.9}),
    _variant("borg-default 1/1.1", "borg-default", "node", {"a": 1.1}),
    _recent_percentile(95, 10),
    _recent_percentile(99, 10),
    _recent_percentile(99, 24),
    _recent_nsigma(3, 10),
    _recent_nsigma(5, 10),
    _recent_nsigma(5, 24),
    _variant("N-sigma v1, N=3", "nsigma-v1", "node", nsigma_multiplier=3.0),
    _variant("N-sigma v1, N=5", "nsigma-v1", "node", nsigma_multiplier=5.0),
    _variant("N-sigma v2, N=3", "nsigma-v2", "node", nsigma_multiplier=3.0),
    _variant("N-sigma v2, N=5", "nsigma-v2", "node", nsigma_multiplier=5.0),
    _maximum(10),
    _maximum(24),
    _quantile("hist p90 24h +15% (VPA target)", 90, 15),
    _quantile("hist p98 24h +10%", 98, 10),
    _quantile("hist p99 24h +15% (Crane)", 99, 15),
    _variant(
        "Koordinator (p95/12h cpu, p98/24h mem, +10%)",
        "percentile",
        "koordinator",
        safety_margin_percent=10.0,
        cold_start_seconds=_DAY_SECONDS - 1,
    ),
)
"""Named as in published tables of the same protocol."""
