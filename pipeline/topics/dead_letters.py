"""`springtide.dead-letters`: records that could not be used, with the reason why.

The value is the first 64 KiB of the bytes as they came, the key is theirs too; the headers say
where the record lay, how long it was, its SHA-256 and the reason, so that nothing is lost that
the source topic still keeps.
"""

import hashlib
from typing import Final, NamedTuple

from pipeline.errors import RecordError

MAX_VALUE_BYTES: Final = 64 * 1024
MAX_KEY_BYTES: Final = 1024


class DeadLetter(NamedTuple):
    key: bytes | None
    value: bytes
    headers: list[tuple[str, bytes]]


def dead_letter(
    topic: str,
    partition: int,
    offset: int,
    key: bytes | None,
    value: bytes | None,
    error: RecordError,
) -> DeadLetter:
    """The dead letter for the record at (topic, partition, offset) that `error` refused."""
    whole = value if value is not None else b""
    headers = {
        "topic": topic,
        "partition": str(partition),
        "offset": str(offset),
        "length": str(len(whole)),
        "sha256": hashlib.sha256(whole).hexdigest(),
        "reason": error.reason,
        "error": str(error)[:1024],
    }
    return DeadLetter(
        key=None if key is None else key[:MAX_KEY_BYTES],
        value=whole[:MAX_VALUE_BYTES],
        headers=[(name, text.encode(errors="backslashreplace")) for name, text in headers.items()],
    )
