"""`springtide topics`: create topics, check them for drift, print them and the rights on them."""

import json
import shlex
from dataclasses import asdict
from pathlib import Path

import click

from pipeline.cli.help_sections import Command, Group
from pipeline.cli.kafka_requests import run_requests
from pipeline.cli.kubernetes_yaml import objects_yaml
from pipeline.cli.options import (
    KAFKA_CLIENT,
    output_formats,
    output_option,
    settings_options,
    silence_logs,
)
from pipeline.errors import TopicDriftError
from pipeline.kafka.topic_admin import Drift, apply_topics, check_topics
from pipeline.settings import Settings
from pipeline.topics.access import ROLES, Right, acl_commands, quota_commands, rights_of
from pipeline.topics.registry import TOPICS, Topic, creation_commands, markdown_table
from pipeline.topics.strimzi import strimzi_objects

_TOPIC_KEYS = (*KAFKA_CLIENT, "kafka.partitions", "kafka.replication_factor")


@click.group(cls=Group)
def command() -> None:
    """Create the topics, check them for drift, print them and the rights on them.

    The registry declares every topic once: record, key, partitions, cleanup policy and retention.
    """


@command.command(
    cls=Command,
    exit_codes={
        0: "all topics are as declared, or would be",
        3: "differences that cannot be corrected in place",
    },
)
@click.option("--dry-run", is_flag=True, help="Print the changes, and make none.")
@settings_options(*_TOPIC_KEYS, shown=("kafka.partitions", "kafka.replication_factor"))
def apply(settings: Settings, dry_run: bool) -> None:
    """Create missing topics, and correct settings that differ.

    The command never deletes a topic, and never changes the partitions or the replication factor
    of an existing one: if these differ, it prints the remedy and exits with 3.

    \b
    Examples:
      springtide topics apply --dry-run
      springtide topics apply --bootstrap-servers kafka-0:9092,kafka-1:9092 --replication-factor 3
    """
    silence_logs(settings, "aiokafka")
    if not dry_run:
        click.echo(f"applying {len(TOPICS)} topics ...", err=True)
    changes = run_requests(
        settings.kafka, apply_topics(settings.kafka, dry_run, lambda change: click.echo(change))
    )
    for change in changes if dry_run else []:
        click.echo(f"would {change}")
    if not changes:
        click.echo("nothing to do" if dry_run else "nothing to do: all topics are as declared")
    remaining = [
        drift
        for drift in run_requests(settings.kafka, check_topics(settings.kafka))
        if not drift.mendable
    ]
    _report_drift(remaining)


@command.command(cls=Command, exit_codes={0: "all topics are as declared", 3: "topics differ"})
@output_option
@settings_options(*_TOPIC_KEYS, shown=("kafka.partitions", "kafka.replication_factor"))
def check(settings: Settings, as_json: bool) -> None:
    """Compare the broker's topics with the registry.

    \b
    Examples:
      springtide topics check
      springtide topics check -o json | jq '.drift[] | select(.kind == "partitions")'
    """
    silence_logs(settings, "aiokafka")
    drift = run_requests(settings.kafka, check_topics(settings.kafka))
    if as_json:
        rows = [{**asdict(item), "mendable": item.mendable, "message": str(item)} for item in drift]
        click.echo(json.dumps({"topics": len(TOPICS), "drift": rows}, indent=2))
        if drift:
            click.get_current_context().exit(TopicDriftError.exit_code)
    elif not drift:
        click.echo(f"{len(TOPICS)} topics are as declared")
    else:
        _report_drift(drift)


_connection_option = click.option(
    "--command-config", type=click.Path(path_type=Path),
    help="File with the connection's properties, for Kafka's tools in the printed commands.",
)  # fmt: skip


@command.command(cls=Command, exit_codes={0: "printed"})
@output_formats("commands", help=", commands are those of kafka-topics.sh that create the topics")
@_connection_option
@settings_options(
    "kafka.bootstrap_servers",
    "kafka.topic_prefix",
    "kafka.partitions",
    "kafka.replication_factor",
    shown=("kafka.partitions", "kafka.replication_factor"),
)
def table(settings: Settings, output: str, command_config: Path | None) -> None:
    """Print all topics as a Markdown table, or as commands for a Kafka that others manage. The
    broker is not asked.

    \b
    Examples:
      springtide topics table
      springtide topics table -o commands --replication-factor 3 --command-config admin.properties
    """
    if output == "json":
        click.echo(json.dumps({"items": [_topic_row(topic) for topic in TOPICS]}, indent=2))
        return
    if output != "commands":
        click.echo(markdown_table(), nl=False)
        return
    kafka = settings.kafka
    lines = creation_commands(
        _connection(settings, command_config), kafka.topic_prefix, kafka.partitions,
        kafka.replication_factor,
    )  # fmt: skip
    click.echo("\n".join(lines))


@command.command(cls=Command, exit_codes={0: "printed"})
@click.option("--role", type=click.Choice([*ROLES]), help="Print only the rights of this role.")
@output_formats(
    "commands",
    help=", commands are those of kafka-acls.sh and kafka-configs.sh that set rights and quotas",
)
@_connection_option
@settings_options(
    "kafka.bootstrap_servers",
    "kafka.topic_prefix",
    "worker.id",
    shown=("kafka.bootstrap_servers", "kafka.topic_prefix"),
)
def acls(settings: Settings, role: str | None, output: str, command_config: Path | None) -> None:
    """Print the rights in Kafka that each role needs. The broker is not asked.

    \b
    Examples:
      springtide topics acls
      springtide topics acls --role exporter -o commands
    """
    kafka, roles = settings.kafka, [*ROLES.values()] if role is None else [ROLES[role]]
    group = settings.worker_group
    rights = [right for each in roles for right in rights_of(each, kafka.topic_prefix, group)]
    if output == "commands":
        connection = _connection(settings, command_config)
        lines = [*acl_commands(rights, connection), *quota_commands(roles, connection)]
        click.echo("\n".join(lines))
    elif output == "json":
        click.echo(json.dumps({"items": [right._asdict() for right in rights]}, indent=2))
    else:
        click.echo("\n".join(_rows(rights)))


@command.command(cls=Command, exit_codes={0: "printed"})
@click.option(
    "--cluster", default="springtide", show_default=True, help="Name of the Kafka object.",
)  # fmt: skip
@settings_options(
    "kafka.topic_prefix",
    "kafka.partitions",
    "kafka.replication_factor",
    "worker.id",
    shown=("kafka.topic_prefix", "kafka.partitions", "kafka.replication_factor"),
)
def strimzi(settings: Settings, cluster: str) -> None:
    """Print topics, and users with their rights, as objects of Strimzi. The broker is not asked.

    \b
    Examples:
      springtide topics strimzi --replication-factor 3 | kubectl apply -n kafka -f -
      springtide topics strimzi --cluster events --topic-prefix east --partitions 32
    """
    kafka = settings.kafka
    objects = strimzi_objects(
        cluster=cluster, prefix=kafka.topic_prefix, group=settings.worker_group,
        partitions=kafka.partitions, replicas=kafka.replication_factor,
    )  # fmt: skip
    click.echo(objects_yaml(objects), nl=False)


def _topic_row(topic: Topic) -> dict[str, str]:
    return {
        "topic": f"springtide.{topic.name}", "key": topic.key, "value": topic.value,
        "codec": topic.codec, "retention": topic.retention_text, "written_by": topic.written_by,
    }  # fmt: skip


def _connection(settings: Settings, command_config: Path | None) -> str:
    """The flags by which Kafka's own tools connect."""
    servers = f"--bootstrap-server {settings.kafka.bootstrap_servers}"
    if command_config is None:
        return servers
    return f"{servers} --command-config {shlex.quote(str(command_config))}"


def _rows(rights: list[Right]) -> list[str]:
    rows = [("USER", "RESOURCE", "NAME", "OPERATION"), *rights]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return [
        "  ".join([*(f"{row[i]:<{width}}" for i, width in enumerate(widths)), row[3]])
        for row in rows
    ]


def _report_drift(drift: list[Drift]) -> None:
    if not drift:
        return
    for item in drift:
        click.echo(str(item))
    hint = (
        None if any(item.mendable for item in drift) else "`apply` cannot correct these: see above"
    )
    raise TopicDriftError(f"{len(drift)} differences from the registry", hint=hint)
