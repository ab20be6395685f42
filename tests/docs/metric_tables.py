"""The metrics of every role, from their declarations.

A role exports all metrics of the modules that its command imports.
"""

import importlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Final

import grimp  # which import-linter is made of
from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector

from pipeline.metric_labels import LABELS
from pipeline.metrics import DECLARED, NAMESPACE, Declaration

# Commands of roles that have a metrics page.
METRIC_ROLES: Final = (
    "exporter", "node-actuator", "worker", "watcher", "provider", "actuator", "planner", "evictor",
    "notifier", "archive", "extender", "webhook",
)  # fmt: skip
_UNITS: Final = {
    "seconds": "seconds", "bytes": "bytes", "cores": "cores", "ratio": "ratio",
    "us": "microseconds",
}  # fmt: skip
_FOREIGN_UNITS: Final = {
    "koordlet_node_predicted_resource_reclaimable": "label `unit`",
    "koordlet_node_predicted_resource_peak": "label `unit`",
    "koordlet_host_application_resource_usage": "label `unit`",
}


@cache
def declarations() -> Mapping[str, Declaration]:
    """The metrics of all roles, by name."""
    modules = modules_with_metrics()
    return {name: each for name, each in DECLARED.items() if each.module in modules}


@cache
def modules_with_metrics() -> Mapping[str, Sequence[str]]:
    """Modules that declare metrics, and the roles that import them."""
    graph = grimp.build_graph("pipeline", "actuators", "node_exporter", cache_dir=None)
    imports = {role: graph.find_upstream_modules(_command(role)) for role in METRIC_ROLES}
    # Its registry imports the modules of this package.
    imports["provider"] |= graph.find_descendants("pipeline.sources.provider")
    for module in graph.find_modules_that_directly_import("pipeline.metrics"):
        importlib.import_module(module)
    # Tests and guides declare some of their own.
    declaring = {each.module for each in DECLARED.values()} & graph.modules
    return {
        module: [role for role in METRIC_ROLES if module in imports[role]] for module in declaring
    }


def metrics_of(role: str) -> set[str]:
    """The names of all metrics of a role's page."""
    own = {name for name, each in declarations().items() if role in _roles(each)}
    return own | {name for name, *_ in _of_every_process()}


def unit_of(metric: Declaration) -> str:
    """What a metric counts or measures. Raises ValueError if its name and help do not say it."""
    if metric.name in _FOREIGN_UNITS:
        return _FOREIGN_UNITS[metric.name]
    if metric.documentation.startswith(("1 ", "Constant 1 ")):
        return "1 or 0"
    last = metric.name.removesuffix("_total").rpartition("_")[2]
    if last == "seconds" and "_timestamp_" in metric.name:
        return "Unix time"
    if last in _UNITS:
        return _UNITS[last]
    if metric.kind == "histogram":
        raise ValueError(f"{metric.name} must end in its unit")
    return "count"


def metric_rows() -> list[tuple[str, ...]]:
    """A row for each metric, those of every role first."""
    rows: list[tuple[str, ...]] = [
        (f"`{name}`", kind, unit, "", "all", text) for name, kind, unit, text in _of_every_process()
    ]
    for metric in sorted(declarations().values(), key=_order):
        roles = _roles(metric)
        every = len(roles) == len(METRIC_ROLES)
        rows.append(
            (
                f"`{metric.name}`", metric.kind, unit_of(metric),
                ", ".join(f"`{label}`" for label in metric.labels),
                "all" if every else ", ".join(roles) or "simulated fleets",
                metric.documentation,
            )
        )  # fmt: skip
    return rows


def labels_table() -> list[tuple[str, ...]]:
    """A row for each label."""
    return [(f"`{label}`", bound) for label, bound in LABELS.items()]


def _of_every_process() -> Iterator[tuple[str, str, str, str]]:
    """Name, type, unit and help of the metrics of the client library."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    for family in registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        declared = Declaration(name, "gauge", family.documentation, (), "")
        unit = "1 or 0" if family.name == "python_info" else unit_of(declared)
        if name == "process_start_time_seconds":
            unit = "Unix time"
        yield name, family.type, unit, family.documentation


def _order(metric: Declaration) -> tuple[bool, bool, str]:
    every = len(_roles(metric)) == len(METRIC_ROLES)
    return not every, not metric.name.startswith(NAMESPACE), metric.name


def _roles(metric: Declaration) -> Sequence[str]:
    return modules_with_metrics()[metric.module]


def _command(role: str) -> str:
    return f"pipeline.cli.{role.replace('-', '_')}"
