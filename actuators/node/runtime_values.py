"""Values that a container runtime would have given to cgroups whose values we chose instead.

The answer to a runtime comes before the cgroup exists, so no round can read what would have been
there. It is kept here until a round decides the place, or knows the container and does not decide
it: then it becomes the original value, which is restored in the end like any other.

Answers come in the event loop while rounds adopt values in a thread.
"""

from collections.abc import Iterable, Mapping
from threading import Lock
from typing import Final, NamedTuple

from actuators.node.cgroup_files import CgroupFiles, Reading
from actuators.node.original_values import OriginalValues, SavedValue
from pipeline.clock import Clock
from pipeline.errors import CgroupGoneError, KernelError, StateError
from pipeline.logs import get_logger
from pipeline.processors.node_qos.cgroup_values import Place, Value
from pipeline.processors.node_qos.changes import Change
from pipeline.processors.node_qos.claims import Decision
from pipeline.processors.node_qos.node_state import PodState

MOST_PLACES: Final = 2_000
STARTING_SECONDS: Final = 60.0
"""Time in which a container gets its cgroup, or never."""
APPLYING_SECONDS: Final = 10.0
"""Time in which a runtime has written an answer, and a round has read it."""

log = get_logger(__name__)


class _Replaced(NamedTuple):
    value: Value
    at: float
    is_saved: bool = False


class Adopted(NamedTuple):
    """What answers to the runtime changed, and the places that it writes to about now."""

    changes: list[Change]
    places: frozenset[Place]


class RuntimeValues:
    """The values of places that no round has decided yet, in memory alone."""

    def __init__(self, files: CgroupFiles, originals: OriginalValues, clock: Clock) -> None:
        self._files, self._originals, self._clock = files, originals, clock
        self._replaced: dict[Place, _Replaced] = {}
        self._lock = Lock()

    def add(self, values: Mapping[Place, Value]) -> bool:
        """Keep the values that a runtime would have given to places; returns whether there is room
        for them."""
        with self._lock:
            if len(self._replaced) + len(values) > MOST_PLACES:
                return False
            now = self._clock.monotonic()
            self._replaced |= {place: _Replaced(value, now) for place, value in values.items()}
            return True

    def adopt(self, decisions: Mapping[Place, Decision], pods: Iterable[PodState]) -> Adopted:
        """Save the values of decided places, and of undecided ones of containers of these pods, as
        their original ones."""
        with self._lock:
            replaced = dict(self._replaced)
        if not replaced:
            return Adopted([], frozenset())
        known = {container.path for pod in pods for container in pod.containers}
        saved: dict[Place, SavedValue] = {}
        changes: list[Change] = []
        done: list[Place] = []
        for place, (value, at, is_saved) in replaced.items():
            decision = decisions.get(place)
            try:
                if (now := self._reading(place)) is None:  # its files may come, too
                    if self._clock.monotonic() - at >= STARTING_SECONDS:
                        done.append(place)
                    continue
                if decision is None and place.path not in known:
                    continue  # the next view may have the container
                text = self._files.text_of(place, value, now)
            except KernelError as error:
                log.warning("original value not known", per=place.knob, place=place, why=error)
                done.append(place)
                continue
            saved[place] = SavedValue(text)
            if decision is not None:
                saved[place] = SavedValue(text, decision.features, decision.value)
                if not is_saved:
                    changes.append(
                        Change(place, value, now.value, decision.features, decision.why, "done")
                    )
        if not self._save(saved):
            saved, changes = {}, []
        self._note(replaced, saved, done)
        return Adopted(changes, frozenset(saved))

    def _reading(self, place: Place) -> Reading | None:
        try:
            return self._files.reading(place)
        except CgroupGoneError:
            return None

    def _note(
        self, former: Mapping[Place, _Replaced], saved: Iterable[Place], done: Iterable[Place]
    ) -> None:
        """Note saved values, and drop what is done, unless there was another answer meanwhile."""
        oldest = self._clock.monotonic() - APPLYING_SECONDS
        with self._lock:
            for place in (*saved, *done):
                if self._replaced.get(place) is not former[place]:
                    continue
                if place in done or former[place].at <= oldest:
                    del self._replaced[place]
                else:
                    self._replaced[place] = former[place]._replace(is_saved=True)

    def _save(self, saved: Mapping[Place, SavedValue]) -> bool:
        try:
            self._originals.replace({**self._originals.values, **saved})
        except (OSError, StateError) as error:
            log.error("original values cannot be saved", per="runtime", why=error)
            return False
        return True
