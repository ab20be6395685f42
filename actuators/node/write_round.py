"""A round of the writer of cgroups: what it found, and what follows for single places."""

from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import suppress
from itertools import chain
from typing import Final

from actuators.node import node_metrics
from actuators.node.cgroup_files import CgroupFiles, Reading
from actuators.node.original_values import OriginalValues
from pipeline.errors import CgroupWriteError
from pipeline.logs import get_logger
from pipeline.processors.node_qos.cgroup_values import Knob, Place, Value, is_wider
from pipeline.processors.node_qos.changes import Change
from pipeline.processors.node_qos.claims import Decision
from pipeline.processors.node_qos.write_order import Write, parent_paths

log = get_logger(__name__)

PARTNERS: Final = {
    Knob.CPU_QUOTA: Knob.CPU_BURST,
    Knob.CPU_BURST: Knob.CPU_QUOTA,
    Knob.CPU_IDLE: Knob.CPU_SHARES,
    Knob.CPU_SHARES: Knob.CPU_IDLE,
}
"""Knobs of one cgroup of which the kernel changes or limits one by the other."""
_RESTORED: Final = "no feature claims it any longer"


class WriteRound:
    """What a round found: the values now, the cgroups that are gone, the values that are desired as
    the kernel will show them, what failed and why, and decided places without such a limit."""

    def __init__(
        self,
        decisions: Mapping[Place, Decision],
        files: CgroupFiles,
        originals: OriginalValues,
    ) -> None:
        self.decisions = decisions
        self._files, self._originals = files, originals
        self.now: dict[Place, Reading] = {}
        self.gone: set[Place] = set()
        self.without_cgroup: set[Place] = set()
        self.desired: dict[Place, Value] = {}
        self.errors: dict[Place, str] = {}
        self.unsupported: set[Place] = set()

    def fail(self, place: Place, reason: str, why: object) -> None:
        """Note why a place could not be read or written."""
        self.errors[place] = str(why)
        node_metrics.WRITE_ERRORS.labels(place.knob, reason).inc()
        log.warning("limit not written", per=(place.knob, reason), place=str(place), why=why)

    def values(self, knobs: Set[Knob]) -> dict[Place, Value]:
        """The values now of all places with these knobs."""
        return {place: now.value for place, now in self.now.items() if place.knob in knobs}

    def change(self, place: Place, after: Value) -> Change:
        """The change of a place to `after`, or its failure."""
        features, why = self._cause(place, after)
        before, error = self.now.get(place), self.errors.get(place, "")
        return Change(
            place, before.value if before else None, after, features, why,
            "failed" if error else "done", error,
        )  # fmt: skip

    def _cause(self, place: Place, after: Value) -> tuple[tuple[str, ...], str]:
        """Whose decision a change follows, and why: one about a parent or a quota may change what
        has no decision."""
        if place not in self.decisions and self.desired.get(place) == after:
            return (), _RESTORED
        for knob in (place.knob, PARTNERS.get(place.knob, place.knob)):
            for path in (place.path, *parent_paths(place.path)):
                other = place._replace(path=path, knob=knob)
                if decision := self.decisions.get(other):
                    why = decision.why if other == place else f"{other}: {decision.why}"
                    return decision.features, why
        return (), _RESTORED

    def rounded(self, ordered: list[Write]) -> list[Write]:
        """Writes of original texts to places that show the original value by rounding alone."""
        written = {write.place for write in ordered}
        return [
            Write(place, self.now[place].value)
            for place, saved in self._originals.values.items()
            if place in self.now
            and place not in self.decisions
            and place not in written
            and self.now[place].text != saved.text
            and self.now[place].value == self._files.value_of(place, saved.text)
        ]

    def inherited_text(self, place: Place) -> str | None:
        """The original CPU set above a cgroup of v1 that was made after that was replaced, and got
        a copy of it; None for other places.

        What is not decided may have a CPU set of its own, so it counts only while it has the copy.
        """
        if not self.is_nested_set(place) or place in self._originals.values:
            return None
        for path in parent_paths(place.path):
            parent = place._replace(path=path)
            if (saved := self._originals.values.get(parent)) is None:
                continue
            now, above = self.now.get(place), self.now.get(parent)
            is_copy = now is not None and above is not None and now.value == above.value
            return saved.text if is_copy or place in self.decisions else None
        return None

    def is_nested_set(self, place: Place) -> bool:
        """Whether it is a CPU set of v1, which children copy and may not exceed."""
        return place.knob is Knob.CPUSET and self._files.version(place.knob) == 1

    def sets_to_save(self, writes: list[Write]) -> Iterator[Place]:
        """CPU sets that are saved although they are not written: those below one that is, because
        cgroups that are made later have a copy of it, and these copies."""
        written = {write.place for write in writes if self.is_nested_set(write.place)}
        for place in self.now if written else self.decisions:
            above = (place._replace(path=path) for path in parent_paths(place.path))
            if self.is_nested_set(place) and (
                not written.isdisjoint(above) or self.inherited_text(place)
            ):
                yield place

    def only_narrows(self, write: Write) -> bool:
        """Whether a write gives less of something whose original value is saved."""
        is_saved = all(place in self._originals.values for place in touched([write]))
        now = self.now[write.place].value
        return is_saved and not is_wider(write.place.knob, write.value, now)

    def text(self, write: Write) -> str:
        """The text to write. Conversions are not exact, so that of a decided value comes from the
        value itself, and that of an original one is the kernel's own."""
        place, value = write
        now = self.now[place]
        if decision := self.decisions.get(place):
            text = self._files.text_of(place, decision.value, now)
        elif saved := self._originals.values.get(place):
            text = saved.text
        else:
            text = self._files.text_of(place, value, now)
        is_other = self._files.value_of(place, text) != value
        return self._files.text_of(place, value, now) if is_other else text

    def texts(self, writes: Iterable[Write]) -> dict[Place, tuple[str, ...]]:
        """The texts that places may have if the process ends during these writes."""
        texts: dict[Place, tuple[str, ...]] = {}
        for write in writes:
            before = texts.get(write.place) or (self.now[write.place].text,)
            with suppress(CgroupWriteError):
                before = (*before, self.text(write))
            texts[write.place] = before
        return texts

    def differs(self, write: Write) -> bool:
        """Whether a write changes anything after the value was scaled to the cgroup's period."""
        return self.text(write) != self.now[write.place].text


def touched(writes: Iterable[Write]) -> Iterator[Place]:
    """The places whose value writes replace: `cpu.idle` takes the shares away."""
    for write in writes:
        yield write.place
        if write.place.knob is Knob.CPU_IDLE and write.value == 1:
            yield write.place._replace(knob=Knob.CPU_SHARES)


def related(places: Set[Place], changing: Set[Place]) -> set[Place]:
    """Those of `places` that are changing, or may limit one that is: its partner, and the same knob
    above and below its cgroup."""
    those = set()
    paths: dict[Knob, set[str]] = {}
    for place in changing:
        for knob in (place.knob, PARTNERS.get(place.knob, place.knob)):
            paths.setdefault(knob, set()).add(place.path)
    above = {knob: set(chain(*map(parent_paths, some))) for knob, some in paths.items()}
    for place in places if changing else ():
        if (some := paths.get(place.knob)) is not None and (
            place.path in some
            or place.path in above[place.knob]
            or not some.isdisjoint(parent_paths(place.path))
        ):
            those.add(place)
    return those
