"""Settings of a notebook: those of the commands, with values given in Python on top."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.errors import UsageError
from pipeline.settings import Settings, load_settings, settings_with


def read_settings(
    values: Mapping[str, Mapping[str, object]] | None = None, *, file: str | Path | None = None
) -> Settings:
    """The settings of `file`, by default that of SPRINGTIDE_CONFIG, with SPRINGTIDE_ variables and
    then `values`, written as in a settings file, on top.

    Raises `SettingsError` with all problems.
    """
    path = file or os.environ.get("SPRINGTIDE_CONFIG")
    settings = load_settings(Path(path) if path else None, os.environ, {})
    return settings_with(settings, dict(values.items()), "argument values") if values else settings


def with_predictors(settings: Settings, predictors: Sequence[str] | None) -> Settings:
    """These settings with other predictors (None: the same), which keep their options.

    Raises `SettingsError` for an empty list, `UsageError` for a text, whose letters are no names.
    """
    if predictors is None:
        return settings
    if isinstance(predictors, str):
        raise UsageError(
            f"predictors is {predictors!r:.100}, not a list", hint=f"give [{predictors!r:.100}]"
        )
    model, names = settings.model, [*predictors]
    own = {
        "predictors": names,
        "predictor": model.predictor if model.predictor in names else [*names, model.predictor][0],
        "predictor_options": {
            name: options for name, options in model.predictor_options.items() if name in names
        },
    }
    return settings_with(settings, {"model": own}, "argument predictors")
