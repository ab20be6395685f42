"""`springtide model import`: import models of Koordinator, VPA or Springtide into a node.

The import is a new round of checkpoints, which workers restore when they start. Running workers
would overwrite it, so the command refuses while the groups of the workers have members.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from pipeline.agents.bank_settings import model_config
from pipeline.agents.model_import_round import (
    Change,
    add_models,
    change_models,
    replace_models,
    takes_anything,
)
from pipeline.cli.help_sections import Command, SecondaryOption
from pipeline.cli.kafka_requests import run_requests
from pipeline.cli.options import KAFKA_CLIENT, settings_options, silence_logs
from pipeline.cli.safe_output import print_lines
from pipeline.clock import SystemClock
from pipeline.errors import CheckpointError, UsageError
from pipeline.input_files import YAML_ERRORS, items_of, read_file, yaml_documents, yaml_problem
from pipeline.kafka.client import client_options, translated_errors
from pipeline.kafka.partition import partition_of
from pipeline.kafka.partition_log import open_reader
from pipeline.kafka.producer import log_producer
from pipeline.kafka.topic_admin import find_group, require_topics
from pipeline.processors.exchange.import_models import (
    ImportedModel,
    ImportResult,
    ImportResults,
    from_koordinator,
    from_vpa,
)
from pipeline.processors.explain.model_state_text import brief
from pipeline.processors.model import state_codec
from pipeline.processors.model.model_config import ENTITIES, RESOURCES
from pipeline.processors.model.state_codec import ModelState
from pipeline.settings import Settings
from pipeline.topics.registry import CHECKPOINTS

_T = TypeVar("_T")

_BAD_FILE: Final = "export the file again, omit it, or correct --from"
_BAD_EXPORT: Final = "give a whole file of `springtide model export` or `fit` of this release"


@click.command(
    "import",
    cls=Command,
    exit_codes={
        0: "imported, or nothing to import",
        1: "failure: if Kafka failed during the write, the import may be in force",
        3: "topics are missing",
        4: "no complete round of checkpoints contains the node",
    },
)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--from", "source", type=click.Choice(["koordinator", "vpa", "springtide"]), required=True,
    help="Origin of the files.",
)  # fmt: skip
@click.option("--node", required=True, help="Node whose models are changed.")
@click.option(
    "--pod", "pods", multiple=True, metavar="UID[=NAME]",
    help="With --from vpa: the pod for the checkpoint NAME, or for the only one. Repeatable.",
)  # fmt: skip
@click.option(
    "--older", cls=SecondaryOption, is_flag=True,
    help="With --from springtide: go back to an export that is older than the node's models.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Check and report everything, and change nothing.")
@settings_options(*KAFKA_CLIENT, "kafka.partitions", "worker.id")
def import_(
    settings: Settings,
    files: tuple[Path, ...],
    source: str,
    node: str,
    pods: tuple[str, ...],
    older: bool,
    dry_run: bool,
) -> None:
    """Import models of Koordinator, of the Vertical Pod Autoscaler, or of Springtide from FILES.

    Weights of Koordinator and of the Vertical Pod Autoscaler are added to the node's own, decayed
    to the same moment; mean and deviation follow from them. A file of Koordinator's
    --prediction-checkpoint-filepath names its node, class or pod. For a
    VerticalPodAutoscalerCheckpoint, as kubectl prints it, --pod names the pod. A histogram without
    samples changes nothing.

    A file of `springtide model export` or `fit` replaces all models of the node. It is refused if
    the local settings have models of another layout, and an export also if the node's models are
    newer, unless with --older.

    Stop all workers first, after a complete round of checkpoints that contains the node. The
    command looks for workers of the name --id, and in the group of the last owner of the node's
    partition. The import is in force when workers start again; models that are rebuilt from the
    log do not contain it. If Kafka failed during the write, start the workers, wait for a round of
    checkpoints, and compare the samples with `springtide model inspect` before you repeat it.

    \b
    Examples:
      springtide model import --from koordinator --node node-1 prediction-checkpoints/*
      springtide model import --from vpa --node node-1 --pod 0b6f-42=web-main vpa.yaml
      springtide model import --from springtide --node node-1 --dry-run node-1.springtide
    """
    silence_logs(settings, "aiokafka")
    if source == "springtide":
        changed = _restore_export(settings, files, node, pods, older=older, dry_run=dry_run)
    else:
        changed = _add_models(settings, files, source, node, pods, dry_run=dry_run)
    if not changed:
        click.echo("nothing to import: nothing was changed")
    elif dry_run:
        click.echo("dry run: nothing was changed")
    else:
        click.echo("in force when the workers start again")


def _restore_export(
    settings: Settings,
    files: tuple[Path, ...],
    node: str,
    pods: tuple[str, ...],
    *,
    older: bool,
    dry_run: bool,
) -> bool:
    """Replace the node's models by an export; always changes them."""
    if pods or len(files) > 1:
        raise UsageError(
            "an export of springtide is one file with all pods of the node",
            hint="give one file, without --pod",
        )
    (path,) = files
    data = read_file(path)
    try:
        state = state_codec.decode(data)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error.message}", hint=_BAD_EXPORT) from error
    try:
        config = model_config(settings)
        change = replace_models(node, data, config, SystemClock(), may_be_older=older)
        replaced = run_requests(
            settings.kafka, _apply_change(settings, node, change, dry_run=dry_run)
        )
    except CheckpointError as error:
        raise type(error)(f"{path}: {error.message}", hint=error.hint) from error
    print_lines([f"{node}: {brief(state)}", f"replaces: {_replaced_summary(state, replaced)}"])
    if replaced and state.machine_id not in ("", replaced.machine_id):
        print_lines(["of another machine: its first window resets node, system and classes"])
    return True


def _replaced_summary(state: ModelState, replaced: ModelState | None) -> str:
    if replaced is None:
        return "unreadable models"
    return "the same models" if replaced == state else brief(replaced)


def _add_models(
    settings: Settings,
    files: tuple[Path, ...],
    source: str,
    node: str,
    pods: tuple[str, ...],
    *,
    dry_run: bool,
) -> bool:
    """Add the models of other systems; return whether any model changed."""
    sources = {
        "koordinator": (from_koordinator, _koordinator_models), "vpa": (from_vpa, _vpa_models)
    }  # fmt: skip
    read, assign = sources[source]
    learned = [model for path in files for model in _read_models(path, read)]
    by_name = assign(learned, pods)
    change = add_models(node, by_name, model_config(settings))
    imported: ImportResults = run_requests(
        settings.kafka, _apply_change(settings, node, change, dry_run=dry_run)
    )
    for name in sorted(by_name):
        row = imported.get(name)
        text = "skipped, the node has no such model" if row is None else _summary(row)
        print_lines([f"{name}: {text}"])
    return takes_anything(imported)


def _read_models(
    path: Path, read: Callable[[Mapping[str, Any]], ImportedModel]
) -> list[ImportedModel]:
    try:
        return [read(document) for document in _read_objects(path)]
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error.message}", hint=error.hint or _BAD_FILE) from error


def _koordinator_models(
    learned: Sequence[ImportedModel], pods: tuple[str, ...]
) -> dict[str, ImportedModel]:
    if pods:
        raise UsageError(
            "--pod is only for --from vpa", hint="Koordinator's files name their entity"
        )
    return _unique_by_name([(model.name, model) for model in learned])


def _vpa_models(
    learned: Sequence[ImportedModel], pods: tuple[str, ...]
) -> dict[str, ImportedModel]:
    """Assign checkpoints to pod UIDs by the options."""
    checkpoints = {model.name: model for model in learned}
    if not pods:
        raise UsageError("--from vpa needs --pod UID", hint="a checkpoint does not name its pods")
    assigned = []
    for pod in pods:
        uid, _, name = pod.partition("=")
        if uid in ENTITIES:
            raise UsageError(
                f"--pod {pod}: {uid!r} is an entity, and a checkpoint of a container is for a pod",
                hint="give a pod UID; list them with `springtide model inspect NODE --pods`",
            )
        if not name and len(checkpoints) == 1:
            (name,) = checkpoints
        if name not in checkpoints:
            raise UsageError(
                f"--pod {pod}: no checkpoint {name!r:.100} in the files",
                hint=f"give one of {', '.join(checkpoints):.300}",
            )
        assigned.append((uid, checkpoints[name]))
    return _unique_by_name(assigned)


def _unique_by_name(models: Sequence[tuple[str, ImportedModel]]) -> dict[str, ImportedModel]:
    by_name = dict(models)
    if len(by_name) < len(models):
        raise UsageError("two files or checkpoints are for one model", hint="import one of them")
    return by_name


def _read_objects(path: Path) -> Sequence[Mapping[str, Any]]:
    """Read the objects of a JSON or YAML file; of a List its items."""
    data = read_file(path)
    try:
        text = data.decode()
        documents = _parse_documents(text)
    except YAML_ERRORS as error:
        problem = yaml_problem(error)
        raise CheckpointError(f"is neither JSON nor YAML: {problem:.200}") from error
    if not text.strip():
        raise CheckpointError("is empty")
    objects = []
    for item in (item for document in documents for item in items_of(document)):
        if not isinstance(item, dict):
            raise CheckpointError(f"contains {type(item).__name__}, not an object")
        objects.append(item)
    return objects


def _parse_documents(text: str) -> list[Any]:
    # YAML 1.1 reads numbers as Go writes them in JSON, such as 5e-07, as text.
    try:
        return [json.loads(text)]
    except ValueError:
        return yaml_documents(text)


def _summary(row: Sequence[ImportResult | None]) -> str:
    parts = []
    for resource, received in zip(RESOURCES, row, strict=True):
        if received is None:
            parts.append(f"{resource} unknown, nothing to import")
        elif not received.buckets:
            parts.append(f"{resource} too old, nothing is left after decay")
        else:
            rebucketed = ", moved to other bucket bounds" if received.moved else ""
            parts.append(f"{resource} {received.buckets} buckets{rebucketed}")
    return "; ".join(parts)


async def _apply_change(settings: Settings, node: str, change: Change[_T], *, dry_run: bool) -> _T:
    kafka = settings.kafka
    await require_topics(kafka, (CHECKPOINTS,))

    active: list[str] = []

    async def find_running(claimed: Collection[str]) -> list[str]:
        groups = sorted({settings.worker_group, *claimed})
        active[:] = [group for group in groups if (await find_group(kafka, group)).members]
        return active

    client = client_options(kafka)
    put = partial(
        change_models, node, change,
        topic_partition=(
            CHECKPOINTS.full_name(kafka.topic_prefix), partition_of(node, kafka.partitions)
        ),
        open_reader=partial(open_reader, client), find_running=find_running, clock=SystemClock(),
    )  # fmt: skip
    with translated_errors(kafka, f"importing models of {node}"):
        if not dry_run:
            async with log_producer(client) as output:
                return await put(output=output)
        outcome = await put(output=None)
        if active:
            print_lines([f"workers of the group {', '.join(active)} are running: stop them first"])
        return outcome
