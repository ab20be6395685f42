"""Time-outs and limits of requests to Prometheus and metrics-server, each with its reason."""

from typing import Final

REQUEST_ATTEMPTS: Final = 3
"""With the pauses below a query is repeated for 1.5 s at most: over a dropped connection, and
shorter than the window of a provider."""
FIRST_PAUSE_SECONDS: Final = 0.5
"""Before the second attempt; each further pause is twice as long."""
CONCURRENT_QUERIES: Final = 4
"""A Prometheus runs 20 queries at a time by default, for all its users."""
MOST_ANSWER_BYTES: Final = 512 << 20
"""Of one answer; a million values take 25 MB."""
HISTORY_QUERY_SECONDS: Final = 120.0
"""For one query of a report; the server's own default for its queries."""
MOST_INNER_SAMPLES: Final = 10_000_000
"""Samples that a query of a report computes on the server before it aggregates them: a fifth of the
server's default limit, `--query.max-samples`, and 160 MB of its memory."""
MOST_READ_SAMPLES: Final = 100_000_000
"""Samples that a query of a report reads on the server: in six seconds or so of one core."""
MOST_QUERY_HOURS: Final = 84
"""Hours that a query of a report asks for: a week is at least two, for a server of several cores.
An answer has one value for each hour and series, and the server's limit is 11,000."""
MOST_MATCHER_CHARACTERS: Final = 6000
"""Of all names of pods in a URL. Proxies refuse URLs of more than 8 KiB."""
READING_SECONDS: Final = 15.0
"""Between two polls of a report; metrics-server reads kubelets so often by default."""
OLDEST_READING_SECONDS: Final = 300.0
"""Readings that were older when a report began are unknown usage: metrics-server keeps the last one
of a kubelet that does not answer."""
