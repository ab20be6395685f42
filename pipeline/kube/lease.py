"""Elect one leader among several processes, by a Lease of coordination.k8s.io.

At most one process leads at a time, as long as clocks run at the same speed: a leader that cannot
renew stops, by its own monotonic clock, before another process may take the lease; and a process
takes it only after it was not renewed for its whole duration, by that process's clock. Wall clocks
do not matter. The time for which a machine was suspended counts: `is_held` is false as soon as an
outdated leader resumes, although its tasks end only with the next turn of the renewal.
"""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from pipeline.errors import (
    ApiUnavailableError,
    ConflictError,
    GoneError,
    KubernetesError,
    NotFoundError,
)
from pipeline.kube.api_client import Api
from pipeline.logs import get_logger
from pipeline.metrics import gauge
from pipeline.tasks import cancel_tasks

log = get_logger(__name__)

LEADER = gauge("kubernetes_leader", "1 while this process leads.", ["lease"])


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """How long a lease lasts, how long its holder tries to renew it before it stops, and how often
    a process tries. The values are client-go's."""

    duration_seconds: float = 15.0
    renew_within_seconds: float = 10.0
    retry_seconds: float = 2.0


_CLIENT_GO_TERMS: Final = LeaseTerms()

Work = Callable[[], Awaitable[None]]


class Lease:
    """The lease `namespace`/`name`, for the candidate `identity`."""

    def __init__(
        self,
        api: Api,
        namespace: str,
        name: str,
        identity: str,
        terms: LeaseTerms = _CLIENT_GO_TERMS,
    ) -> None:
        self._api = api
        self._all = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._path = f"{self._all}/{name}"
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._terms = terms
        self._renewed_at = float("-inf")
        self._seen: tuple[Any, float] | None = None
        self._was_allowed = False
        self._holder = ""
        LEADER.labels(name).set(0)

    @property
    def is_held(self) -> bool:
        """Whether this process leads; check it before each action that only the leader may do."""
        since = self._api.clock.monotonic() - self._renewed_at
        return since < self._terms.renew_within_seconds

    async def lead(self, work: Work) -> None:
        """Run `work` while this process leads, until it returns. It is cancelled when the lease is
        lost, and started again with the next lease. Its exceptions are raised; the lease is
        released at the end."""
        try:
            while True:
                await self._until_held()
                log.info("leading", lease=self._name, identity=self._identity)
                LEADER.labels(self._name).set(1)
                if await self._while_held(work):
                    return
                log.warning("lease lost", lease=self._name, identity=self._identity)
                LEADER.labels(self._name).set(0)
                # Closed clients of Kafka are cycles with megabytes of fetched records, and the
                # collector counts objects: while standing by it would not come to them for hours.
                gc.collect()
        finally:
            LEADER.labels(self._name).set(0)
            if self.is_held:
                await self._release()

    async def _until_held(self) -> None:
        logged = ""
        while not await self._try():
            status = f"{self._holder} leads; standing by" if self._holder else "leader unknown"
            if status != logged:
                logged = status
                log.info(status, lease=self._name)
            pause = self._terms.retry_seconds * (1.0 + 0.2 * self._api.rng.random())
            await self._api.clock.sleep(pause)

    async def _while_held(self, work: Work) -> bool:
        """Whether `work` returned before the lease was lost."""
        working: asyncio.Future[None] = asyncio.ensure_future(work())
        renewing = asyncio.create_task(self._renew())
        try:
            await asyncio.wait({working, renewing}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
                return True
            renewing.result()
            return False
        finally:
            await cancel_tasks(working, renewing)

    async def _renew(self) -> None:
        """Renew the lease; returns when it is lost, or was not renewed in time."""
        while True:
            await self._api.clock.sleep(self._terms.retry_seconds)
            if not self.is_held:  # while this process was suspended, another may have led
                return
            renewed = asyncio.create_task(self._try())
            left = self._renewed_at + self._terms.renew_within_seconds
            waiting = asyncio.create_task(self._api.clock.sleep(left - self._api.clock.monotonic()))
            try:
                await asyncio.wait({renewed, waiting}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                done = renewed.done()
                await cancel_tasks(renewed, waiting)
            if not self.is_held or (done and not renewed.cancelled() and not renewed.result()):
                return

    async def _try(self) -> bool:
        """Try to take or renew the lease; whether this process holds it now."""
        asked_at = self._api.clock.monotonic()
        self._holder = ""
        try:
            lease = await self._get_or_make()
            self._was_allowed = True
            self._holder = str((lease.get("spec") or {}).get("holderIdentity") or "nobody")
            if not self._may_take(lease):
                self._renewed_at = float("-inf")
                return False
            await self._api.replace(self._path, self._renewed(lease))
        except ConflictError:
            # Another process was faster; the next attempt shows which.
            return self.is_held
        except KubernetesError as error:
            is_refused = not isinstance(error, (ApiUnavailableError, GoneError))
            if is_refused and not self._was_allowed:
                raise
            # A server that has just started may not have loaded its access rules yet.
            log.warning("lease not renewed", lease=self._name, why=error.message)
            return self.is_held
        # As of the request: the lease may have been lost while the answer was on its way.
        self._renewed_at = asked_at
        return True

    async def _get_or_make(self) -> Any:
        try:
            return await self._api.get(self._path)
        except NotFoundError:
            lease = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": self._name, "namespace": self._namespace},
                "spec": {},
            }
            try:
                return await self._api.create(self._all, lease)
            except NotFoundError as error:
                error.hint = (
                    f"kubectl create namespace {self._namespace}, or name an existing one with "
                    "--namespace"
                )
                raise

    def _may_take(self, lease: Any) -> bool:
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        if holder in ("", self._identity):
            return True
        renewal = (holder, spec.get("renewTime"), lease["metadata"].get("resourceVersion"))
        now = self._api.clock.monotonic()
        if self._seen is None or self._seen[0] != renewal:
            self._seen = renewal, now
        duration = spec.get("leaseDurationSeconds") or self._terms.duration_seconds
        return now - self._seen[1] > float(duration)

    def _renewed(self, lease: Any) -> Any:
        spec = lease.get("spec") or {}
        now = format_micros(self._api.clock.now())
        changed = spec.get("holderIdentity") != self._identity
        return {
            **lease,
            "spec": {
                **spec,
                "holderIdentity": self._identity,
                "leaseDurationSeconds": int(self._terms.duration_seconds),
                "acquireTime": now if changed else spec.get("acquireTime", now),
                "renewTime": now,
                "leaseTransitions": (spec.get("leaseTransitions") or 0) + changed,
            },
        }

    async def _release(self) -> None:
        """Let another process lead at once. If this fails, it waits until the lease expires."""
        self._renewed_at = float("-inf")
        try:
            lease = await self._api.get(self._path)
            if (lease.get("spec") or {}).get("holderIdentity") == self._identity:
                lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
                await self._api.replace(self._path, lease)
        except KubernetesError as error:
            log.warning("lease not released", lease=self._name, why=error.message)


def format_micros(seconds: float) -> str:
    """A Kubernetes MicroTime.

    >>> format_micros(1_700_000_000.25)
    '2023-11-14T22:13:20.250000Z'
    """
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
