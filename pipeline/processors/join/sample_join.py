"""Join a sample with the cluster state of its node into a self-contained `Window`.

Invalid values become null here and are counted, and pods that the cluster state lacks get the class
`unknown`. The window is written to the log, so all that follows is a function of the log: which
pods were known when a sample came is chance, and happens once.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.errors import FutureWindowError
from pipeline.processors.arrays import BoolArray, FloatArray
from pipeline.processors.join.node_facts import node_facts, sample_node_facts, with_unmeasured
from pipeline.processors.join.pod_facts import PodRow
from pipeline.processors.kubernetes.pod_classes import CLASS_CODES
from pipeline.processors.model.model_config import MAX_USAGE
from pipeline.topics.nodes import KnownNode, Strategy
from pipeline.topics.pod_columns import CLASSES, DecodedPods, PodColumns, encode_pod_columns
from pipeline.topics.resource_amounts import LARGEST_AMOUNT, is_gauge
from pipeline.topics.sample_rows import Listing, SampleRows
from pipeline.topics.samples import CONTAINERS, LIST_COLUMNS, NUMBER_COLUMNS, SampleHeader
from pipeline.topics.windows import POD_COLUMNS, NodeFacts, Window, WindowRows

_MAX_CPU_CORES, _MAX_BYTES = MAX_USAGE.tolist()
_MAX_SECONDS: Final = 86_400.0 * 1e4


def _largest(column: str) -> float:
    if is_gauge(column):
        return float(LARGEST_AMOUNT)
    if column.startswith(("coverage", "pressure_")) or column.endswith("_ratio"):
        return 1.0
    if "cpu_cores" in column:
        return float(_MAX_CPU_CORES)
    if column.endswith("_cpu_millicores"):
        return float(_MAX_CPU_CORES) * 1000
    return _MAX_SECONDS if column.endswith("_seconds") else float(_MAX_BYTES)


_AMOUNTS: Final = (
    "request_cpu_millicores", "request_memory_bytes",
    "limit_cpu_millicores", "limit_memory_bytes",
)  # fmt: skip
_LARGEST: Final[Mapping[str, float]] = {
    name: _largest(name) for name in (*NUMBER_COLUMNS, *LIST_COLUMNS, *_AMOUNTS)
}

GAUGES: Final = "gauges"
"""Name of all gauges together where values are counted by column."""

_UNKNOWN_POD: Final = PodRow(pod_class=CLASS_CODES["unknown"])


class NodeObjects(NamedTuple):
    """The cluster state of one node at this moment: its `record`, None without a source, and its
    pods by cgroup UID, recently deleted ones included."""

    record: KnownNode | None
    pods: Mapping[str, PodRow]


def check_not_future(header: SampleHeader, appended_ms: int, tolerance_seconds: float) -> None:
    """Raise `FutureWindowError` if the window ends more than the tolerance after its append."""
    ahead = (header.window_end_ms - appended_ms) / 1000
    if ahead > tolerance_seconds:
        raise FutureWindowError(
            f"{header.node}: window ends {ahead:.3f} s after the broker received it, "
            f"more than the {tolerance_seconds:g} s allowed"
        )


class ListingFacts(NamedTuple):
    """Facts about the pods of a listing: the other fields follow from `listing` and `pods`.

    `pods` are those of the listing, None where the cluster state lacks one. `unnamed_containers`
    counts the containers of the sample that no record names.
    """

    listing: Listing
    pods: tuple[PodRow | None, ...]
    columns: PodColumns
    bad_values: Mapping[str, int]
    unnamed_containers: int = 0

    @property
    def num_known(self) -> int:
        """Number of pods of the listing that the cluster state has."""
        return len(self.pods) - self.pods.count(None)


def join(
    sample: SampleRows,
    objects: NodeObjects,
    default_strategy: Strategy,
    *,
    sample_offset: int,
    appended_ms: int,
    pod_facts: ListingFacts | None = None,
    facts: NodeFacts | None = None,
) -> Window:
    """The window for one sample.

    `pod_facts` is the result of `listing_facts` for the sample's listing and these pods, `facts`
    that of `node_facts` for this record. A caller that stored them passes them on, because they
    seldom change from sample to sample; else they are computed here.
    """
    pod_facts = pod_facts or listing_facts(sample.listing, objects.pods)
    clean, bad_values = clean_sample(sample)
    if facts is None and objects.record is not None:
        facts = node_facts(objects.record, default_strategy)
    elif facts is None:
        facts = sample_node_facts(clean, default_strategy)
    if len(objects.pods) > pod_facts.num_known:
        facts = with_unmeasured(facts, sample.listing, objects.pods)
    return Window(
        type="window",
        header=sample.header,
        rows=WindowRows(clean, pod_facts.columns),
        node=facts,
        sample_offset=sample_offset,
        appended_ms=appended_ms,
        bad_values={**bad_values, **pod_facts.bad_values},
    )


def listing_facts(
    listing: Listing, pods: Mapping[str, PodRow], last: ListingFacts | None = None
) -> ListingFacts:
    """Facts about the pods in `listing`, looked up in `pods` by cgroup UID.

    Returns `last`, the result for the node's previous sample, if nothing has changed since: the
    identical object lets later stages skip their work, too. A pod that `pods` lacks has the class
    `unknown` and no other fact.
    """
    listed = tuple(map(pods.get, listing.uids))
    if last is not None and last.listing is listing and last.pods == listed:
        return last
    columns, bad_values = pod_columns(listed, listing.container_ids)
    # The models decode these columns from the log and then share this object.
    unnamed = sum((names or ()).count(None) for names in columns.container_names)
    return ListingFacts(listing, listed, encode_pod_columns(columns), bad_values, unnamed)


def clean_sample(sample: SampleRows) -> tuple[SampleRows, dict[str, int]]:
    """Replace every number that is NaN, negative, infinite or implausibly large with null.

    Returns the number of such values per column, too, and that of ignored gauges under `GAUGES`. A
    sample without invalid values is returned itself.
    """
    names, points = tuple(sample.statistic_rows), sample.points
    ignored = {GAUGES: sample.surplus_gauges} if sample.surplus_gauges else {}
    limits = _limit_bits(names)
    # Floats that are not negative sort as their bits, and those of all others sort above: one
    # comparison finds all invalid values, and takes -0.0 for one.
    good = np.count_nonzero(sample.numbers.view(np.uint64) <= limits)
    of_containers = sample.container_usage
    bad_containers = _is_bad(of_containers, MAX_USAGE) & ~np.isnan(of_containers)
    if (
        good == sample.numbers.size - sample.null_count
        and (not len(points) or (points.view(np.uint64) <= _POINT_LIMITS.view(np.uint64)).all())
        and not bad_containers.any()
    ):
        return sample, ignored
    bad = _is_bad(sample.numbers, limits.view(np.float64)) & ~sample.null
    bad_points = _is_bad(points, _POINT_LIMITS) & ~sample.null_points
    counts = [*bad.sum(axis=1).tolist(), *bad_points.sum(axis=0).tolist()]
    bad_values = {
        name: count for name, count in zip((*names, *LIST_COLUMNS), counts, strict=True) if count
    }
    if bad_containers.any():
        bad_values[CONTAINERS] = int(np.count_nonzero(bad_containers))
    if bad_values:
        sample = sample.replace(
            np.where(bad, np.nan, sample.numbers),
            np.where(bad_points, np.nan, points),
            np.where(bad_containers, np.nan, of_containers),
        )
    return sample, bad_values | ignored


@lru_cache(maxsize=256)
def _limit_bits(names: tuple[str, ...]) -> npt.NDArray[np.uint64]:
    limits = [_LARGEST.get(name) or _largest(name) for name in names]
    return np.array(limits).reshape(-1, 1).view(np.uint64)


_POINT_LIMITS: Final = np.array([_LARGEST[name] for name in LIST_COLUMNS])


def _is_bad(values: FloatArray, largest: FloatArray) -> BoolArray:
    # NaN compares false with everything.
    return ~((values >= 0.0) & (values <= largest))


def pod_columns(
    pods: Sequence[PodRow | None], container_ids: Sequence[Sequence[str]] = ()
) -> tuple[DecodedPods, dict[str, int]]:
    """The facts about `pods` as columns, and the number of invalid amounts per column, which become
    null. None is a pod without a record. `container_ids` are those of each pod in the sample, empty
    if it has none."""
    rows = [pod or _UNKNOWN_POD for pod in pods]
    fields: dict[str, tuple[Any, ...]] = dict(
        # Without pods there are no columns.
        zip(PodRow._fields, zip(*rows, strict=True), strict=False)
    )
    columns = {name: fields.get(name, ()) for name in POD_COLUMNS}
    of_pods = zip(rows, container_ids or repeat(()), strict=False)
    columns["container_names"] = tuple(pod.container_names(ids) or None for pod, ids in of_pods)
    columns["pod_class"] = tuple(
        None if code is None else CLASSES[code] for code in columns["pod_class"]
    )
    bad_values: dict[str, int] = {}
    for name in _AMOUNTS:
        values, largest = columns[name], _LARGEST[name]
        columns[name] = tuple(
            None if value is None or not 0.0 <= value <= largest else value for value in values
        )
        if count := columns[name].count(None) - values.count(None):
            bad_values[name] = count
    known = {
        name: values
        for name, values in columns.items()
        if name == "pod_class" or any(value is not None for value in values)
    }
    return DecodedPods(**known), bad_values
