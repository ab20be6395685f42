"""`springtide kafka`: a real Kafka broker on this machine, started, seen and stopped."""

import json
import signal
from dataclasses import asdict
from pathlib import Path

import click

from pipeline.clock import SystemClock
from pipeline.errors import BrokerStartError, LocalKafkaError, NotReadyError, UsageError
from pipeline.local.kafka_jars import KAFKA_VERSION, cache_dir, ensure_jars
from pipeline.local.local_kafka import LocalKafka
from pipeline.local.running_brokers import (
    RunningBroker,
    default_data_dir,
    running_brokers,
    stop_running,
)
from pipeline.times import format_time, parse_time

_STOPPED_BY_SIGTERM = 143
_Port = click.IntRange(1, 65535)


@click.group()
def command() -> None:
    """Run a real Apache Kafka on this machine: no Docker, no Maven, no Java to install.

    One node, plain text, on 127.0.0.1 only; for demo, tests and small installations. Its jars
    (45 MB) are fetched once and checked. For any other cluster give --bootstrap-servers to the
    other commands; deploy/kafka has more.
    """


@command.command(
    epilog="Exit codes: 0 it answers and was detached, or was stopped by a signal or `stop`; 1 it "
    "did not start, ended by itself, or another one runs there; 2 usage."
)
@click.option(
    "--port",
    type=_Port,
    default=9092,
    show_default=True,
    help="Where to listen on 127.0.0.1.",
)
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where data and log are kept over restarts. "
    "[default: springtide/kafka in XDG_DATA_HOME or ~/.local/share]",
)
@click.option(
    "--detach", is_flag=True, help="Return when it is ready; `springtide kafka stop` ends it."
)
def start(port: int, data_dir: Path | None, detach: bool) -> None:
    """Start a broker and return, or stay until Ctrl-C, when it answers.

    Data are kept: the next start on the same folder finds topics and offsets again.

    \b
    Examples:
      springtide kafka start                       until Ctrl-C
      springtide kafka start --detach              in the background
      springtide kafka start --port 19092 --data-dir /srv/kafka
    """
    data_dir = (data_dir or default_data_dir()).resolve()
    _refuse_second(port, data_dir)
    # `kill` and a closed terminal end it as Ctrl-C does.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    broker = LocalKafka(data_dir, port)
    try:
        click.echo(f"starting Kafka {KAFKA_VERSION} on port {port} ...", err=True)
        broker.start()
        broker.announce(format_time(SystemClock().now()))
        if detach:
            # Before anything is said: whoever listens may have gone, and it stays all the same.
            broker.detach()
        # At once, for whoever reads no more than the first line.
        click.echo(
            f"Kafka {KAFKA_VERSION} is ready at {broker.bootstrap_servers}\n"
            f"  data  {broker.data_dir}\n  log   {broker.log_file}\n  java  {broker.java}\n"
            f"  stop  {'springtide kafka stop' if detach else 'Ctrl-C'}"
        )
        if not detach:
            _stay(broker)
    finally:
        broker.close()


@command.command(
    epilog="Exit codes: 0 it is stopped, or none ran; 1 it does not stop, 2 usage, or several run."
)
@click.option("--port", type=_Port, help="Which one, if several run.")
def stop(port: int | None) -> None:
    """Stop a broker that `springtide kafka start` started; its data are kept.

    It is no error if none runs.
    """
    brokers = [one for one in running_brokers() if port in (None, one.port)]
    if not brokers:
        click.echo("no local Kafka broker is running" + (f" on port {port}" if port else ""))
        return
    if len(brokers) > 1:
        ports = ", ".join(str(one.port) for one in brokers)
        raise UsageError(f"several local brokers run, on ports {ports}", hint="choose with --port")
    broker = brokers[0]
    stop_running(broker)
    click.echo(f"stopped the broker on port {broker.port}; its data are in {broker.data_dir}")


@command.command(epilog="Exit codes: 0 all that run answer, 2 usage, 4 none runs or one is silent.")
@click.option("--port", type=_Port, help="Only the one on this port.")
@click.option(
    "-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True
)
def status(port: int | None, output: str) -> None:
    """Show the brokers that `springtide kafka start` started: where, since when, which Java."""
    brokers = [one for one in running_brokers() if port in (None, one.port)]
    answering = {one.port: one.answers() for one in brokers}
    if output == "json":
        rows = [
            {
                **asdict(one),
                "bootstrap_servers": one.bootstrap_servers,
                "answers": answering[one.port],
            }
            for one in brokers
        ]
        click.echo(json.dumps({"kind": "LocalKafkaList", "items": rows}, indent=2))
    else:
        for one in brokers:
            click.echo(_described(one, answering[one.port]))
    if not brokers:
        raise NotReadyError(
            "no local Kafka broker is running" + (f" on port {port}" if port else ""),
            hint="start one with `springtide kafka start --detach`",
        )
    if silent := [str(port) for port, answers in answering.items() if not answers]:
        raise NotReadyError(
            f"the broker on port {', '.join(silent)} runs but does not answer",
            hint="see its log; `springtide kafka stop` and start it again",
        )


@command.command(
    epilog="Exit codes: 0 all are there, 1 one could not be fetched or is a wrong one, 2 usage."
)
def fetch() -> None:
    """Fetch and check Kafka's jars now, so that nothing needs the network later.

    They are pinned by SHA-256 and kept in springtide/kafka of XDG_CACHE_HOME or ~/.cache; for a
    machine without network copy that folder. Repositories of your own are read from jgo's settings.
    """
    jars = ensure_jars()
    click.echo(f"{len(jars)} jars of Apache Kafka {KAFKA_VERSION} in {cache_dir()}")


def _refuse_second(port: int, data_dir: Path) -> None:
    for one in running_brokers():
        if one.port == port:
            raise LocalKafkaError(
                f"a local broker is running already at {one.bootstrap_servers} (pid {one.pid})",
                hint="use it, stop it with `springtide kafka stop`, or choose another --port",
            )
        if Path(one.data_dir) == data_dir:
            raise LocalKafkaError(
                f"the broker on port {one.port} keeps its data in {data_dir}",
                hint="choose another --data-dir, or stop it with `springtide kafka stop`",
            )


def _stay(broker: LocalKafka) -> None:
    try:
        code = broker.wait()
    except KeyboardInterrupt:
        click.echo("stopping Kafka ...", err=True)
        return
    if code != _STOPPED_BY_SIGTERM:
        raise BrokerStartError(
            f"Kafka ended by itself (exit code {code}); its log ends:\n{broker.log_tail()}\n",
            hint=f"the whole log is {broker.log_file}",
        )
    click.echo("Kafka was stopped from outside", err=True)


def _described(broker: RunningBroker, answers: bool) -> str:
    uptime_seconds = SystemClock().now() - parse_time(broker.started_at)
    rows = {
        "bootstrap servers": broker.bootstrap_servers,
        "answers": "yes" if answers else "no",
        "pid": f"{broker.pid} (kept by {broker.keeper_pid})",
        "uptime": _duration(uptime_seconds),
        "java": broker.java,
        "data dir": broker.data_dir,
        "log file": broker.log_file,
    }
    return "\n".join(f"{name:<18} {value}" for name, value in rows.items())


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (seconds, "s")]
    shown = [f"{value} {unit}" for value, unit in parts if value]
    return " ".join(shown[:2]) or "0 s"
