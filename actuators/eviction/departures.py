"""Look whether evicted pods are gone: an accepted eviction only begins the deletion of a pod."""

import asyncio
from collections.abc import Sequence
from typing import Final

from actuators.eviction.eviction_calls import find_pod, pods_being_deleted
from actuators.eviction.eviction_gate import EvictionGate
from pipeline.errors import ForbiddenError, SpringtideError
from pipeline.logs import get_logger
from pipeline.metrics import gauge
from pipeline.processors.eviction.migration_limits import Eviction
from pipeline.times import time_or_none

log = get_logger(__name__)

UNKNOWN = gauge(
    "evictor_unknown_history_seconds",
    "Time for which evictions of former leaders are unknown, and limits in time wait.",
)
LOOK_SECONDS: Final = 2.0
REQUEST_SECONDS: Final = 60.0
"""The API server gives up a request after this time (`--request-timeout`)."""
_A_LOOK: Final = 50
"""Pods of one look; further ones have their turn in the next."""
_AT_ONCE: Final = 10
_MOST_DELETED: Final = 500
"""Pods that are found at the start to be deleted and that count: those that were deleted last."""


async def watch_departures(gate: EvictionGate) -> None:
    """Keep the history of the gate up to date, until cancelled."""
    turn = 0
    while True:
        await gate.clock.sleep(LOOK_SECONDS)
        leaving = [*gate.history.leaving]
        turn = turn if turn < len(leaving) else 0
        await _look_at(gate, [*leaving[turn:], *leaving[:turn]][:_A_LOOK])
        turn += _A_LOOK
        gate.history.forget(gate.clock.monotonic())
        UNKNOWN.set(gate.history.unknown_seconds(gate.clock.monotonic()))


async def look_at_all_pods(gate: EvictionGate) -> bool:
    """Count pods as leaving that are being deleted, also if no action says why, and evicted pods
    that do not exist as gone. Returns whether the API server has answered. Raises `ForbiddenError`
    if RBAC denies it."""
    leaving = {eviction.pod.uid for eviction in gate.history.leaving}
    try:
        pods = await pods_being_deleted(gate.api, leaving, _MOST_DELETED)
    except ForbiddenError:
        raise
    except SpringtideError as error:
        log.warning("cannot list the pods that are being deleted", why=error.message)
        return False
    for uid in leaving - pods.present:
        gate.history.left(uid)
        gate.end_mark(uid, "done")
    now, monotonic = gate.clock.now(), gate.clock.monotonic()
    for pod in pods.deleted:
        overdue = now - (time_or_none(pod.record.deleted_at) or now)
        # One that hangs in its deletion counts as unavailable, but stops no eviction.
        if overdue <= gate.policy.limits.ttl_seconds:
            at = monotonic - max(overdue + pod.grace_seconds, 0.0)
            gate.history.leaves(pod.candidate, at, pod.grace_seconds)
    log.info("pods that are being deleted count as leaving", pods=len(pods.deleted),
             not_counted=pods.left_out)  # fmt: skip
    return True


async def _look_at(gate: EvictionGate, leaving: Sequence[Eviction]) -> None:
    for start in range(0, len(leaving), _AT_ONCE):
        part = leaving[start : start + _AT_ONCE]
        await asyncio.gather(*(_look(gate, eviction) for eviction in part))


async def _look(gate: EvictionGate, eviction: Eviction) -> None:
    """A pod stays that is not deleted when no request to evict it can be under way any more, also
    if the answer was lost; so does one that no agent evicts, and one that hangs in its deletion: it
    counts as unavailable, but stops no other eviction."""
    try:
        pod = await find_pod(gate.api, eviction.pod.namespace, eviction.pod.name)
    except SpringtideError:
        return  # unknown: it counts as leaving until the next look
    uid, ttl_seconds = eviction.pod.uid, gate.policy.limits.ttl_seconds
    is_gone = pod is None or pod.record.uid != uid
    if pod is None or is_gone or pod.is_deleted:
        gate.end_mark(uid, "done")
    if pod is None or is_gone:
        gate.history.left(uid)
        return
    if pod.is_deleted:
        ends_at = eviction.at + pod.grace_seconds + ttl_seconds
    elif uid in gate.marked or gate.is_soft(pod):
        ends_at = eviction.at + ttl_seconds
    else:
        ends_at = eviction.at + min(REQUEST_SECONDS, ttl_seconds)
    if gate.clock.monotonic() > ends_at:
        gate.history.stays(uid)
        gate.end_mark(uid, "refused", f"Stays: no agent evicted the pod in {ttl_seconds:g} s")
