"""The protocol of a provider, and the declaration of a source of usage.

A module of this package with a `SOURCE` is a source; other packages name theirs by the entry point
group `springtide.sample_sources`.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from pipeline.clock import Clock
from pipeline.kube.api_client import Api
from pipeline.processors.imported_usage.fetched_usage import FetchedUsage, TimeWindow
from pipeline.settings import Settings


class SourceSession(Protocol):
    """A session with a system that measures usage of nodes and their pods."""

    async def fetch(self, window: TimeWindow) -> FetchedUsage:
        """Fetch the usage in `window`, which has ended.

        Missing parts are reported in the result. Raises `SampleSourceError` if there is no usage.
        """
        ...


@dataclass(frozen=True, slots=True)
class SampleSource:
    """A source of usage, as `provider.kind` names it.

    `open` opens a session; the API server is None if none is open yet. `hint` says what to check if
    a window is empty. `publishes`: the source publishes samples itself, so that there is nothing to
    import. `has_history`: windows of the past can be fetched. `needs_cluster`: the source itself is
    the API server.
    """

    name: str
    text: str
    open: Callable[[Settings, Clock, Api | None], AbstractAsyncContextManager[SourceSession]]
    hint: str
    publishes: bool = False
    has_history: bool = True
    needs_cluster: bool = False
