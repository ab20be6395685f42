"""Read the files of `springtide backtest` with variants and suites: YAML or JSON."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta, field

from pipeline.agents.bank_settings import model_config
from pipeline.cli.file_arguments import argument_name, read_argument
from pipeline.errors import UsageError
from pipeline.input_files import YAML_ERRORS, yaml_documents, yaml_problem
from pipeline.processors.backtest.replay import Counts, Variant
from pipeline.processors.backtest.suites import Name, Suite, check_suites
from pipeline.processors.model.predictor import may_decide
from pipeline.processors.predictors.registry import build
from pipeline.settings import Settings, settings_with

_DOCUMENTATION: Final = "docs/reference/backtest.md"
MOST_VARIANTS: Final = 1000
_T = TypeVar("_T")


class _VariantFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Name
    predictor: Name
    options: dict[str, Any] = field(default_factory=dict)
    counts: Counts | None = None
    model: dict[str, Any] = field(default_factory=dict)


class _Variants(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    variants: Annotated[list[_VariantFile], Meta(min_length=1, max_length=MOST_VARIANTS)]


class _Suites(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    suites: Annotated[list[Suite], Meta(min_length=1, max_length=1000)]


def read_suites(path: Path) -> list[Suite]:
    """The suites of a file. Raises `UsageError` if it is none."""
    suites = _read(path, _Suites).suites
    check_suites(suites)
    return suites


def read_variants(path: Path, settings: Settings) -> list[Variant]:
    """The variants of a file: `settings` with those of each variant on top.

    Raises `UsageError` if the file is none, `SettingsError` or `PredictorError` for the settings of
    a variant, which names the variant.
    """
    return [
        variant_of(entry.name, entry.predictor, entry.options, entry.counts, entry.model, settings)
        for entry in _read(path, _Variants).variants
    ]


def variant_of(
    name: str,
    predictor: str,
    options: Mapping[str, Any],
    counts: Counts | None,
    model: Mapping[str, Any],
    settings: Settings,
) -> Variant:
    """A variant by its predictor, options, and settings of the section `model` on top of others.

    What counts is by default what the product gives away; of a predictor that may not decide about
    that, the peak of the node.
    """
    own = {"predictors": [predictor], "predictor": predictor, "predictor_options": {}}
    if options:
        own["predictor_options"] = {predictor: dict(options)}
    settings = settings_with(settings, {"model": {**model, **own}}, f"variant {name!r:.100}")
    config = model_config(settings)
    decides = may_decide(build([predictor], config.options)[predictor])
    return Variant(name=name, config=config, counts=counts or ("prod" if decides else "node"))


def settings_variants(settings: Settings) -> list[Variant]:
    """A variant of each predictor of the settings."""
    options = settings.model.predictor_options
    return [
        variant_of(name, name, options.get(name, {}), None, {}, settings)
        for name in settings.model.predictors
    ]


def check_variants(variants: list[Variant]) -> None:
    """Raise `UsageError` if two variants have one name."""
    names = [variant.name for variant in variants]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(
            f"two variants are called {twice[0]!r:.100}", hint="give each variant its own name"
        )


def _read(path: Path, kind: type[_T]) -> _T:
    name = argument_name(path)
    hint = f"{_DOCUMENTATION} has an example"
    try:
        documents = yaml_documents(read_argument(path))
    except YAML_ERRORS as error:
        raise UsageError(f"{name} is not valid YAML: {yaml_problem(error)}", hint=hint) from error
    if len(documents) != 1:
        raise UsageError(f"{name} has {len(documents)} documents, not one", hint=hint)
    try:
        return msgspec.convert(documents[0], kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"{name}: {error}", hint=hint) from error
