"""The docstring of a package names modules and names that exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = sorted(
    path
    for top in ("pipeline", "actuators", "node-exporter")
    for path in (ROOT / top).rglob("__init__.py")
)


def names_in_package(package: Path) -> set[str]:
    """Its modules and packages, and all words in its modules."""
    children = {path.stem for path in package.iterdir() if path.suffix == ".py" or path.is_dir()}
    modules = [path for path in package.glob("*.py") if path.name != "__init__.py"]
    return children.union(*(re.findall(r"\w+", path.read_text()) for path in modules))


@pytest.mark.parametrize("path", PACKAGES, ids=lambda path: str(path.parent.relative_to(ROOT)))
def test_a_package_docstring_names_what_exists(path: Path) -> None:
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    lower = re.findall(r"`([a-z_][a-z0-9_]*)`", docstring)
    known = names_in_package(path.parent) | {"act", "pipeline", "node_exporter", "actuators"}
    assert [name for name in lower if name not in known] == []
