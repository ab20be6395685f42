"""Find plugins of one kind by name, in a package of Springtide and in other installed packages."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pkgutil import iter_modules
from types import ModuleType
from typing import Any, Generic, TypeVar

from pipeline import __version__

PluginT = TypeVar("PluginT")


@dataclass
class Registry(Generic[PluginT]):
    """Plugins of one kind: objects with a `name`.

    A module of `package` names its plugin by `attribute`, another package by an entry point of
    `group` under the plugin's name. `required` is the property of a plugin that `is_valid` checks.
    `error` makes the exception of a problem and a hint.
    """

    kind: str
    package: ModuleType
    attribute: str
    group: str
    required: str
    is_valid: Callable[[Any], bool]
    error: Callable[[str, str], Exception]

    @cached_property
    def points(self) -> Mapping[str, Sequence[EntryPoint]]:
        """The entry points by name, in order of name. Other packages are not loaded."""
        points: dict[str, list[EntryPoint]] = {}
        for point in (*self._built_in(), *entry_points(group=self.group)):
            points.setdefault(point.name, []).append(point)
        return dict(sorted(points.items()))

    def _built_in(self) -> Iterator[EntryPoint]:
        for module in iter_modules(self.package.__path__):
            path, name = f"{self.package.__name__}.{module.name}", module.name
            try:
                plugin = getattr(import_module(path), self.attribute, None)
                if plugin is None:
                    continue
                name = plugin.name
            except Exception:  # under the name of its module `get` raises it; others can be used
                pass
            yield EntryPoint(name, f"{path}:{self.attribute}", self.group)

    def packages(self, name: str) -> list[str]:
        """Names and versions of the packages with a plugin of this name: exactly one if it can be
        used."""
        return sorted({self._package(point) for point in self.points.get(name, ())})

    def _package(self, point: EntryPoint) -> str:
        if point.value.startswith(f"{self.package.__name__}."):
            return f"springtide {__version__}"
        return f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown package"

    def get(self, name: str) -> PluginT:
        """The plugin of this name.

        Raises `error` if no package or more than one provides it, or if it cannot be loaded.
        """
        packages = self.packages(name)
        if not packages:
            raise self.error(
                f"there is no {self.kind} {name!r:.80}",
                f"use one of {', '.join(self.points)}, or install the package that provides it",
            )
        if len(packages) > 1:
            raise self.error(
                f"{self.kind} {name} is in more than one package: {', '.join(packages)}",
                "uninstall all but one of them",
            )
        which, hint = f"{self.kind} {name} of {packages[0]}", "update or uninstall the package"
        try:
            plugin: PluginT = self.points[name][0].load()
        except (Exception, SystemExit) as error:  # foreign code may raise anything, or exit
            raise self.error(f"{which} cannot be loaded: {error!r:.200}", hint) from error
        if not self.is_valid(plugin):
            raise self.error(f"{which} is not {self.required}", hint)
        if (own := getattr(plugin, "name", None)) != name:
            raise self.error(f"{which} is named {own!r:.80}", hint)
        return plugin
