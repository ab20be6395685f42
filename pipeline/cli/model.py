"""`springtide model`: the predictors there are, what a node's models hold, models as files."""

import asyncio
from collections.abc import Iterator

import click

from pipeline.agents.bank_settings import model_config
from pipeline.cli.model_export import export, newest_checkpoint
from pipeline.cli.model_fit import fit
from pipeline.cli.model_import import import_
from pipeline.cli.options import KAFKA_CLIENT, quiet_client, settings_options
from pipeline.cli.safe_output import say
from pipeline.errors import CheckpointError, PredictorError, RecordError, UsageError
from pipeline.processors.explain.model_state_text import head, names_of, table
from pipeline.processors.model import state_codec
from pipeline.processors.model.bank import Bank
from pipeline.processors.predictors.documentation import markdown as markdown_tables
from pipeline.processors.predictors.documentation import option_lines
from pipeline.processors.predictors.registry import (
    available,
    declaration_of,
    package_of,
    packages_with,
)
from pipeline.settings import Settings
from pipeline.topics.checkpoints import NodeCheckpoint
from pipeline.topics.codec import decode_pack


@click.group()
def command() -> None:
    """List predictors, look into a node's models, write them to files, take over those of others.

    docs/explanation/models.md says what a model is and what each predictor makes of it.
    """


command.add_command(export)
command.add_command(fit)
command.add_command(import_)


@command.command(epilog="Exit codes: 0 listed, 2 usage.")
@click.option(
    "--markdown", is_flag=True, help="Print the tables of docs/explanation/models.md instead."
)
def predictors(markdown: bool) -> None:
    """List the installed predictors: name, package, what the peak is, options.

    The setting `model.predictors` names those that run, `model.predictor` the one that decides.

    \b
    Examples:
      springtide model predictors
      springtide model predictors --markdown
    """
    if markdown:
        declarations = {name: declaration_of(name) for name in available()}
        click.echo(markdown_tables(declarations), nl=False)
        return
    points = available().values()
    packages = {
        point.name: ", ".join(packages_with(point.name)) or package_of(point) for point in points
    }
    widths = [max(map(len, texts)) for texts in (packages, packages.values())]
    for name, package in packages.items():
        summary, *options = _described(name)
        head = f"{name.ljust(widths[0])}  {package.ljust(widths[1])}  {summary}"
        say([head, *(f"    {line}" for line in options)])


@command.command(
    epilog="Exit codes: 0 shown, 1 the checkpoint is damaged or of another layout, 2 usage, 3 "
    "topics are missing, 4 no checkpoint of this node."
)
@click.argument("node")
@click.option("--row", "rows", multiple=True, metavar="NAME", help="Only this entity or pod UID.")
@click.option("--pods", is_flag=True, help="Show the pods too.")
@settings_options(*KAFKA_CLIENT, "kafka.partitions")
def inspect(settings: Settings, node: str, rows: tuple[str, ...], pods: bool) -> None:
    """Show what the newest checkpoint of NODE holds.

    Layout and model, what it covers, and per entity samples, times, filled buckets, mean and
    deviation. Checkpoints are written every worker.checkpoint_interval_seconds.

    \b
    Examples:
      springtide model inspect node-1
      springtide model inspect node-1 --row prod --row system
    """
    quiet_client(settings)
    found = asyncio.run(newest_checkpoint(settings.kafka, node))
    where = f"checkpoint {found.key.decode()!r:.120} at offset {found.offset}"
    try:
        checkpoint = decode_pack(NodeCheckpoint, found.value)
        state = state_codec.decode(checkpoint.state)
        if strangers := [name for name in rows if name not in names_of(state)]:
            raise UsageError(
                f"there is no model of {', '.join(strangers):.300} on node {node}",
                hint="names are entities, or UIDs of pods: `springtide model inspect NODE --pods`",
            )
        lines = [*head(state), "", *table(state, rows, pods=pods)]
    except (CheckpointError, RecordError) as error:
        raise type(error)(f"{where}: {error.message}", hint=error.hint) from error
    click.echo(
        f"{where}: round {checkpoint.round}, generation {checkpoint.generation}, covers "
        f"windows below offset {checkpoint.covers}"
    )
    click.echo(f"state of {len(checkpoint.state)} bytes, layout {state_codec.VERSION}")
    if state.fingerprint != (ours := Bank(model_config(settings)).fingerprint):
        click.echo(f"a worker with these settings has model {ours} and would rebuild this one")
    say(lines)


def _described(predictor: str) -> Iterator[str]:
    """The summary of a predictor and a line for each option, or why it cannot be used."""
    try:
        declared = declaration_of(predictor)
    except PredictorError as error:
        yield f"cannot be used: {error.message.removeprefix(f'{error.key}: ')}"
    else:
        yield declared.summary
        yield from option_lines(declared.options)
