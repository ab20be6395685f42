"""Time-outs and limits of the webhook, each with its reason. `make docs` writes them into
docs/reference/webhook.md. Those of connections are in `pipeline/http_server/limits.py`."""

from typing import Final

MAX_REVIEW_BYTES: Final = 8 * 1024 * 1024
"""Larger reviews get 413. The API server accepts objects of up to 3 MiB, and a review of an update
has two."""
SMALL_REVIEW_BYTES: Final = 64 * 1024
"""Reviews of up to this size, as nearly all are, need no place: an open connection may hold as much
anyway. Slow clients with large reviews cannot take the places from them."""
REVIEWS_AT_ONCE: Final = 32
"""Larger reviews that are read and answered at a time, so that bodies hold at most 256 MiB."""
PLACE_SECONDS: Final = 1.0
"""Wait for one of these places, then 503: the API server admits the pod unchanged."""
BODY_SECONDS: Final = 5.0
"""Time for a review to arrive, then 408. The API server has given up by then."""
NAMESPACE_SECONDS: Final = 1.0
"""Time to ask for a namespace that the watch has not shown yet: pods may follow it at once."""
RETRY_SECONDS: Final = 60.0
"""Until the API server is asked again for what it does not serve: the definition of profiles may be
installed later."""
MOST_REASONS: Final = 5
"""Reasons that are reported why one version of a profile is not applied: each is an Event, and a
reason may contain the name of a namespace or the value of a label."""
LINGER_SECONDS: Final = 5.0
"""After SIGTERM reviews are answered for so long: until then the API server may not know that this
replica leaves its Service, and a review without an answer is a pod that no profile changes."""
FINISH_SECONDS: Final = 5.0
"""For answers under way then."""
