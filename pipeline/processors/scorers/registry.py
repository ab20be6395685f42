"""Find scorers by name, in this package and, by entry point, in other packages.

An entry point of the group `springtide.scorers` has the plugin's name and leads to its `Scorer`.
"""

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from pipeline.errors import InvalidPolicyError
from pipeline.plugins import load_plugin, package_of
from pipeline.processors import scorers
from pipeline.processors.scorers.scorer import Scorer

GROUP: Final = "springtide.scorers"


@cache
def built_in() -> Mapping[str, Scorer[Any]]:
    """The scorers of this package by name: each `SCORER` of its modules."""
    names = sorted(module.name for module in pkgutil.iter_modules(scorers.__path__))
    modules = [importlib.import_module(f"{scorers.__name__}.{name}") for name in names]
    declared = [module.SCORER for module in modules if hasattr(module, "SCORER")]
    return {scorer.name: scorer for scorer in declared}


@cache
def _points() -> Mapping[str, list[EntryPoint]]:
    points: dict[str, list[EntryPoint]] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        points.setdefault(point.name, []).append(point)
    return points


def names() -> tuple[str, ...]:
    """The names of all scorers. Other packages are not loaded."""
    return tuple(dict.fromkeys((*built_in(), *_points())))


@cache
def scorer(name: str) -> Scorer[Any]:
    """The scorer of this name.

    Raises InvalidPolicyError if no package or more than one provides it, or if it cannot be loaded.
    """
    points = _points().get(name, [])
    packages = [package_of(point) for point in points]
    if name in built_in():
        packages.append("springtide")
    if len(packages) > 1:
        raise InvalidPolicyError(
            f"plugin {name} is in more than one package: {', '.join(sorted(packages))}",
            hint="uninstall all but one of them",
        )
    if name in built_in():
        return built_in()[name]
    if not points:
        raise InvalidPolicyError(
            f"no scorer is named {name!r:.80}",
            hint=f"use one of {', '.join(names())}, or install the package that provides it",
        )
    try:
        loaded = load_plugin(points[0])
    except ImportError as error:
        raise InvalidPolicyError(f"plugin {error}") from error
    if not isinstance(loaded, Scorer) or loaded.name != name:
        raise InvalidPolicyError(f"plugin {name} of {packages[0]} is not a Scorer of that name")
    return loaded
