"""The adapters call what the commands of the product lead to."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.vectors.runner import Group, load_groups

ROOT = Path(__file__).parent.parent.parent
PACKAGES = (ROOT / "pipeline", ROOT / "node-exporter" / "node_exporter", ROOT / "actuators")

UNCALLED = {"pipeline.clock.ManualClock": "the clock of tests"}
"""What the adapters use of the product although no command leads there, and why."""


ASSIGNED = "="


def references(module: str, path: Path) -> dict[str, set[str]]:
    """The full names that each function and class of a module refers to, by its full name; by the
    module's name those that it refers to when it is imported."""
    tree = ast.parse(path.read_text())
    imported = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    def named(statement: ast.stmt) -> Iterator[str]:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name):
                yield imported.get(node.id, f"{module}.{node.id}")
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                yield f"{imported.get(node.value.id, node.value.id)}.{node.attr}"

    # An imported name may be used under the name that it has here.
    found: dict[str, set[str]] = {f"{module}.{n}": {target} for n, target in imported.items()}
    found[module] = set()
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found[f"{module}.{statement.name}"] = {module, *named(statement)}
        else:
            found[module].update(named(statement))
            # An assigned name leads to its module.
            found |= {f"{module}.{name}": {module, ASSIGNED} for name in assigned(statement)}
    return found


def assigned(statement: ast.stmt) -> Iterator[str]:
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    targets = [statement.target] if isinstance(statement, ast.AnnAssign) else targets
    yield from (target.id for target in targets if isinstance(target, ast.Name))


@cache
def product() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for package in PACKAGES:
        for path in package.rglob("*.py"):
            parts = path.relative_to(package.parent).with_suffix("").parts
            found |= references(".".join(parts).removesuffix(".__init__"), path)
    return found


def reached() -> set[str]:
    """Everything that the commands and the built-in plugins lead to."""
    waiting = [name for name in product() if name.startswith("pipeline.cli.")]
    waiting += [n for n in product() if n.endswith((".SCORER", ".PREDICTOR", ".SOURCE"))]
    found: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += product().get(name, ())
    return found


def used_by_adapters() -> set[str]:
    """The functions and classes of the product that the adapters refer to."""
    groups = [group for group in load_groups().values() if isinstance(group, Group)]
    modules = {"tests.vectors.world", *(group.run.__module__ for group in groups)}
    found: set[str] = set()
    for module in modules:
        path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
        found = found.union(*references(module, path).values())
    # Functions and classes lead to their module, assigned names do not count.
    led = {name: product().get(name, set()) for name in found}
    return {n for n, to in led.items() if n.rpartition(".")[0] in to and ASSIGNED not in to}


def test_the_adapters_call_what_the_commands_lead_to() -> None:
    names, found = used_by_adapters(), reached()
    assert len(names) > 50
    assert "pipeline.processors.model.bank.Bank" in names
    assert names - found - set(UNCALLED) == set(), "no command leads here"
    assert set(UNCALLED) - (names - found) == set(), (
        "a command leads here now, or no adapter uses it"
    )


def test_defining_or_importing_a_name_does_not_lead_to_it(tmp_path: Path) -> None:
    path = tmp_path / "one.py"
    path.write_text(
        "from other import used, unused\nfrom package import module\n"
        "def a(x): return used(x) + b(x)\ndef b(x): return module.c\nd = b\n"
    )
    assert references("one", path) == {
        "one": {"one.b", "one.d"}, "one.a": {"one", "other.used", "one.b", "one.x"},
        "one.b": {"one", "package.module", "package.module.c"}, "one.used": {"other.used"},
        "one.unused": {"other.unused"}, "one.d": {"one", ASSIGNED},
        "one.module": {"package.module"},
    }  # fmt: skip
