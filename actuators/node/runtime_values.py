"""Values that a container runtime would have given to cgroups whose values we chose instead.

The answer to a runtime comes before the cgroup exists, so no round can read what would have been
there. It is kept here until a round decides the place: then it becomes the original value, which is
restored in the end like any other.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from actuators.node.cgroup_files import CgroupFiles
from actuators.node.original_values import OriginalValues, SavedValue
from pipeline.clock import Clock
from pipeline.errors import CgroupGoneError, KernelError, StateError
from pipeline.logs import get_logger
from pipeline.processors.node_qos.cgroup_values import Place, Value
from pipeline.processors.node_qos.changes import Change
from pipeline.processors.node_qos.claims import Decision

MOST_PLACES: Final = 2_000
STARTING_SECONDS: Final = 60.0
"""Time in which a container gets its cgroup, or never."""

log = get_logger(__name__)


class _Replaced(NamedTuple):
    value: Value
    at: float


class RuntimeValues:
    """The values of places that no round has decided yet, in memory alone."""

    def __init__(self, files: CgroupFiles, originals: OriginalValues, clock: Clock) -> None:
        self._files, self._originals, self._clock = files, originals, clock
        self._replaced: dict[Place, _Replaced] = {}

    def add(self, values: Mapping[Place, Value]) -> bool:
        """Keep the values that a runtime would have given to places; returns whether there is room
        for them."""
        if len(self._replaced) + len(values) > MOST_PLACES:
            return False
        now = self._clock.monotonic()
        self._replaced |= {place: _Replaced(value, now) for place, value in values.items()}
        return True

    def adopt(self, decisions: Mapping[Place, Decision]) -> list[Change]:
        """Save the values of decided places as their original ones; returns what the answers to the
        runtime changed there."""
        saved: dict[Place, SavedValue] = {}
        changes = []
        for place, (value, at) in list(self._replaced.items()):
            decision = decisions.get(place)
            try:
                now = self._files.reading(place)
                if now is not None and decision is None:
                    continue  # the next view may have the container
                if now is not None and decision is not None:
                    text = self._files.text_of(place, value, now)
                    saved[place] = SavedValue(text, decision.features, decision.value)
                    changes.append(
                        Change(place, value, now.value, decision.features, decision.why, "done")
                    )
            except CgroupGoneError:
                if self._clock.monotonic() - at < STARTING_SECONDS:
                    continue
            except KernelError as error:
                log.warning("original value not known", per=place.knob, place=place, why=error)
            del self._replaced[place]
        return changes if saved and self._save(saved) else []

    def _save(self, saved: Mapping[Place, SavedValue]) -> bool:
        try:
            self._originals.replace({**self._originals.values, **saved})
        except (OSError, StateError) as error:
            log.error("original values cannot be saved", per="runtime", why=error)
            return False
        return True
