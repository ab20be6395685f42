"""A trace from a file, CSV or Parquet: a row per window and entity, its columns by their names."""

from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from pipeline.errors import InvalidRecordError, UsageError
from pipeline.processors.exchange.trace_windows import TYPES

_PARQUET = b"PAR1"
_SCALARS = {name: kind for name, kind in TYPES.items() if not pa.types.is_nested(kind)}


def read_table(path: Path) -> pa.Table:
    """The whole file. Raises UsageError for one that cannot be read, InvalidRecordError for one
    that is neither CSV nor Parquet, or not what its columns say."""
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
            f"cannot read {path}: {error.strerror or error}", hint="name the file of a trace"
        ) from error
