"""`springtide model import`: what others have learned, or we exported, into a node's models."""

import asyncio
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import yaml

from pipeline.agents.bank_settings import model_config
from pipeline.agents.model_import_round import (
    Change,
    add_models,
    change_models,
    replace_models,
    takes_anything,
)
from pipeline.cli.options import KAFKA_CLIENT, quiet_client, settings_options
from pipeline.cli.safe_output import say
from pipeline.clock import SystemClock
from pipeline.errors import CheckpointError, UsageError
from pipeline.kafka.client import client_options, our_errors
from pipeline.kafka.partition import partition_of
from pipeline.kafka.partition_log import open_reader
from pipeline.kafka.producer import open_output
from pipeline.kafka.topic_admin import find_group, require_topics
from pipeline.processors.exchange.import_models import (
    Learned,
    Received,
    Taken,
    from_koordinator,
    from_vpa,
)
from pipeline.processors.explain.model_state_text import brief
from pipeline.processors.model import state_codec
from pipeline.processors.model.model_config import ENTITIES, RESOURCES
from pipeline.processors.model.state_codec import NodeState
from pipeline.settings import Settings
from pipeline.topics.registry import CHECKPOINTS

_T = TypeVar("_T")

_OTHER: Final = "get the file anew, leave it out, or check --from"
_EXPORT: Final = "name a whole file of `springtide model export` or `fit`, of this release"


@click.command(
    "import",
    epilog="Exit codes: 0 taken over, or nothing to take over; 1 refused: nothing was changed, 2 "
    "usage or settings, 3 topics are missing, 4 no complete round of checkpoints has the node. "
    "Where Kafka failed meanwhile (1, too) it may be in force: start the workers, and after their "
    "next round look at the samples with `springtide model inspect` before you repeat it.",
)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--from", "source", type=click.Choice(["koordinator", "vpa", "springtide"]), required=True
)
@click.option("--node", required=True, help="The node whose models take it over.")
@click.option(
    "--pod",
    "pods",
    multiple=True,
    metavar="UID[=NAME]",
    help="vpa: the pod that takes the checkpoint NAME, or the only one.",
)
@click.option("--dry-run", is_flag=True, help="Check everything and say it; change nothing.")
@settings_options(*KAFKA_CLIENT, "kafka.partitions", "worker.id")
def import_(
    settings: Settings,
    files: tuple[Path, ...],
    source: str,
    node: str,
    pods: tuple[str, ...],
    dry_run: bool,
) -> None:
    """Take over what Koordinator or the Vertical Pod Autoscaler has learned, or an export of ours,
    from FILES.

    Their weights are added to the node's own, decayed to the same moment; mean and deviation
    follow from them. A file of Koordinator's --prediction-checkpoint-filepath says itself whether
    it is of the node, a class or a pod; of a VerticalPodAutoscalerCheckpoint as kubectl prints it
    you say which pod it is for. A histogram without samples is unknown, and changes nothing.

    The file of `springtide model export` or `fit` takes the place of all models of the node, bit
    for bit. It is refused if the settings here give models of another layout.

    All workers must be stopped, and have completed a round of checkpoints with the node. The
    import is in force when they come back. Models that are rebuilt from the log are without it.
    Workers are looked for in the group --id, and in that of the worker which took the node's
    partition last.

    \b
    Examples:
      springtide model import --from koordinator --node node-1 prediction-checkpoints/*
      springtide model import --from vpa --node node-1 --pod 0b6f-42=web-main vpa.yaml
      springtide model import --from springtide --node node-1 --dry-run node-1.springtide
    """
    quiet_client(settings)
    if source == "springtide":
        changed = _put_back(settings, files, node, pods, dry_run=dry_run)
    else:
        changed = _add(settings, files, source, node, pods, dry_run=dry_run)
    if not changed:
        click.echo("nothing to take over: nothing was changed")
    elif dry_run:
        click.echo("a dry run: nothing was changed")
    else:
        click.echo("in force when the workers come back")


def _put_back(
    settings: Settings, files: tuple[Path, ...], node: str, pods: tuple[str, ...], *, dry_run: bool
) -> bool:
    """Put an export in place of the node's models; always changes them."""
    if pods or len(files) > 1:
        raise UsageError(
            "an export of springtide is one file, with all pods of the node",
            hint="name one file, without --pod",
        )
    (path,) = files
    data = _bytes(path)
    try:
        state = state_codec.decode(data)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error.message}", hint=_EXPORT) from error
    try:
        change = replace_models(node, data, model_config(settings), SystemClock())
        replaced = asyncio.run(_change(settings, node, change, dry_run=dry_run))
    except CheckpointError as error:
        raise type(error)(f"{path}: {error.message}", hint=error.hint) from error
    say(
        [
            f"{node}: {brief(state)}",
            f"in place of: {_replaced(state, replaced)}",
        ]
    )
    if replaced and state.machine_id not in ("", replaced.machine_id):
        say(["of another machine: with its first window node, system and classes begin anew"])
    return True


def _replaced(state: NodeState, replaced: NodeState | None) -> str:
    if replaced is None:
        return "models that nobody can read"
    return "the same models" if replaced == state else brief(replaced)


def _add(
    settings: Settings,
    files: tuple[Path, ...],
    source: str,
    node: str,
    pods: tuple[str, ...],
    *,
    dry_run: bool,
) -> bool:
    """Add what others have learned; whether any model took any of it."""
    read = from_koordinator if source == "koordinator" else from_vpa
    learned = [one for path in files for one in _learned(path, read)]
    found = _of_koordinator(learned, pods) if source == "koordinator" else _of_vpa(learned, pods)
    change = add_models(node, found, model_config(settings))
    taken: Taken = asyncio.run(_change(settings, node, change, dry_run=dry_run))
    for name in sorted(found):
        what = _taken(taken[name]) if name in taken else "left out, the node has no model of it"
        say([f"{name}: {what}"])
    return takes_anything(taken)


def _learned(path: Path, read: Callable[[Mapping[str, Any]], Learned]) -> list[Learned]:
    try:
        return [read(document) for document in _documents(path)]
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error.message}", hint=error.hint or _OTHER) from error


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
    data = _bytes(path)
    try:
        text = data.decode()
        read = _objects(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        first = str(error).partition("\n")[0]
        raise CheckpointError(f"neither JSON nor YAML: {first:.200}") from error
    if not text.strip():
        raise CheckpointError("the file is empty")
    found = []
    for document in read:
        items = document.get("items", [document]) if isinstance(document, dict) else [document]
        for item in items if isinstance(items, list) else [items]:
            if not isinstance(item, dict):
                raise CheckpointError(f"it holds {type(item).__name__}, not an object")
            found.append(item)
    return found


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}", hint="name the files of the checkpoints"
        ) from error


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


async def _change(settings: Settings, node: str, change: Change[_T], *, dry_run: bool) -> _T:
    kafka = settings.kafka
    await require_topics(kafka, (CHECKPOINTS,))

    found: list[str] = []

    async def find_running(claimed: Collection[str]) -> list[str]:
        groups = sorted({settings.worker.id, *claimed})
        found[:] = [group for group in groups if (await find_group(kafka, group)).members]
        return found

    client = client_options(kafka)
    put = partial(
        change_models, node, change,
        place=(CHECKPOINTS.full_name(kafka.topic_prefix), partition_of(node, kafka.partitions)),
        open_reader=partial(open_reader, client), find_running=find_running, clock=SystemClock(),
    )  # fmt: skip
    with our_errors(kafka, f"importing models of {node}"):
        if not dry_run:
            async with open_output(client) as output:
                return await put(output=output)
        said = await put(output=None)
        if found:
            say([f"workers of the group {', '.join(found)} run: stop them first"])
        return said
