"""Find sources of usage by name: those of this package, and those of other packages."""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules
from typing import Final

from pipeline.errors import SettingsError
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
    if len(points) + (name in built_in()) > 1:
        raise _error(f"more than one package provides the source {name}", "uninstall all but one")
    if name in built_in():
        return built_in()[name]
    if not points:
        names = sorted({*built_in(), *(point.name for point in entry_points(group=GROUP))})
        raise _error(f"no source is named {name!r:.80}", f"use one of {', '.join(names)}")
    try:
        source = points[0].load()
    except Exception as error:  # foreign code may raise anything
        raise _error(f"source {name} cannot be loaded: {error!r:.200}", "update it") from error
    if not isinstance(source, SampleSource) or source.name != name:
        raise _error(f"source {name} is not a SampleSource of that name", "update its package")
    return source


def _error(problem: str, hint: str) -> SettingsError:
    return SettingsError(f"provider.kind: {problem}", key="provider.kind", hint=hint)
