"""`springtide model`: list predictors; inspect, fit, export and import models."""

import json
from collections.abc import Iterator

import click

from pipeline.agents.bank_settings import model_config
from pipeline.cli.help_sections import Command, Group
from pipeline.cli.kafka_requests import run_requests
from pipeline.cli.model_export import export, newest_checkpoint
from pipeline.cli.model_fit import fit
from pipeline.cli.model_import import import_
from pipeline.cli.options import KAFKA_CLIENT, output_formats, settings_options, silence_logs
from pipeline.cli.pod_names import read_pod_names, with_uids
from pipeline.cli.safe_output import print_lines
from pipeline.errors import CheckpointError, PredictorError, RecordError, UsageError
from pipeline.kafka.newest import Found
from pipeline.processors.explain.model_state_text import head, items, names_of, table
from pipeline.processors.model import state_codec
from pipeline.processors.model.bank import Bank
from pipeline.processors.predictors.predictor_tables import markdown as markdown_tables
from pipeline.processors.predictors.predictor_tables import option_lines
from pipeline.processors.predictors.registry import PREDICTORS
from pipeline.settings import KafkaSettings, Settings
from pipeline.topics.checkpoints import NodeCheckpoint
from pipeline.topics.codec import decode_pack


@click.group(cls=Group)
def command() -> None:
    """List predictors; inspect, fit, export and import the models of a node.

    A model holds what one entity (pod, class, system or node) used; predictors compute peaks from
    it.
    """


command.add_command(export)
command.add_command(fit)
command.add_command(import_)


@command.command(cls=Command, exit_codes={0: "listed"})
@output_formats("markdown", help=", markdown are the tables of docs/explanation/models.md")
def predictors(output: str) -> None:
    """List the installed predictors: name, package, formula of the peak, options.

    The setting model.predictors selects those that run, model.predictor the default of nodes.

    \b
    Examples:
      springtide model predictors
      springtide model predictors -o markdown
    """
    if output == "markdown":
        declarations = {name: PREDICTORS.get(name).declaration for name in PREDICTORS.points}
        click.echo(markdown_tables(declarations), nl=False)
        return
    packages = {name: ", ".join(PREDICTORS.packages(name)) for name in PREDICTORS.points}
    if output == "json":
        described = {name: [*_description(name)] for name in packages}
        items = [
            {"name": name, "package": packages[name], "summary": summary, "options": options}
            for name, (summary, *options) in described.items()
        ]
        click.echo(json.dumps({"items": items}, indent=2))
        return
    widths = [max(map(len, texts)) for texts in (packages, packages.values())]
    for name, package in packages.items():
        summary, *options = _description(name)
        head = f"{name.ljust(widths[0])}  {package.ljust(widths[1])}  {summary}"
        print_lines([head, *(f"    {line}" for line in options)])


@command.command(
    cls=Command,
    exit_codes={
        0: "shown",
        1: "failure, such as a damaged checkpoint or one of another layout",
        3: "topics are missing",
        4: "no checkpoint of this node",
    },
)
@click.argument("node")
@click.option(
    "--row", "rows", multiple=True, metavar="NAME",
    help="Show only this entity, or the pod with this namespace/name or UID. Repeatable.",
)  # fmt: skip
@click.option("--pods", is_flag=True, help="Also show the pods.")
@output_formats(help=", and the UIDs of pods beside their names")
@settings_options(*KAFKA_CLIENT, "kafka.partitions")
def inspect(settings: Settings, node: str, rows: tuple[str, ...], pods: bool, output: str) -> None:
    """Show the content of the newest checkpoint of NODE.

    The command prints layout and model, the offsets that the checkpoint covers, and per entity its
    samples, times, filled buckets, mean and deviation. Workers write checkpoints every
    worker.checkpoint_interval_seconds.

    \b
    Examples:
      springtide model inspect node-1
      springtide model inspect node-1 --row prod --row system
      springtide model inspect node-1 --row shop/web-0 -o json
    """
    silence_logs(settings, "aiokafka")
    record, names = run_requests(settings.kafka, _checkpoint_and_names(settings.kafka, node))
    where = f"checkpoint {record.key.decode()!r:.120} at offset {record.offset}"
    try:
        checkpoint = decode_pack(NodeCheckpoint, record.value)
        state = state_codec.decode(checkpoint.state)
        uids = {name: uid for uid, name in names.items()}
        rows = tuple(uids.get(row, row) for row in rows)
        if unknown := [name for name in rows if name not in names_of(state)]:
            raise UsageError(
                f"there is no model of {', '.join(unknown):.300} on node {node}",
                hint="list entities and pods with `springtide model inspect NODE --pods`",
            )
        if output == "json":
            document = {
                "node": state.node, "machine": state.machine_id, "model": state.fingerprint,
                "layout": state_codec.VERSION, "offset": record.offset,
                "covers": checkpoint.covers, "applied": state.applied, "gaps": state.gaps,
                "items": [*items(state, rows, pods=pods, pod_names=names)],
            }  # fmt: skip
            click.echo(json.dumps(document, indent=2, allow_nan=False))
            return
        names = with_uids(names) if output == "wide" else names
        lines = [*head(state), "", *table(state, rows, pods=pods, pod_names=names)]
    except (CheckpointError, RecordError) as error:
        raise type(error)(f"{where}: {error.message}", hint=error.hint) from error
    click.echo(
        f"{where}: round {checkpoint.round}, generation {checkpoint.generation}, covers "
        f"windows below offset {checkpoint.covers}"
    )
    click.echo(f"state of {len(checkpoint.state)} bytes, layout {state_codec.VERSION}")
    if state.fingerprint != (ours := Bank(model_config(settings)).fingerprint):
        click.echo(f"a worker with these settings has model {ours} and would rebuild this one")
    print_lines(lines)


async def _checkpoint_and_names(kafka: KafkaSettings, node: str) -> tuple[Found, dict[str, str]]:
    return await newest_checkpoint(kafka, node), await read_pod_names(kafka, node)


def _description(predictor: str) -> Iterator[str]:
    """Yield the summary of a predictor and a line per option, or why it is unusable."""
    try:
        declared = PREDICTORS.get(predictor).declaration
    except PredictorError as error:
        yield f"unusable: {error.message}"
    else:
        yield declared.summary
        yield from option_lines(declared.options)
