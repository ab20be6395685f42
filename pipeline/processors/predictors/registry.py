"""Predictors by name: the `PREDICTOR` of each module here, and those of other packages."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from pipeline.errors import PredictorError
from pipeline.plugin_registry import Registry
from pipeline.processors import predictors
from pipeline.processors.model.predictor import Predictor, protocol_violation
from pipeline.processors.predictors.declaration import Declaration


class PredictorClass(Protocol):
    """A predictor before it is made with its options."""

    name: str
    declaration: Declaration

    def __call__(self, **options: Any) -> Predictor: ...


PREDICTORS: Final = Registry[PredictorClass](
    kind="predictor",
    package=predictors,
    attribute="PREDICTOR",
    group="springtide.predictors",
    required="a class with a `declaration`",
    is_valid=lambda plugin: isinstance(getattr(plugin, "declaration", None), Declaration),
    error=lambda problem, hint: PredictorError(problem, hint=hint),
)


class Keys(NamedTuple):
    """The settings with the names of predictors and their options, for errors."""

    names: str = "model.predictors"
    options: str = "model.predictor_options"


_SETTINGS: Final = Keys()


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
    try:
        predictor_class = PREDICTORS.get(name)
    except PredictorError as error:
        raise _error(keys.names, error.message, error.hint) from error
    try:
        predictor_class.declaration.checked(options)
        predictor = predictor_class(**options)
    except (Exception, SystemExit) as error:  # foreign code may raise anything, or exit
        raise _error(
            keys.options, f"predictor {name}: {error}", hint="see docs/explanation/models.md"
        ) from error
    if fault := protocol_violation(predictor):
        raise _error(keys.names, f"predictor {name}: {fault}")
    return predictor


def _error(key: str, problem: str, hint: str | None = None) -> PredictorError:
    return PredictorError(f"{key}: {problem}", key=key, hint=hint)
