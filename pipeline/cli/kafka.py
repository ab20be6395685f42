"""`springtide kafka`: run a Kafka broker on this machine."""

import asyncio
import json
import shlex
import signal
from dataclasses import asdict
from pathlib import Path
from typing import Final

import click

from pipeline.cli.help_sections import Command, Group
from pipeline.cli.options import output_option, settings_options
from pipeline.clock import SystemClock
from pipeline.errors import LocalKafkaError, NotReadyError, UsageError
from pipeline.kafka.acl_admin import grant_rights
from pipeline.local.broker_security import ADMIN
from pipeline.local.kafka_jars import KAFKA_VERSION, cache_dir, ensure_jars
from pipeline.local.local_kafka import LocalKafka
from pipeline.local.running_brokers import (
    RunningBroker,
    default_data_dir,
    make_state_dir,
    one_start_at_a_time,
    running_brokers,
    stop_running,
)
from pipeline.processors.explain.quantity_text import format_age
from pipeline.settings import Settings
from pipeline.times import format_time, parse_time
from pipeline.topics.access import ROLES, rights_of

_STOPPED_BY_SIGTERM = 143
_Port = click.IntRange(1, 65535)
_DEFAULT_PORT: Final = 9092


@click.group(cls=Group)
def command() -> None:
    """Run a real Apache Kafka on this machine, without Docker, Maven or an installed Java.

    One node on 127.0.0.1 only, for the demo, tests and small installations: open to all users of
    this machine, or --secure. Its jars (45 MB) are downloaded once and verified. Other commands
    use another cluster with --bootstrap-servers.
    """


@command.command(
    cls=Command,
    exit_codes={
        0: "the broker was detached, or was stopped",
        1: "the broker did not start or ended early, or another one uses the port or the directory",
    },
)
@click.option(
    "--port", type=_Port, default=_DEFAULT_PORT, show_default=True, help="Port on 127.0.0.1."
)
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for data and log, which survive restarts.  "
    "[default: springtide/kafka in XDG_DATA_HOME or ~/.local/share]",
)
@click.option(
    "--detach", is_flag=True, help="Return when ready; `springtide kafka stop` stops the broker."
)
@click.option(
    "--secure", is_flag=True,
    help="Require TLS and a password (SCRAM-SHA-512), with a user and ACLs for each role.",
)  # fmt: skip
@settings_options("kafka.topic_prefix", shown=("kafka.topic_prefix",))
def start(settings: Settings, port: int, data_dir: Path | None, detach: bool, secure: bool) -> None:
    """Start a broker, and stay until Ctrl-C, or return with --detach when it is ready.

    Data is kept: the next start on the same directory has its topics and offsets. With --secure,
    the folder `security` in the data directory has a settings file for each role, which contains
    its password and the topic prefix. The roles have the rights that `springtide topics acls`
    prints for this prefix.

    \b
    Examples:
      springtide kafka start                       until Ctrl-C
      springtide kafka start --detach              in the background
      springtide kafka start --port 19092 --data-dir /srv/kafka
      springtide kafka start --secure --data-dir /srv/kafka
      springtide topics apply --config /srv/kafka/security/operator.yaml
    """
    data_dir = (data_dir or default_data_dir()).resolve()
    make_state_dir()
    # `kill` and a closed terminal have the effect of Ctrl-C.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    broker = LocalKafka(data_dir, port, secure=secure)
    try:
        with one_start_at_a_time():
            _check_conflicts(port, data_dir)
            click.echo(f"starting Kafka {KAFKA_VERSION} on port {port} ...", err=True)
            broker.start()
            if secure:
                _set_up_users(broker, settings)
            broker.announce(format_time(SystemClock().now()))
        if detach:
            # Before the output, which may fail if its reader has ended.
            broker.detach()
        # In one call, for readers that close the pipe after the first line.
        click.echo(
            f"Kafka {KAFKA_VERSION} is ready at {broker.bootstrap_servers}\n"
            f"  data  {broker.data_dir}\n  log   {broker.log_file}\n  java  {broker.java}\n"
            f"{_users_line(broker) if secure else ''}"
            f"  next  {_next_command(broker, secure=secure)}\n"
            f"  stop  {f'springtide kafka stop --port {port}' if detach else 'Ctrl-C'}"
        )
        if not detach:
            _wait_until_stopped(broker)
    finally:
        broker.close()


@command.command(
    cls=Command,
    exit_codes={
        0: "the broker is stopped, or none was running",
        1: "the broker does not stop",
        2: "invalid usage, or several brokers run and --port selects none",
    },
)
@click.option("--port", type=_Port, help="Stop the broker on this port. Needed if several run.")
def stop(port: int | None) -> None:
    """Stop a broker that `springtide kafka start` started, and keep its data.

    It is not an error if no broker is running.
    """
    brokers = [broker for broker in running_brokers() if port in (None, broker.port)]
    if not brokers:
        click.echo("no local Kafka broker is running" + (f" on port {port}" if port else ""))
        return
    if len(brokers) > 1:
        ports = ", ".join(str(broker.port) for broker in brokers)
        raise UsageError(
            f"several local brokers are running: ports {ports}", hint="select one with --port"
        )
    broker = brokers[0]
    stop_running(broker)
    click.echo(f"stopped the broker on port {broker.port}; its data is kept in {broker.data_dir}")


@command.command(
    cls=Command,
    exit_codes={0: "all running brokers answer", 4: "no broker is running, or one does not answer"},
)
@click.option("--port", type=_Port, help="Show only the broker on this port.")
@output_option
def status(port: int | None, as_json: bool) -> None:
    """Show the brokers that `springtide kafka start` started, with uptime and files."""
    brokers = [broker for broker in running_brokers() if port in (None, broker.port)]
    answers_by_port = {broker.port: broker.answers() for broker in brokers}
    if as_json:
        rows = [
            {
                **asdict(broker),
                "bootstrap_servers": broker.bootstrap_servers,
                "answers": answers_by_port[broker.port],
            }
            for broker in brokers
        ]
        click.echo(json.dumps({"kind": "LocalKafkaList", "items": rows}, indent=2))
    else:
        for broker in brokers:
            click.echo(_description(broker, answers_by_port[broker.port]))
    if not brokers:
        raise NotReadyError(
            "no local Kafka broker is running" + (f" on port {port}" if port else ""),
            hint="start one with `springtide kafka start --detach`",
        )
    if silent := [str(port) for port, answers in answers_by_port.items() if not answers]:
        raise NotReadyError(
            f"the broker on port {', '.join(silent)} runs but does not answer",
            hint="check its log; restart it with `springtide kafka stop` and `start`",
        )


@command.command(
    cls=Command,
    exit_codes={
        0: "all jars are in the cache",
        1: "a jar cannot be downloaded, or its checksum differs",
    },
)
def fetch() -> None:
    """Download and verify Kafka's jars now, so that no later command needs the network.

    The jars are pinned by SHA-256 and cached in springtide/kafka of XDG_CACHE_HOME or ~/.cache. For
    a machine without network copy that directory. Own repositories are read from jgo's settings.
    """
    jars = ensure_jars()
    click.echo(f"{len(jars)} jars of Apache Kafka {KAFKA_VERSION} in {cache_dir()}")


def _set_up_users(broker: LocalKafka, settings: Settings) -> None:
    """Write the settings files of the roles, and grant their rights on the topics of the prefix."""
    prefix, group = settings.kafka.topic_prefix, settings.worker_group
    rights = [right for role in ROLES.values() for right in rights_of(role, prefix, group)]
    broker.security.write_settings_files(broker.bootstrap_servers, prefix)
    admin = broker.security.settings_of(ADMIN, broker.bootstrap_servers)
    asyncio.run(grant_rights(admin, rights))


def _next_command(broker: LocalKafka, *, secure: bool) -> str:
    """The command that a user types next, with what it needs to find this broker."""
    if secure:
        file = shlex.quote(f"{broker.security.folder}/operator.yaml")
        return f"springtide topics apply --config {file}"
    if broker.port == _DEFAULT_PORT:
        return "springtide topics apply"
    return f"springtide topics apply --bootstrap-servers {broker.bootstrap_servers}"


def _users_line(broker: LocalKafka) -> str:
    return f"  users {broker.security.folder}: use --config {broker.security.folder}/<role>.yaml\n"


def _check_conflicts(port: int, data_dir: Path) -> None:
    for broker in running_brokers():
        if broker.port == port:
            raise LocalKafkaError(
                f"a local broker already runs at {broker.bootstrap_servers} (pid {broker.pid})",
                hint=f"use it, stop it with `springtide kafka stop --port {port}`, or choose "
                "another --port",
            )
        if Path(broker.data_dir) == data_dir:
            raise LocalKafkaError(
                f"the broker on port {broker.port} uses the data directory {data_dir}",
                hint="choose another --data-dir, or stop it with "
                f"`springtide kafka stop --port {broker.port}`",
            )


def _wait_until_stopped(broker: LocalKafka) -> None:
    try:
        code = broker.wait()
    except KeyboardInterrupt:
        click.echo("stopping Kafka ...", err=True)
        return
    if code != _STOPPED_BY_SIGTERM:
        raise LocalKafkaError(
            f"Kafka ended with exit code {code}; its log ends:\n{broker.log_tail()}\n",
            hint=f"see the whole log in {broker.log_file}",
        )
    click.echo("Kafka was stopped by `springtide kafka stop` or a signal", err=True)


def _description(broker: RunningBroker, answers: bool) -> str:
    rows = {
        "bootstrap servers": broker.bootstrap_servers,
        "answers": "yes" if answers else "no",
        "pid": f"{broker.pid} (supervised by {broker.guard_pid})",
        "uptime": format_age(SystemClock().now() - parse_time(broker.started_at)),
        "java": broker.java,
        "data dir": broker.data_dir,
        "log file": broker.log_file,
    }
    return "\n".join(f"{name:<18} {value}" for name, value in rows.items())
