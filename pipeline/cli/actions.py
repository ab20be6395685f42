"""`springtide actions`: show what actuators did, would do or refused, and why."""

import asyncio
import signal
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from textwrap import wrap
from typing import Final

import click
import msgspec

from pipeline.cli.help_sections import Command
from pipeline.cli.kafka_requests import run_requests
from pipeline.cli.options import KAFKA_CLIENT, output_option, settings_options, silence_logs
from pipeline.cli.past_records import records_since
from pipeline.cli.past_time_option import PastTime
from pipeline.cli.safe_output import print_lines, printable
from pipeline.processors.explain.text_columns import align_columns
from pipeline.settings import Settings
from pipeline.times import format_time
from pipeline.topics.actions import ActionRecord
from pipeline.topics.registry import ACTIONS

_POLL_SECONDS: Final = 1.0
_HEADERS: Final = ("TIME", "NODE", "ACTUATOR", "OUTCOME", "SUBJECT", "REASON")
COLUMNS: Final = 120
"""The longest line."""
_WIDEST: Final = 40
"""Wider cells move what follows them in their row alone."""
_INDENT: Final = 4 * " "
_MOST_EXPLAINED: Final = 1000
_COLUMN_HELP: Final = {
    "Columns": [
        (
            "OUTCOME",
            "observed or recommended: the mode forbids the action. refused: a check forbids it. "
            "intended: it is about to happen; then done or failed. marked: another agent was asked "
            "to evict the pod.",
        ),
        ("SUBJECT", "The pods that an eviction is about, or the values that change."),
        (
            "REASON",
            "The error or refusal; else why the action was wanted. A plan is explained "
            "with its first action.",
        ),
    ]
}


class ActionList(msgspec.Struct, frozen=True, kw_only=True):
    """The document of `-o json`; with `--watch` there is one for each batch of new actions."""

    items: Sequence[ActionRecord]


@click.command(
    cls=Command,
    exit_codes={0: "shown, also if there are none", 3: "topics are missing"},
    tables=_COLUMN_HELP,
)
@click.argument("node", required=False)
@click.option("-w", "--watch", is_flag=True, help="Then show new actions until Ctrl-C.")
@click.option(
    "--since", type=PastTime(), metavar="TIME", default="1h", show_default=True,
    help="Show the actions since 2023-11-14T22:13:30Z, or since 2h ago; 30 days are kept.",
)  # fmt: skip
@output_option
@click.option("--no-headers", is_flag=True, help="Omit the line of headers.")
@settings_options(*KAFKA_CLIENT, "kafka.partitions")
def command(
    settings: Settings, node: str | None, watch: bool, since: float, as_json: bool, no_headers: bool
) -> None:
    """Show what actuators did, would do or refused, and why: of all nodes, or of NODE.

    The evictor says for each pod of a plan what became of it, or would in mode act; the planner
    whether a plan helped; the actuator what it wrote to Nodes. Nothing is changed.

    \b
    Examples:
      springtide actions
      springtide actions db-node --since 24h
      springtide actions --since 2023-11-14T22:00:00Z
      springtide actions --watch
      springtide actions -o json | jq '.items[] | select(.outcome == "refused") | .error'
    """
    silence_logs(settings)
    if watch:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt) if watch else nullcontext():
        shown = _show(settings, node, since, as_json, headers=not no_headers, watch=watch)
        if watch:
            asyncio.run(shown)
        else:
            run_requests(settings.kafka, shown)


async def _show(
    settings: Settings, node: str | None, since: float, as_json: bool, *,
    headers: bool, watch: bool,
) -> None:  # fmt: skip
    table = ActionTable()
    async with records_since(settings.kafka, ACTIONS, ActionRecord, since) as records:
        actions = actions_of(node, await records.to_end())
        _print(table, actions, as_json=as_json, headers=headers)
        if not actions:
            about = "" if node is None else f" about node {printable(node)}"
            click.echo(f"no action{about} since {format_time(since)}", err=True)
        while watch:
            if actions := actions_of(node, await records.next(_POLL_SECONDS)):
                _print(table, actions, as_json=as_json, headers=False)


def actions_of(node: str | None, actions: Iterable[ActionRecord]) -> list[ActionRecord]:
    """The actions about a node, or about any, by time. Marks of the log are none."""
    chosen = (a for a in actions if a.node and node in (None, a.node))
    return sorted(chosen, key=lambda action: (action.at, action.node))


def _print(
    table: "ActionTable", actions: Sequence[ActionRecord], *, as_json: bool, headers: bool
) -> None:
    if as_json:
        click.echo(msgspec.json.encode(ActionList(items=actions)))
    elif actions:
        print_lines(table.lines(actions, headers=headers))


class ActionTable:
    """Lays out actions as lines of `COLUMNS` columns at most, batch after batch. What is longer is
    continued, indented. The text of a plan stands with its first action alone: each of its pods
    would repeat it."""

    def __init__(self) -> None:
        self._explained: OrderedDict[int, None] = OrderedDict()

    def lines(self, actions: Iterable[ActionRecord], *, headers: bool) -> Iterator[str]:
        """Yield the lines of these actions."""
        rows = [_HEADERS] if headers else []
        rows += [
            (
                action.at, action.node, action.actuator, action.outcome, _subject(action),
                self._reason(action),
            )
            for action in actions
        ]  # fmt: skip
        cells = [[printable(cell) for cell in row] for row in rows]
        heads = align_columns([row[:-1] for row in cells], widest=_WIDEST)
        whole = align_columns(cells, widest=_WIDEST)
        for row, head, line in zip(cells, heads, whole, strict=True):
            subject, reason = row[-2:]
            lines = [line, f"{head}  {reason}"]
            short = [each for each in lines if len(each) <= COLUMNS]
            yield from short[:1] or _continued(head, subject, reason)

    def _reason(self, action: ActionRecord) -> str:
        """The error, or why the action was wanted; of a plan that was explained, its id."""
        if action.error or not action.plan:
            return action.error or action.why
        key = hash((action.plan, action.why))
        is_explained = key in self._explained
        self._explained[key] = None
        self._explained.move_to_end(key)
        if len(self._explained) > _MOST_EXPLAINED:
            self._explained.popitem(last=False)
        return f"plan {action.plan}" if is_explained else action.why


def _continued(head: str, subject: str, reason: str) -> Iterator[str]:
    """Yield a line without the reason, and without the subject if that has no room, and the lines
    that continue it."""
    parts = [head, reason]
    if len(head) > COLUMNS:
        parts = [head.removesuffix(subject).rstrip(), subject, reason]
    for part in parts:
        indent = _INDENT if part is not parts[0] else ""
        yield from wrap(
            part, COLUMNS, initial_indent=indent, subsequent_indent=_INDENT,
            break_on_hyphens=False,
        )  # fmt: skip


def _subject(action: ActionRecord) -> str:
    """The pods of an eviction, whose values are UIDs, or the values that change; all values if none
    does."""
    if action.action == "evict":
        return ", ".join(action.before) or "all pods of the plan"
    names = dict.fromkeys([*action.before, *action.after])
    changed = [name for name in names if action.before.get(name) != action.after.get(name)]
    return ", ".join(
        f"{name} {action.before.get(name) or '-'} -> {action.after.get(name) or '-'}"
        for name in changed or names
    )
