"""Look whether evicted pods are gone: an accepted eviction only begins the deletion of a pod."""

import asyncio
from typing import Final

from actuators.eviction.eviction_calls import find_pod
from actuators.eviction.eviction_gate import EvictionGate
from pipeline.errors import SpringtideError
from pipeline.processors.eviction.migration_limits import Eviction

LOOK_SECONDS: Final = 2.0
_AT_ONCE: Final = 10


async def watch_departures(gate: EvictionGate) -> None:
    """Keep the history of the gate up to date, until cancelled."""
    while True:
        await gate.clock.sleep(LOOK_SECONDS)
        await look_for_departures(gate)
        gate.history.forget(gate.clock.monotonic())


async def look_for_departures(gate: EvictionGate) -> None:
    """Look once at every pod whose eviction was asked for."""
    leaving = list(gate.history.leaving)
    for start in range(0, len(leaving), _AT_ONCE):
        part = leaving[start : start + _AT_ONCE]
        await asyncio.gather(*(_look(gate, eviction) for eviction in part))


async def _look(gate: EvictionGate, eviction: Eviction) -> None:
    """A pod that is not deleted long after its eviction was asked for stays; so does one that hangs
    in its deletion: it counts as unavailable, but stops no other eviction."""
    try:
        pod = await find_pod(gate.api, eviction.pod.namespace, eviction.pod.name)
    except SpringtideError:
        return  # unknown: it counts as leaving until the next look
    if pod is None or pod.record.uid != eviction.pod.uid:
        gate.history.left(eviction.pod.uid)
        return
    since = eviction.at + (pod.grace_seconds if pod.is_deleted else 0.0)
    if gate.clock.monotonic() - since > gate.policy.limits.ttl_seconds:
        gate.history.stays(eviction.pod.uid)
