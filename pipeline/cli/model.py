"""`springtide model`: the predictors there are, what a node's models hold, models of others."""

import asyncio
import importlib
from importlib.metadata import EntryPoint

import click

from pipeline.agents.configure import model_config
from pipeline.cli.explain import no_node
from pipeline.cli.options import KAFKA_CLIENT, settings_options
from pipeline.errors import CheckpointError, RecordError, UsageError
from pipeline.processors import snapshot
from pipeline.processors.bank import Bank
from pipeline.processors.inspection import head, names_of, table
from pipeline.processors.predictors.registry import available
from pipeline.settings import KafkaSettings, Settings
from pipeline.topics.admin import require_topics
from pipeline.topics.checkpoints import NodeCheckpoint, parse_key
from pipeline.topics.codec import decode_pack
from pipeline.topics.newest import Found, newest
from pipeline.topics.registry import CHECKPOINTS


@click.group()
def command() -> None:
    """List predictors, look into a node's models, import those of others.

    docs/models.md says what a model is and what each predictor makes of it.
    """


@command.command()
def predictors() -> None:
    """List the predictors that are installed, with the package that each comes from.

    Which of them run is `model.predictors`, and `model.predictor` the one that decides.

    \b
    Examples:
      springtide model predictors
    """
    lines = [(point.name, _package(point), _doc(point)) for point in available().values()]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        padded = (text.ljust(width) for text, width in zip(line, widths, strict=True))
        click.echo("  ".join(padded).rstrip())


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
    found = asyncio.run(_newest(settings.kafka, node))
    where = f"checkpoint {found.key.decode()!r:.120} at offset {found.offset}"
    try:
        checkpoint = decode_pack(NodeCheckpoint, found.value)
        click.echo(
            f"{where}: round {checkpoint.round}, generation {checkpoint.generation}, covers "
            f"windows below offset {checkpoint.covers}, state of {len(checkpoint.state)} bytes "
            f"in layout {snapshot.VERSION}"
        )
        state = snapshot.decode(checkpoint.state)
        click.echo("\n".join(head(state)))
        if strangers := [name for name in rows if name not in names_of(state)]:
            raise UsageError(
                f"there is no model of {', '.join(strangers):.300} on node {node}",
                hint="names are entities, or UIDs of pods: `springtide model inspect NODE --pods`",
            )
        lines = table(state, rows, pods=pods)
    except (CheckpointError, RecordError) as error:
        raise type(error)(f"{where}: {error.message}", hint=error.hint) from error
    if state.fingerprint != (ours := Bank(model_config(settings)).fingerprint):
        click.echo(f"a worker with these settings has model {ours} and would rebuild this one")
    click.echo("")
    click.echo("\n".join(lines))


async def _newest(kafka: KafkaSettings, node: str) -> Found:
    await require_topics(kafka)

    def is_of_node(key: bytes) -> bool:
        try:
            return parse_key(key)[:2] == ("node", node)
        except RecordError:
            return False

    found = await newest(kafka, CHECKPOINTS, node, is_of_node)
    if found is None:
        raise await no_node(kafka, node, "checkpoint")
    return found


def _package(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else "unknown package"


def _doc(point: EntryPoint) -> str:
    """What its module says of itself, or why it cannot be loaded."""
    try:
        text = importlib.import_module(point.module).__doc__ or ""
    except ImportError as error:
        return f"cannot be loaded: {error}"
    return text.strip().partition("\n")[0]
