"""Find installed predictors and their declarations by name, and create instances for a model.

A predictor is a class with a `declaration`, called with its options. Modules of this package name
it `PREDICTOR`, other packages by the entry point group `springtide.predictors`.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pkgutil import iter_modules
from typing import Any, Final, NamedTuple

from pipeline import __version__, plugins
from pipeline.errors import PredictorError
from pipeline.processors import predictors
from pipeline.processors.model.predictor import Predictor, protocol_violation
from pipeline.processors.predictors.declaration import Declaration

GROUP: Final = "springtide.predictors"


class Keys(NamedTuple):
    """The settings with the names of predictors and their options, for errors."""

    names: str = "model.predictors"
    options: str = "model.predictor_options"


_SETTINGS: Final = Keys()


@cache
def _built_in() -> Mapping[str, EntryPoint]:
    """The predictors of this package, as if entry points named them."""
    modules = (
        import_module(f"{predictors.__name__}.{module.name}")
        for module in iter_modules(predictors.__path__)
    )
    classes = [module.PREDICTOR for module in modules if hasattr(module, "PREDICTOR")]
    return {
        made.name: EntryPoint(made.name, f"{made.__module__}:{made.__name__}", GROUP)
        for made in classes
    }


@cache
def available() -> Mapping[str, EntryPoint]:
    """Entry points by predictor name, in order of name."""
    points = {point.name: point for point in entry_points(group=GROUP)}
    points.update(_built_in())
    return dict(sorted(points.items()))


def packages_with(name: str) -> list[str]:
    """The packages with a predictor of this name. If there is more than one, none can run."""
    points = [*entry_points(group=GROUP, name=name)]
    if name in _built_in():
        points.append(_built_in()[name])
    return sorted({package_of(point) for point in points})


def package_of(point: EntryPoint) -> str:
    """Name and version of the package of a predictor."""
    if point.value.startswith(f"{predictors.__name__}."):
        return f"springtide {__version__}"
    return plugins.package_of(point)


def declaration_of(name: str) -> Declaration:
    """The declaration of an installed predictor.

    Raises `PredictorError` for a name without exactly one package, and for a class that cannot be
    loaded or has no declaration.
    """
    return _declared(name, _load(name, _SETTINGS), _SETTINGS)


def build(
    names: Sequence[str], options: Mapping[str, Mapping[str, Any]], keys: Keys = _SETTINGS
) -> dict[str, Predictor]:
    """Make one predictor for each name, in that order, with its options.

    Raises `PredictorError`, which names one of `keys`, for a name that no package or more than one
    provides, a name that occurs twice, a class that cannot be loaded, options that a predictor does
    not take, and options for a predictor that does not run.
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
    known = [option.name for option in _declared(name, make, keys).options]
    if unknown := sorted(options.keys() - {*known}):
        raise _error(
            keys.options,
            f"predictor {name} has no option {unknown[0]!r:.100}",
            hint=f"its options are {', '.join(known)}" if known else "it has none",
        )
    try:
        made = make(**options)
    except (Exception, SystemExit) as error:  # foreign code may raise anything, or exit
        raise _error(
            keys.options, f"predictor {name}: {error}", hint="see docs/explanation/models.md"
        ) from error
    if (own := getattr(made, "name", None)) != name:
        raise _error(keys.names, f"entry point {_where(name)} makes a predictor named {own!r:.100}")
    if fault := protocol_violation(made):
        raise _error(keys.names, f"predictor {_where(name)}: {fault}")
    predictor: Predictor = made
    return predictor


def _declared(name: str, make: Any, keys: Keys) -> Declaration:
    declaration = getattr(make, "declaration", None)
    if not isinstance(declaration, Declaration):
        raise _error(keys.names, f"predictor {_where(name)} has no `declaration`")
    return declaration


def _where(name: str) -> str:
    return f"{name} of {package_of(available()[name])}"


def _load(name: str, keys: Keys) -> Any:
    """The class that the entry point of this name leads to."""
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
            hint="uninstall all but one of them, or rename the predictor of the others",
        )
    try:
        return plugins.load_plugin(point)
    except ImportError as error:
        raise _error(keys.names, f"predictor {error}") from error


def _error(key: str, problem: str, hint: str | None = None) -> PredictorError:
    return PredictorError(f"{key}: {problem}", key=key, hint=hint)
