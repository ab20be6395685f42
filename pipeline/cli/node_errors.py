"""The error of commands that find no record of a node."""

from pipeline.cli.safe_output import suggestion
from pipeline.errors import NotReadyError
from pipeline.kafka.newest import names_near
from pipeline.settings import KafkaSettings


async def missing_record_error(
    kafka: KafkaSettings, node: str, record: str, reason: str = "wait for its next window"
) -> NotReadyError:
    """Build the error that there is no `record` of `node`.

    Its hint is `reason` if the node reports windows, else the names that may be meant.
    """
    similar = await names_near(kafka, node)
    if node in similar:
        hint = f"the node reports windows: {reason}"
    else:
        hint = suggestion(
            similar, "`springtide top` lists the nodes; one with no-data needs an exporter"
        )
    return NotReadyError(f"there is no {record} of node {node!r:.100}", hint=hint)
