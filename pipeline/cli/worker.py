"""`springtide worker`: join and model, under a supervisor of its own or somebody else's."""

import asyncio
import gc
import os
import sys
import threading
from pathlib import Path

import click
import faust

from pipeline.agents.bank_settings import model_config
from pipeline.agents.partition_holder import create_app
from pipeline.agents.supervisor import Supervisor, member_of
from pipeline.cli.options import KAFKA_CLIENT, settings_options
from pipeline.clock import SystemClock
from pipeline.errors import SettingsError
from pipeline.kafka.topic_admin import require_topics
from pipeline.logs import get_logger
from pipeline.metrics import serve_metrics
from pipeline.processors.model.bank import Bank
from pipeline.settings import Settings, state_directory
from pipeline.sources.object_files import file_paths, read_at_start

log = get_logger(__name__)

STOP_SECONDS = 25.0
"""For a whole shutdown; below what a supervisor waits before it kills."""


@click.command(
    epilog="Exit codes: 0 stopped by a signal, 1 it ended by itself (with --no-supervise; else it "
    "is started again), 2 usage or settings, 3 topics are missing (as 1)."
)
@click.option("--supervised", is_flag=True, hidden=True)
@settings_options(*KAFKA_CLIENT, "kafka.partitions", "worker.*", "model.*")
def command(settings: Settings, supervised: bool) -> None:
    """Join samples with what is known of nodes and pods, predict peaks, publish them.

    Workers of one id share the partitions. State is checkpointed into Kafka and rebuilt from the
    log, so a worker may be killed at any moment and started anywhere. By default it runs as a
    child that is restarted when it ends; --no-supervise leaves that to Kubernetes or systemd.

    \b
    springtide topics apply            # once, before the first worker
    springtide worker                  # broker at 127.0.0.1:9092
    springtide worker --nodes-file nodes.json --pods-file pods.json
    springtide worker --nodes-file nodes.json --policy-file slo-controller-config.yaml
    """
    # Before the broker is asked, let alone the group joined: a restart would not help.
    Bank(model_config(settings))
    if not supervised:
        # Only at the first start: a file that is being written anew must not end the service.
        worker = settings.worker
        read_at_start(file_paths(worker.nodes_file, worker.pods_file), worker.policy_file)
    if settings.worker.supervise:
        sys.exit(_supervise(settings))
    run_worker(settings)


def run_worker(settings: Settings) -> None:
    """Run a worker in this process until it is stopped by a signal or ends itself.

    Raises `BrokerUnavailableError` and `TopicDriftError` where the topics are not as they must be.
    """
    asyncio.run(require_topics(settings.kafka))
    data_dir = _data_dir(settings)
    metrics = serve_metrics("worker", settings.worker.metrics_host, settings.worker.metrics_port)
    if metrics is not None:
        log.info("metrics page", host=metrics.host, port=metrics.port)
    # What a worker keeps is large and has no cycles: to look through all of it as often as Python
    # does by itself took a thirtieth of its time while it had a backlog.
    gc.set_threshold(700, 10, 100)
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    app = create_app(settings, SystemClock(), data_dir)
    worker = _Worker(
        app,
        loop=loop,
        quiet=True,
        override_logging=False,
        redirect_stdouts=False,
    )
    worker.spinner = None
    worker.execute_from_commandline()


class _Worker(faust.Worker):
    """A worker that ends when it is told to.

    With the broker away, aiokafka lets a CancelledError out of the consumer's thread, and Faust
    then waits for that thread for ever; whoever restarts us would wait with it.
    """

    async def stop(self) -> None:
        self._end_soon()
        await super().stop()

    async def crash(self, reason: BaseException) -> None:
        self._end_soon()
        await super().crash(reason)

    def _end_soon(self) -> None:
        timer = threading.Timer(STOP_SECONDS, self._end_now)
        timer.daemon = True
        timer.start()

    def _end_now(self) -> None:
        failed = self.crash_reason is not None or self.app.crash_reason is not None
        log.error("worker did not stop in time, ended", seconds=STOP_SECONDS)
        os._exit(1 if failed else 0)


def _supervise(settings: Settings) -> int:
    worker = settings.worker
    with member_of(_base_dir(settings), worker.id) as member:
        argv = [
            *(sys.executable, "-m", "pipeline.cli.main"),
            *sys.argv[1:],
            *("--supervised", "--no-supervise", "--instance-id", worker.instance_id or member),
        ]
        pauses = (worker.restart_backoff_min_seconds, worker.restart_backoff_max_seconds)
        return Supervisor(argv, *pauses).run()


def _base_dir(settings: Settings) -> Path:
    folder = settings.worker.data_dir or state_directory(os.environ)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(
            f"cannot make the worker's folder {folder}: {error.strerror}",
            key="worker.data_dir",
            hint="set worker.data_dir to a folder that this user can write",
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise SettingsError(
            f"cannot write to the worker's folder {folder}",
            key="worker.data_dir",
            hint="set worker.data_dir to a folder that this user can write",
        )
    return folder


def _data_dir(settings: Settings) -> Path:
    # Two workers on one machine must not share a directory of Faust's.
    member = settings.worker.instance_id or str(os.getpid())
    mine = _base_dir(settings) / f"{settings.worker.id}-{member}"
    mine.mkdir(parents=True, exist_ok=True)
    return mine
