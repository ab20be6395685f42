"""Read a trace from a CSV or Parquet file with a row per window and entity."""

from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from pipeline.errors import InvalidRecordError, UsageError
from pipeline.processors.exchange.trace_windows import TYPES

_PARQUET = b"PAR1"
_SCALARS = {name: kind for name, kind in TYPES.items() if not pa.types.is_nested(kind)}


def read_table(path: Path) -> pa.Table:
    """Read the whole file.

    Raises `UsageError` if it is unreadable, `InvalidRecordError` if it is neither CSV nor Parquet
    or a value does not have the type of its column.
    """
    try:
        with path.open("rb") as file:
            is_parquet = file.read(len(_PARQUET)) == _PARQUET
        if is_parquet:
            return pyarrow.parquet.read_table(path, partitioning=None)
        options = pyarrow.csv.ConvertOptions(column_types=_SCALARS)
        return pyarrow.csv.read_csv(path, convert_options=options)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidRecordError(
            f"neither CSV nor Parquet: {error!s:.300}",
            hint="docs/explanation/models.md has the columns",
        ) from error
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror or error}", hint="give the path of a trace"
        ) from error
