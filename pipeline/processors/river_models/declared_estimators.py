"""Make an estimator of river from its declaration in settings.

A declaration is a mapping: `class` is a class of river, as `linear_model.LinearRegression`, and the
other keys are arguments of its constructor. An argument is a number, a text, a truth value, null,
another declaration, or a list of these. A list of declarations is a pipeline. Nothing is evaluated,
and only classes of `MODULES` that are of one of river's types for parts of a regressor are made.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

from pipeline.processors.river_models.estimator_state import is_of_river
from pipeline.processors.river_models.limits import (
    MOST_DEPTH,
    MOST_NUMBER,
    MOST_PARTS,
    MOST_TEXT,
)

MODULES: Final = (
    "conf", "dummy", "ensemble", "linear_model", "optim", "optim.initializers", "optim.losses",
    "optim.schedulers", "preprocessing", "stats",
)  # fmt: skip
"""Modules of river whose classes may be declared. The state of trees, forests and neighbors grows
with every outcome."""
_SEED: Final = 1
"""Seed of parts that take one and declare none: results must not depend on chance."""
_PATH: Final = re.compile(r"(?:river\.)?([a-z_.]+)\.([A-Z][A-Za-z0-9]*)")


def make_estimator(declaration: object) -> Any:
    """The regressor of a declaration, untrained. Raises ValueError, which says what is allowed."""
    from river import base, compose

    estimator = _Parts().make("estimator", declaration)
    last = estimator
    if isinstance(estimator, compose.Pipeline):
        *before, last = estimator.steps.values()
        for step in before:
            if not isinstance(step, base.Transformer):
                raise ValueError(f"estimator: {step} is not a transformer, as all but the last are")
    if not isinstance(last, base.Regressor):
        raise ValueError(
            f"estimator: {last} is not a regressor of river, as linear_model.LinearRegression is"
        )
    return estimator


class _Parts:
    """Make the parts of one declaration, and count them."""

    def __init__(self) -> None:
        self._made = 0

    def make(self, place: str, declaration: object, depth: int = 0) -> Any:
        """The part of a declaration, which stands at `place`."""
        from river import compose

        if isinstance(declaration, list | tuple) and declaration:
            steps = [
                self._single(f"{place}[{i}]", part, depth) for i, part in enumerate(declaration)
            ]
            try:
                return compose.Pipeline(*steps)
            except Exception as error:  # river raises what it likes
                raise ValueError(f"{place}: no pipeline: {error}") from error
        return self._single(place, declaration, depth)

    def _single(self, place: str, declaration: object, depth: int) -> Any:
        if not isinstance(declaration, Mapping) or "class" not in declaration:
            raise ValueError(
                f"{place} is {declaration!r:.100}, not `class` with its arguments, or a list"
            )
        self._made += 1
        if depth > MOST_DEPTH or self._made > MOST_PARTS:
            raise ValueError(
                f"{place}: more than {MOST_PARTS} parts, or nested deeper than {MOST_DEPTH}"
            )
        part = _class_of(place, declaration["class"])
        known = _arguments_of(part)
        given = {name: value for name, value in declaration.items() if name != "class"}
        if unknown := sorted(map(str, given.keys() - {*known})):
            raise ValueError(
                f"{place}: {declaration['class']} has no argument {unknown[0]!r:.80}: "
                f"it has {', '.join(known) or 'none'}"
            )
        arguments = {
            name: self._argument(f"{place}.{name}", value, depth) for name, value in given.items()
        }
        if "seed" in known:
            arguments.setdefault("seed", _SEED)
        try:
            return part(**arguments)
        except BaseException as error:
            if not is_of_river(error):
                raise
            raise ValueError(f"{place}: {declaration['class']}: {error}") from error

    def _argument(self, place: str, value: object, depth: int) -> Any:
        if isinstance(value, Mapping):
            return self._single(place, value, depth + 1)
        if isinstance(value, list | tuple):
            return [
                self._argument(f"{place}[{i}]", part, depth + 1) for i, part in enumerate(value)
            ]
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str) and len(value) <= MOST_TEXT:
            return value
        if isinstance(value, int) and abs(value) <= MOST_NUMBER:
            return value
        if isinstance(value, float) and math.isfinite(value):
            return value
        raise ValueError(
            f"{place} is {value!r:.100}, not a finite number (whole ones up to {MOST_NUMBER}), "
            f"a text of at most {MOST_TEXT} characters, true, false, null, or another `class`"
        )


def _arguments_of(part: type[Any]) -> list[str]:
    """The names of the arguments of a constructor."""
    parameters = inspect.signature(part).parameters.values()
    named = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    return [parameter.name for parameter in parameters if parameter.kind in named]


def _class_of(place: str, path: object) -> Any:
    """The class of a path. Raises ValueError for any other object of river or elsewhere."""
    match = _PATH.fullmatch(path) if isinstance(path, str) else None
    if match is None or match[1] not in MODULES:
        raise ValueError(
            f"{place}: class {path!r:.100} is not one of river's in the modules "
            f"{', '.join(MODULES)}: write it as linear_model.LinearRegression"
        )
    module = import_module(f"river.{match[1]}")
    part = getattr(module, match[2], None)
    if not (inspect.isclass(part) and part.__module__.startswith("river.")):
        names = sorted(name for name in vars(module) if _is_part(getattr(module, name)))
        raise ValueError(f"{place}: river.{match[1]} has no {match[2]}: it has {', '.join(names)}")
    if not _is_part(part):
        raise ValueError(
            f"{place}: {path} is no regressor, and no transformer, statistic, loss, optimizer, "
            "scheduler or initializer for one"
        )
    return part


def _is_part(part: object) -> bool:
    """Whether it is a class of one of river's own types for regressors and their arguments."""
    from river import base, optim, stats

    kinds = (
        base.Regressor, base.Transformer, stats.base.Univariate,
        optim.base.Optimizer, optim.base.Loss, optim.base.Scheduler, optim.base.Initializer,
    )  # fmt: skip
    return (
        inspect.isclass(part)
        and issubclass(part, kinds)
        and not issubclass(part, base.Classifier | base.Clusterer)
        and not inspect.isabstract(part)
    )
