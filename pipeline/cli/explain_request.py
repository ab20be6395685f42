"""Explain how nodes are judged for a pod, by a running extender or by the rules of the settings."""

from pathlib import Path
from typing import Final

import click

from pipeline.cli.extender_client import ExtenderClient
from pipeline.cli.file_arguments import argument_name, read_argument
from pipeline.cli.options import DECISION_RULES, KAFKA_CLIENT
from pipeline.cli.safe_output import printable
from pipeline.cli.table_reading import read_table
from pipeline.clock import SystemClock
from pipeline.errors import BadRequestError, UsageError
from pipeline.extender.decision_rules import rules_of
from pipeline.extender.decisions import Decisions, Rules
from pipeline.extender.explain_documents import Explanation
from pipeline.extender.query_api import explain, read_subject
from pipeline.settings import ExtenderSettings, Settings
from pipeline.sources.pod_manifests import pod_in_file
from pipeline.table import NODE_AND_POD_TOPICS, Table

SETTINGS: Final = (*KAFKA_CLIENT, *DECISION_RULES)
"""The settings that an extender's answer depends on."""


def read_explain_request(file: Path) -> bytes:
    """Read the pod of a manifest, `-` for standard input, as a body of POST /v1/explain. Raises
    `UsageError` if the file cannot be read or has no pod."""
    name = argument_name(file)
    request = pod_in_file(name, read_argument(file))
    try:
        read_subject(request)
    except BadRequestError as error:
        raise UsageError(f"{name}: {error.message}", hint="correct the manifest") from error
    return request


def load_rules(settings: ExtenderSettings) -> Rules:
    """Build the rules from the settings, and print their notes to standard error."""
    rules = rules_of(settings)
    for note in rules.placement.notes:
        click.echo(f"warning: {printable(note)}", err=True)
    return rules


async def request_explanation(
    settings: Settings, extender: ExtenderClient | None, request: bytes
) -> Explanation:
    """Ask how every node is judged for the pod: this extender, else the rules in the settings."""
    if extender is None:
        rules = load_rules(settings.extender)
        async with read_table(
            settings, Table(counting=rules.counting), NODE_AND_POD_TOPICS
        ) as feed:
            decisions, now = Decisions(feed.table, rules), SystemClock().now()
            return explain(decisions, feed.table, read_subject(request), now, "act")()
    async with extender.session() as session:
        return await extender.request(session, "/v1/explain", Explanation, request)
