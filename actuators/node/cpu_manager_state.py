"""Read the kubelet's CPU manager policy from the kubelet's own state file.

Koordinator's agent asks the kubelet for the policy and writes it to the NodeResourceTopology. On
the node the kubelet's file says the same, without an API server.
"""

import math
from pathlib import Path
from typing import Final, Literal

import msgspec

from pipeline.clock import Clock
from pipeline.logs import get_logger
from pipeline.topics.codec import DECODE_ERRORS

_AGE_SECONDS: Final = 30.0
"""Age from which the file is read again."""
_MOST_BYTES: Final = 1 << 20

log = get_logger(__name__)


class _StateFile(msgspec.Struct, frozen=True, rename="camel"):
    policy_name: Literal["none", "static"]


class CpuManagerState:
    """The policy by the file at `path`, normally /var/lib/kubelet/cpu_manager_state; None for no
    file."""

    def __init__(self, path: Path | None, clock: Clock) -> None:
        self._path, self._clock = path, clock
        self._read_at = -math.inf
        self._policy: str | None = None

    def policy(self) -> str | None:
        """The policy none or static. The last one stays while the file is away, as when the kubelet
        restarts; None before the first valid file."""
        now = self._clock.monotonic()
        if self._path is not None and now - self._read_at >= _AGE_SECONDS:
            self._read_at = now
            self._note(_read(self._path))
        return self._policy

    def _note(self, policy: str | None) -> None:
        if policy is not None and policy != self._policy:
            log.info("CPU manager policy of the kubelet", policy=policy, path=str(self._path))
            self._policy = policy


def _read(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES)
        return msgspec.json.decode(content, type=_StateFile).policy_name
    except FileNotFoundError:
        return None
    except (OSError, *DECODE_ERRORS) as error:
        log.warning("the state of the CPU manager cannot be read", per="read", path=str(path),
                    why=error, hint="correct node_actuator.cpu_manager_state_file")  # fmt: skip
        return None
