"""Whether evictions are allowed at this moment: the kill switch, and then the lease."""

from collections.abc import Callable
from typing import Final, NamedTuple

from pipeline.clock import Clock
from pipeline.errors import KubernetesError, NotFoundError
from pipeline.kube.api_client import Api

FRESH_SECONDS: Final = 1.0
"""The greatest age of an answer about the kill switch when a call is sent."""
_ATTEMPTS: Final = 5


class SwitchAnswer(NamedTuple):
    """Why no pod may be evicted, None if one may, and until when a call may be sent (monotonic)."""

    reason: str | None
    fresh_until: float = 0.0


async def ask_kill_switch(
    api: Api, path: str, clock: Clock, may_evict: Callable[[], bool]
) -> SwitchAnswer:
    """Whether a pod may be evicted now: not if the ConfigMap at `path` exists. A failed check
    forbids evictions, and so does an answer that is old when it arrives, because the switch may
    have been set since."""
    for _ in range(_ATTEMPTS):
        asked_at = clock.monotonic()
        try:
            await api.request("GET", path)
        except KubernetesError as error:
            # A proxy's 404 has no reason.
            if not isinstance(error, NotFoundError) or error.reason != "NotFound":
                return SwitchAnswer(f"cannot read the kill switch: {error.message}")
        else:
            return SwitchAnswer(f"evictions are stopped by {path}")
        if clock.monotonic() - asked_at <= FRESH_SECONDS:
            # Last, because the request may have taken longer than the lease is valid.
            reason = None if may_evict() else "another evictor holds the lease"
            return SwitchAnswer(reason, asked_at + FRESH_SECONDS)
    text = f"{_ATTEMPTS} answers took longer than {FRESH_SECONDS:g} s each"
    return SwitchAnswer(f"cannot read the kill switch: {text}")
