"""One leader among several, by a Lease of coordination.k8s.io.

Owes the rest: at most one works at a time, as far as clocks run at one speed: a leader that cannot
renew stops before its lease may be taken, by its own monotonic clock; whoever takes it has watched
it unrenewed for the whole of its length, by theirs. Nobody's wall clock decides.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
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
from pipeline.times import format_time

log = get_logger(__name__)

LEADER = gauge("kubernetes_leader", "1 while this process leads.", ["lease"])


@dataclass(frozen=True, slots=True)
class Terms:
    """As client-go has them: how long a lease holds, how long its holder tries to renew it before
    it stops, and how often one tries."""

    duration_seconds: float = 15.0
    renew_within_seconds: float = 10.0
    retry_seconds: float = 2.0


_USUAL: Final = Terms()

Work = Callable[[], Awaitable[None]]


class Lease:
    """The lease `namespace`/`name`, as seen by `identity`, one of those that may lead."""

    def __init__(
        self, api: Api, namespace: str, name: str, identity: str, terms: Terms = _USUAL
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
        """Whether we may still work: ask before whatever only the leader may do."""
        since = self._api.clock.monotonic() - self._renewed_at
        return since < self._terms.renew_within_seconds

    async def lead(self, work: Work) -> None:
        """Run `work` whenever we lead, until it returns; it is cancelled when we lead no longer,
        and run again the next time. What it raises is raised. The lease is released at the end."""
        try:
            while True:
                await self._until_held()
                log.info("leading", lease=self._name, identity=self._identity)
                LEADER.labels(self._name).set(1)
                if await self._while_held(work):
                    return
                log.warning("leading no longer", lease=self._name, identity=self._identity)
                LEADER.labels(self._name).set(0)
        finally:
            LEADER.labels(self._name).set(0)
            if self.is_held:
                await self._release()

    async def _until_held(self) -> None:
        said = ""
        while not await self._try():
            found = (
                f"{self._holder} leads; standing by" if self._holder else "cannot tell who leads"
            )
            if found != said:
                said = found
                log.info(found, lease=self._name)
            pause = self._terms.retry_seconds * (1.0 + 0.2 * self._api.rng.random())
            await self._api.clock.sleep(pause)

    async def _while_held(self, work: Work) -> bool:
        """Whether `work` returned before we lost the lease."""
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
        """Returns when the lease is ours no longer, or could not be renewed in time."""
        while True:
            await self._api.clock.sleep(self._terms.retry_seconds)
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
        """Whether the lease is ours now."""
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
            # Somebody was faster; who it was the next attempt shows.
            return self.is_held
        except KubernetesError as error:
            is_refused = not isinstance(error, (ApiUnavailableError, GoneError))
            if is_refused and not self._was_allowed:
                raise
            # A server that has just started may not know yet what we may do.
            log.warning("lease cannot be renewed", lease=self._name, why=error.message)
            return self.is_held
        # As of the question: how long the answer took is not known to have been ours.
        self._renewed_at = asked_at
        return True

    async def _get_or_make(self) -> Any:
        try:
            return await self._api.get(self._path)
        except NotFoundError:
            made = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": self._name, "namespace": self._namespace},
                "spec": {},
            }
            try:
                return await self._api.create(self._all, made)
            except NotFoundError as error:
                error.hint = (
                    f"kubectl create namespace {self._namespace}, or name with --namespace one "
                    "that is there"
                )
                raise

    def _may_take(self, lease: Any) -> bool:
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        if holder in ("", self._identity):
            return True
        told = (holder, spec.get("renewTime"), lease["metadata"].get("resourceVersion"))
        now = self._api.clock.monotonic()
        if self._seen is None or self._seen[0] != told:
            self._seen = told, now
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
        """Let the next one lead at once. If that fails it waits until the lease has run out."""
        self._renewed_at = float("-inf")
        try:
            lease = await self._api.get(self._path)
            if (lease.get("spec") or {}).get("holderIdentity") == self._identity:
                lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
                await self._api.replace(self._path, lease)
        except KubernetesError as error:
            log.warning("lease is not released", lease=self._name, why=error.message)


def format_micros(seconds: float) -> str:
    """A MicroTime as Kubernetes takes it.

    >>> format_micros(1_700_000_000.25)
    '2023-11-14T22:13:20.250000Z'
    """
    whole = int(seconds)
    text = format_time(float(whole)).removesuffix("Z").partition(".")[0]
    return f"{text}.{int((seconds - whole) * 1_000_000):06d}Z"
