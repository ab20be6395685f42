"""Find and read the traces of a folder: `NAME.series.parquet` beside `NAME.placement.parquet`."""

from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet

from pipeline.errors import InvalidRecordError, UsageError
from pipeline.processors.backtest.trace import Trace
from pipeline.processors.backtest.trace_tables import (
    PLACEMENT_TYPES,
    SERIES_TYPES,
    WORKLOAD,
    read_traces,
)

_SERIES: Final = ".series.parquet"
_PLACEMENT: Final = ".placement.parquet"
MOST_VALUES: Final = 400_000_000
"""Values of one table: a month of 20,000 pods at a step of five minutes. They take 8 bytes each."""


def datasets(folder: Path) -> list[str]:
    """Names of the data sets in a folder, ascending.

    Raises `UsageError` if the folder is not readable or has none, or if one of the two files of a
    data set is missing.
    """
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise UsageError(
            f"cannot read {folder}: {error.strerror or error}", hint="give a folder with traces"
        ) from error
    series, placement = (
        {name.removesuffix(suffix) for name in names if name.endswith(suffix)}
        for suffix in (_SERIES, _PLACEMENT)
    )
    if alone := sorted(series ^ placement):
        missing = _PLACEMENT if alone[0] in series else _SERIES
        raise UsageError(
            f"{folder} has no {alone[0]}{missing}",
            hint="a data set has two files: docs/reference/backtest.md",
        )
    if not series:
        raise UsageError(
            f"{folder} has no trace",
            hint=f"a trace is a pair of files, NAME{_SERIES} and NAME{_PLACEMENT}",
        )
    return sorted(series)


def read_dataset(folder: Path, name: str) -> list[Trace]:
    """The traces of a data set, one for each scenario.

    Raises `UsageError` for an unreadable file, `InvalidRecordError`, which names the data set, for
    one that holds something else.
    """
    series = _read(folder / f"{name}{_SERIES}", [*SERIES_TYPES])
    placement = _read(folder / f"{name}{_PLACEMENT}", [*PLACEMENT_TYPES, WORKLOAD])
    try:
        return read_traces(name, series, placement)
    except InvalidRecordError as error:
        raise InvalidRecordError(f"{name}: {error.message}", hint=error.hint) from error


def _read(path: Path, columns: list[str]) -> pa.Table:
    """The known columns of a Parquet file. The size is checked first: a small file may expand to
    more than the memory."""
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
            values = sum(
                group.column(i).num_values for group in groups for i in range(group.num_columns)
            )
            if values > MOST_VALUES:
                raise InvalidRecordError(
                    f"{path}: {values:,} values, more than {MOST_VALUES:,}",
                    hint="split the data set into several of fewer nodes",
                )
            present = [name for name in columns if name in file.schema_arrow.names]
            return file.read(present)
    except (pa.ArrowException, ValueError) as error:
        raise InvalidRecordError(
            f"{path}: not a Parquet file: {error!s:.200}",
            hint="docs/reference/backtest.md describes traces",
        ) from error
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror or error}", hint="give a folder with traces"
        ) from error
