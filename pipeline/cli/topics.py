"""`springtide topics`: make the broker's topics what the registry declares, or say what differs."""

import asyncio
import json
from dataclasses import asdict

import click

from pipeline.cli.options import KAFKA_CLIENT, settings_options
from pipeline.errors import TopicDriftError
from pipeline.kafka.topic_admin import Change, Drift, apply_topics, check_topics
from pipeline.settings import Settings
from pipeline.topics.registry import TOPICS, markdown_table

_TOPIC_KEYS = (*KAFKA_CLIENT, "kafka.partitions", "kafka.replication_factor")


@click.group()
def command() -> None:
    """Create the topics, check them for drift, print their table.

    Every topic is declared once, in the registry: record, key, partitions, cleanup, retention.
    docs/reference/topics.md explains them.
    """


@command.command(
    epilog="Exit codes: 0 all are as declared, or would be; 1 failure, 2 usage or settings, 3 what "
    "differs cannot be mended in place."
)
@click.option("--dry-run", is_flag=True, help="Say what would be done and do nothing.")
@settings_options(*_TOPIC_KEYS)
def apply(settings: Settings, dry_run: bool) -> None:
    """Create what is missing and mend settings that differ.

    Nothing is deleted, and numbers of partitions and copies of existing topics are never changed:
    where they differ, this ends with 3 and says what to do.

    \b
    Examples:
      springtide topics apply --dry-run
      springtide topics apply --bootstrap-servers kafka-0:9092,kafka-1:9092 --replication-factor 3
    """
    if not dry_run:
        click.echo(f"applying {len(TOPICS)} topics ...", err=True)
    done: list[Change] = []

    def progress(change: Change) -> None:
        done.append(change)
        click.echo(str(change))

    changes = asyncio.run(apply_topics(settings.kafka, dry_run, progress))
    for change in changes if dry_run else []:
        click.echo(f"would {change}")
    if not changes:
        click.echo("nothing to do: all topics are as declared" if not dry_run else "nothing to do")
    left = [d for d in asyncio.run(check_topics(settings.kafka)) if not d.mendable]
    _end_with_drift(left)


@command.command(
    epilog="Exit codes: 0 all are as declared, 1 failure, 2 usage or settings, 3 they differ."
)
@click.option("--json", "as_json", is_flag=True, help="Print the differences as JSON.")
@settings_options(*_TOPIC_KEYS)
def check(settings: Settings, as_json: bool) -> None:
    """Compare the broker's topics with the registry; ends with 3 if they differ.

    \b
    Examples:
      springtide topics check
      springtide topics check --json | jq '.drift[] | select(.kind == "partitions")'
    """
    drift = asyncio.run(check_topics(settings.kafka))
    if as_json:
        shown = [{**asdict(d), "mendable": d.mendable, "message": str(d)} for d in drift]
        click.echo(json.dumps({"topics": len(TOPICS), "drift": shown}, indent=2))
        if drift:
            click.get_current_context().exit(TopicDriftError.exit_code)
    elif not drift:
        click.echo(f"{len(TOPICS)} topics are as declared")
    else:
        _end_with_drift(drift)


@command.command(epilog="Exit codes: 0 printed, 2 usage.")
def table() -> None:
    """Print all topics as a Markdown table: what docs/reference/topics.md contains."""
    click.echo(markdown_table(), nl=False)


def _end_with_drift(drift: list[Drift]) -> None:
    if not drift:
        return
    for one in drift:
        click.echo(str(one))
    hint = None if any(d.mendable for d in drift) else "see above; `apply` leaves these alone"
    raise TopicDriftError(f"{len(drift)} differences from the registry", hint=hint)
