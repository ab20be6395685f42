"""Find sources of usage by name: those of this package, and those of other packages."""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules
from typing import Final

from pipeline.errors import SettingsError
from pipeline.plugins import load_plugin, package_of
from pipeline.sources import providers
from pipeline.sources.providers.protocol import SampleSource

GROUP: Final = "springtide.sample_sources"


@cache
def built_in() -> Mapping[str, SampleSource]:
    """The sources of this package by name: each `SOURCE` of its modules."""
    names = sorted(module.name for module in iter_modules(providers.__path__))
    modules = [import_module(f"{providers.__name__}.{name}") for name in names]
    sources = [getattr(module, "SOURCE", None) for module in modules]
    return {source.name: source for source in sources if isinstance(source, SampleSource)}


def source_of(name: str) -> SampleSource:
    """The source that `provider.kind` names.

    Raises `SettingsError` if no package or more than one provides it, or if it cannot be loaded.
    """
    points = [*entry_points(group=GROUP, name=name)]
    packages = [*map(package_of, points), *(["springtide"] if name in built_in() else [])]
    if len(packages) > 1:
        problem = f"source {name} is in more than one package: {', '.join(sorted(packages))}"
        raise _error(problem, "uninstall all but one of them")
    if name in built_in():
        return built_in()[name]
    if not points:
        names = sorted({*built_in(), *(point.name for point in entry_points(group=GROUP))})
        raise _error(f"no source is named {name!r:.80}", f"use one of {', '.join(names)}")
    try:
        source = load_plugin(points[0])
    except ImportError as error:
        raise _error(f"source {error}", "update or uninstall the package") from error
    if not isinstance(source, SampleSource) or source.name != name:
        problem = f"source {name} of {packages[0]} is not a SampleSource of that name"
        raise _error(problem, "update or uninstall the package")
    return source


def _error(problem: str, hint: str) -> SettingsError:
    return SettingsError(f"provider.kind: {problem}", key="provider.kind", hint=hint)
