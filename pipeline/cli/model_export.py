"""`springtide model export`: a node's models as a file, to be kept or taken elsewhere."""

import asyncio
import json
from contextlib import suppress
from pathlib import Path

import click

from pipeline.agents.bank_settings import model_config
from pipeline.cli.explain import no_node
from pipeline.cli.options import KAFKA_CLIENT, quiet_client, settings_options
from pipeline.cli.safe_output import say
from pipeline.errors import CheckpointError, RecordError, SpringtideError, UsageError
from pipeline.kafka.newest import Found, newest
from pipeline.kafka.topic_admin import require_topics
from pipeline.processors.exchange.export_models import to_koordinator
from pipeline.processors.explain.model_state_text import brief
from pipeline.processors.model import state_codec
from pipeline.processors.model.bank import Bank
from pipeline.settings import KafkaSettings, Settings
from pipeline.topics.checkpoints import NodeCheckpoint, parse_key
from pipeline.topics.codec import decode_pack
from pipeline.topics.registry import CHECKPOINTS, NODE_STATE


@click.command(
    epilog="Exit codes: 0 written, 1 the checkpoint is damaged or does not fit the form, 2 usage "
    "or settings, 3 topics are missing, 4 no checkpoint of this node.",
)
@click.argument("node")
@click.option(
    "--output", type=click.Path(path_type=Path), required=True,
    help="The file to write; with --as koordinator the folder for a file of each entity and pod.",
)  # fmt: skip
@click.option(
    "--as", "form", type=click.Choice(["springtide", "koordinator"]), default="springtide",
    show_default=True, help="springtide: exact; koordinator: histograms, rounded.",
)  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace files that are there.")
@settings_options(*KAFKA_CLIENT, "kafka.partitions")
def export(settings: Settings, node: str, output: Path, form: str, overwrite: bool) -> None:
    """Write the newest checkpoint of NODE to a file.

    The file has all that is known of the node, bit for bit, and says itself which node, release
    and model it is of. `springtide model import --from springtide` puts it back. It has what the
    models are made of, and the UIDs of pods: keep it as you keep the metrics of the cluster.

    As koordinator it is the files of its --prediction-checkpoint-filepath: of histograms alone,
    and only of models with its buckets and half-lives.

    \b
    Examples:
      springtide model export node-1 --output node-1.springtide
      springtide model export node-1 --as koordinator --output prediction-checkpoints
    """
    if form == "springtide":
        require_new(output, overwrite=overwrite)
    quiet_client(settings)
    found = asyncio.run(newest_checkpoint(settings.kafka, node))
    try:
        data = decode_pack(NodeCheckpoint, found.value).state
        state = state_codec.decode(data)
        files = {output: data}
        if form == "koordinator":
            config = model_config(settings)
            Bank(config).restore(node, data)
            files = {
                output / uid: json.dumps(document).encode()
                for uid, document in to_koordinator(state, config.profiles).items()
            }
    except (CheckpointError, RecordError) as error:
        where = f"checkpoint {found.key.decode()!r:.120} at offset {found.offset}"
        raise type(error)(f"{where}: {error.message}", hint=error.hint) from error
    for path in files:
        require_new(path, overwrite=overwrite)
    for path, content in files.items():
        write_whole(path, content)
    say([f"{node}: {brief(state)}", f"written to {output}"])


async def newest_checkpoint(kafka: KafkaSettings, node: str) -> Found:
    """Raises NotReadyError, which says what it may be, if there is none."""
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


def require_new(path: Path, *, overwrite: bool) -> None:
    """Raise UsageError for a file that is there and was not said to be replaced."""
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} is no file", hint="name a file, which may be there or not")
    if path.exists() and not overwrite:
        raise UsageError(f"{path} is there already", hint="name another, or give --overwrite")


def write_whole(path: Path, content: bytes) -> None:
    """Write a file, all of it or nothing, and the folder that it lies in; where a link leads."""
    path = path.resolve()
    part = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(content)
        part.replace(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise SpringtideError(
            f"cannot write {path}: {error.strerror}", hint="choose another --output"
        ) from error
