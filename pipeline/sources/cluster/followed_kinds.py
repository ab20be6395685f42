"""Know whether the watcher sees every change of the kinds that a heartbeat vouches for."""

import math
from collections.abc import Collection
from typing import Final

from pipeline.clock import Clock
from pipeline.kube.limits import WATCH_SILENCE_SECONDS
from pipeline.kube.list_watch import Began, Complete, Event

SILENCE_SECONDS: Final = WATCH_SILENCE_SECONDS
"""As the client that ends such a watch: a bookmark comes every minute if nothing changes, but the
first one after a restart of the API server took two."""


class FollowedKinds:
    """The `kinds` whose list is complete, with the time of the last event of each."""

    def __init__(self, kinds: Collection[str], clock: Clock) -> None:
        self._clock = clock
        self._heard = dict.fromkeys(kinds, -math.inf)

    def observe(self, kind: str, event: Event) -> None:
        """Take an event after its records are on the topics; other kinds are ignored."""
        if isinstance(event, Began):
            if kind in self._heard:
                self._heard[kind] = -math.inf
        elif isinstance(event, Complete) or self._heard.get(kind, -math.inf) > -math.inf:
            self._heard[kind] = self._clock.monotonic()

    @property
    def are_complete(self) -> bool:
        """Whether every change that the API server has made is seen: all lists are complete, and
        no watch is silent."""
        return self._clock.monotonic() - min(self._heard.values()) < SILENCE_SECONDS
