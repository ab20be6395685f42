"""`springtide.dead-letters`: refused records, with the reason.

Key and value are those of the record, cut to 1 KiB and 64 KiB, so that refused records cannot fill
the topic. Headers have its topic, partition, offset, length and SHA-256, the reason and the error:
the whole record can be found in its topic while retention keeps it there.
"""

import hashlib
from typing import Final, NamedTuple

from pipeline.errors import RecordError

MAX_VALUE_BYTES: Final = 64 * 1024
MAX_KEY_BYTES: Final = 1024


class DeadLetter(NamedTuple):
    """A record for the topic `dead-letters`."""

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
    """The dead letter of a record that was refused with `error`."""
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
