"""Time-outs and limits of the API server's client, each with its reason.

`kubernetes.request_timeout_seconds` bounds one attempt of a request. A lease has its own terms
(`pipeline/kube/lease.py`), which are client-go's. `tests/kube/test_limits.py` states the relations.
"""

from typing import Final

REQUEST_ATTEMPTS: Final = 5
"""With the pauses below a request is repeated for 3 s: over a restart of a load balancer, and
shorter than a leader takes to lose its lease."""
FIRST_PAUSE_SECONDS: Final = 0.2
"""Before the second attempt; each further pause is twice as long."""
LONGEST_PAUSE_SECONDS: Final = 10.0
"""Between attempts to list and watch, which never give up."""
LONGEST_RETRY_AFTER_SECONDS: Final = 60.0
"""A proxy may answer `Retry-After: 86400`, which must not stop a role for a day."""

WATCH_SECONDS: Final = 300
"""A watch lasts this long to twice as long, so that not all watches end at the same time; as in
client-go."""
WATCH_SILENCE_SECONDS: Final = 150.0
"""A watch without a byte for so long is broken: the server sends a bookmark every minute."""
WATCH_ATTEMPTS: Final = 5
"""From one resource version. If the watch breaks each time, that version may be why: list again."""
SLOWEST_ATTEMPT: Final = 10
"""Pauses stop growing here."""

PAGE_OBJECTS: Final = 500
"""Objects of a page of a list, as in client-go: 500 pods are about 5 MB."""

EVENTS_UNDER_WAY: Final = 100
"""Events that are being written; further ones are dropped, since nothing depends on them."""
EVENT_MESSAGE_CHARACTERS: Final = 1024
"""The API server refuses longer messages."""
