"""Results of `springtide calibrate` as text, as a document, and as settings to paste."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final

import yaml

from pipeline.processors.backtest.calibration import Calibration, ResourceResult
from pipeline.processors.backtest.protocol import FleetScores
from pipeline.processors.backtest.setting_grid import Setting, uses_multiplier
from pipeline.processors.explain.text_columns import align_columns
from pipeline.processors.model.model_config import RESOURCES
from pipeline.processors.policy.springtide_config import KEY
from pipeline.settings import Settings

VERSION: Final = 1
_HOUR: Final = 3600
_DAY: Final = 86_400
_HEADERS: Final = (
    "RESOURCE", "CHOSEN", "JUDGED", "INTERVAL", "SURE", "SAVES", "NOW", "SAVES",
)  # fmt: skip


def fragment(setting: Setting, settings: Settings) -> dict[str, Any]:
    """The section `model` of a settings file with this setting; the rest stays as it is."""
    model = settings.model
    names = [*model.predictors]
    if setting.predictor not in names:
        names.append(setting.predictor)
    options = {name: dict(own) for name, own in model.predictor_options.items()}
    if own := {**options.get(setting.predictor, {}), **setting.options}:
        options[setting.predictor] = own
    values = setting.model
    if not uses_multiplier(setting.predictor):
        del values["nsigma_multiplier"]
    if options:
        values["predictor_options"] = options
    return {"model": {"predictors": names, "predictor": setting.predictor, **values}}


def fragment_text(result: Calibration, settings: Settings) -> Iterator[str]:
    """Settings to paste as YAML, with the same of the policy as a comment; nothing without a
    setting."""
    if result.setting is None:
        return
    yield from yaml.safe_dump(fragment(result.setting, settings), sort_keys=False).splitlines()
    yield f"# {KEY} of the policy overrides these, if it has them:"
    yield f"# {json.dumps(result.setting.policy)}"


def yaml_lines(results: Sequence[Calibration], settings: Settings) -> Iterator[str]:
    """The settings of each result as YAML; what they are for is in comments."""
    for result in results:
        yield f"# {_title(result)}"
        yield f"# {reason(result)}"
        yield from fragment_text(result, settings)


def text_lines(results: Sequence[Calibration], target: float, settings: Settings) -> Iterator[str]:
    """The results as tables with what they mean, each with its settings to paste."""
    for number, result in enumerate(results):
        if number:
            yield ""
        yield f"{_title(result)}, at most {100 * target:g}% violations"
        if result.results:
            rows = [_HEADERS, *(_row(each) for each in result.results)]
            for line in align_columns(rows, right=range(1, len(_HEADERS))):
                yield f"  {line}"
        for each in result.results:
            yield f"  {each.suite.resource}: {setting_text(each.setting, each.suite.resource)}"
        for each in result.results:
            if each.alone.shared != each.setting.shared:
                alone = setting_text(each.alone, each.suite.resource)
                saves = _percent(each.alone_judged_on.savings)
                yield f"  {each.suite.resource} alone: {alone}, saves {saves}"
        yield f"  {reason(result)}"
        if result.setting is not None:
            yield ""
        yield from fragment_text(result, settings)


def reason(result: Calibration) -> str:
    """What the result means."""
    match result.outcome:
        case "reached":
            return "the rate held in the later half, which did not choose the setting"
        case "missed":
            return "not reached: the rate was higher in the later half; declare a lower one"
        case "unreached":
            return "not reached: no setting has so low a rate in the earlier half; the closest"
    needed = result.needed_seconds or 0.0
    length = result.trace.steps * result.trace.step_seconds
    if needed <= length:
        return "too short to be sure: the usage of too many nodes is unknown"
    return (
        f"too short to be sure: {_days(length)} of {len(result.trace.nodes)} nodes, about "
        f"{_days(needed)} are needed; collect more, or declare a higher rate"
    )


def setting_text(setting: Setting, resource: str) -> str:
    """A setting in words, for one resource. A declared risk stands in place of a margin."""
    if setting.risk is not None:
        return f"{setting.predictor}, risk {100 * setting.risk:g}%"
    r = RESOURCES.index(resource)
    parts = [setting.predictor]
    if setting.quantiles is not None:
        parts.append(f"quantile {setting.quantiles[r]:g}")
    if uses_multiplier(setting.predictor):
        parts.append(f"N {setting.nsigma_multiplier:g}")
    parts.append(f"half-life {setting.half_life_seconds[r] / _HOUR:g} h")
    return ", ".join([*parts, f"margin {setting.safety_margin_percent:g}%"])


def _title(result: Calibration) -> str:
    trace, suite = result.trace, result.suites[0]
    return (
        f"{trace.dataset}/{trace.scenario}, {_days(trace.steps * trace.step_seconds)}, "
        f"{len(trace.nodes)} nodes, horizon {suite.horizon_hours:g} h"
    )


def _days(seconds: float) -> str:
    return f"{seconds / _DAY:.1f} days"


def _row(result: ResourceResult) -> tuple[str, ...]:
    confidence = result.confidence
    return (
        result.suite.resource,
        _percent(result.chosen_on.violation),
        _percent(result.judged_on.violation),
        f"{_percent(confidence.low)} to {_percent(confidence.high)}",
        f"{100 * confidence.sureness:.0f}%",
        _percent(result.judged_on.savings),
        _percent(result.present.violation),
        _percent(result.present.savings),
    )


def _percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{100 * share:.1f}%"


def document(results: Sequence[Calibration], target: float, settings: Settings) -> dict[str, Any]:
    """The results as JSON values. Shares are 0 to 1; null is unknown."""
    return {
        "version": VERSION,
        "violation": target,
        "items": [_item(result, settings) for result in results],
    }


def _item(result: Calibration, settings: Settings) -> dict[str, Any]:
    trace, suite, setting = result.trace, result.suites[0], result.setting
    return {
        "dataset": trace.dataset,
        "scenario": trace.scenario,
        "nodes": len(trace.nodes),
        "history_seconds": trace.steps * trace.step_seconds,
        "needed_seconds": result.needed_seconds,
        "horizon_hours": suite.horizon_hours,
        "burn_in_hours": suite.burn_in_hours,
        "outcome": result.outcome.replace(" ", "_"),
        "reason": reason(result),
        "settings": None if setting is None else fragment(setting, settings),
        "policy": None if setting is None else {KEY: setting.policy},
        "resources": [
            {
                "resource": each.suite.resource,
                "setting": setting_text(each.setting, each.suite.resource),
                "chosen_on": _scores(each.chosen_on),
                "judged_on": _scores(each.judged_on),
                "confidence": asdict(each.confidence),
                "present": _scores(each.present),
                "alone": {
                    "setting": setting_text(each.alone, each.suite.resource),
                    "judged_on": _scores(each.alone_judged_on),
                },
            }
            for each in result.results
        ],
    }


def _scores(scores: FleetScores) -> dict[str, float | None]:
    return {
        name: None if math.isnan(value) else round(value, 6)
        for name, value in asdict(scores).items()
    }
