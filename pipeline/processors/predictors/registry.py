"""Which predictors there are, and the ones that a model runs.

Owes the rest: predictors by name, ours and those of other packages alike, found by the entry point
group `springtide.predictors`. What an entry point names is called with the predictor's options.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from pipeline.errors import PredictorError
from pipeline.processors.predictor import Predictor
from pipeline.processors.store import Column

GROUP: Final = "springtide.predictors"


@cache
def available() -> Mapping[str, EntryPoint]:
    """Entry points by predictor name, in order of name."""
    return {point.name: point for point in sorted(entry_points(group=GROUP), key=_name)}


def build(names: Sequence[str], options: Mapping[str, Mapping[str, Any]]) -> dict[str, Predictor]:
    """One predictor for each name, in that order, made with its options.

    Raises `PredictorError` for a name that no package provides, one that is there twice, one that
    cannot be loaded, options that it does not take, and options for a predictor that does not run.
    """
    if len(set(names)) < len(names):
        raise PredictorError(f"predictors are named twice: {', '.join(names)}")
    if idle := sorted(options.keys() - set(names)):
        raise PredictorError(
            f"options for {', '.join(idle)}, which does not run",
            hint="add it to model.predictors, or remove its options",
        )
    return {name: _make(name, options.get(name, {})) for name in names}


def _make(name: str, options: Mapping[str, Any]) -> Predictor:
    point = available().get(name)
    if point is None:
        raise PredictorError(
            f"there is no predictor {name!r:.100}",
            hint=f"use one of {', '.join(available())}, or install the package that has it",
        )
    try:
        make = point.load()
    except Exception as error:  # somebody else's module: there is nothing that it cannot raise
        raise PredictorError(
            f"predictor {name} of {package_of(point)} cannot be loaded: {error!r}"
        ) from error
    try:
        made: Predictor = make(**options)
    except Exception as error:  # as above
        raise PredictorError(f"predictor {name}: {error}", hint="see docs/models.md") from error
    if (own := getattr(made, "name", None)) != name:
        raise PredictorError(f"entry point {name!r} makes a predictor named {own!r:.100}")
    if (prod := getattr(made, "prod", None)) not in ("pair", "classes"):
        raise PredictorError(f"predictor {name}: prod is {prod!r:.100}, not 'pair' or 'classes'")
    columns = getattr(made, "columns", None)
    if not (isinstance(columns, Mapping) and all(isinstance(c, Column) for c in columns.values())):
        raise PredictorError(f"predictor {name}: columns are not `Column`s by name")
    return made


def package_of(point: EntryPoint) -> str:
    """Name and version of the package that an entry point comes from."""
    return f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown package"


def _name(point: EntryPoint) -> str:
    return point.name
