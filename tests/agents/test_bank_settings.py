"""Settings as configuration of the bank: what a class sets, and what it inherits."""

from pathlib import Path

import numpy as np
import pytest

from pipeline.agents.bank_settings import model_config
from pipeline.errors import SettingsError
from pipeline.processors.kubernetes.pod_classes import CLASSES
from pipeline.processors.model.model_config import KOORDINATOR, VPA, ModelConfig, Profile
from pipeline.settings import BucketSettings, HistogramSettings, Settings, load_settings
from pipeline.settings.model_settings import CLASSES as CLASSES_OF_THE_SETTINGS
from pipeline.settings.model_settings import ModelSettings
from pipeline.topics.nodes import Strategy


def config(tmp_path: Path, model: str) -> ModelConfig:
    path = tmp_path / "springtide.yaml"
    path.write_text(f"model: {model}")
    return model_config(load_settings(path, {}, {}))


def profile(tmp_path: Path, name: str, model: str) -> Profile:
    """Return the profile of the class `name`."""
    converted = config(tmp_path, model)
    return converted.profiles[converted.profile_index(name)]


def test_settings_have_the_classes_of_the_log() -> None:
    assert CLASSES_OF_THE_SETTINGS == CLASSES


def test_defaults_are_those_of_koordinator_for_every_class(tmp_path: Path) -> None:
    assert config(tmp_path, "{}").profiles == (KOORDINATOR,)


def test_settings_outside_of_profiles_are_passed_on(tmp_path: Path) -> None:
    converted = config(
        tmp_path,
        "{training_statistic: avg, memory_collect_policy: usageWithPageCache, drift: shorten,"
        " minimum_coverage: 0.25, expiration_seconds: 60}",
    )
    assert converted == ModelConfig(
        training_statistic="avg", drift="shorten", minimum_coverage=0.25, expiration_seconds=60.0,
        strategy=Strategy(memory_collect_policy="usageWithPageCache"),
    )  # fmt: skip


def test_a_class_inherits_a_half_life_that_it_does_not_set(tmp_path: Path) -> None:
    batch = profile(
        tmp_path,
        "batch",
        "{half_life_seconds: {cpu: 3600, memory: 604800},"
        " classes: {batch: {half_life_seconds: {cpu: 1800}}}}",
    )
    assert batch.half_life_seconds == (1800.0, 604_800.0)


def test_a_class_inherits_a_preset_that_it_does_not_set(tmp_path: Path) -> None:
    free = profile(
        tmp_path,
        "free",
        "{histogram: {preset: vpa}, classes: {free: {histogram: {cpu: {max: 64}}}}}",
    )
    cpu, memory = free.layouts
    assert (cpu.buckets or ())[:3] == (*(VPA.layouts[0].buckets or ())[:2], 64)
    assert (memory, free.half_life_seconds) == (VPA.layouts[1], VPA.half_life_seconds)


def test_a_class_inherits_bucket_fields_that_it_does_not_set(tmp_path: Path) -> None:
    free = profile(
        tmp_path,
        "free",
        "{histogram: {cpu: {first: 0.05, max: 128}},"
        " classes: {free: {histogram: {cpu: {max: 64}}}}}",
    )
    assert (free.layouts[0].buckets or ())[::2][:2] == (0.05, 64)


def test_a_class_can_set_another_preset(tmp_path: Path) -> None:
    model = "{histogram: {preset: vpa}, classes: {free: {histogram: {preset: koordinator}}}}"
    assert profile(tmp_path, "free", model) == KOORDINATOR
    assert profile(tmp_path, "prod", model) == VPA


def test_general_half_lives_override_the_preset_of_a_class(tmp_path: Path) -> None:
    free = profile(
        tmp_path,
        "free",
        "{half_life_seconds: {cpu: 3600}, classes: {free: {histogram: {preset: vpa}}}}",
    )
    assert free.half_life_seconds == (3600.0, VPA.half_life_seconds[1])
    assert free.layouts == VPA.layouts


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("epsilon", 0.71), ("epsilon", 0.0), ("first", 0.0), ("first", 1e19), ("first", 1e-300),
        ("ratio", 1.0), ("ratio", 1e100), ("max", -1.0), ("max", 1e200),
    ],
)  # fmt: skip
def test_impossible_buckets_are_refused_with_their_key(
    tmp_path: Path, field: str, bad: float
) -> None:
    with pytest.raises(SettingsError, match=f"model.histogram.cpu.{field}"):
        config(tmp_path, f"{{histogram: {{cpu: {{{field}: {bad}}}}}}}")


@pytest.mark.parametrize(
    ("cpu", "message"),
    [
        ("{first: 2, max: 1}", r"model\.histogram\.cpu\.max: 1 is .* at least first, which is 2"),
        ("{max: 0.01}", r"model\.histogram\.cpu\.max: 0\.01 is .* first, which is 0\.025"),
        ("{first: 2000}", r"model\.histogram\.cpu\.first: 2000 is .* at most max, which is 1024"),
    ],
)
def test_a_first_bucket_above_the_last_is_refused(tmp_path: Path, cpu: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        config(tmp_path, f"{{histogram: {{cpu: {cpu}}}}}")
    with pytest.raises(SettingsError, match=message.replace("model", r"model\.classes\.batch", 1)):
        config(tmp_path, f"{{classes: {{batch: {{histogram: {{cpu: {cpu}}}}}}}}}")


def test_overflowing_buckets_are_a_settings_error() -> None:
    buckets = BucketSettings(first=1.0, ratio=1e100, max=1e300)
    model = ModelSettings(histogram=HistogramSettings(cpu=buckets))
    with pytest.raises(SettingsError, match=r"model\.histogram\.cpu"):
        model_config(Settings(model=model))


@pytest.mark.parametrize("first", [0.001, 1e18])
@pytest.mark.parametrize("ratio", [1.0 + 1e-15, 1.05, 1000.0])
@pytest.mark.parametrize("most", [0.001, 1e18])
def test_buckets_at_the_ends_of_their_ranges_are_layouts_or_settings_errors(
    tmp_path: Path, first: float, ratio: float, most: float
) -> None:
    cpu = f"{{first: {first:.3f}, ratio: {ratio}, max: {most:.3f}, epsilon: 0.7}}"
    try:
        layout = config(tmp_path, f"{{histogram: {{cpu: {cpu}}}}}").profile.layouts[0]
    except SettingsError as error:
        assert first > most or "let them grow faster" in error.message
    else:
        assert np.isfinite(layout.starts).all()
        assert (np.diff(layout.starts) > 0).all()
