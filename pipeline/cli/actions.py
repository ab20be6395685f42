"""`springtide actions`: show what actuators did, would do or refused, and why."""

import asyncio
import signal
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from typing import Final

import click
import msgspec

from pipeline.cli.duration_option import Duration
from pipeline.cli.help_sections import Command
from pipeline.cli.kafka_requests import run_requests
from pipeline.cli.options import KAFKA_CLIENT, output_option, settings_options, silence_logs
from pipeline.cli.past_records import records_since
from pipeline.cli.safe_output import print_lines
from pipeline.clock import SystemClock
from pipeline.processors.explain.text_columns import align_columns
from pipeline.settings import Settings
from pipeline.topics.actions import ActionRecord
from pipeline.topics.registry import ACTIONS

_POLL_SECONDS: Final = 1.0
_HEADERS: Final = ("TIME", "NODE", "ACTUATOR", "OUTCOME", "SUBJECT", "REASON")
_COLUMN_HELP: Final = {
    "Columns": [
        (
            "OUTCOME",
            "observed or recommended: the mode forbids the action. refused: a check forbids it. "
            "intended: it is about to happen; then done or failed. marked: another agent was asked "
            "to evict the pod.",
        ),
        ("SUBJECT", "The pods that an eviction is about, or the values that change."),
        ("REASON", "The error or refusal; else why the action was wanted."),
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
    "--since", type=Duration(), metavar="DURATION", default="1h", show_default=True,
    help="Show the actions of this time, such as 90s, 5m, 12h or 7d; 30 days are kept.",
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
    settings: Settings, node: str | None, since_seconds: float, as_json: bool, *,
    headers: bool, watch: bool,
) -> None:  # fmt: skip
    since = SystemClock().now() - since_seconds
    async with records_since(settings.kafka, ACTIONS, ActionRecord, since) as records:
        actions = actions_of(node, await records.to_end())
        _print(actions, as_json=as_json, headers=headers)
        if not actions:
            click.echo("no action", err=True)
        while watch:
            if actions := actions_of(node, await records.next(_POLL_SECONDS)):
                _print(actions, as_json=as_json, headers=False)


def actions_of(node: str | None, actions: Iterable[ActionRecord]) -> list[ActionRecord]:
    """The actions about a node, or about any, by time. Marks of the log are none."""
    chosen = (a for a in actions if a.node and node in (None, a.node))
    return sorted(chosen, key=lambda action: (action.at, action.node))


def _print(actions: Sequence[ActionRecord], *, as_json: bool, headers: bool) -> None:
    if as_json:
        click.echo(msgspec.json.encode(ActionList(items=actions)))
    elif actions:
        print_lines([*action_lines(actions, headers=headers)])


def action_lines(actions: Iterable[ActionRecord], *, headers: bool) -> Iterator[str]:
    """Yield the table of actions."""
    rows = [_HEADERS] if headers else []
    rows += [
        (
            action.at, action.node, action.actuator, action.outcome, _subject(action),
            action.error or action.why,
        )
        for action in actions
    ]  # fmt: skip
    yield from align_columns(rows)


def _subject(action: ActionRecord) -> str:
    """The pods of an eviction, whose values are UIDs, or the values that change."""
    if action.action == "evict":
        return ", ".join(action.before) or "all pods of the plan"
    names = dict.fromkeys([*action.before, *action.after])
    return ", ".join(
        f"{name} {action.before.get(name) or '-'} -> {action.after.get(name) or '-'}"
        for name in names
    )
