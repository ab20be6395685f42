"""Writing what is due: one at a time, paced by the budget, each feature in its turn.

Owes the rest: no two writes nearer to each other than the budget has it, failed ones counted; a
node that is asked for again while it waits keeps its place; a feature with much to write does not
keep another from writing.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from pipeline.clock import Clock
from pipeline.errors import (
    ApiUnavailableError,
    ConflictError,
    ForbiddenError,
    KubernetesError,
    NotFoundError,
)
from pipeline.logs import get_logger
from pipeline.metrics import counter, gauge

log = get_logger(__name__)

WRITES = counter("actuator_writes", "Requests that were to change something.", ["what", "outcome"])
WAITING = gauge("actuator_waiting_writes", "Writes that wait for their turn.", ["what"])

_AWAY_SECONDS: Final = (0.5, 30.0)
_FORBIDDEN_SECONDS: Final = 60.0


class Write(NamedTuple):
    """What is to be written: `do` does it, with one request that changes something; `failed` is
    told if it could not be done, or nobody knows. Both belong to the feature that is due."""

    do: Callable[[], Awaitable[None]]
    failed: Callable[[KubernetesError], None]


class Budget:
    """No more than so many a second, however they come."""

    def __init__(self, per_second: float, clock: Clock) -> None:
        self._pause_seconds = 1.0 / per_second
        self._clock = clock
        self._next = clock.monotonic()

    async def wait(self) -> None:
        """Return when the next one may be done."""
        while (left := self._next - self._clock.monotonic()) > 0:
            await self._clock.sleep(left)
        self._next = self._clock.monotonic() + self._pause_seconds


class Writer:
    """Takes what features have to write, and writes it."""

    def __init__(self, budget: Budget, clock: Clock, may_write: Callable[[], bool]) -> None:
        self._budget = budget
        self._clock = clock
        self._may_write = may_write
        self._waiting: dict[str, dict[str, Write]] = {}
        self._turn: list[str] = []
        self._some = asyncio.Event()
        self._held: dict[str, float] = {}

    def put(self, what: str, key: str, write: Write) -> None:
        """Wait for a turn; what waits for the same key is replaced, in its place."""
        if what not in self._waiting:
            self._waiting[what] = {}
            self._turn.append(what)
        self._waiting[what][key] = write
        WAITING.labels(what).set(len(self._waiting[what]))
        self._some.set()

    def drop(self, what: str, key: str) -> None:
        """What waits for this key is not wanted any more."""
        if self._waiting.get(what, {}).pop(key, None) is not None:
            WAITING.labels(what).set(len(self._waiting[what]))

    async def run(self) -> None:
        """Write, until cancelled."""
        away = 0
        while True:
            await self._some.wait()
            await self._budget.wait()
            found = self._next()
            if found is None:
                self._some.clear()
                if any(self._waiting.values()):
                    # All of it waits for a permission.
                    await self._clock.sleep(1.0)
                    self._some.set()
                continue
            if not self._may_write():
                # Whoever leads now writes it.
                return
            what, write = found
            try:
                await write.do()
            except ApiUnavailableError as error:
                away = min(away + 1, 10)
                self._tell(what, write, error, "unavailable")
                pause = min(_AWAY_SECONDS[0] * 2.0 ** (away - 1), _AWAY_SECONDS[1])
                await self._clock.sleep(max(pause, error.retry_after_seconds or 0.0))
            except (ConflictError, NotFoundError) as error:
                self._tell(what, write, error, "overtaken")
            except ForbiddenError as error:
                self._held[what] = self._clock.monotonic() + _FORBIDDEN_SECONDS
                self._tell(what, write, error, "forbidden")
            except KubernetesError as error:
                self._tell(what, write, error, "refused")
            else:
                away = 0
                WRITES.labels(what, "done").inc()

    def _next(self) -> tuple[str, Write] | None:
        """The longest waiting write of the feature whose turn it is."""
        for _ in range(len(self._turn)):
            what = self._turn.pop(0)
            self._turn.append(what)
            waiting = self._waiting[what]
            if waiting and self._held.get(what, 0.0) <= self._clock.monotonic():
                key = next(iter(waiting))
                write = waiting.pop(key)
                WAITING.labels(what).set(len(waiting))
                return what, write
        return None

    def _tell(self, what: str, write: Write, error: KubernetesError, outcome: str) -> None:
        WRITES.labels(what, outcome).inc()
        log.warning("write failed", what=what, why=str(error))
        write.failed(error)
