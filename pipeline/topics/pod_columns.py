"""Facts about the pods of a window, one column for each fact, as one line of JSON.

The facts of a node seldom change from window to window. The join and the models then share one
object, decoded once. Hence the time of creation and not the age, which changes with each window.
"""

from collections import OrderedDict
from functools import cached_property
from threading import Lock
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from pipeline.errors import InvalidRecordError, UndecodableRecordError
from pipeline.settings.model_settings import CLASSES as CLASSES
from pipeline.topics.sample_rows import BoolArray, FloatArray

GONE: Final = "Gone"
"""Phase of a pod that was deleted; the window still counts what it used before."""

LISTED: Final = ("Running", "Pending", "")
"""Phases of pods that run or will run. A file source may state none."""

_ENDED: Final = ("Succeeded", "Failed", GONE)
_CODES: Final = {name: code for code, name in enumerate(CLASSES)}
_UNKNOWN: Final = _CODES["unknown"]
# Decoded columns take four to five times the bytes of their line: half a GiB of memory.
_CACHED_BYTES: Final = 112 * 1024 * 1024
_LARGEST_CACHED_BYTES: Final = 64 * 1024

_Texts = tuple[str | None, ...]
_Numbers = tuple[float | None, ...]


class PodColumns(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, eq=False, dict=True, weakref=True
):
    """Facts about the pods of a listing, in order of `Listing.uids`.

    A column has one value for each pod, None where unknown; an empty column is unknown for all.
    `pod_class` is always there. Nobody may write to the arrays.
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

    def __post_init__(self) -> None:
        lengths = {len(getattr(self, name)) for name in self.__struct_fields__}
        if not lengths <= {0, len(self.pod_class)}:
            raise ValueError("columns differ in length")

    def __len__(self) -> int:
        return len(self.pod_class)

    @cached_property
    def data(self) -> bytes:
        """The columns as one line of JSON, for columns that were decoded the line itself."""
        return _json.encode(self)

    @cached_property
    def classes(self) -> npt.NDArray[np.int8]:
        """Code of each pod's class, (pods,)."""
        return np.array([_CODES.get(name or "", _UNKNOWN) for name in self.pod_class], np.int8)

    @cached_property
    def ended(self) -> BoolArray:
        """Which pods have ended or were deleted, (pods,)."""
        return np.array([phase in _ENDED for phase in self.column("phase")], np.bool_)

    @cached_property
    def listed(self) -> BoolArray:
        """Which pods run or will run, (pods,); False where the phase is unknown."""
        return np.array([phase in LISTED for phase in self.column("phase")], np.bool_)

    @cached_property
    def exclusive(self) -> BoolArray:
        """Which pods have CPUs of their own (QoS LSE), (pods,)."""
        return np.array([qos == "LSE" for qos in self.column("koordinator_qos")], np.bool_)

    @cached_property
    def terminating(self) -> BoolArray:
        """Which pods are being deleted, (pods,)."""
        return np.array([deleting is True for deleting in self.column("deleting")], np.bool_)

    def number(self, name: str) -> FloatArray:
        """A column of numbers, (pods,); NaN is unknown."""
        return np.array(self.column(name), np.float64)

    def column(self, name: str) -> tuple[Any, ...]:
        """A column with one value for each pod, None is unknown."""
        values: tuple[Any, ...] = getattr(self, name)
        return values or (None,) * len(self)


_json = msgspec.json.Encoder(order="deterministic")
_columns = msgspec.json.Decoder(PodColumns)


def read_pod_columns(line: bytes) -> PodColumns:
    """Decode `PodColumns.data`; equal lines usually give one object.

    Ignores unknown columns. Raises `UndecodableRecordError` or `InvalidRecordError`.
    """
    if len(line) > _LARGEST_CACHED_BYTES:
        return _read(line)
    columns = _cache.get(line)
    if columns is None:
        columns = _cache.put(line, _read(line))
    return columns


def _read(line: bytes) -> PodColumns:
    try:
        columns = _columns.decode(line)
        vars(columns)["data"] = line
        return columns
    except msgspec.ValidationError as error:
        raise InvalidRecordError(f"pods of the window break their schema: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UndecodableRecordError(f"pods of the window cannot be decoded: {error}") from error


class LineCache:
    """Columns by line, up to `most_bytes` of lines; the least recently used go first.

    Threads may share it.
    """

    def __init__(self, most_bytes: int) -> None:
        self.bytes = 0
        self._most_bytes = most_bytes
        self._columns: OrderedDict[bytes, PodColumns] = OrderedDict()
        self._lock = Lock()

    def get(self, line: bytes) -> PodColumns | None:
        with self._lock:
            columns = self._columns.get(line)
            if columns is not None:
                self._columns.move_to_end(line)
            return columns

    def put(self, line: bytes, columns: PodColumns) -> PodColumns:
        """Add the columns of a line, unless it has some, and return those that it has."""
        with self._lock:
            if line not in self._columns:
                self._columns[line] = columns
                self.bytes += len(line)
            while self.bytes > self._most_bytes:
                oldest, _ = self._columns.popitem(last=False)
                self.bytes -= len(oldest)
            return self._columns.get(line, columns)


_cache = LineCache(_CACHED_BYTES)
