"""Bring the cgroups of a node to the decided values, and back to what they had before.

A round reads the decided places, saves what they had before their first write, writes what differs
in the order of `write_order`, and reads it back. A failure is retried in the next round and stops
no other place. If original values cannot be saved, values only become narrower.

A round reads places with a new decision or an unfinished write, those that may limit them, and in
every fifth round all, to find what other processes changed. Most decisions do not change for hours.
"""

from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Final

from actuators.node import node_metrics
from actuators.node.cgroup_files import CgroupFiles, Reading
from actuators.node.original_values import OriginalValues, SavedValue
from actuators.node.write_history import WriteHistory
from actuators.node.write_round import PARTNERS, WriteRound, related, touched
from pipeline.errors import CgroupGoneError, CgroupWriteError, KernelFileError, StateError
from pipeline.logs import get_logger
from pipeline.processors.node_qos.cgroup_values import Knob, Place, Value, cpu_list_text, is_wider
from pipeline.processors.node_qos.changes import Change
from pipeline.processors.node_qos.claims import Decision
from pipeline.processors.node_qos.write_order import (
    NESTED,
    Write,
    final_values,
    order_writes,
    parent_paths,
)

log = get_logger(__name__)

COMPARED_EVERY_ROUNDS: Final = 5
MOST_BELOW: Final = 5_000
"""Cgroups without a decision that a round looks at below those that become narrower."""

_SCALED: Final = frozenset({Knob.CPU_QUOTA, Knob.CPU_BURST})


class CgroupWriter:
    """Writes decisions, and restores places that have none any longer."""

    def __init__(self, files: CgroupFiles, originals: OriginalValues) -> None:
        self._files, self._originals = files, originals
        self._nested = {knob for knob in NESTED if files.version(knob) == 1}
        self._history = WriteHistory(files.value_of, _former_texts(originals.values, self._nested))
        self._unsupported: set[Place] = set()
        self._rounds = 0
        self._decided: Mapping[Place, Decision] = {}
        self._unfinished: Set[Place] = originals.values.keys()
        self._seen: dict[Place, Reading | None] = {}
        self._reported: set[Knob] = set()
        self.without_cgroup: Set[Place] = frozenset()
        """The places that the last `apply` read in vain, because their cgroup has ended."""
        node_metrics.ORIGINAL_VALUES_LOST.set(originals.lost_because is not None)

    def claimed(self) -> dict[str, dict[Place, Value]]:
        """The values that features claimed when they were saved last, by feature: what a process
        before this one claimed, too."""
        claimed: dict[str, dict[Place, Value]] = {}
        for place, saved in self._originals.values.items():
            for feature in saved.features:
                if saved.claimed is not None:
                    claimed.setdefault(feature, {})[place] = saved.claimed
        return claimed

    def value_of(self, place: Place) -> Value | None:
        """The value of a place now; None if it cannot be read."""
        try:
            return self._files.read(place)
        except (CgroupGoneError, KernelFileError):
            return None

    def apply(
        self, decisions: Mapping[Place, Decision], answered: Iterable[Place] = ()
    ) -> list[Change]:
        """Write what differs from these decisions, and restore all other places.

        What `answered` places have is no change by another process: a container runtime writes what
        it was answered. Returns the values that changed, and those that could not be changed. A
        write may wait until the kernel has reclaimed memory.
        """
        for place in answered:
            self._history.forget_text(place)
        self._rounds += 1
        compares_all = self._rounds % COMPARED_EVERY_ROUNDS == 0
        unsettled = self._unsettled(decisions)
        places = decisions.keys() | self._originals.values.keys()
        due = places if compares_all else related(places, unsettled)
        round_ = WriteRound(decisions, self._files, self._originals)
        for place in due:
            self._read(place, round_)
        if compares_all:
            self._files.close_unused()
        self.without_cgroup = round_.without_cgroup
        seen = {place: round_.now.get(place) for place in due}
        if not unsettled and seen == (self._seen if compares_all else {}):
            return []
        self._adopt(round_)
        round_.desired.update(self._desired(round_))
        ordered = self._ordered(round_)
        ordered += round_.rounded(ordered)
        writes = self._allowed(ordered, round_)
        for write in writes:
            self._write(write, round_)
        changes = list(self._changes(writes, round_))
        self._forget(round_)
        # A cgroup that appears gets its values in the next round.
        self._unfinished = round_.without_cgroup | self._history.failed() | round_.errors.keys()
        self._unfinished |= {change.place for change in changes}
        self._decided = decisions
        others = {} if compares_all else self._seen
        self._seen = others | {place: round_.now.get(place) for place in due}
        return changes

    def undo(self) -> list[Change]:
        """Restore all that was written. Places that failed stay saved."""
        return self.apply({})

    def _unsettled(self, decisions: Mapping[Place, Decision]) -> set[Place]:
        """Places with a new decision, without one any longer, or with something left to do."""
        former = self._decided
        new = {
            place
            for place, decision in decisions.items()
            if (before := former.get(place)) is not decision
            and (before is None or before[:2] != decision[:2])  # another reason alone is none
        }
        return new | (former.keys() - decisions.keys()) | self._unfinished

    def _read(self, place: Place, round_: WriteRound) -> None:
        try:
            reading = self._files.reading(place)
        except CgroupGoneError:
            round_.gone.add(place)
            round_.without_cgroup.add(place)
        except KernelFileError as error:
            round_.fail(place, "unreadable", error)
        else:
            if reading is not None:
                round_.now[place] = reading
                return
            if place in round_.decisions:
                self._report_unsupported(place)
            if self._files.version(place.knob) is not None:  # what the file had went with it
                round_.gone.add(place)

    def _adopt(self, round_: WriteRound) -> None:
        """Take values that another process wrote after us for the original ones: the kubelet
        changes the limits of a pod that is resized."""
        saved = self._originals.values
        foreign = {
            place: now.text
            for place in saved
            if (now := round_.now.get(place)) and self._history.is_other(place, now.text)
        }
        if not foreign:
            return
        for place, text in foreign.items():
            node_metrics.FOREIGN_CHANGES.labels(place.knob).inc()
            is_first = self._history.note_changed(place, text)
            if is_first and place in round_.decisions:
                log.warning(
                    "another process changed a limit, it is written again", per=place.knob,
                    place=str(place), now=text,
                )  # fmt: skip
        texts = {place: value._replace(text=foreign[place]) for place, value in saved.items()
                 if place in foreign}  # fmt: skip
        self._save({**saved, **texts})

    def _save(self, values: Mapping[Place, SavedValue]) -> None:
        """Save values whose loss widens nothing."""
        try:
            self._originals.replace(values)
        except (OSError, StateError) as error:
            log.error("original values cannot be saved", per="change", why=error)

    def _desired(self, round_: WriteRound) -> Iterator[tuple[Place, Value]]:
        """The values of this round: decided ones as the kernel will show them, and original ones
        of places without a decision."""
        for place, decision in round_.decisions.items():
            now = round_.now.get(place)
            if now is None or self._history.waits(place):
                continue
            try:
                yield place, self._files.held(place, decision.value, now)
            except CgroupWriteError as error:
                round_.fail(place, error.reason, error)
            except KernelFileError as error:
                round_.fail(place, "refused", error)
        for place, saved in self._originals.values.items():
            if place in round_.now and place not in round_.decisions:
                yield place, self._files.value_of(place, saved.text)

    def _ordered(self, round_: WriteRound) -> list[Write]:
        """The writes to desired values, with those to other places that have to make room."""
        desired = round_.desired
        knobs = {place.knob for place, value in desired.items() if value != round_.now[place].value}
        knobs |= {PARTNERS[knob] for knob in knobs if knob in PARTNERS}
        seen: set[Place] = set()
        while True:
            current = round_.values(knobs)
            changing = [
                (place, value)
                for place, value in final_values(current, desired, self._nested).items()
                if value != current[place] and place not in seen
            ]
            if not changing:
                order = order_writes(current, desired, self._nested)
                return [
                    write
                    for write in (*order.widening, *order.narrowing)
                    if write.place.knob not in _SCALED or round_.differs(write)
                ]
            for place, value in changing:
                seen.add(place)
                for neighbour in self._neighbours(place, current[place], value, round_):
                    if neighbour not in round_.now and neighbour not in round_.gone:
                        self._read(neighbour, round_)
                    text = round_.inherited_text(neighbour)
                    if text is not None and neighbour not in round_.decisions:
                        round_.desired[neighbour] = self._files.value_of(neighbour, text)

    def _neighbours(
        self, place: Place, now: Value, target: Value, round_: WriteRound
    ) -> Iterator[Place]:
        """The places that limit a change, or are limited by it."""
        if place.knob in PARTNERS:
            yield place._replace(knob=PARTNERS[place.knob])
        if place.knob in self._nested:
            yield from (place._replace(path=path) for path in parent_paths(place.path))
            is_first_or_last = place not in self._originals.values or place not in round_.decisions
            is_set = place.knob is Knob.CPUSET
            if is_wider(place.knob, now, target) or (is_set and is_first_or_last):
                yield from self._below(place)

    def _below(self, place: Place) -> Iterator[Place]:
        waiting = [place]
        for _ in range(MOST_BELOW):
            if not waiting:
                return
            try:
                children = self._files.children(waiting.pop())
            except (CgroupGoneError, KernelFileError):
                continue
            yield from children
            waiting += children

    def _allowed(self, writes: list[Write], round_: WriteRound) -> list[Write]:
        """Save what the places of these writes have. The writes that may follow: all of them, or if
        saving fails, those to saved places that get narrower."""
        written = round_.texts(writes)
        values = {
            place: _saved(
                saved.text, round_.decisions.get(place), written.get(place, saved.written)
            )
            for place, saved in self._originals.values.items()
            if place not in round_.gone
        }
        for place in (*touched(writes), *round_.sets_to_save(writes)):
            if place not in values and (now := round_.now.get(place)):
                text = round_.inherited_text(place) or now.text
                values[place] = _saved(
                    text, round_.decisions.get(place), written.get(place, (now.text,))
                )
        try:
            self._originals.replace(values)
        except (OSError, StateError) as error:
            why = f"original values cannot be saved: {error}"
            log.error("original values cannot be saved, nothing is widened", per="save", why=error)
            allowed = []
            for write in writes:
                if round_.only_narrows(write):
                    allowed.append(write)
                else:
                    round_.fail(write.place, "unsaved", why)
            return allowed
        return writes

    def _write(self, write: Write, round_: WriteRound) -> None:
        place = write.place
        try:
            text = round_.text(write)
            try:
                self._files.write_text(place, text)
            except CgroupWriteError:
                same = self._same_as_empty(place, text)
                if same is None:
                    raise
                text = same
                self._files.write_text(place, text)
        except CgroupGoneError:
            round_.gone.add(place)
        except CgroupWriteError as error:
            if error.reason in ("refused", "unsupported"):
                self._history.note_failure(place)
            if error.reason == "unsupported" and place in round_.decisions:
                # Such as the weight of a disk without iocost, which may get it.
                round_.unsupported.add(place)
                self._report_unsupported(place)
            else:
                round_.fail(place, error.reason, error)
        else:
            self._history.note_written(place, text)
            self._unsupported.discard(place)
            if place.knob is Knob.CPU_IDLE:  # shares change with it
                self._history.forget_text(place._replace(knob=Knob.CPU_SHARES))

    def _same_as_empty(self, place: Place, text: str) -> str | None:
        """CPUs that are as good as the empty set of its own that a v2 cgroup had: the kernel takes
        no set away while the cgroup has processes."""
        if place.knob is not Knob.CPUSET or text:
            return None
        cpus = self._files.effective_cpus(place.path.rpartition("/")[0])
        return cpu_list_text(cpus) if cpus else None

    def _changes(self, writes: list[Write], round_: WriteRound) -> Iterator[Change]:
        """Read back what was written: the changes and the failures of this round."""
        for place, value in dict(writes).items():
            change = round_.change(place, value)
            before = round_.now.pop(place)
            self._read(place, round_)
            after = round_.now.setdefault(place, before)
            if place in round_.gone or place in round_.unsupported:
                continue
            if place not in round_.errors and self._history.is_other(place, after.text):
                round_.fail(place, "other_value", f"the kernel shows {after.text}")
                self._history.note_changed(place, after.text)
            if error := round_.errors.pop(place, ""):
                change = change._replace(outcome="failed", error=error)
            yield change
        for place in round_.errors:
            if place in round_.desired:
                yield round_.change(place, round_.desired[place])
            elif decision := round_.decisions.get(place):
                yield round_.change(place, decision.value)

    def _forget(self, round_: WriteRound) -> None:
        """Drop what was restored or is gone, and all that is known of places without a decision."""
        saved = self._originals.values
        kept = {place: saved[place] for place in saved if not self._is_done(place, round_)}
        for place in saved:
            if place.knob is Knob.CPU_IDLE and place in kept:  # its end resets the shares
                shares = place._replace(knob=Knob.CPU_SHARES)
                kept |= {shares: saved[shares]} if shares in saved else {}
        for place in saved.keys() - kept.keys() - round_.gone:
            above = (place._replace(path=path) for path in parent_paths(place.path))
            if round_.is_nested_set(place) and not kept.keys().isdisjoint(above):
                kept[place] = saved[place]
        self._save(kept)
        saved = self._originals.values
        self._history.forget_others(saved.keys(), round_.decisions.keys())
        for place in saved.keys() - round_.errors.keys():
            idle = place._replace(knob=Knob.CPU_IDLE)
            changes_with_idle = place.knob is Knob.CPU_SHARES and idle in saved
            if not changes_with_idle and (now := round_.now.get(place)):
                self._history.note_right(place, now.text)
        self._unsupported &= round_.decisions.keys()
        unsupported = {place.knob for place in self._unsupported}
        for knob in self._reported:
            node_metrics.UNSUPPORTED.labels(knob).set(knob in unsupported)
        node_metrics.ORIGINAL_VALUES.set(len(self._originals.values))

    def _is_done(self, place: Place, round_: WriteRound) -> bool:
        """Whether there is nothing to restore at a saved place."""
        if place in round_.gone:
            return True
        now = round_.now.get(place)
        if now is None or (place in round_.decisions and place not in round_.unsupported):
            return False
        if place.knob is Knob.CPU_SHARES and self._is_idle(place, round_):
            return True
        original = self._originals.values[place].text
        return now.value == self._files.value_of(place, original) or (
            now.text == self._same_as_empty(place, original)
        )

    def _is_idle(self, shares: Place, round_: WriteRound) -> bool:
        """Whether shares cannot be restored because `cpu.idle` holds."""
        idle = round_.now.get(shares._replace(knob=Knob.CPU_IDLE))
        return idle is not None and idle.value == 1

    def _report_unsupported(self, place: Place) -> None:
        """Report a decided place whose knob this kernel does not have; log each knob once."""
        self._unsupported.add(place)
        if place.knob not in self._reported:
            self._reported.add(place.knob)
            log.info("this kernel does not have a limit", knob=place.knob, place=str(place))


def _saved(text: str, decision: Decision | None, written: tuple[str, ...]) -> SavedValue:
    if decision is None:
        return SavedValue(text, written=written)
    return SavedValue(text, decision.features, decision.value, written)


def _former_texts(
    values: Mapping[Place, SavedValue], nested: Set[Knob]
) -> dict[Place, tuple[str, ...]]:
    """The texts that places may have by a process before this one, where they are known. Shares
    change by themselves with `cpu.idle`, and a CPU set of v1 when its cgroup is made again."""
    texts = {}
    for place, saved in values.items():
        is_copied = place.knob is Knob.CPUSET and place.knob in nested
        idle = place._replace(knob=Knob.CPU_IDLE)
        changes_with_idle = place.knob is Knob.CPU_SHARES and idle in values
        if saved.written and not is_copied and not changes_with_idle:
            texts[place] = (saved.text, *saved.written)
    return texts
