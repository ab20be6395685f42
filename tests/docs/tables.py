"""Write the tables of declarations into docs, between `<!-- table NAME -->` and `<!-- end -->`.

python -m tests.docs.tables    # `make docs`
"""

import ast
import inspect
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Final

import msgspec

from actuators.node.node_service import GATES as NODE_GATES
from pipeline.extender import limits
from pipeline.http_server import limits as connection_limits
from pipeline.processors.archive.archive_schema import columns_table
from pipeline.processors.descheduling.descheduler_config import ConfigurationKeys
from pipeline.processors.descheduling.field_types import DURATION
from pipeline.processors.descheduling.low_node_load_args import LowNodeLoadArgs
from pipeline.processors.descheduling.migration_args import MigrationControllerArgs
from pipeline.processors.descheduling.strategy_args import (
    CustomPriorityArgs,
    FragmentationAwareArgs,
    NodeRequestsArgs,
    NodeReservationArgs,
    ScaleDownBinPackArgs,
)
from pipeline.processors.policy.config_sections import json_keys
from pipeline.processors.policy.springtide_config import (
    DEFAULTS,
    KEYS,
    SpringtideConfig,
)
from pipeline.processors.predictors.predictor_tables import markdown
from pipeline.processors.predictors.registry import PREDICTORS
from pipeline.processors.scorers.registry import SCORERS
from pipeline.settings import ModelSettings, settings_markdown
from pipeline.settings.describe import allowed_values, description, written
from pipeline.settings.feature_gates import Gate
from pipeline.sources.provider.registry import SOURCES
from pipeline.topics.access import access_table
from pipeline.topics.registry import markdown_table
from pipeline.webhook import limits as webhook_limits
from pipeline.webhook.reviews import GATES
from tests.docs.flag_tables import flag_rows
from tests.docs.metric_tables import METRIC_ROLES, labels_table, metric_rows, modules_with_metrics
from tests.docs.record_tables import record_fields
from tests.docs.resource_tables import RESOURCES, page_of, resource_fields

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

# Packages with metrics, and the page that describes these.
_METRIC_PAGES: Final = {
    "actuators/alerts": "../reference/notifier.md#metrics",
    "actuators/cluster": "../reference/actuator.md#metrics",
    "actuators/eviction": "../reference/evictor.md",
    "actuators/node": "../reference/node-actuator.md#what-to-watch",
    "actuators/planner": "../reference/planner.md#operation",
    "node-exporter/node_exporter": "../reference/exporter.md#metrics",
    "pipeline/archive": "../reference/archive.md#metrics",
    "pipeline/agents": "operate.md#what-to-watch",
    "pipeline/extender": "../reference/extender.md#metrics",
    "pipeline/kafka": "operate.md#what-to-watch",
    "pipeline/kube": "operate.md#what-to-watch",
    "pipeline/sources": "../reference/watcher.md#metrics",
    "pipeline/sources/cluster": "../reference/watcher.md#metrics",
    "pipeline/sources/provider": "../reference/provider.md#what-to-watch",
    "pipeline/webhook": "../reference/webhook.md#metrics",
    "pipeline/table": "../reference/extender.md#metrics",
}
_ARGUMENTS: Final[dict[str, type[msgspec.Struct]]] = {
    "DeschedulerConfiguration": ConfigurationKeys,
    "LowNodeLoad": LowNodeLoadArgs,
    "CustomPriority": CustomPriorityArgs,
    "FragmentationAware": FragmentationAwareArgs,
    "ScaleDownBinPack": ScaleDownBinPackArgs,
    "NodeReservation": NodeReservationArgs,
    "NodeRequests": NodeRequestsArgs,
    "MigrationController": MigrationControllerArgs,
}


def pages() -> dict[Path, str]:
    """Each page with tables of declarations, as it should be. Raises ValueError if the marks of a
    table are missing."""
    declarations = {name: PREDICTORS.get(name).declaration for name in PREDICTORS.points}
    predictors, options, terms = markdown(declarations).split("\n\n")
    scorers = map(SCORERS.get, SCORERS.points)
    plugins = [(f"`{s.name}`", s.source, s.text) for s in scorers]
    sources = [(f"`{s.name}`", s.help) for s in map(SOURCES.get, SOURCES.points)]
    tables = {
        "explanation/models.md": {"predictors": predictors, "options": options, "terms": terms},
        "reference/commands.md": {
            "flags": _table(("command", "flags", "more flags, by `--help-all`"), flag_rows())
        },
        "reference/archive.md": {"columns": columns_table()},
        "how-to/add-a-metric.md": {"metrics": metrics_table()},
        "reference/descheduler.md": {
            title: arguments_table(kind) for title, kind in _ARGUMENTS.items()
        },
        "reference/extender.md": {
            "plugins": _table(("plugin", "from", "what it does"), plugins),
            "limits": limits_table(connection_limits, limits),
        },
        "reference/metrics.md": {
            "metrics": _table(("metric", "type", "unit", "labels", "roles", "help"), metric_rows()),
            "labels": _table(("label", "values"), labels_table()),
        },
        "reference/policy.md": {"springtide-config": policy_keys_table()},
        "reference/provider.md": {"sample sources": _table(("kind", "reads"), sources)},
        "reference/records.md": {"record fields": record_fields()},
        "reference/node-actuator.md": {"gates": gates_table(NODE_GATES, "feature")},
        "reference/webhook.md": {
            "gates": gates_table(GATES, "effect"),
            "limits": limits_table(webhook_limits),
        },
        "reference/topics.md": {"topics": markdown_table(), "rights": access_table()},
    }
    tables |= {page_of(kind): {"fields": resource_fields(kind)} for kind in RESOURCES}
    written = {
        DOCS / page: filled((DOCS / page).read_text(), of_page, page)
        for page, of_page in tables.items()
    }
    return written | {DOCS / "reference" / "settings.md": settings_markdown()}


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def gates_table(gates: Mapping[str, Gate], effect: str) -> str:
    """A row for each feature gate."""
    rows = [(f"`{name}`", written(gate.default), gate.effect) for name, gate in gates.items()]
    return _table(("gate", "default", effect), rows)


def policy_keys_table() -> str:
    """A row for each key of `springtide-config`."""
    names = json_keys(SpringtideConfig)
    settings = ModelSettings.__struct_fields__
    rows = [
        (
            f"`{names[name]}`",
            f"`model.{name}`" if name in settings
            else written(field.default if getattr(DEFAULTS, name) is None
                         else getattr(DEFAULTS, name)),
            allowed_values(field.type), description(field.type),
        )
        for name, field in KEYS.items()
    ]  # fmt: skip
    return _table(("key", "default", "allowed", "sets"), rows)


def arguments_table(kind: type[msgspec.Struct]) -> str:
    """A row for each field with a description."""
    rows = [
        (
            f"`{field.encode_name}`",
            _written_default(field),
            allowed_values(field.type).removesuffix(", or null"),
            description(field.type),
        )
        for field in msgspec.structs.fields(kind)
        if description(field.type)
    ]
    return _table(("key", "default", "allowed", "meaning"), rows)


def _written_default(field: msgspec.structs.FieldInfo) -> str:
    default = field.default
    if default in (None, (), "", msgspec.NODEFAULT):
        return "-"
    metas = getattr(field.type, "__metadata__", ())
    if isinstance(default, float) and any(meta.title == DURATION for meta in metas):
        return f"{default:g}s"
    return ", ".join(default) if isinstance(default, tuple) else written(default)


def limits_table(*modules: ModuleType) -> str:
    """A row for each constant of these modules, with the docstring below it."""
    rows = [row for module in modules for row in _limits_of(module)]
    return _table(("limit", "value", "reason"), rows)


def _limits_of(module: ModuleType) -> Iterator[tuple[str, ...]]:
    for node, following in pairwise(ast.parse(inspect.getsource(module)).body):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
            if not (isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)):
                raise ValueError(f"{module.__name__}.{name} has no docstring")
            reason = " ".join(str(following.value.value).split())
            yield f"`{name}`", _amount(name, getattr(module, name)), reason


def _amount(name: str, value: float) -> str:
    if name.endswith("_SECONDS"):
        return f"{value:g} s"
    if name.endswith("_BYTES"):
        return f"{value / 2**20:g} MiB" if value >= 2**20 else f"{value / 2**10:g} KiB"
    return f"{value:,}"


def metrics_table() -> str:
    """The modules that declare metrics, by package, and the roles that import them."""
    files: dict[str, list[str]] = defaultdict(list)
    roles: dict[str, set[str]] = defaultdict(set)
    for module, importers in sorted(modules_with_metrics().items()):
        if module.rpartition(".")[0] == "pipeline":
            continue  # metrics of every role, and of traces
        folder = "node-exporter/" if module.startswith("node_exporter.") else ""
        path = Path(f"{folder}{module.replace('.', '/')}.py")
        files[path.parent.as_posix()].append(f"[{path.name}](../../{path})")
        roles[path.parent.as_posix()] |= {*importers}
    rows = [
        (
            f"`{package}`",
            ", ".join(role for role in METRIC_ROLES if role in roles[package]),
            ", ".join(files.pop(package)),
            f"[page]({page})",
        )
        for package, page in _METRIC_PAGES.items()
    ]
    if files:
        raise ValueError(f"packages with metrics and without a page: {', '.join(files)}")
    return _table(("package", "exported by", "modules with metrics", "described on"), rows)


def filled(text: str, tables: dict[str, str], page: str) -> str:
    """The text of a page with these tables between their marks. Raises ValueError if one is
    missing."""
    for name, table in tables.items():
        begin, end = f"<!-- table {name} -->\n", "<!-- end -->"
        before, _, rest = text.partition(begin)
        old, found_end, after = rest.partition(end)
        if text.count(begin) != 1 or not found_end or "<!-- table" in old:
            raise ValueError(
                f"docs/{page} must have {begin.strip()} once, and {end} below the table"
            )
        text = f"{before}{begin}{table.strip()}\n{end}{after}"
    return text


if __name__ == "__main__":
    for page, text in pages().items():
        page.write_text(text)
