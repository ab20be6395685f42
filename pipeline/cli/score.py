"""`springtide score`: rank nodes for a pod."""

import asyncio
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import click
import msgspec

from pipeline.cli.explain_request import SETTINGS, read_explain_request, request_explanation
from pipeline.cli.extender_client import ExtenderClient, extender_options
from pipeline.cli.help_sections import Command
from pipeline.cli.options import output_option, settings_options, silence_logs
from pipeline.cli.safe_output import print_lines
from pipeline.errors import NotReadyError
from pipeline.extender.explain_documents import NodeExplanation
from pipeline.processors.explain.text_columns import align_columns
from pipeline.processors.loadaware.usage_readings import age_text
from pipeline.settings import Settings

_COLUMN_HELP: Final = {
    "Columns": [
        ("SCORE", "Weighted mean of the plugins' scores, 0 to 100."),
        ("WINDOW", "Age of the node's last window."),
        ("VERDICT", "passed, refused, unknown (the node passes because its usage is unknown), or "
         "exempt (DaemonSet pods pass everywhere)."),
        ("REASON", "Why the node is refused, with its numbers."),
    ]
}  # fmt: skip


@click.command(
    cls=Command,
    exit_codes={
        0: "a node passes",
        2: "invalid usage or settings, or the file has no pod",
        4: "no node passes, or none is known",
    },
    tables=_COLUMN_HELP,
)
@click.option(
    "-f", "--filename", "file", type=click.Path(path_type=Path), required=True,
    help="Manifest of a Pod, or of a Deployment, Job or other object with a pod template: YAML or "
    "JSON, - for standard input.",
)  # fmt: skip
@output_option
@click.option("--no-headers", is_flag=True, help="Omit the line of headers.")
@extender_options
@settings_options(*SETTINGS, shown=("extender.scheduler_config_file",))
def command(
    settings: Settings, file: Path, as_json: bool, no_headers: bool, extender: ExtenderClient | None
) -> None:
    """Rank nodes for the pod in a file, best first.

    The command evaluates the filter and scores of an extender in mode act: those of the extender
    given by --extender, else those of the local settings. The pod is not counted on any node.
    kube-scheduler's own checks (resource fit, taints, affinity) are not evaluated.

    \b
    Examples:
      springtide score -f pod.yaml
      springtide score -f deployment.yaml --extender http://localhost:8888
      kubectl get pod web-0 -o json | springtide score -f - -o json | jq '.items[0].node'
    """
    silence_logs(settings)
    answer = asyncio.run(request_explanation(settings, extender, read_explain_request(file)))
    items = best_first(answer.items)
    if as_json:
        click.echo(msgspec.json.encode(msgspec.structs.replace(answer, items=tuple(items))))
    elif items:
        print_lines(score_lines(items, headers=not no_headers))
    if not any(item.passes for item in items):
        raise NotReadyError(
            f"none of {len(items)} nodes would take the pod" if items else "no node is known",
            hint="`springtide top` shows the usage of each node",
        )


def best_first(items: Iterable[NodeExplanation]) -> list[NodeExplanation]:
    """Sort nodes: those that pass first, then by score, by the extender's score, and by name."""

    def order(item: NodeExplanation) -> tuple[bool, int, int, str]:
        return not item.passes, -(item.score or 0), -(item.extender_score or 0), item.node

    return sorted(items, key=order)


def score_lines(items: Iterable[NodeExplanation], *, headers: bool = True) -> Iterator[str]:
    """Yield a line per node, with a column for each plugin."""
    nodes = list(items)
    plugins = list(dict.fromkeys(plugin for item in nodes for plugin in item.plugins))
    rows = [_cells(item, plugins) for item in nodes]
    if headers:
        rows.insert(0, ["NODE", "SCORE", *plugins, "WINDOW", "VERDICT", "REASON"])
    return align_columns(rows)


def _cells(item: NodeExplanation, plugins: Iterable[str]) -> list[str]:
    scores = [item.score, *(item.plugins.get(plugin) for plugin in plugins)]
    return [
        item.node,
        *("-" if score is None else str(score) for score in scores),
        "-" if item.age_seconds is None else age_text(item.age_seconds),
        item.verdict,
        item.detail or "-",
    ]
