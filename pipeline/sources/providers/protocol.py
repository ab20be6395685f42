"""What every source of usage owes: one question."""

from typing import Protocol

from pipeline.processors.provided.fetched_usage import FetchedUsage, TimeWindow


class Provider(Protocol):
    """Usage of nodes and of their pods, from wherever it is measured."""

    async def fetch(self, window: TimeWindow) -> FetchedUsage:
        """What was used in `window`, which has ended.

        Part of it may be missing, and says so. Raises `ProviderError` if nothing could be had.
        """
        ...
