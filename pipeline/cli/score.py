"""`springtide score`: how good each node would be for a pod, and who refuses it."""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import click
import msgspec

from pipeline.cli.extender_client import AskedExtender, extender_options
from pipeline.cli.options import quiet, settings_options
from pipeline.cli.placement_question import SETTINGS, answer_to, question_of
from pipeline.cli.safe_output import say
from pipeline.errors import NotReadyError
from pipeline.extender.explain_documents import Explanation, NodeExplanation
from pipeline.processors.loadaware.usage_thresholds import age_text
from pipeline.settings import Settings

_BEFORE: Final = ("NODE", "SCORE")
_BEHIND: Final = ("WINDOW", "VERDICT", "REASON")


@click.command(
    epilog="Exit codes: 0 a node would take it, 1 failure, 2 usage, or the file has no pod, 4 no "
    "node would take it, or none is known. SCORE is 0 to 100, the mean of the plugins' by their "
    "weights. VERDICT unknown: it passes because its usage is not known; exempt: pods of a "
    "DaemonSet pass everywhere. WINDOW is when the node's last window ended."
)
@click.option(
    "-f", "--filename", "file", type=click.Path(path_type=Path), required=True,
    help="A Pod, or a Deployment, Job or other that makes one: YAML or JSON, - for stdin.",
)  # fmt: skip
@click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True
)
@click.option("--no-headers", is_flag=True, help="Leave out the line with the titles.")
@extender_options
@settings_options(*SETTINGS)
def command(
    settings: Settings, file: Path, output: str, no_headers: bool, extender: AskedExtender | None
) -> None:
    """Show how good each node would be for the pod in a file, the best first.

    What a scheduler would be told by an extender in mode act: by the one that is asked, else by one
    with these settings. Nothing comes of it: no node is charged with the pod. What kube-scheduler
    checks by itself (requests that do not fit, taints, affinity) is not looked at.

    \b
    Examples:
      springtide score -f pod.yaml
      springtide score -f deployment.yaml --extender http://localhost:8888
      kubectl get pod web-0 -o json | springtide score -f - -o json | jq '.items[0].node'
    """
    quiet(settings)
    found = asyncio.run(answer_to(settings, extender, question_of(file)))
    items = best_first(found.items)
    if output == "json":
        click.echo(msgspec.json.encode(msgspec.structs.replace(found, items=tuple(items))))
    elif items:
        say(lines(found, items, headers=not no_headers))
    if not any(item.passes for item in items):
        raise NotReadyError(
            "no node is known" if not items else f"none of {len(items)} nodes would take the pod",
            hint="`springtide top` shows the nodes, and how much of each is used",
        )


def best_first(items: Iterable[NodeExplanation]) -> list[NodeExplanation]:
    """Those that pass by their scores, then the others. Of equals the one comes first that a
    scheduler is told is the best, then by name."""

    def order(item: NodeExplanation) -> tuple[bool, int, int, str]:
        return not item.passes, -(item.score or 0), -(item.extender_score or 0), item.node

    return sorted(items, key=order)


def lines(
    found: Explanation, items: Iterable[NodeExplanation], *, headers: bool = True
) -> list[str]:
    """A line per node, columns two spaces apart."""
    shown = list(items)
    plugins = list(dict.fromkeys(plugin for item in shown for plugin in item.plugins))
    grid = [_cells(item, plugins) for item in shown]
    if headers:
        grid.insert(0, [*_BEFORE, *plugins, *_BEHIND])
    widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
    return [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in grid
    ]


def _cells(item: NodeExplanation, plugins: Iterable[str]) -> list[str]:
    scores = [item.score, *(item.plugins.get(plugin) for plugin in plugins)]
    return [
        item.node,
        *("-" if score is None else str(score) for score in scores),
        "-" if item.age_seconds is None else age_text(item.age_seconds),
        item.verdict,
        item.reason or "-",
    ]
