"""Count and log what the reader of any feed refuses, so that a hostile producer fills no disk."""

from typing import Any, Final

from pipeline.errors import InvalidRecordError, RecordError
from pipeline.logs import get_logger
from pipeline.metrics import counter

log = get_logger(__name__)

REFUSED: Final = counter(
    "refused_records",
    "Invalid records, by topic, and invalid Kubernetes objects, by kind, that a reader refused.",
    ["source", "reason"],
)
_LONGEST_TEXT: Final = 500


def refuse(source: str, error: Exception, **place: Any) -> None:
    """Count a record of a topic, or a Kubernetes object of a kind, that is refused because of
    `error`, and log it at most once a minute for each source and reason."""
    reason = error.reason if isinstance(error, RecordError) else InvalidRecordError.reason
    REFUSED.labels(source, reason).inc()
    log.warning("record refused", per=(source, reason), source=source, **place, reason=reason,
                error=str(error)[:_LONGEST_TEXT])  # fmt: skip
