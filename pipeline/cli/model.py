"""`springtide model`: the predictors there are, what a node's models hold, models of others."""

import asyncio
import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import click
import yaml

from pipeline.agents.configure import model_config
from pipeline.agents.importing import import_models, takes_anything
from pipeline.agents.log import open_reader
from pipeline.agents.output import open_output
from pipeline.cli.explain import no_node
from pipeline.cli.options import KAFKA_CLIENT, quiet_client, settings_options
from pipeline.cli.printing import say
from pipeline.clock import SystemClock
from pipeline.errors import CheckpointError, RecordError, UsageError
from pipeline.processors import snapshot
from pipeline.processors.bank import Bank
from pipeline.processors.imports import Learned, Received, Taken, from_koordinator, from_vpa
from pipeline.processors.inspection import head, names_of, table
from pipeline.processors.predictors.registry import available, package_of
from pipeline.processors.window import ENTITIES, RESOURCES, ModelConfig
from pipeline.settings import KafkaSettings, Settings
from pipeline.topics.admin import find_group, require_topics
from pipeline.topics.checkpoints import NodeCheckpoint, parse_key
from pipeline.topics.client import client_options, our_errors
from pipeline.topics.codec import decode_pack
from pipeline.topics.newest import Found, newest
from pipeline.topics.partition import partition_of
from pipeline.topics.registry import CHECKPOINTS, NODE_STATE


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
    lines = [(point.name, package_of(point), _doc(point)) for point in available().values()]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        padded = (text.ljust(width) for text, width in zip(line, widths, strict=True))
        say(["  ".join(padded).rstrip()])


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
    found = asyncio.run(_newest(settings.kafka, node))
    where = f"checkpoint {found.key.decode()!r:.120} at offset {found.offset}"
    try:
        checkpoint = decode_pack(NodeCheckpoint, found.value)
        click.echo(
            f"{where}: round {checkpoint.round}, generation {checkpoint.generation}, covers "
            f"windows below offset {checkpoint.covers}"
        )
        state = snapshot.decode(checkpoint.state)
        click.echo(f"state of {len(checkpoint.state)} bytes, layout {snapshot.VERSION}")
        say(head(state))
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
    say(lines)


@command.command(
    "import",
    epilog="Exit codes: 0 taken over, 1 refused: nothing was changed, 2 usage, 3 topics are "
    "missing, 4 no complete round of checkpoints has the node. Where Kafka failed meanwhile (1, "
    "too) it may be in force: start the workers, and after their next round look at the samples "
    "with `springtide model inspect` before you repeat it.",
)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--from", "source", type=click.Choice(["koordinator", "vpa"]), required=True)
@click.option("--node", required=True, help="The node whose models take it over.")
@click.option(
    "--pod",
    "pods",
    multiple=True,
    metavar="UID[=NAME]",
    help="vpa: the pod that takes the checkpoint NAME, or the only one.",
)
@settings_options(*KAFKA_CLIENT, "kafka.partitions", "worker.id")
def import_(
    settings: Settings, files: tuple[Path, ...], source: str, node: str, pods: tuple[str, ...]
) -> None:
    """Take over what Koordinator or the Vertical Pod Autoscaler has learned, from FILES.

    Their weights are added to the node's own, decayed to the same moment; mean and deviation
    follow from them. A file of Koordinator's --prediction-checkpoint-filepath says itself whether
    it is of the node, a class or a pod; of a VerticalPodAutoscalerCheckpoint as kubectl prints it
    you say which pod it is for. A histogram without samples is unknown, and changes nothing.

    All workers must be stopped, and have completed a round of checkpoints with the node. The
    import is in force when they come back. Models that are rebuilt from the log are without it.

    \b
    Examples:
      springtide model import --from koordinator --node node-1 prediction-checkpoints/*
      springtide model import --from vpa --node node-1 --pod 0b6f-42=web-main vpa.yaml
    """
    read = from_koordinator if source == "koordinator" else from_vpa
    learned = [one for path in files for one in _learned(path, read)]
    found = _of_koordinator(learned, pods) if source == "koordinator" else _of_vpa(learned, pods)
    config = model_config(settings)
    quiet_client(settings)
    taken = asyncio.run(_import(settings, node, found, config))
    for name in sorted(found):
        what = _taken(taken[name]) if name in taken else "left out, the node has no model of it"
        say([f"{name}: {what}"])
    if takes_anything(taken):
        click.echo("in force when the workers come back")
    else:
        click.echo("nothing to take over: nothing was changed")


def _learned(path: Path, read: Callable[[Mapping[str, Any]], Learned]) -> list[Learned]:
    try:
        return [read(document) for document in _documents(path)]
    except CheckpointError as error:
        hint = error.hint or "get the file anew, or leave it out"
        raise CheckpointError(f"{path}: {error.message}", hint=hint) from error


def _of_koordinator(learned: Sequence[Learned], pods: tuple[str, ...]) -> dict[str, Learned]:
    if pods:
        raise UsageError("--pod is for vpa", hint="files of Koordinator say what they are of")
    return _by_name([(of.name, of) for of in learned])


def _of_vpa(learned: Sequence[Learned], pods: tuple[str, ...]) -> dict[str, Learned]:
    """By pod UID, what the options say is of it."""
    found = {of.name: of for of in learned}
    if not pods:
        raise UsageError(
            "vpa needs --pod UID", hint="a checkpoint does not say of which pods it is"
        )
    wanted = []
    for pod in pods:
        uid, _, name = pod.partition("=")
        if uid in ENTITIES:
            raise UsageError(
                f"--pod {pod}: {uid!r} is no pod, and what a container used is not what it uses",
                hint="name the UID of a pod: `springtide model inspect NODE --pods`",
            )
        if not name and len(found) == 1:
            (name,) = found
        if name not in found:
            raise UsageError(
                f"--pod {pod}: no checkpoint {name!r:.100} in the files",
                hint=f"name one of {', '.join(found):.300}",
            )
        wanted.append((uid, found[name]))
    return _by_name(wanted)


def _by_name(found: Sequence[tuple[str, Learned]]) -> dict[str, Learned]:
    by_name = dict(found)
    if len(by_name) < len(found):
        raise UsageError("two checkpoints are for one model", hint="import one of them")
    return by_name


def _documents(path: Path) -> Sequence[Mapping[str, Any]]:
    """The objects of a file, JSON or YAML; the items of a list."""
    try:
        text = path.read_text("utf-8")
        read = _objects(text)
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}", hint="name the files of the checkpoints"
        ) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        first = str(error).partition("\n")[0]
        raise UsageError(
            f"{path} is neither JSON nor YAML: {first:.200}", hint="get the file anew"
        ) from error
    if not text.strip():
        raise UsageError(f"{path} is empty", hint="get the file anew, or leave it out")
    found = []
    for document in read:
        items = document.get("items", [document]) if isinstance(document, dict) else [document]
        for item in items if isinstance(items, list) else [items]:
            if not isinstance(item, dict):
                raise UsageError(f"{path} holds {type(item).__name__}, not an object")
            found.append(item)
    return found


def _objects(text: str) -> list[Any]:
    # YAML 1.1 takes numbers as Go writes them in JSON, 5e-07, for text.
    try:
        return [json.loads(text)]
    except ValueError:
        return list(yaml.safe_load_all(text))


def _taken(row: Sequence[Received | None]) -> str:
    """What was taken over of each resource, and how."""
    words = []
    for resource, received in zip(RESOURCES, row, strict=True):
        if received is None:
            words.append(f"{resource} unknown, nothing to take over")
        elif not received.buckets:
            words.append(f"{resource} too old, nothing is left of it")
        else:
            how = ", each in the bucket of its end" if received.moved else ""
            words.append(f"{resource} {received.buckets} buckets{how}")
    return "; ".join(words)


async def _import(
    settings: Settings, node: str, found: Mapping[str, Learned], config: ModelConfig
) -> Taken:
    kafka = settings.kafka
    await require_topics(kafka, (CHECKPOINTS,))

    async def is_idle() -> bool:
        return not (await find_group(kafka, settings.worker.id)).members

    client = client_options(kafka)
    place = CHECKPOINTS.full_name(kafka.topic_prefix), partition_of(node, kafka.partitions)
    with our_errors(kafka, f"importing models of {node}"):
        async with open_output(client) as output:
            return await import_models(
                node, found, config, place=place, output=output, clock=SystemClock(),
                open_reader=partial(open_reader, client), is_idle=is_idle,
            )  # fmt: skip


async def _newest(kafka: KafkaSettings, node: str) -> Found:
    await require_topics(kafka, (CHECKPOINTS, NODE_STATE))

    def is_of_node(key: bytes) -> bool:
        try:
            return parse_key(key)[:2] == ("node", node)
        except RecordError:
            return False

    found = await newest(kafka, CHECKPOINTS, node, is_of_node)
    if found is None:
        raise await no_node(kafka, node, "checkpoint")
    return found


def _doc(point: EntryPoint) -> str:
    """What its module says of itself, or why it cannot be loaded."""
    try:
        point.load()
        text = importlib.import_module(point.module).__doc__ or ""
    except Exception as error:  # one odd module must not hide the others
        return f"cannot be loaded: {error!r}"
    return text.strip().partition("\n")[0]
