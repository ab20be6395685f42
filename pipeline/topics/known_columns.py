"""What the join knew of a sample's rows: a column for each fact, a row for each of the sample's.

Little of it changes from window to window, so it is kept apart from the sample: while a node's pods
stay what they are it is the same bytes, which are written without being encoded and read without
being decoded again. Hence the time of creation, and not the age, which `WindowRows` works out.
"""

from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.settings.model_settings import CLASSES as CLASSES
from pipeline.topics.arrow import known_columns, read_batch, write_stream
from pipeline.topics.byte_cache import Kept

Floats = npt.NDArray[np.float64]

POD_FIELDS: Final = (
    pa.field("pod_class", pa.dictionary(pa.int8(), pa.string())),
    pa.field("namespace", pa.string()),
    pa.field("name", pa.string()),
    pa.field("koordinator_qos", pa.string()),
    pa.field("phase", pa.string()),
    pa.field("owner_kind", pa.string()),
    pa.field("owner_name", pa.string()),
    pa.field("request_cpu_millicores", pa.float64()),
    pa.field("request_memory_bytes", pa.float64()),
    pa.field("limit_cpu_millicores", pa.float64()),
    pa.field("limit_memory_bytes", pa.float64()),
    pa.field("age_seconds", pa.float64()),
    pa.field("deleting", pa.bool_()),
)
CREATED: Final = pa.field("created_seconds", pa.float64())
"""Unix time of creation; where it is there, the age follows from it and the window's end."""

_FIELDS: Final = {field.name: field for field in (*POD_FIELDS, CREATED)}
_SCHEMA: Final = pa.schema(_FIELDS.values())
_CLASSES: Final = pa.array(CLASSES, pa.string())
GONE: Final = "Gone"
"""In place of a phase: the pod was deleted, and is known for what it used before that."""
_ENDED: Final = ("Succeeded", "Failed", GONE)
# A file may not say; who is there and has not ended runs, or is about to.
LISTED: Final = ("Running", "Pending", "")
_UNKNOWN: Final = CLASSES.index("unknown")
# With all that is read of them, for a hundred pods 33 KiB.
_BYTES_OF_ONE: Final = 3


class Known:
    """The facts of one listing. `batch` has those columns of `POD_FIELDS` and `CREATED` that say
    anything; it is not written to, since many windows share it."""

    def __init__(self, batch: pa.RecordBatch, data: bytes | None = None) -> None:
        self.batch = batch
        self._data = data
        self._numbers: dict[str, Floats] = {}

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    @cached_property
    def data(self) -> bytes:
        """The facts as an Arrow stream."""
        return self._data or write_stream(self.batch, {})

    @cached_property
    def classes(self) -> npt.NDArray[np.int8]:
        """Code of each row's class; that of unknown where there is none."""
        # Arrow's own `fill_null` loads all of its kernels on first use: an eighth of a second.
        codes = self.column("pod_class").indices.to_numpy(zero_copy_only=False)
        return np.where(np.isnan(codes), _UNKNOWN, codes).astype(np.int8)

    @cached_property
    def ended(self) -> npt.NDArray[np.bool_]:
        """Which pods have ended, well or not, or are gone."""
        return np.array([phase in _ENDED for phase in self.column("phase").to_pylist()], np.bool_)

    @cached_property
    def listed(self) -> npt.NDArray[np.bool_]:
        """Which pods run, or are about to; one of which nothing is known does not."""
        return np.array([phase in LISTED for phase in self.column("phase").to_pylist()], np.bool_)

    @cached_property
    def exclusive(self) -> npt.NDArray[np.bool_]:
        """Which pods have CPUs of their own that nobody else may use: those of QoS LSE."""
        qos = self.column("koordinator_qos").to_pylist()
        return np.array([name == "LSE" for name in qos], np.bool_)

    @cached_property
    def deleting(self) -> npt.NDArray[np.bool_]:
        """Which pods are being deleted."""
        return np.array([gone is True for gone in self.column("deleting").to_pylist()], np.bool_)

    def number(self, name: str) -> Floats:
        """A column of numbers, NaN is unknown; nobody may write to it."""
        if name not in self._numbers:
            self._numbers[name] = self.column(name).to_numpy(zero_copy_only=False)
        return self._numbers[name]

    def column(self, name: str) -> pa.Array:
        """A column of `POD_FIELDS`; nulls where nothing is known."""
        at = self.batch.schema.get_field_index(name)
        if at >= 0:
            return self.batch.column(at)
        if name == "pod_class":
            return pa.DictionaryArray.from_arrays(pa.nulls(len(self), pa.int8()), _CLASSES)
        return pa.nulls(len(self), _FIELDS[name].type)


def known_of(batch: pa.RecordBatch) -> Known:
    """The facts in those columns of `batch` that say anything; classes get our codes."""
    names = [
        name
        for name in batch.schema.names
        if name in _FIELDS
        and (name == "pod_class" or batch.column(name).null_count < batch.num_rows)
    ]
    columns = [
        _class_codes(batch.column(name)) if name == "pod_class" else batch.column(name)
        for name in names
    ]
    schema = pa.schema([_FIELDS[name] for name in names])
    return Known(pa.RecordBatch.from_arrays(columns, schema=schema))


def read_known(data: bytes) -> Known:
    """The facts in a stream that `Known.data` gave. Raises the errors of `read_batch`, and
    `InvalidRecordError` for a column of another type."""
    found = _known.get(data)
    if found is None:
        found = Known(known_of(known_columns(read_batch(data), _SCHEMA)).batch, data)
        _known.put(data, found, _BYTES_OF_ONE * len(data))
    return found


_known: Kept[bytes, Known] = Kept(most_bytes=256 << 20)


def _class_codes(column: pa.DictionaryArray) -> pa.DictionaryArray:
    """The classes on the dictionary CLASSES, whatever dictionary the writer had."""
    if column.dictionary.equals(_CLASSES):
        return column
    code = {name: index for index, name in enumerate(CLASSES)}
    codes = [code.get(name, _UNKNOWN) for name in column.dictionary.to_pylist()]
    indices = [None if index is None else codes[index] for index in column.indices.to_pylist()]
    return pa.DictionaryArray.from_arrays(pa.array(indices, pa.int8()), _CLASSES)
