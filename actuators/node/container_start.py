"""Decide limits of a container before it runs, as the next round will once it has a cgroup.

The features are asked about the state of the last round with this container in it, on copies, so
that they remember nothing of it. Nothing is written here.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from actuators.node.cgroup_files import CgroupFiles
from actuators.node.container_resources import UNIFIED_DEFAULTS, Adjustment, adjustment
from actuators.node.newest_view import NewestView
from actuators.node.nri_messages import ContainerEvent
from actuators.node.original_values import OriginalValues
from actuators.node.round_copy import RoundCopy
from node_exporter.kernel.cgroup import Layout
from node_exporter.kernel.cgroup_paths import (
    KubeQOS,
    parse_container_dir,
    parse_pod_dir,
    pod_dir,
)
from pipeline.errors import KernelError
from pipeline.processors.node_qos.cgroup_values import Knob, Place, Value
from pipeline.processors.node_qos.claims import Decision
from pipeline.processors.node_qos.starting_container import StartingContainer, with_container
from pipeline.processors.node_qos.write_order import NESTED, final_values, parent_paths

_KNOBS: Final = frozenset(
    {
        Knob.CPU_SHARES, Knob.CPU_QUOTA, Knob.CPUSET, Knob.MEMORY_LIMIT, *UNIFIED_DEFAULTS,
    }
)  # fmt: skip
"""What a runtime takes. Rounds write the others, which matter little to a container that starts."""


class Answer(NamedTuple):
    """Resources to answer with. `replaced` has what the runtime would have given to places, and
    `observed` what features in mode observe would have changed."""

    adjustment: Adjustment
    replaced: Mapping[Place, Value]
    observed: Mapping[Place, Decision]


class ContainerStart:
    """Answers about containers of the node whose cgroups are in `layout`."""

    def __init__(
        self, view: NewestView, files: CgroupFiles, originals: OriginalValues, layout: Layout,
        cgroup_parent: str,
    ) -> None:  # fmt: skip
        self._view, self._files, self._originals = view, files, originals
        self._layout, self._parent = layout, cgroup_parent

    def answer(self, event: ContainerEvent, copy: RoundCopy, *, is_update: bool) -> Answer | None:
        """The answer about a container; None if nobody says what it asks for. Raises `KernelError`
        if the cgroups above it cannot be read, and `ContainerRuntimeError` for an event that is no
        event."""
        start = self._start(event, copy)
        view = self._view.record
        if start is None or view is None:
            return None
        with_it = with_container(copy.state, view, start)
        if with_it is None:
            return None
        decided, observed = copy.decide(with_it.state)
        knobs = with_it.knobs & _KNOBS

        def of_container(decisions: Mapping[Place, Decision]) -> dict[Place, Decision]:
            return {
                place: decision
                for place, decision in decisions.items()
                if place.path == start.path and place.knob in knobs and self._is_there(place)
            }

        values = self._within_parents(
            {place: decision.value for place, decision in of_container(decided).items()}
        )
        answer = adjustment(
            {place.knob: value for place, value in values.items()},
            event.resources, self._layout.version, is_update=is_update,
        )  # fmt: skip
        replaced = {
            place: planned
            for knob, value in answer.replaced.items()
            for place in [Place(start.path, knob)]
            if (planned := self._inherited(place) if value is None else value) is not None
        }
        self._files.close_unused()
        return Answer(answer, replaced, of_container(observed))

    def _start(self, event: ContainerEvent, copy: RoundCopy) -> StartingContainer | None:
        """The container with the cgroups of its pod; None if the pod has none, or if the name of
        the container's is not one that rounds would find."""
        driver = copy.driver
        parts = event.cgroups_path.split(":")
        # systemd: PARENT:PREFIX:ID
        name = f"{parts[1]}-{parts[2]}.scope" if len(parts) == 3 else Path(parts[-1]).name
        if parse_container_dir(driver, name) != event.id:
            return None
        for kube_qos in KubeQOS:
            path = pod_dir(driver, kube_qos, event.pod_uid, self._parent)
            is_pod = parse_pod_dir(driver, Path(path).name) == event.pod_uid
            if is_pod and Path(self._layout.cpu, path).is_dir():
                return StartingContainer(
                    event.pod_uid, event.pod_namespace, event.pod_name, event.labels,
                    event.annotations, kube_qos.value, path, event.name, f"{path}/{name}",
                )  # fmt: skip
        return None

    def _is_there(self, place: Place) -> bool:
        """Whether the kernel has a knob, which the pod's own cgroup shows: a runtime fails to
        create a container with a limit that cannot be written."""
        pod = place._replace(path=place.path.rpartition("/")[0])
        return self._read(pod) is not None

    def _within_parents(self, values: Mapping[Place, Value]) -> dict[Place, Value]:
        """The values as far as the cgroups above allow, which v1 demands."""
        nested = {knob for knob in NESTED if self._files.version(knob) == 1}
        current = dict(values)
        for place in values:
            if place.knob in nested:
                above = (place._replace(path=path) for path in parent_paths(place.path))
                current |= {p: value for p in above if (value := self._read(p)) is not None}
        final = final_values(current, values, nested)
        return {place: final[place] for place in values}

    def _inherited(self, place: Place) -> Value | None:
        """The CPU set of a container to which the runtime gives none: on v2 an empty one, on v1 a
        copy of that above. None if the writer restores it by a set above that was replaced."""
        if self._files.version(place.knob) == 2:
            return frozenset()
        above = [place._replace(path=path) for path in parent_paths(place.path)]
        return None if any(p in self._originals.values for p in above) else self._read(above[0])

    def _read(self, place: Place) -> Value | None:
        try:
            return self._files.read(place)
        except KernelError:
            return None
