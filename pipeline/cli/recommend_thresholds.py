"""`springtide recommend-thresholds`: propose thresholds of usage by three sigma."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from textwrap import wrap
from typing import Any, Final, Literal

import click
import msgspec
import numpy as np
import pyarrow as pa
import yaml

from pipeline.archive.archive_reader import read_files
from pipeline.archive.topic_span import AppendSpan, read_span
from pipeline.cli.explain_request import SETTINGS, load_rules
from pipeline.cli.help_sections import Command
from pipeline.cli.options import output_formats, settings_options, silence_logs
from pipeline.cli.safe_output import print_lines, printable
from pipeline.cli.table_reading import read_table
from pipeline.cli.trace_inputs import progress_report
from pipeline.clock import SystemClock
from pipeline.errors import NotReadyError, UsageError
from pipeline.processors.archive.archive_rows import LoggedWindow, archive_rows
from pipeline.processors.explain.text_columns import align_columns
from pipeline.processors.hot_nodes.threshold_advice import Advice, Present, advise
from pipeline.processors.hot_nodes.usage_history import USAGE_COLUMNS, UsageHistory
from pipeline.processors.loadaware.loadaware_args import LoadAwareArgs
from pipeline.processors.loadaware.node_thresholds import AGGREGATED, PROD, Limits, select_limits
from pipeline.settings import KafkaSettings, Settings
from pipeline.table import Table
from pipeline.table.apply_records import Headers, apply
from pipeline.table.node_histories import (
    HistoryStore,
    PoolHistory,
    by_rule,
    pool_histories,
    whole_cluster,
)
from pipeline.table.table_feed import NODE_TOPICS
from pipeline.topics.hot_node_policy import DEFAULT_POOL
from pipeline.topics.registry import PREDICTIONS, Topic

ARCHIVE_DAYS: Final = 14
"""Two weeks have every day of the week twice; older usage may be that of other workloads."""
Source = Literal["models", "archive", "live"]
_HISTORIES: Final[dict[Source, str]] = {
    "models": "history: samples that the models learn, model.training_statistic of a window, p90 "
    "by default. No record has averages of a day, which LowNodeLoad compares and which are lower: "
    "--live or --archive reads them",
    "archive": "history: average usage in the archive, of the last 14 days",
    "live": "history: average usage in springtide.windows, as long as the topic keeps it",
}
_NO_PROPOSAL: Final = 4
_WIDTH: Final = 100
_HEADERS: Final = (
    "FOR", "RULE", "NODES", "KNOWN", "MEAN", "SIGMA", "3-SIGMA", "PRESENT", "ABOVE", "TIME",
    "PROPOSED",
)  # fmt: skip
_COLUMN_HELP: Final = {
    "Columns": [
        ("FOR", "LoadAware: the scheduler, all nodes. Others: the node pool, of LowNodeLoad."),
        ("RULE", "Usage of the node, or of its Prod pods, of cpu or memory."),
        ("KNOWN", "Nodes whose history counts: a day or more, with fresh usage."),
        ("MEAN, SIGMA", "Mean and standard deviation over time and nodes, percent of allocatable."),
        (
            "PRESENT",
            "Low and high threshold in force; of LoadAware, and of pools without a low one, the "
            "high one alone. With useDeviationThresholds, distances from the mean.",
        ),
        ("ABOVE, TIME", "Nodes above the high one now, and the expected share of time."),
        ("PROPOSED", "Proposed thresholds; the lines below the table say why."),
    ]
}


class PoolAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """Advice about the thresholds of a node pool in LowNodeLoad."""

    pool: str
    use_deviation_thresholds: bool
    items: Sequence[Advice]


class ThresholdAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """The document of `-o json`. `args` are complete thresholds to paste, by plugin: those in force
    with the proposed ones in their place; empty without a proposal. `history` is what they rest on:
    average usage of an archive or the live log, or samples of models, of another statistic."""

    pools: Sequence[PoolAdvice]
    load_aware: Sequence[Advice]
    args: dict[str, dict[str, Any]]
    history: Source


@click.command(
    cls=Command,
    exit_codes={
        0: "a threshold is proposed, or the present one is right",
        3: "with --live: the topic is missing, or has another number of partitions",
        4: "nothing is proposed, and the output says why; no data, or topics are missing",
    },
    tables=_COLUMN_HELP,
)
@output_formats("yaml", help=", yaml are arguments to paste")
@click.option(
    "--archive", "directory", type=click.Path(path_type=Path), metavar="DIRECTORY",
    help="Use the average usage of the last 14 days in this archive, as `springtide archive` "
    "writes it, instead of what the models have learned.",
)  # fmt: skip
@click.option(
    "--live", is_flag=True,
    help="Use the average usage in springtide.windows, by default of 3 days, instead of what the "
    "models have learned.",
)  # fmt: skip
@settings_options(*SETTINGS, "kafka.partitions")
def command(settings: Settings, output: str, directory: Path | None, live: bool) -> None:
    """Propose thresholds of usage for each node pool and for the scheduler, by three sigma.

    Usual usage of a pool is its mean over time and nodes, plus or minus three standard deviations.
    A node above that is unusual. The command reads predictions, node states and nodes from Kafka,
    compares with the thresholds in force (LowNodeLoad in the records of nodes, LoadAware in the
    settings of the extender), and changes nothing. Unknown amounts are `-`.

    LowNodeLoad compares average usage, which --archive and --live read. By default the history is
    what the models have learned, the 90th percentile of windows: proposals are then rather high.

    \b
    Examples:
      springtide recommend-thresholds
      springtide recommend-thresholds -o yaml
      springtide recommend-thresholds --live
      springtide recommend-thresholds --archive /var/lib/springtide/archive
      springtide recommend-thresholds -o json | jq '.pools[].items[] | {rule, three_sigma_percent}'
    """
    if live and directory is not None:
        raise UsageError("give either --archive or --live", hint="an archive has more days")
    silence_logs(settings)
    history: UsageHistory | None = None
    source: Source = "models"
    if directory is not None:
        history, source = read_history(directory, SystemClock().now()), "archive"
    elif live:
        history, source = asyncio.run(_live_history(settings.kafka)), "live"
    advice = asyncio.run(_advice(settings, history, source))
    if output == "json":
        click.echo(msgspec.json.encode(advice))
    else:
        print_lines(yaml_lines(advice) if output == "yaml" else text_lines(advice))
    if not any(advice.args.values()):
        raise click.exceptions.Exit(_NO_PROPOSAL)


def read_history(directory: Path, now: float) -> UsageHistory:
    """The usage of the last days of an archive. Raises `UsageError` if the directory is none."""
    today, history = datetime.fromtimestamp(now, UTC).date(), UsageHistory()
    since = today - timedelta(days=ARCHIVE_DAYS)
    progress = progress_report(f"reading {directory}")
    read_files(directory, USAGE_COLUMNS, history.add, since=since, progress=progress)
    return history


async def _live_history(kafka: KafkaSettings) -> UsageHistory:
    """The usage of the windows that the topic has now; reports what cannot be read."""
    history = UsageHistory()

    def add(windows: list[LoggedWindow]) -> None:
        history.add(pa.Table.from_batches([archive_rows(windows)]))

    for problem in await read_span(kafka, AppendSpan(), add, progress_report("reading the log")):
        click.echo(printable(problem), err=True)
    return history


async def _advice(
    settings: Settings, history: UsageHistory | None, source: Source
) -> ThresholdAdvice:
    placement, store = load_rules(settings.extender).placement, HistoryStore()

    def apply_record(
        table: Table, topic: Topic, key: bytes | None, value: bytes | None, headers: Headers
    ) -> bool:
        if topic is PREDICTIONS:
            return store.apply(key, value, headers)
        return apply(table, topic, key, value, headers)

    topics = NODE_TOPICS if history else (*NODE_TOPICS, PREDICTIONS)
    async with read_table(settings, Table(), topics, apply_record=apply_record) as feed:
        now = SystemClock().now()
        stale_after = placement.expiration_seconds(settings.extender.stale_after_seconds)
        pools = list(pool_histories(feed.table, history or store, now, stale_after))
    if not pools:
        raise NotReadyError(
            "there is no node", hint="start `springtide exporter` on a node and one worker"
        )
    load_aware = placement.load_aware_filter(now) or placement.load_aware
    return threshold_advice(pools, load_aware, source)


def threshold_advice(
    pools: Sequence[PoolHistory], args: LoadAwareArgs, source: Source = "models"
) -> ThresholdAdvice:
    """Advice for these pools, at least one, and for LoadAware with these arguments."""
    advised = [
        PoolAdvice(
            pool=pool.name,
            use_deviation_thresholds=pool.present.deviates,
            items=advise(pool.nodes, pool.present),
        )
        for pool in pools
    ]
    limits, prod = (select_limits(args, None, is_prod=is_prod) for is_prod in (False, True))
    present = by_rule(limits.thresholds, prod.thresholds if prod.kind == PROD else {})
    present[present == 0.0] = np.nan  # not compared
    none = np.full_like(present, np.nan)
    load_aware = [
        msgspec.structs.replace(each, proposed_low_percent=None)  # it has no low thresholds
        for each in advise(whole_cluster(pools), Present(present, none))
    ]
    return ThresholdAdvice(
        pools=advised,
        load_aware=load_aware,
        args={
            "LoadAwareScheduling": _load_aware_args(load_aware, limits),
            "LowNodeLoad": _low_node_load_args(advised),
        },
        history=source,
    )


def _load_aware_args(items: Iterable[Advice], limits: Limits) -> dict[str, Any]:
    high = _merged(items, "high")
    if not any(each.proposed_high_percent for each in items):
        return {}
    args: dict[str, Any] = {}
    if limits.kind == AGGREGATED:
        args["aggregated"] = {"usageThresholds": high["node"]}
    else:
        args["usageThresholds"] = high["node"]
    if high["prod"]:
        args["prodUsageThresholds"] = high["prod"]
    return args


def _low_node_load_args(pools: Iterable[PoolAdvice]) -> dict[str, Any]:
    """The thresholds of all pools: one that sets none would take the new ones of the top level."""
    if not any(each.proposed_high_percent for pool in pools for each in pool.items):
        return {}
    args: dict[str, Any] = {}
    entries: list[dict[str, Any]] = []
    for advised in sorted(pools, key=lambda pool: pool.pool != DEFAULT_POOL):
        high, low = _merged(advised.items, "high"), _merged(advised.items, "low")
        keys = {
            "highThresholds": high["node"], "lowThresholds": low["node"],
            "prodHighThresholds": high["prod"], "prodLowThresholds": low["prod"],
        }  # fmt: skip
        named: dict[str, Any] = {key: own for key, own in keys.items() if own or key in args}
        if advised.use_deviation_thresholds:
            named["useDeviationThresholds"] = True
        if advised.pool == DEFAULT_POOL:
            args = named
        elif named:
            entries.append({"name": advised.pool, **named})
    return {**args, "nodePools": entries} if entries else args


def _merged(items: Iterable[Advice], which: str) -> dict[str, dict[str, float]]:
    """Thresholds by resource of nodes and of Prod: proposed ones, else those in force. A map of
    thresholds replaces another as a whole, so those that stay must be in it, too."""
    merged: dict[str, dict[str, float]] = {"node": {}, "prod": {}}
    for each in items:
        scope, _, resource = each.rule.partition("_")
        values = (getattr(each, f"proposed_{which}_percent"), getattr(each, f"{which}_percent"))
        percent = next((value for value in values if value is not None), None)
        if percent is not None:
            merged[scope][resource] = int(percent) if percent == int(percent) else percent
    return merged


def text_lines(advice: ThresholdAdvice) -> Iterator[str]:
    """Yield a table with a line per rule, and then why."""
    rows = [("LoadAware", each) for each in advice.load_aware]
    rows += [(pool.pool, each) for pool in advice.pools for each in pool.items]
    cells = [[name, *_cells(each)] for name, each in rows]
    yield from align_columns([list(_HEADERS), *cells], right=range(2, len(_HEADERS)))
    yield ""
    for name, each in rows:
        excluded = ", ".join(f"{n} {why}" for why, n in each.excluded_nodes.items() if n)
        counted = f" (not counted: {excluded})" if excluded else ""
        text = f"{name} {each.rule}: {each.reason}{counted}"
        yield from _wrapped(text)
    yield from _wrapped(_HISTORIES[advice.history])


def _wrapped(text: str) -> list[str]:
    return wrap(text, _WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def _cells(each: Advice) -> list[str]:
    numbers = (each.mean_percent, each.sigma_percent, each.three_sigma_percent)
    return [
        each.rule, str(each.nodes), str(each.known_nodes),
        *("-" if number is None else f"{number:.1f}%" for number in numbers),
        _range(each.low_percent, each.high_percent),
        "-" if each.nodes_above is None else str(each.nodes_above),
        "-" if each.time_above_percent is None else f"{each.time_above_percent:.2f}%",
        _range(each.proposed_low_percent, each.proposed_high_percent),
    ]  # fmt: skip


def _range(low: float | None, high: float | None) -> str:
    if high is None:
        return "-"
    return f"{high:g}%" if low is None else f"{low:g}-{high:g}%"


def yaml_lines(advice: ThresholdAdvice) -> Iterator[str]:
    """Yield the arguments of each plugin as YAML, to replace the same keys of those in force."""
    yield from (f"# {line.strip()}" for line in _wrapped(_HISTORIES[advice.history]))
    for plugin, args in advice.args.items():
        if not args:
            yield f"# {plugin}: no proposal"
            continue
        yield f"# {plugin}: replace these keys in its entry of pluginConfig, keep the others"
        if "nodePools" in args:
            yield "# and those of the nodePools with these names; their nodeSelector stays"
        yield from yaml.safe_dump([{"name": plugin, "args": args}], sort_keys=False).splitlines()
