"""The settings that `springtide calibrate` tries: margin, quantiles, deviations and half-lives of
predictors, and the risk of those that declare one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pipeline.processors.backtest.replay import declared_risk
from pipeline.processors.calibrated.limits import HIGHEST_RISK, LOWEST_RISK
from pipeline.processors.model.model_config import RESOURCES, ModelConfig
from pipeline.processors.predictors.options import check_fraction
from pipeline.processors.predictors.registry import PREDICTORS

MARGINS: Final = (0.0, 10.0, 20.0, 40.0)
QUANTILES: Final = (0.9, 0.95, 0.98, 0.99, 0.999)
MULTIPLIERS: Final = (2.0, 3.0, 4.0, 5.0)
HALF_LIVES_SECONDS: Final = (43_200.0, 86_400.0, 172_800.0)
RISK_SHARES: Final = (0.25, 0.5, 0.75, 1.0, 1.5)
"""Declared risks as shares of the rate that is searched for."""
_MULTIPLIER: Final = re.compile(r"\bN\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A predictor with settings. `quantiles` and `half_life_seconds` are of cpu and memory; a
    predictor without such options has no quantiles, and no `risk` if it declares none."""

    predictor: str
    safety_margin_percent: float
    nsigma_multiplier: float
    quantiles: tuple[float, float] | None
    half_life_seconds: tuple[float, float]
    risk: float | None = None

    @property
    def shared(self) -> tuple[str, float, float, float]:
        """What holds for both resources at once."""
        risk = 0.0 if self.risk is None else self.risk
        return self.predictor, self.safety_margin_percent, self.nsigma_multiplier, risk

    @property
    def options(self) -> dict[str, float]:
        """Options of the predictor."""
        options = {} if self.risk is None else {"risk": self.risk}
        if self.quantiles is not None:
            options |= zip(RESOURCES, self.quantiles, strict=True)
        return options

    @property
    def model(self) -> dict[str, Any]:
        """Settings of the section `model` without the names of predictors and their options."""
        return {
            "safety_margin_percent": self.safety_margin_percent,
            "nsigma_multiplier": self.nsigma_multiplier,
            "half_life_seconds": dict(zip(RESOURCES, self.half_life_seconds, strict=True)),
        }

    @property
    def policy(self) -> dict[str, Any]:
        """Those that `springtide-config` of the policy can set, too, by its keys."""
        policy: dict[str, Any] = {
            "predictor": self.predictor,
            "safetyMarginPercent": self.safety_margin_percent,
        }
        if uses_multiplier(self.predictor):
            policy["nsigmaMultiplier"] = self.nsigma_multiplier
        return policy


def uses_multiplier(predictor: str) -> bool:
    """Whether the predictor's formula has the multiplier `N` of the strategy."""
    declaration = PREDICTORS.get(predictor).declaration
    formulas = (formula.expression for formula in declaration.formulas)
    terms = (term.formula for term in declaration.terms)
    return any(_MULTIPLIER.search(text) for text in (*formulas, *terms))


def present_setting(config: ModelConfig, predictor: str) -> Setting:
    """The setting of a predictor that this configuration has."""
    return Setting(
        predictor=predictor,
        safety_margin_percent=config.strategy.safety_margin_percent,
        nsigma_multiplier=config.strategy.nsigma_multiplier,
        quantiles=_quantiles(predictor, config.options.get(predictor, {})),
        half_life_seconds=config.profile.half_life_seconds,
        risk=declared_risk(config, predictor),
    )


def _quantiles(predictor: str, options: Mapping[str, Any]) -> tuple[float, float] | None:
    """The quantiles that a predictor takes for each resource."""
    declared = {option.name: option for option in PREDICTORS.get(predictor).declaration.options}
    if any(
        name not in declared or declared[name].check is not check_fraction for name in RESOURCES
    ):
        return None
    cpu, memory = (float(options.get(name, declared[name].default)) for name in RESOURCES)
    return cpu, memory


def grid(present: Setting, target: float) -> Iterator[Setting]:
    """The setting itself, then all others of its predictor that are tried for a rate of violations
    of `target`, the same for cpu and memory.

    Of a predictor that declares a risk, only other risks are tried: it is corrected by outcomes,
    not by a margin, and each risk learns by itself, which takes long.
    """
    yield present
    if present.risk is not None:
        risks = [min(max(share * target, LOWEST_RISK), HIGHEST_RISK) for share in RISK_SHARES]
        others = dict.fromkeys(round(risk, 6) for risk in risks)
        yield from (replace(present, risk=risk) for risk in others if risk != present.risk)
        return
    quantiles = [(share, share) for share in QUANTILES] if present.quantiles else [None]
    multipliers = MULTIPLIERS if uses_multiplier(present.predictor) else [present.nsigma_multiplier]
    for half_life in HALF_LIVES_SECONDS:
        for margin in MARGINS:
            for pair in quantiles:
                for multiplier in multipliers:
                    setting = replace(
                        present,
                        safety_margin_percent=margin,
                        nsigma_multiplier=multiplier,
                        quantiles=pair,
                        half_life_seconds=(half_life, half_life),
                    )
                    if setting != present:
                        yield setting


def joined(cpu: Setting, memory: Setting) -> Setting:
    """The setting that treats each resource as the one given for it; both share the rest."""
    assert cpu.shared == memory.shared
    both = None
    if cpu.quantiles is not None and memory.quantiles is not None:
        both = cpu.quantiles[0], memory.quantiles[1]
    return replace(
        cpu,
        quantiles=both,
        half_life_seconds=(cpu.half_life_seconds[0], memory.half_life_seconds[1]),
    )
