"""`springtide worker`: join samples and predict peaks, with or without a supervisor."""

import asyncio
import errno
import gc
import os
import sys
from pathlib import Path
from typing import NoReturn

import click

from pipeline import tracing
from pipeline.agents.bank_settings import model_config
from pipeline.agents.consumer_group import ConsumerGroup
from pipeline.agents.faust_host import run_worker
from pipeline.agents.partition_holder import PartitionHolder
from pipeline.agents.supervisor import Supervisor, claim_member_name
from pipeline.cli.help_sections import Command
from pipeline.cli.options import KAFKA_CLIENT, settings_options
from pipeline.clock import SystemClock
from pipeline.errors import PartitionCountError, SettingsError
from pipeline.kafka.topic_admin import require_topics
from pipeline.local.cache_folders import state_root
from pipeline.metrics import serve_metrics
from pipeline.metrics_server import Readiness
from pipeline.processors.model.bank import Bank
from pipeline.settings import Settings
from pipeline.sources.object_files import file_paths, read_at_start
from pipeline.topics.access import ROLES


@click.command(
    cls=Command,
    exit_codes={
        0: "stopped by a signal",
        1: "failure; with --supervise the worker is restarted instead",
        2: "the settings are invalid, or the topics have another number of partitions",
        3: "topics are missing; with --supervise the worker is restarted instead",
    },
)
@click.option("--supervised", is_flag=True, hidden=True)
@settings_options(
    *KAFKA_CLIENT,
    "kafka.partitions",
    "worker.*",
    "model.*",
    shown=(
        "worker.nodes_file",
        "worker.pods_file",
        "worker.policy_file",
        "model.predictor",
        "model.safety_margin_percent",
    ),
)
def command(settings: Settings, supervised: bool) -> None:
    """Join samples with nodes and pods, predict and publish peaks.

    Workers with the same id share the partitions. State is checkpointed to Kafka and restored from
    the log, so a worker may be killed at any moment and started anywhere. By default a supervisor
    restarts the worker. With --no-supervise Kubernetes or systemd does.

    \b
    Examples:
      springtide worker
      springtide worker --nodes-file nodes.json --pods-file pods.json
      springtide worker --nodes-file nodes.json --policy-file slo-controller-config.yaml
    """
    # Check before connecting to the broker: a restart would not help.
    Bank(model_config(settings))
    if not supervised:
        # Only at the first start: a file that is being rewritten must not stop the service.
        worker = settings.worker
        read_at_start(file_paths(worker.nodes_file, worker.pods_file), worker.policy_file)
    if settings.worker.supervise:
        sys.exit(_supervise(settings))
    _run(settings)


def _run(settings: Settings) -> NoReturn:
    """Run a worker in this process until a signal or an error stops it. Raises
    `BrokerUnavailableError`, `TopicDriftError` for missing topics, and `SettingsError` if they have
    another number of partitions."""
    try:
        asyncio.run(require_topics(settings.kafka, ROLES["worker"].topics))
    except PartitionCountError as error:
        # Final for the supervisor: a restart would not help.
        raise SettingsError(error.message, key="kafka.partitions", hint=error.hint) from error
    data_dir = _make_data_dir(settings)
    holder: PartitionHolder | None = None

    def hold(group: ConsumerGroup) -> PartitionHolder:
        nonlocal holder
        holder = PartitionHolder(group, settings, clock)
        return holder

    readiness = Readiness(lambda: "connecting to Kafka" if holder is None else holder.trouble())
    section = settings.worker
    serve_metrics("worker", section.metrics_host, section.metrics_port, readiness)
    # A worker's state is large and has no cycles. Python's default collections of it took a
    # thirtieth of the time of a worker with a backlog.
    gc.set_threshold(700, 10, 100)
    clock = SystemClock()
    with tracing.exporting("worker", settings.tracing):
        run_worker(settings, data_dir, hold)


def _supervise(settings: Settings) -> int:
    worker = settings.worker
    with claim_member_name(_base_dir(settings), worker.id) as member:
        argv = [
            *(sys.executable, "-m", "pipeline.cli.main"),
            *sys.argv[1:],
            *("--supervised", "--no-supervise", "--instance-id", worker.instance_id or member),
        ]
        backoff = (worker.restart_backoff_min_seconds, worker.restart_backoff_max_seconds)
        return Supervisor(argv, *backoff).run()


def _base_dir(settings: Settings) -> Path:
    folder = settings.worker.data_dir or state_root()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise SettingsError(
            f"cannot write to the worker's folder {folder}: {error.strerror}",
            key="worker.data_dir",
            hint="set worker.data_dir to a folder that this user can write",
        ) from error
    return folder


def _make_data_dir(settings: Settings) -> Path:
    # Two workers on one machine must not share Faust's directory.
    member = settings.worker.instance_id or str(os.getpid())
    data_dir = _base_dir(settings) / f"{settings.worker.id}-{member}"
    data_dir.mkdir(parents=True, exist_ok=True)
    return data_dir
