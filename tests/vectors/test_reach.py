"""What the vectors are run through is what the product runs: its commands lead there."""

import ast
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.vectors.runner import load_adapters

ROOT = Path(__file__).parent.parent.parent
PACKAGES = (ROOT / "pipeline", ROOT / "node-exporter" / "node_exporter", ROOT / "actuators")

_NODE_ACTUATOR = "the node actuator writes and reads these (part 6)"
_WRITES = "nobody writes the annotations of CPU ratios yet"
_TOPOLOGY = "nobody writes what NUMA zones have for Batch yet"
_ADMISSION = "nodes and pods are admitted by a webhook (part 8)"
_SEEN = "what a plugin would see; the extender refuses by the reservation instead"
_DEVICES = "devices come with part 9"
_LOAD_WATCHER = "what Trimaran's plugins make of what is served: the reader of the tests"
_NUMA = "no exporter measures NUMA nodes yet"
UNCALLED = {
    "node_exporter.kernel.formulas.best_effort_limit_millicores": _NODE_ACTUATOR,
    "node_exporter.kernel.formulas.best_effort_usage_millicores": _NODE_ACTUATOR,
    "node_exporter.kernel.parse_files.cpu_max_v2": _NODE_ACTUATOR,
    "node_exporter.kernel.parse_files.format_cpu_list": _NODE_ACTUATOR,
    "node_exporter.kernel.parse_files.memory_limit_v1": _NODE_ACTUATOR,
    "node_exporter.kernel.parse_files.memory_limit_v2": _NODE_ACTUATOR,
    "node_exporter.kernel.parse_files.numa_pages_v1": _NUMA,
    "node_exporter.kernel.parse_files.numa_pages_v2": _NUMA,
    "node_exporter.kernel.parse_files.numa_used_bytes": _NUMA,
    "node_exporter.kernel.cgroup_paths.container_dir": _NODE_ACTUATOR,
    "pipeline.clock.ManualClock": "the clock of tests",
    "pipeline.processors.exchange.load_watcher_document.average_of": _LOAD_WATCHER,
    "pipeline.processors.exchange.load_watcher_document.decode": _LOAD_WATCHER,
    "pipeline.processors.exchange.load_watcher_document.latest_of": _LOAD_WATCHER,
    "pipeline.processors.model.histogram.linear_layout": "no model has buckets of equal size",
    "pipeline.processors.overcommit.devices.gpu_resources": _DEVICES,
    "pipeline.processors.overcommit.numa.Bindings": _TOPOLOGY,
    "pipeline.processors.overcommit.numa.Zones": _TOPOLOGY,
    "pipeline.processors.overcommit.numa.bound_zones": _TOPOLOGY,
    "pipeline.processors.overcommit.numa.shares": _TOPOLOGY,
    "pipeline.processors.overcommit.numa.spread": _TOPOLOGY,
    "pipeline.processors.overcommit.numa.zone_batch": _TOPOLOGY,
    "pipeline.processors.kubernetes.node_reservation.trimmed": _SEEN,
    "pipeline.processors.policy.amplification.admitted": _ADMISSION,
    "pipeline.processors.policy.amplification.read_ratios": _ADMISSION,
    "pipeline.processors.policy.amplification.requested": _ADMISSION,
    "pipeline.processors.policy.normalization.must_write": _WRITES,
    "pipeline.processors.join.system_usage.numa_remainder": _NUMA,
    "pipeline.processors.loadaware.usage_thresholds.whole_percent": _DEVICES,
}
"""What only the vectors call, and why it is there. What gets a caller leaves this list."""


ASSIGNED = "="


def references(module: str, path: Path) -> dict[str, set[str]]:
    """By full name of each function and class of a module all full names in it, and by the module's
    own name those outside of them, to which it comes when it is imported."""
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

    # What is imported here may be asked for under the name that it has here.
    found: dict[str, set[str]] = {f"{module}.{name}": {of} for name, of in imported.items()}
    found[module] = set()
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found[f"{module}.{statement.name}"] = {module, *named(statement)}
        else:
            found[module].update(named(statement))
            # Whoever asks for what is assigned comes to the module.
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
    """All that the commands and the entry points lead to."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    points = [
        point for group in project.get("entry-points", {}).values() for point in group.values()
    ]
    waiting = [name for name in product() if name.startswith("pipeline.cli.")]
    waiting += [point.replace(":", ".") for point in points]
    waiting += [name for name in product() if name.endswith((".SCORER", ".PREDICTOR"))]
    found: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += product().get(name, ())
    return found


def asked() -> set[str]:
    """The product's functions and classes that the adapters' modules name."""
    modules = {adapter.__module__ for adapter in load_adapters().run.values()}
    found: set[str] = set()
    for module in modules:
        path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
        found = found.union(*references(module, path).values())
    # Whoever comes to a function or class comes to its module.
    led = {name: product().get(name, set()) for name in found}
    return {n for n, to in led.items() if n.rpartition(".")[0] in to and ASSIGNED not in to}


def test_the_adapters_call_what_the_commands_lead_to() -> None:
    names, found = asked(), reached()
    assert len(names) > 50
    assert "pipeline.processors.model.bank.Bank" in names
    assert names - found - set(UNCALLED) == set(), "the product does not come here"
    assert set(UNCALLED) - (names - found) == set(), "has a caller now, or is not asked for"


def test_what_is_only_defined_or_imported_is_not_led_to(tmp_path: Path) -> None:
    path = tmp_path / "one.py"
    path.write_text(
        "from other import used, unused\nfrom package import module\n"
        "def a(x): return used(x) + b(x)\ndef b(x): return module.c\nd = b\n"
    )
    assert references("one", path) == {
        "one": {"one.b", "one.d"},
        "one.a": {"one", "other.used", "one.b", "one.x"},
        "one.b": {"one", "package.module", "package.module.c"},
        "one.used": {"other.used"},
        "one.unused": {"other.unused"},
        "one.d": {"one", ASSIGNED},
        "one.module": {"package.module"},
    }
