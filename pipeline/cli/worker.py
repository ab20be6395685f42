"""`springtide worker`: join and model, under a supervisor of its own or somebody else's."""

import asyncio
import os
import socket
import sys
import uuid
from pathlib import Path

import click
import faust

from pipeline.agents.supervisor import Supervisor
from pipeline.agents.worker import create_app
from pipeline.cli.options import KAFKA_CLIENT, settings_options
from pipeline.clock import SystemClock
from pipeline.logs import get_logger
from pipeline.metrics import serve_metrics
from pipeline.settings import Settings
from pipeline.sources.files import file_paths, read_at_start
from pipeline.topics.admin import require_topics

log = get_logger(__name__)


@click.command()
@settings_options(*KAFKA_CLIENT, "kafka.partitions", "worker.*", "model.*")
def command(settings: Settings) -> None:
    """Join samples with what is known of nodes and pods, predict peaks, publish them.

    Workers of one id share the partitions. State is checkpointed into Kafka and rebuilt from the
    log, so a worker may be killed at any moment and started anywhere. By default it runs as a
    child that is restarted when it ends; --no-supervise leaves that to Kubernetes or systemd.

    \b
    springtide topics apply            # once, before the first worker
    springtide worker                  # broker at 127.0.0.1:9092
    springtide worker --nodes-file nodes.json --pods-file pods.json
    """
    if settings.worker.supervise:
        sys.exit(_supervise(settings))
    run_worker(settings)


def run_worker(settings: Settings) -> None:
    """Run a worker in this process until it is stopped by a signal or ends itself.

    Raises `SettingsError` for an inventory file that cannot be read, `BrokerUnavailableError` and
    `TopicDriftError` where the topics are not as they must be.
    """
    read_at_start(file_paths(settings.worker.nodes_file, settings.worker.pods_file))
    asyncio.run(require_topics(settings.kafka))
    data_dir = _data_dir(settings)
    metrics = serve_metrics("worker", settings.worker.metrics_host, settings.worker.metrics_port)
    if metrics is not None:
        log.info("metrics page", host=metrics.host, port=metrics.port)
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    app = create_app(settings, SystemClock(), data_dir)
    worker = faust.Worker(
        app,
        loop=loop,
        quiet=True,
        override_logging=False,
        redirect_stdouts=False,
        workdir=data_dir,
    )
    worker.spinner = None
    worker.execute_from_commandline()


def _supervise(settings: Settings) -> int:
    worker = settings.worker
    instance = worker.instance_id or f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
    argv = [
        *(sys.executable, "-m", "pipeline.cli.main"),
        *sys.argv[1:],
        *("--no-supervise", "--instance-id", instance),
    ]
    pauses = (worker.restart_backoff_min_seconds, worker.restart_backoff_max_seconds)
    return Supervisor(argv, *pauses).run()


def _data_dir(settings: Settings) -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    base = settings.worker.data_dir or Path(state) / "springtide"
    # Two workers on one machine must not share a directory of Faust's.
    mine = base / f"{settings.worker.id}-{settings.worker.instance_id or os.getpid()}"
    mine.mkdir(parents=True, exist_ok=True)
    return mine
