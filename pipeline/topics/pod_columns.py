"""Facts about the pods of a window, one column for each fact, as one line of JSON.

The facts of a node seldom change from window to window. The join and the models then share one
object, decoded once. Hence the time of creation and not the age, which changes with each window.
"""

from functools import lru_cache
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from pipeline.settings.model_settings import CLASSES as CLASSES
from pipeline.topics.codec import DECODE_ERRORS, decode_error
from pipeline.topics.sample_rows import BoolArray, FloatArray
from pipeline.topics.workloads import NO_WORKLOAD, Workload

GONE: Final = "Gone"
"""Phase of a pod that was deleted; the window still counts what it used before."""

LISTED: Final = ("Running", "Pending", "")
"""Phases of pods that run or will run. A file source may state none."""

ENDED: Final = ("Succeeded", "Failed")
"""Phases of pods whose containers have all ended."""

_CODES: Final = {name: code for code, name in enumerate(CLASSES)}
_UNKNOWN: Final = _CODES["unknown"]
# A line of 100 pods takes 22 KiB with its arrays. The join holds the newest line of each node; the
# cache serves readers of the log.
_CACHED_LINES: Final = 4_096
_CACHED_BYTES: Final = 64 * 1024
# Kubernetes' limit of names.
_LONGEST_NAME: Final = 253

_Texts = tuple[str | None, ...]
_Numbers = tuple[float | None, ...]


class DecodedPods(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, eq=False):
    """The columns of a line: one value for each pod, None where unknown.

    An empty column is unknown for all pods. `pod_class` is always there. `container_names` are
    those of the pod's containers in the sample, in their order and None where unknown; of a pod
    without containers in the sample that of its only container.
    """

    pod_class: _Texts
    namespace: _Texts = ()
    name: _Texts = ()
    koordinator_qos: _Texts = ()
    phase: _Texts = ()
    owner_kind: _Texts = ()
    owner_name: _Texts = ()
    request_cpu_millicores: _Numbers = ()
    request_memory_bytes: _Numbers = ()
    limit_cpu_millicores: _Numbers = ()
    limit_memory_bytes: _Numbers = ()
    created_seconds: _Numbers = ()
    deleting: tuple[bool | None, ...] = ()
    container_names: tuple[tuple[str | None, ...] | None, ...] = ()

    def __post_init__(self) -> None:
        lengths = {len(getattr(self, name)) for name in self.__struct_fields__}
        if not lengths <= {0, len(self.pod_class)}:
            raise ValueError("columns differ in length")

    def column(self, name: str) -> tuple[Any, ...]:
        """A column with one value for each pod, None is unknown."""
        values: tuple[Any, ...] = getattr(self, name)
        return values or (None,) * len(self.pod_class)


class PodColumns:
    """Facts about the pods of a listing, in order of `Listing.uids`; created from their line.

    The arrays (pods,) are the facts that models need: the code of each pod's class, whether it has
    `ended` or was deleted, whether it is `listed` (runs or will run), has CPUs of its own
    (`exclusive`, QoS LSE) or is being deleted (`terminating`), and when it was `created`, in Unix
    seconds. `requests` (pods, 2) are millicores and bytes. NaN is unknown. Nobody may write to the
    arrays. `workloads` are the pods' workloads, None is unknown. `container_names` are as in
    `DecodedPods`, `()` where no pod has any. `decode` returns all facts, as objects that take five
    times the memory of the line.
    """

    __slots__ = (
        "__weakref__", "classes", "container_names", "created", "data", "ended", "exclusive",
        "listed", "requests", "terminating", "workloads",
    )  # fmt: skip

    def __init__(self, line: bytes) -> None:
        self.data = line
        pods = self.decode()
        phases, qos = pods.column("phase"), pods.column("koordinator_qos")
        classes = [_CODES.get(name or "", _UNKNOWN) for name in pods.pod_class]
        self.classes: npt.NDArray[np.int8] = np.array(classes, np.int8)
        self.ended: BoolArray = np.array([phase in (*ENDED, GONE) for phase in phases], np.bool_)
        self.listed: BoolArray = np.array([phase in LISTED for phase in phases], np.bool_)
        self.exclusive: BoolArray = np.array([name == "LSE" for name in qos], np.bool_)
        self.terminating: BoolArray = np.array(pods.column("deleting"), np.bool_)
        self.created: FloatArray = np.array(pods.column("created_seconds"), np.float64)
        requests = pods.column("request_cpu_millicores"), pods.column("request_memory_bytes")
        self.requests: FloatArray = np.array(requests, np.float64).T.copy()
        owners = (pods.column(name) for name in ("namespace", "owner_kind", "owner_name"))
        self.workloads = tuple(map(workload_of, *owners))
        self.container_names = tuple(map(_interned, pods.container_names))

    def __len__(self) -> int:
        return len(self.classes)

    def decode(self) -> DecodedPods:
        """Decode the line. Ignores unknown columns. Raises as `read_pod_columns`."""
        try:
            return _pods.decode(self.data)
        except DECODE_ERRORS as error:
            raise decode_error("the line about pods", error) from error


@lru_cache(maxsize=4096)  # one object for all pods of a workload
def _interned(names: tuple[str | None, ...] | None) -> tuple[str | None, ...] | None:
    return names


@lru_cache(maxsize=65_536)  # one object for all pods of a workload
def workload_of(namespace: str | None, kind: str | None, name: str | None) -> Workload | None:
    """The workload of a pod with this owner, None for a pod without a record.

    A pod without a controller has none, nor has a static pod, whose owner is its node.
    """
    if namespace is None:
        return None
    parts = (namespace, kind or "", name or "")
    if kind == "Node" or not all(parts) or max(map(len, parts)) > _LONGEST_NAME:
        return NO_WORKLOAD
    return NO_WORKLOAD if "/" in "".join(parts) else Workload(*parts)


_json = msgspec.json.Encoder(order="deterministic")
_pods = msgspec.json.Decoder(DecodedPods)


def encode_pod_columns(pods: DecodedPods) -> PodColumns:
    """Encode `pods` as a line; equal lines usually give one object."""
    return read_pod_columns(_json.encode(pods))


def read_pod_columns(line: bytes) -> PodColumns:
    """The columns of this line; equal lines usually give one object.

    Raises `UndecodableRecordError` or `InvalidRecordError`.
    """
    return _cached(line) if len(line) <= _CACHED_BYTES else PodColumns(line)


_cached = lru_cache(maxsize=_CACHED_LINES)(PodColumns)
