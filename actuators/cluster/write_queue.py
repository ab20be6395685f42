"""A rate-limited queue of writes to the API server: withdrawals first, then round-robin by feature.

Withdrawals go first, because pods start on offers that are too large. They take nine of ten writes,
so that other writes still advance. Within a feature the longest waiting write goes first; a write
that is queued again keeps its place. A failed write backs off and delays no other. A feature
without permission pauses for a minute. All writes pause after several unavailable answers in a row,
and for `Retry-After`.
"""

import asyncio
from asyncio import FIRST_COMPLETED
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from actuators.rate_limit import RateLimit
from pipeline import tracing
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
from pipeline.spans import SpanContext
from pipeline.tasks import cancel_tasks

log = get_logger(__name__)

WRITES = counter("actuator_writes", "Write requests by feature and outcome.", ["what", "outcome"])
WAITING = gauge("actuator_waiting_writes", "Writes in the queue.", ["what"])

_UNAVAILABLE_SECONDS: Final = (0.5, 30.0)
_FORBIDDEN_SECONDS: Final = 60.0
_BACKOFF_SECONDS: Final = (0.5, 60.0)
_LEASE_POLL_SECONDS: Final = 0.2
_WITHDRAWALS_IN_A_ROW: Final = 9
# A busy API server takes up to 50 ms for a write, so each slot does this many in a second.
_WRITES_OF_A_SLOT: Final = 20.0


class Write(NamedTuple):
    """`execute` sends at most one request that changes something. `on_failure` learns that it was
    not executed, or that the outcome is unknown. `cause` is the span that logs name."""

    execute: Callable[[], Awaitable[None]]
    on_failure: Callable[[KubernetesError], None]
    cause: SpanContext | None = None


class _Backoff(NamedTuple):
    """When a failed write may be tried again (monotonic seconds), and the length of the pause."""

    until: float
    seconds: float


class WriteQueue:
    """Writes of all features, by feature and key. `may_write` is asked before each write."""

    def __init__(self, limit: RateLimit, clock: Clock, may_write: Callable[[], bool]) -> None:
        self._limit = limit
        self._clock = clock
        self._may_write = may_write
        self._waiting: dict[str, dict[str, Write]] = {}
        self._withdrawals: dict[tuple[str, str], None] = {}
        self._withdrawals_done = 0
        self._has_work = asyncio.Event()
        self._forbidden_until: dict[str, float] = {}
        self._backoffs: dict[tuple[str, str], _Backoff] = {}
        self._executing: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._bug: BaseException | None = None
        self._unavailable = 0
        self._paused_until = 0.0

    def put(self, feature: str, key: str, write: Write, *, is_withdrawal: bool = False) -> None:
        """Queue a write; it replaces a waiting one of the same key, in its place."""
        self._waiting.setdefault(feature, {})[key] = write
        if is_withdrawal:
            self._withdrawals.setdefault((feature, key))
        else:
            self._withdrawals.pop((feature, key), None)
        self._update_gauge(feature)
        self._has_work.set()

    def discard(self, feature: str, key: str) -> None:
        """Remove the waiting write of a key, if there is one."""
        self._backoffs.pop((feature, key), None)
        self._withdrawals.pop((feature, key), None)
        if self._waiting.get(feature, {}).pop(key, None) is not None:
            self._update_gauge(feature)

    @property
    def unfinished(self) -> int:
        """Writes that wait, are being executed, or failed and are due again. Other threads may
        ask."""
        waiting = {
            (feature, key)
            for feature, writes in list(self._waiting.items())
            for key in list(writes)
        }
        return len(waiting.union(list(self._executing), list(self._backoffs)))

    async def run(self) -> None:
        """Execute writes until cancelled: of distinct keys, several at a time if the limit is
        high."""
        try:
            while True:
                feature, key, write = await self._next()
                task = asyncio.create_task(self._execute(feature, key, write))
                self._executing[feature, key] = task
                task.add_done_callback(self._check)
        finally:
            await cancel_tasks(*self._executing.values())

    def _check(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._bug = error
            self._has_work.set()

    async def _next(self) -> tuple[str, str, Write]:
        """Wait for the next write that may be executed, and remove it from the queue."""
        while True:
            await self._has_work.wait()
            while len(self._executing) >= self._limit.per_second / _WRITES_OF_A_SLOT:
                await asyncio.wait([*self._executing.values()], return_when=FIRST_COMPLETED)
            await self._clock.sleep(max(self._paused_until - self._clock.monotonic(), 0.0))
            await self._limit.wait()
            if not self._may_write():
                # The lease is renewed late, or the leader is about to stop.
                await self._clock.sleep(_LEASE_POLL_SECONDS)
                continue
            if self._bug is not None:
                raise self._bug
            entry = self._pop()
            if entry is not None:
                return entry
            self._has_work.clear()
            if any(self._waiting.values()) and not self._executing:
                # All of them back off, or lack permission.
                await self._clock.sleep(1.0)
                self._has_work.set()

    async def _execute(self, feature: str, key: str, write: Write) -> None:
        with tracing.logged(write.cause):
            await self._try(feature, key, write)

    async def _try(self, feature: str, key: str, write: Write) -> None:
        try:
            await write.execute()
        except ApiUnavailableError as error:
            self._back_off(feature, key, *_UNAVAILABLE_SECONDS)
            self._fail(feature, write, error, "unavailable")
            # The object may be why, as with a webhook that fails for it: pause only if the next
            # write fails too, and let that be another kind than a withdrawal.
            self._withdrawals_done = _WITHDRAWALS_IN_A_ROW
            failed = self._unavailable
            pause = _UNAVAILABLE_SECONDS[0] * 2.0 ** (failed - 1) if failed else 0.0
            pause = min(max(pause, error.retry_after_seconds or 0.0), _UNAVAILABLE_SECONDS[1])
            self._paused_until = max(self._paused_until, self._clock.monotonic() + pause)
            self._unavailable = min(failed + 1, 10)
        except ForbiddenError as error:
            self._forbidden_until[feature] = self._clock.monotonic() + _FORBIDDEN_SECONDS
            self._fail(feature, write, error, "forbidden")
        except KubernetesError as error:
            self._back_off(feature, key, *_BACKOFF_SECONDS)
            is_overtaken = isinstance(error, (ConflictError, NotFoundError))
            self._fail(feature, write, error, "overtaken" if is_overtaken else "refused")
        else:
            self._unavailable = 0
            self._backoffs.pop((feature, key), None)
            WRITES.labels(feature, "done").inc()
        finally:
            self._executing.pop((feature, key), None)
            # A newer write of the key may wait for it.
            self._has_work.set()

    def _pop(self) -> tuple[str, str, Write] | None:
        """Remove and return the next write that does not back off."""
        now = self._clock.monotonic()
        selections = [self._next_withdrawal, self._next_by_feature]
        if self._withdrawals_done >= _WITHDRAWALS_IN_A_ROW:
            selections.reverse()
        entry = selections[0](now) or selections[1](now)
        if entry is None:
            return None
        self._withdrawals_done = self._withdrawals_done + 1 if entry in self._withdrawals else 0
        feature, key = entry
        self._withdrawals.pop(entry, None)
        write = self._waiting[feature].pop(key)
        self._update_gauge(feature)
        return feature, key, write

    def _next_withdrawal(self, now: float) -> tuple[str, str] | None:
        return next(
            (
                (feature, key)
                for feature, key in self._withdrawals
                if self._forbidden_until.get(feature, now) <= now
                and not self._must_wait(feature, key, now)
            ),
            None,
        )

    def _next_by_feature(self, now: float) -> tuple[str, str] | None:
        """The longest waiting other write, of the next feature in round-robin order."""
        for feature in list(self._waiting):
            # The order of the dictionary is the order of turns: this feature goes to the end.
            self._waiting[feature] = self._waiting.pop(feature)
            if self._forbidden_until.get(feature, now) > now:
                continue
            for key in self._waiting[feature]:
                is_withdrawal = (feature, key) in self._withdrawals
                if not is_withdrawal and not self._must_wait(feature, key, now):
                    return feature, key
        return None

    def _must_wait(self, feature: str, key: str, now: float) -> bool:
        """Whether the last write of the key is under way, or failed a short time ago."""
        backoff = self._backoffs.get((feature, key))
        is_backing_off = backoff is not None and backoff.until > now
        return is_backing_off or (feature, key) in self._executing

    def _back_off(self, feature: str, key: str, first: float, longest: float) -> None:
        now = self._clock.monotonic()
        before = self._backoffs.get((feature, key))
        seconds = first if before is None else min(2 * before.seconds, longest)
        # A write that was not retried for so long is not wanted any more.
        self._backoffs = {k: b for k, b in self._backoffs.items() if b.until + longest > now}
        self._backoffs[feature, key] = _Backoff(now + seconds, seconds)

    def _fail(self, feature: str, write: Write, error: KubernetesError, outcome: str) -> None:
        WRITES.labels(feature, outcome).inc()
        log.warning("write failed", what=feature, why=str(error))
        write.on_failure(error)

    def _update_gauge(self, feature: str) -> None:
        WAITING.labels(feature).set(len(self._waiting[feature]))
