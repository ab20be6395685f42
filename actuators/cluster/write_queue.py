"""Writing what is due: one at a time, paced by the budget, what takes away first, else each feature
in its turn.

Owes the rest: no two writes nearer to each other than the budget has it, failed ones counted; a
node that is asked for again while it waits keeps its place; however much waits, what takes away
waits for no more than others of its kind, and every tenth write is for the rest; a feature with
much to write does not keep another from writing, nor does what the API server refuses: that rests,
longer each time.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeVar

import msgspec

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
_REST_SECONDS: Final = (0.5, 60.0)
_ASK_SECONDS: Final = 0.2
# So many writes that take away are done before one of the rest is.
_FIRST_IN_A_ROW: Final = 9


T = TypeVar("T")


def answered(decoder: msgspec.json.Decoder[T], answer: bytes) -> T:
    """The object in an answer. Raises `ApiUnavailableError` for what is none: a proxy that has
    something to say, of which nobody knows whether the server was asked."""
    try:
        return decoder.decode(answer)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ApiUnavailableError(f"the answer is no object: {error}") from error


class Write(NamedTuple):
    """What is to be written: `do` does it, with one request that changes something; `failed` is
    told if it could not be done, or nobody knows. Both belong to the feature that is due."""

    do: Callable[[], Awaitable[None]]
    failed: Callable[[KubernetesError], None]


class _Rest(NamedTuple):
    """Until when a write that failed is not tried again, and how long that is."""

    until: float
    seconds: float


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
        # What of it takes away, in the order in which it came.
        self._first: dict[tuple[str, str], None] = {}
        self._firsts_done = 0
        self._some = asyncio.Event()
        self._held: dict[str, float] = {}
        self._rests: dict[tuple[str, str], _Rest] = {}

    def put(self, what: str, key: str, write: Write, *, takes_away: bool = False) -> None:
        """Wait for a turn; what waits for the same key is replaced, in its place."""
        if what not in self._waiting:
            self._waiting[what] = {}
            self._turn.append(what)
        self._waiting[what][key] = write
        if takes_away:
            self._first.setdefault((what, key))
        else:
            self._first.pop((what, key), None)
        WAITING.labels(what).set(len(self._waiting[what]))
        self._some.set()

    def drop(self, what: str, key: str) -> None:
        """What waits for this key is not wanted any more."""
        self._rests.pop((what, key), None)
        self._first.pop((what, key), None)
        if self._waiting.get(what, {}).pop(key, None) is not None:
            WAITING.labels(what).set(len(self._waiting[what]))

    async def run(self) -> None:
        """Write, until cancelled."""
        away = 0
        while True:
            await self._some.wait()
            await self._budget.wait()
            if not self._may_write():
                # The lease is renewed late, or this turn is about to end.
                await self._clock.sleep(_ASK_SECONDS)
                continue
            found = self._next()
            if found is None:
                self._some.clear()
                if any(self._waiting.values()):
                    # All of it rests, or waits for a permission.
                    await self._clock.sleep(1.0)
                    self._some.set()
                continue
            what, key, write = found
            try:
                await write.do()
            except ApiUnavailableError as error:
                away = min(away + 1, 10)
                self._tell(what, write, error, "unavailable")
                pause = max(_AWAY_SECONDS[0] * 2.0 ** (away - 1), error.retry_after_seconds or 0.0)
                await self._clock.sleep(min(pause, _AWAY_SECONDS[1]))
            except ForbiddenError as error:
                self._held[what] = self._clock.monotonic() + _FORBIDDEN_SECONDS
                self._tell(what, write, error, "forbidden")
            except KubernetesError as error:
                self._rest(what, key)
                overtaken = isinstance(error, (ConflictError, NotFoundError))
                self._tell(what, write, error, "overtaken" if overtaken else "refused")
            else:
                away = 0
                self._rests.pop((what, key), None)
                WRITES.labels(what, "done").inc()

    def _next(self) -> tuple[str, str, Write] | None:
        """The write that is to be done now, of those that do not rest."""
        now = self._clock.monotonic()
        ways = [self._next_first, self._next_in_turn]
        if self._firsts_done >= _FIRST_IN_A_ROW:
            ways.reverse()
        found = ways[0](now) or ways[1](now)
        if found is None:
            return None
        self._firsts_done = self._firsts_done + 1 if found in self._first else 0
        what, key = found
        self._first.pop(found, None)
        write = self._waiting[what].pop(key)
        WAITING.labels(what).set(len(self._waiting[what]))
        return what, key, write

    def _next_first(self, now: float) -> tuple[str, str] | None:
        """The longest waiting of what takes away."""
        return next(
            (
                (what, key)
                for what, key in self._first
                if self._held.get(what, now) <= now and not self._is_resting(what, key, now)
            ),
            None,
        )

    def _next_in_turn(self, now: float) -> tuple[str, str] | None:
        """The longest waiting of the rest, of the feature whose turn it is."""
        for _ in range(len(self._turn)):
            what = self._turn.pop(0)
            self._turn.append(what)
            if self._held.get(what, now) > now:
                continue
            for key in self._waiting[what]:
                if (what, key) not in self._first and not self._is_resting(what, key, now):
                    return what, key
        return None

    def _is_resting(self, what: str, key: str, now: float) -> bool:
        rest = self._rests.get((what, key))
        return rest is not None and rest.until > now

    def _rest(self, what: str, key: str) -> None:
        now = self._clock.monotonic()
        before = self._rests.get((what, key))
        seconds = _REST_SECONDS[0] if before is None else min(2 * before.seconds, _REST_SECONDS[1])
        # What has not been tried again for so long is not wanted any more.
        self._rests = {k: r for k, r in self._rests.items() if r.until + _REST_SECONDS[1] > now}
        self._rests[what, key] = _Rest(now + seconds, seconds)

    def _tell(self, what: str, write: Write, error: KubernetesError, outcome: str) -> None:
        WRITES.labels(what, outcome).inc()
        log.warning("write failed", what=what, why=str(error))
        write.failed(error)
