"""Load what other packages provide by entry point."""

from importlib.metadata import EntryPoint
from typing import Any


def package_of(point: EntryPoint) -> str:
    """Name and version of the package that an entry point comes from."""
    return f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown package"


def load_plugin(point: EntryPoint) -> Any:
    """The object that an entry point leads to.

    Raises `ImportError` that names the package, whatever its code raises.
    """
    try:
        return point.load()
    except (Exception, SystemExit) as error:  # foreign code may raise anything, or exit
        problem = f"{point.name} of {package_of(point)} cannot be loaded: {error!r:.200}"
        raise ImportError(problem) from error
