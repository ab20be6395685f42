"""Time-outs and limits of connections to a service, each with its reason.

`make docs` writes them into docs/reference/extender.md.
"""

from typing import Final

HEAD_TIMEOUT_SECONDS: Final = 10.0
"""Time for a TLS handshake, and then for the first request, else the connection is closed: it holds
a file. A scheduler sends its request at once."""
KEEPALIVE_SECONDS: Final = 120.0
"""An idle connection is closed after this time. Clients in Go, such as kube-scheduler, close theirs
after 90 s: the server must not be first, while a request is on its way."""
RESERVED_FILES: Final = 256
"""Open files that connections leave to Kafka, logs and snapshots. All others, up to the limit of
the process (which is raised to its hard limit, at most 65,536), may be connections."""
ACCEPT_BACKLOG: Final = 256
"""Connections that the kernel queues: those of a few schedulers and of all nodes in a second."""
ACCEPT_PAUSE_SECONDS: Final = 0.5
"""After an accept that failed, for lack of files or memory."""
CERTIFICATE_CHECK_SECONDS: Final = 10.0
"""A kubelet writes a renewed Secret within about a minute; the old certificate is still valid."""
CLOSE_SECONDS: Final = 1.0
"""For what is not answered then; its connections are closed after it."""
