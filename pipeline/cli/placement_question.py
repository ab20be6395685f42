"""What would be said of a pod: asked of a running extender, or worked out from the topics as one
with these settings would."""

from pathlib import Path
from typing import Final

import click
import msgspec

from pipeline.cli.extender_client import AskedExtender
from pipeline.cli.options import KAFKA_CLIENT
from pipeline.cli.safe_output import printable
from pipeline.cli.table_reading import read_table
from pipeline.clock import SystemClock
from pipeline.errors import BadRequestError, SpringtideError, UsageError
from pipeline.extender.decisions import Decisions, Rules
from pipeline.extender.explain_documents import Explanation
from pipeline.extender.query_api import explain, read_subject
from pipeline.extender.scheduler_api import rules_of
from pipeline.settings import ExtenderSettings, Settings
from pipeline.sources.pod_manifests import pod_in_file
from pipeline.table import AND_PODS, Table

SETTINGS: Final = (
    *KAFKA_CLIENT, "extender.cpu_threshold_percent", "extender.memory_threshold_percent",
    "extender.stale_after_seconds", "extender.scheduler_config_file", "extender.scheduler_name",
    "extender.fine_scores", "extender.in_flight",
)  # fmt: skip
"""What an extender's answer depends on."""


def question_of(file: Path) -> bytes:
    """The question about the pod in a file, `-` for standard input. Raises `UsageError`."""
    try:
        text = click.get_text_stream("stdin").read() if str(file) == "-" else file.read_text()
    except (OSError, UnicodeError) as error:
        raise UsageError(
            f"cannot read {file}: {error}", hint="name a file, or - for stdin"
        ) from error
    question = pod_in_file(file, text)
    try:
        read_subject(question)
    except BadRequestError as error:
        raise UsageError(f"{file}: {error.message}", hint="mend the manifest") from error
    return question


def rules_told(settings: ExtenderSettings) -> Rules:
    """What these settings ask for; what users should know of it goes to stderr."""
    rules = rules_of(settings)
    for note in rules.placement.notes:
        click.echo(f"warning: {printable(note)}", err=True)
    return rules


async def answer_to(
    settings: Settings, extender: AskedExtender | None, question: bytes
) -> Explanation:
    """What would be said of the pod on every node, by this extender or by these settings."""
    if extender is None:
        rules = rules_told(settings.extender)
        async with read_table(settings, Table(counting=rules.counting), AND_PODS) as feed:
            decisions, now = Decisions(feed.table, rules), SystemClock().now()
            return explain(decisions, feed.table, read_subject(question), now, "act")()
    async with extender.session() as session:
        answer = await extender.ask(session, "/v1/explain", question)
    try:
        return msgspec.json.decode(answer, type=Explanation)
    except msgspec.MsgspecError as error:
        raise SpringtideError(f"{extender.url} does not answer as an extender: {error}") from error
