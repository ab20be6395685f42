"""Convert settings to the configuration of the model bank.

A class inherits each field that it does not set from the default profile, and that from its preset.
"""

from typing import TypeVar

import msgspec

from pipeline.errors import SettingsError
from pipeline.processors.model.histogram import Layout, exponential_layout
from pipeline.processors.model.model_config import KOORDINATOR, VPA, ModelConfig, Profile
from pipeline.processors.predictors.registry import PREDICTORS
from pipeline.settings import BucketSettings, HalfLifeSettings, HistogramSettings, Settings
from pipeline.settings.base import Section
from pipeline.settings.model_settings import ModelSettings
from pipeline.topics.nodes import Strategy

_PRESETS = {"koordinator": KOORDINATOR, "vpa": VPA}
_S = TypeVar("_S", bound=Section)


def model_config(settings: Settings) -> ModelConfig:
    """Return the model configuration. Raises SettingsError for impossible histogram buckets."""
    model = settings.model
    default = _profile("model", model.histogram, model.half_life_seconds)
    return ModelConfig(
        profile=default,
        class_profiles={
            name: _profile(
                f"model.classes.{name}",
                _merged(model.histogram, own.histogram),
                _merged(model.half_life_seconds, own.half_life_seconds),
            )
            for name, own in model.classes.items()
            if own.histogram or own.half_life_seconds
        },
        training_statistic=model.training_statistic,
        expiration_seconds=model.expiration_seconds,
        minimum_coverage=model.minimum_coverage,
        horizon_seconds=model.horizon_seconds,
        class_horizon_seconds={
            name: own.horizon_seconds
            for name, own in model.classes.items()
            if own.horizon_seconds is not None
        },
        accuracy_interval_seconds=model.accuracy_interval_seconds,
        predictors=model.predictors,
        options=model.predictor_options,
        drift=model.drift,
        strategy=_strategy(model),
    )


def declared_risks(config: ModelConfig) -> dict[str, float]:
    """The share of peaks that usage may exceed, of each predictor that has the option `risk`."""
    declarations = {name: PREDICTORS.get(name).declaration for name in config.predictors}
    return {
        name: float(declaration.checked(config.options.get(name, {}))["risk"])
        for name, declaration in declarations.items()
        if any(option.name == "risk" for option in declaration.options)
    }


def _strategy(model: ModelSettings) -> Strategy:
    """The strategy of nodes without a policy: each field is the setting of the same name, or has
    its default if there is none."""
    settings = {*Strategy.__struct_fields__} & {*ModelSettings.__struct_fields__}
    return Strategy(**{name: getattr(model, name) for name in settings})


def _merged(default: _S, own: Section | None) -> _S:
    """Return `default` with the fields of `own` that are not None."""
    if own is None:
        return default
    given = {
        name: _merged(getattr(default, name), value) if isinstance(value, Section) else value
        for name, value in msgspec.structs.asdict(own).items()
        if value is not None
    }
    return msgspec.structs.replace(default, **given)


def _profile(key: str, histogram: HistogramSettings, half_life: HalfLifeSettings) -> Profile:
    preset = _PRESETS[histogram.preset]
    cpu, memory = preset.half_life_seconds
    own = (histogram.cpu, histogram.memory)
    layouts = [
        _layout(f"{key}.histogram.{resource}", default, given)
        for resource, default, given in zip(("cpu", "memory"), preset.layouts, own, strict=True)
    ]
    return Profile(
        half_life_seconds=(
            cpu if half_life.cpu is None else half_life.cpu,
            memory if half_life.memory is None else half_life.memory,
        ),
        layouts=(layouts[0], layouts[1]),
    )


def _layout(key: str, default: Layout, given: BucketSettings) -> Layout:
    """Return `default` with the given values; it names the key to mend if the two contradict."""
    if given == BucketSettings():
        return default
    assert default.buckets is not None
    first, ratio, most = (
        own if own is not None else preset
        for own, preset in zip((given.first, given.ratio, given.max), default.buckets, strict=True)
    )
    if first > most:
        name, value, allowed = "max", most, f"at least first, which is {first:g}"
        if given.max is None:
            name, value, allowed = "first", first, f"at most max, which is {most:g}"
        raise SettingsError(
            f"{key}.{name}: {value:g} is not allowed, allowed is {allowed}", key=f"{key}.{name}"
        )
    try:
        return exponential_layout(
            max_value=most,
            first_bucket_size=first,
            ratio=ratio,
            epsilon=default.epsilon if given.epsilon is None else given.epsilon,
        )
    except (ValueError, OverflowError) as error:
        raise SettingsError(f"{key}: {error}", key=key) from error
