"""`springtide model export`: write the models of a node to a file.

Each file is written beside its place and then moved there: an interrupted export leaves whole files
only, old and new.
"""

import errno
import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click

from pipeline.agents.bank_settings import model_config
from pipeline.cli.help_sections import Command
from pipeline.cli.kafka_requests import run_requests
from pipeline.cli.node_errors import missing_record_error
from pipeline.cli.options import KAFKA_CLIENT, settings_options, silence_logs
from pipeline.cli.safe_output import print_lines
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
    cls=Command,
    exit_codes={
        0: "written",
        1: "failure, such as a damaged checkpoint or one that the format cannot represent",
        3: "topics are missing",
        4: "no checkpoint of this node",
    },
)
@click.argument("node")
@click.option(
    "--to", "output", type=click.Path(path_type=Path), required=True,
    help="File to write; with --as koordinator the directory for a file per entity and pod.",
)  # fmt: skip
@click.option(
    "--as", "file_format", type=click.Choice(["springtide", "koordinator"]), default="springtide",
    show_default=True, help="Format: springtide is exact, koordinator has rounded histograms.",
)  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace existing files.")
@settings_options(*KAFKA_CLIENT, "kafka.partitions")
def export(settings: Settings, node: str, output: Path, file_format: str, overwrite: bool) -> None:
    """Write the newest checkpoint of NODE to a file.

    The file contains the exact models of the node, with the node's name, release and model layout.
    `springtide model import --from springtide` restores it. It contains usage statistics and pod
    UIDs: protect it as you protect the metrics of the cluster.

    With --as koordinator the command writes the files of Koordinator's
    --prediction-checkpoint-filepath: only histograms, and only of models with Koordinator's
    buckets and half-lives.

    \b
    Examples:
      springtide model export node-1 --to node-1.springtide
      springtide model export node-1 --as koordinator --to prediction-checkpoints
    """
    if file_format == "springtide":
        require_new(output, overwrite=overwrite)
    silence_logs(settings, "aiokafka")
    record = run_requests(settings.kafka, newest_checkpoint(settings.kafka, node))
    try:
        data = decode_pack(NodeCheckpoint, record.value).state
        state = state_codec.decode(data)
        files = {output: data}
        if file_format == "koordinator":
            config = model_config(settings)
            Bank(config).restore(node, data)
            files = {
                output / uid: json.dumps(document).encode()
                for uid, document in to_koordinator(state, config.profiles).items()
            }
    except (CheckpointError, RecordError) as error:
        where = f"checkpoint {record.key.decode()!r:.120} at offset {record.offset}"
        raise type(error)(f"{where}: {error.message}", hint=error.hint) from error
    for path in files:
        require_new(path, overwrite=overwrite)
    for path, content in files.items():
        write_atomically(path, content)
    print_lines([f"{node}: {brief(state)}", f"written to {output}"])


async def newest_checkpoint(kafka: KafkaSettings, node: str) -> Found:
    """Read the newest checkpoint of the node. Raises `NotReadyError` if there is none."""
    await require_topics(kafka, (CHECKPOINTS, NODE_STATE))

    def is_of_node(key: bytes) -> bool:
        try:
            return parse_key(key)[:2] == ("node", node)
        except RecordError:
            return False

    record = await newest(kafka, CHECKPOINTS, node, is_of_node)
    if record is None:
        raise await missing_record_error(kafka, node, "checkpoint", "wait for its first checkpoint")
    return record


def require_new(path: Path, *, overwrite: bool) -> None:
    """Raise `UsageError` if the path is not a file, exists without `overwrite`, or is in a
    directory that does not exist or is not writable: what takes minutes to compute must not be lost
    at the end."""
    try:
        parent, exists = path.resolve().parent, path.exists()
    except (OSError, RuntimeError) as error:  # a name that is too long, or a loop of links
        raise UsageError(f"cannot write {path}: {error}", hint="give another path") from error
    if exists and not path.is_file():
        raise UsageError(f"{path} is not a file", hint="give the path of a file")
    if not parent.is_dir():
        raise UsageError(
            f"cannot write {path}: there is no directory {parent}",
            hint="create it, or give another path",
        )
    if not os.access(parent, os.W_OK | os.X_OK, effective_ids=True):
        raise UsageError(
            f"cannot write {path}: you may not write to {parent}", hint="give another path"
        )
    if exists and not overwrite:
        raise UsageError(f"{path} already exists", hint="give another path, or --overwrite")


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file atomically: an interrupted or failed command leaves no part of it. A symbolic
    link is followed."""
    path = path.resolve()
    part = path.with_name(f"{path.name}.part")
    try:
        with _interrupted_by_sigterm():
            part.write_bytes(content)
            part.replace(path)
    except BaseException as error:
        with suppress(OSError):
            part.unlink()
        if not isinstance(error, OSError):
            raise
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise SpringtideError(
            f"cannot write {path}: {error.strerror}",
            hint="free space, or choose a file on another disk"
            if is_full
            else "choose another file, in a directory that you may write to",
        ) from error


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """Handle SIGTERM like Ctrl-C: its default action would leave a part of the file."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread handles signals
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
