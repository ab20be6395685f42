"""The newest valid view of this node, and the time since its source last confirmed it.

A view is written only when something changes, so that an old view may well be right: what counts is
when the source last said that there is no newer one. An invalid, foreign or older view changes
nothing. Whatever the source does, the last good view stays.
"""

import asyncio
from collections.abc import Iterable
from typing import Final

from pipeline import tracing
from pipeline.clock import Clock
from pipeline.errors import InvalidRecordError, RecordError
from pipeline.kafka.refused_records import refuse
from pipeline.logs import get_logger
from pipeline.topics.codec import decode_json
from pipeline.topics.node_views import NodeViewRecord
from pipeline.topics.registry import NODE_VIEWS

_SOURCE: Final = NODE_VIEWS.name

log = get_logger(__name__)


class NewestView:
    """The view of `node`, filled by a follower: `view_poll` or `view_topic`. Each new view sets
    `news`."""

    def __init__(self, node: str, clock: Clock, news: asyncio.Event) -> None:
        self.node = node
        self.record: NodeViewRecord | None = None
        """None before the first valid view."""
        self.received: tracing.Received | None = None
        """The trace that the view continues; None if it is not traced."""
        self._clock, self._news = clock, news
        self._confirmed_at: float | None = None
        self._restarted = False

    def age_seconds(self) -> float | None:
        """Time since the source confirmed that there is no newer view; None before the first."""
        if self.record is None or self._confirmed_at is None:
            return None
        return self._clock.monotonic() - self._confirmed_at

    def receive(self, value: bytes, headers: Iterable[tuple[str, bytes | None]] = ()) -> bool:
        """Take a view unless it is invalid, of another node, or not newer; whether it was taken.
        `headers` are those of its record."""
        try:
            record = decode_json(NodeViewRecord, value)
            if record.node != self.node:
                raise InvalidRecordError(f"a view of {record.node!r:.100}, not of {self.node}")
        except RecordError as error:
            refuse(_SOURCE, error, node=self.node)
            return False
        known = self.record
        if known is not None and record.generation <= known.generation and not self._restarted:
            return False
        self.record, self._restarted = record, False
        context = tracing.context_of(headers)
        self.received = None if context is None else tracing.Received(context, tracing.now())
        self._news.set()
        return True

    def confirm(self, at: float) -> None:
        """The source had no newer view `at` a monotonic time."""
        self._confirmed_at = at

    def restart(self) -> None:
        """The source was recreated: the next valid view is taken whatever its generation."""
        if self.record is not None and not self._restarted:
            log.warning(
                "views restart, older generations are taken",
                node=self.node,
                generation=self.record.generation,
            )
        self._restarted = True
