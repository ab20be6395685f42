"""`springtide plan`: show which pods would leave hot nodes, where they would land, and why."""

import asyncio
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import click
import msgspec

from actuators.planner.former_moves import FormerMoves, read_former_moves, relief_after
from actuators.planner.relief_policy import relief_policy
from pipeline.cli.explain_request import SETTINGS, load_rules
from pipeline.cli.file_arguments import argument_name, read_argument
from pipeline.cli.help_sections import Command
from pipeline.cli.options import output_option, settings_options, silence_logs
from pipeline.cli.safe_output import print_lines, printable
from pipeline.cli.table_reading import read_table
from pipeline.clock import SystemClock
from pipeline.errors import InvalidPolicyError, NotReadyError
from pipeline.extender.decisions import Decisions
from pipeline.extender.filters import amount
from pipeline.extender.plan_documents import (
    PlannedMove,
    PlannedNode,
    RejectedTarget,
    ReliefPlan,
    StrategyOutcome,
)
from pipeline.extender.relief_planning import ReliefPlanning
from pipeline.processors.descheduling.descheduler_config import KIND, Descheduling
from pipeline.processors.descheduling.requested_relief import NAME as NODE_REQUESTS
from pipeline.settings import Settings
from pipeline.sources.policy_file import (
    LARGEST_POLICY_BYTES,
    contents_text,
    descheduling_in,
    policy_objects_in,
)
from pipeline.table import NODE_AND_POD_TOPICS, Table
from pipeline.table.node_pods import read_node_pods

_NOTHING_MOVES: Final = 4


@click.command(
    cls=Command,
    exit_codes={
        0: "pods would move",
        1: "failure: the policy is invalid, or no broker answers",
        2: "invalid usage or settings, or the file cannot be read",
        4: "no pod would move, and the output says why; no data, or topics are missing",
    },
)
@click.option(
    "--policy", "file", type=click.Path(path_type=Path),
    help="Plan by this DeschedulerConfiguration, YAML or JSON, or its ConfigMap, - for standard "
    "input; without it by the thresholds in the records of the nodes.",
)  # fmt: skip
@output_option
@settings_options(*SETTINGS, shown=("extender.scheduler_config_file",))
def command(settings: Settings, file: Path | None, as_json: bool) -> None:
    """Show which pods would leave which hot nodes, and where they would land.

    The command reads the state table and the last windows from Kafka, and writes nothing: no pod is
    evicted. Without --policy, nodes with an open alert are relieved; with it, every node that is
    above its thresholds now, and other strategies that it enables run, too. `springtide planner`
    relieves nodes with an open alert, and runs the other strategies of the cluster's configuration.
    Plans, evictions and requests of nodes of the last hours count as for the planner: what rests,
    and what the evictor refused, stays, and the output says why. The landing is simulated with the
    filters and scores of an extender of the local settings, and with node selector, required node
    affinity, taints and requests.

    \b
    Examples:
      springtide plan
      springtide plan --policy koord-descheduler-config.yaml
      springtide plan -o json | jq '.items[].moves[] | {name, target}'
    """
    silence_logs(settings)
    descheduling = None if file is None else _read_policy(file)
    plan = asyncio.run(_plan(settings, descheduling))
    if as_json:
        click.echo(msgspec.json.encode(plan))
    else:
        print_lines(plan_lines(plan, file))
    if not any(outcome.moves for outcome in plan.strategies):
        raise click.exceptions.Exit(_NOTHING_MOVES)


def _read_policy(file: Path) -> Descheduling:
    name = argument_name(file)
    objects = policy_objects_in(read_argument(file, LARGEST_POLICY_BYTES), name)
    read = descheduling_in(objects, name)
    descheduling, problems = read or (None, ())
    for problem in problems:
        click.echo(f"warning: {printable(str(problem))}", err=True)
    profiles = () if descheduling is None else descheduling.profiles
    has_strategy = any(profile.enabled.get("balance") for profile in profiles)
    if read is None:
        raise InvalidPolicyError(
            f"{name} has no {KIND}: {contents_text(objects)}",
            hint="write one as docs/reference/descheduler.md says, or give its ConfigMap as "
            "kubectl prints it",
        )
    if descheduling is None or not (descheduling.low_node_load or has_strategy):
        raise InvalidPolicyError(
            f"{name} has no strategy that is in force",
            hint=f"check it with `springtide policy {shlex.quote(str(file))}`",
        )
    return descheduling


async def _plan(settings: Settings, descheduling: Descheduling | None) -> ReliefPlan:
    rules = load_rules(settings.extender)
    async with read_table(settings, Table(counting=rules.counting), NODE_AND_POD_TOPICS) as feed:
        decisions = Decisions(feed.table, rules)
        if not any(feed.table.snapshot(name).state for name in feed.table):
            raise NotReadyError(
                "no usage of any node is known, so nothing can be planned",
                hint="start `springtide exporter` on a node and one `springtide worker`; "
                "if both run, `springtide doctor` says what is wrong",
            )
        former = await read_former_moves(settings.kafka, feed.table, SystemClock().now())
        planning = planning_after(former, feed.table, decisions, descheduling, SystemClock().now())
    for warning in _warnings(planning, former, descheduling):
        click.echo(f"warning: {warning}", err=True)
    span, now = planning.span_seconds, SystemClock().now()
    return planning.plan(*await read_node_pods(settings.kafka, planning.sources, span, now))


def planning_after(
    former: FormerMoves, table: Table, decisions: Decisions, descheduling: Descheduling | None,
    now: float,
) -> ReliefPlanning:  # fmt: skip
    """What the planner would plan now, by this configuration, after these moves."""
    names = () if descheduling is None else relief_policy(descheduling).others_on
    relief = relief_after(former, table, names, now)
    return ReliefPlanning(table, decisions, descheduling, now, relief)


def _warnings(
    planning: ReliefPlanning, former: FormerMoves, descheduling: Descheduling | None
) -> Iterator[str]:
    for name in planning.ignored_resources:
        yield f"usage of {printable(name)} is not measured: its thresholds are ignored"
    for name in former.missing:
        yield f"there is no topic {printable(name)}: what it would say counts as nothing"
    asking = former.requests.open(SystemClock().now())
    if asking and descheduling is None:
        count = f"{len(asking)} nodes ask" if len(asking) > 1 else f"node {min(asking)} asks"
        yield (
            f"{printable(count)} for relief, which is planned with --policy, by a configuration "
            f"that enables {NODE_REQUESTS}"
        )


def plan_lines(plan: ReliefPlan, policy: Path | None = None) -> Iterator[str]:
    """The plan as text for people; `policy` is the file that it goes by."""
    if not plan.strategies:
        yield from _no_strategy_lines(policy)
    for outcome in plan.strategies:
        yield _outcome_line(outcome)
        for node in plan.items:
            if (node.strategy, node.pool) == (outcome.strategy, outcome.pool):
                yield from _node_lines(node)


def _no_strategy_lines(policy: Path | None) -> Iterator[str]:
    if policy is None:
        yield "nothing would move: no node has thresholds"
        yield (
            "  give a DeschedulerConfiguration with --policy, or let the watcher read one (see the "
            "how-to about hot nodes)"
        )
        return
    yield f"nothing would move: {argument_name(policy)} has no strategy in force for any node"
    check = f"springtide policy {shlex.quote(str(policy))}"
    yield f"  `{check}` says what is in force, with --nodes for each node"


def _outcome_line(outcome: StrategyOutcome) -> str:
    title = f"{outcome.strategy}, pool {outcome.pool}" if outcome.pool else outcome.strategy
    counts = "1 node" if outcome.nodes == 1 else f"{outcome.nodes} nodes"
    if outcome.hot is not None:
        counts += f", {outcome.hot} to relieve, {outcome.targets} may take pods"
    if outcome.known < outcome.nodes:
        counts += f", usage of {outcome.nodes - outcome.known} unknown"
    what = f"nothing would move: {outcome.reason}"
    return f"{title}: {what if outcome.reason else _pods_text(outcome.moves)} ({counts})"


def _pods_text(moves: int) -> str:
    return "1 pod would move" if moves == 1 else f"{moves} pods would move"


def _node_lines(node: PlannedNode) -> Iterator[str]:
    yield f"  {node.node}: {node.why}"
    for move in node.moves:
        where = f"to {move.target}" if move.target else "to an unknown node"
        score = "" if move.score is None else f", score {move.score} of 100"
        pod = f"{move.namespace}/{move.name} ({move.pod_class}, {_used_text(move)})"
        yield f"    {pod} {where}{score}"
        if move.target:
            yield f"      usage there {_target_text(move)} after all moves{_peak_text(move)}"
        yield from _rejected_lines(move.rejected, move.rejections)
    yield f"    then {_percents_text(node.projected_usage)}: " + (
        "relieved" if node.relieved else "not relieved, its alert would stay open"
    )
    for stay in node.stays:
        yield f"    {stay.namespace}/{stay.name} stays: {stay.reason}"
        yield from _rejected_lines(stay.rejected, stay.rejections)


def _used_text(move: PlannedMove) -> str:
    return " and ".join(amount(name, round(used)) for name, used in move.usage.items())


def _percents_text(percents: Mapping[str, float]) -> str:
    known = {name: percents[name] for name in ("cpu", "memory") if name in percents}
    return ", ".join(f"{name} {percent:.1f}%" for name, percent in known.items())


def _target_text(move: PlannedMove) -> str:
    """Usage of the target before and after all moves of the plan."""
    before, after = move.target_usage_before, move.target_usage
    shown = {name: after[name] for name in ("cpu", "memory") if name in after}
    parts = [
        f"{name} {before[name]:.1f}% -> {percent:.1f}%" if name in before else
        f"{name} {percent:.1f}%"
        for name, percent in shown.items()
    ]  # fmt: skip
    return ", ".join(parts)


def _peak_text(move: PlannedMove) -> str:
    peak = _percents_text(move.target_peak)
    return f"; predicted peak {peak}" if peak else ""


def _rejected_lines(rejected: Sequence[RejectedTarget], rejections: int) -> Iterator[str]:
    for target in rejected:
        yield f"      not to {target.node}: {target.reason}"
    if rejections > len(rejected):
        yield f"      and {rejections - len(rejected)} more refuse it"
