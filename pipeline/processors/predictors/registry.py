"""Which predictors there are, and the ones that a model runs.

Owes the rest: predictors by name, ours and those of other packages alike, found by the entry point
group `springtide.predictors`. What an entry point names is called with the predictor's options.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from inspect import signature
from typing import Any, Final, NamedTuple

from pipeline.errors import PredictorError
from pipeline.processors.model.predictor import Predictor, fault_of

GROUP: Final = "springtide.predictors"


class Keys(NamedTuple):
    """Where the names of predictors and their options were written."""

    names: str = "model.predictors"
    options: str = "model.predictor_options"


_SETTINGS: Final = Keys()


@cache
def available() -> Mapping[str, EntryPoint]:
    """Entry points by predictor name, in order of name."""
    return {point.name: point for point in sorted(entry_points(group=GROUP), key=_name)}


def packages_with(name: str) -> list[str]:
    """The packages that have a predictor of this name; where it is more than one, none can run."""
    return sorted(package_of(point) for point in entry_points(group=GROUP, name=name))


def build(
    names: Sequence[str], options: Mapping[str, Mapping[str, Any]], keys: Keys = _SETTINGS
) -> dict[str, Predictor]:
    """One predictor for each name, in that order, made with its options.

    Raises `PredictorError`, which names one of `keys`, for a name that no package or more than one
    provides, one that is there twice, one that cannot be loaded, options that it does not take, and
    options for a predictor that does not run.
    """
    if len(set(names)) < len(names):
        raise _error(keys.names, f"predictors are named twice: {', '.join(names)}")
    if idle := sorted(options.keys() - set(names)):
        raise _error(
            keys.options,
            f"options for {', '.join(idle)}, which does not run",
            hint=f"add it to {keys.names}, or remove its options",
        )
    return {name: _make(name, options.get(name, {}), keys) for name in names}


def _make(name: str, options: Mapping[str, Any], keys: Keys) -> Predictor:
    make = _load(name, keys)
    known = _options_of(make)
    if known is not None and (unknown := sorted(options.keys() - known)):
        raise _error(
            keys.options,
            f"predictor {name} has no option {unknown[0]!r:.100}",
            hint=f"its options are {', '.join(known)}" if known else "it has none",
        )
    try:
        made = make(**options)
    except Exception as error:  # somebody else's code: there is nothing that it cannot raise
        raise _error(
            keys.options, f"predictor {name}: {error}", hint="see docs/explanation/models.md"
        ) from error
    if (own := getattr(made, "name", None)) != name:
        raise _error(keys.names, f"entry point {name!r} makes a predictor named {own!r:.100}")
    if problem := fault_of(made):
        raise _error(keys.names, f"predictor {name}: {problem}")
    predictor: Predictor = made
    return predictor


def _options_of(make: Any) -> list[str] | None:
    """The names that a predictor can be made with; None where that cannot be told."""
    try:
        parameters = signature(make).parameters.values()
    except (TypeError, ValueError):
        return None
    return (
        None if any(p.kind is p.VAR_KEYWORD for p in parameters) else [p.name for p in parameters]
    )


def _load(name: str, keys: Keys) -> Any:
    """What the entry point of this name leads to."""
    point = available().get(name)
    if point is None:
        raise _error(
            keys.names,
            f"there is no predictor {name!r:.100}",
            hint=f"use one of {', '.join(available())}, or install the package that has it",
        )
    if len(packages := packages_with(name)) > 1:
        raise _error(
            keys.names,
            f"predictor {name} is in more than one package: {', '.join(packages)}",
            hint="uninstall all but one of them, or give theirs another name",
        )
    try:
        return point.load()
    except Exception as error:  # as there
        raise _error(
            keys.names, f"predictor {name} of {package_of(point)} cannot be loaded: {error!r}"
        ) from error


def _error(key: str, problem: str, hint: str | None = None) -> PredictorError:
    return PredictorError(f"{key}: {problem}", key=key, hint=hint)


def package_of(point: EntryPoint) -> str:
    """Name and version of the package that an entry point comes from."""
    return f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown package"


def _name(point: EntryPoint) -> str:
    return point.name
