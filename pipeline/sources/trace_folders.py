"""Find and read the traces of a folder, each a pair of files: `NAME.series.parquet` beside
`NAME.placement.parquet`, or the same as CSV, which may be compressed with gzip; or a folder
`NAME.prometheus` with range exports."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet

from pipeline.errors import InvalidRecordError, UsageError
from pipeline.processors.backtest.csv_tables import (
    LONG_PLACEMENT_TYPES,
    LONG_SERIES_TYPES,
    list_tables,
)
from pipeline.processors.backtest.prometheus_traces import prometheus_trace
from pipeline.processors.backtest.trace import Trace
from pipeline.processors.backtest.trace_tables import (
    PLACEMENT_TYPES,
    SERIES_TYPES,
    WORKLOAD,
    read_traces,
)
from pipeline.sources.csv_files import read_csv
from pipeline.sources.prometheus_files import read_exports

_FILE: Final = re.compile(r"(.+?)\.(prometheus|(series|placement)\.(?:parquet|csv|csv\.gz))")
_TABLES: Final = ("series", "placement")
MOST_VALUES: Final = 400_000_000
"""Values of one table: a month of 20,000 pods at a step of five minutes. They take 8 bytes each."""


def datasets(folder: Path) -> list[str]:
    """Names of the data sets in a folder, ascending.

    Raises `UsageError` if the folder is not readable or has none, or if a data set does not have
    just one file of each table.
    """
    if names := sorted(_files(folder)):
        return names
    raise UsageError(
        f"{folder} has no trace, and is no archive",
        hint="a trace is a pair of files, NAME.series.parquet and NAME.placement.parquet, or the "
        "same as .csv, or a folder NAME.prometheus; an archive has folders date=YYYY-MM-DD",
    )


def has_traces(folder: Path) -> bool:
    """Whether a folder has any data set. Raises as `datasets`."""
    return bool(_files(folder))


def is_input(folder: Path, path: Path) -> bool:
    """Whether a path in a folder has the name of a part of a trace or of an archive."""
    folder, path = folder.resolve(), path.resolve()
    if folder not in path.parents:
        return False
    first = path.relative_to(folder).parts[0]
    return first.startswith("date=") or _FILE.fullmatch(first) is not None


def read_dataset(folder: Path, name: str) -> list[Trace]:
    """The traces of a data set of the folder, one for each scenario.

    Raises `UsageError` for an unreadable file, and if there is no such data set;
    `InvalidRecordError`, which names the data set, for a file that holds something else.
    """
    found = _files(folder)
    if name not in found:
        raise UsageError(
            f"{folder} has no data set {name!r:.100}", hint=f"it has {', '.join(sorted(found))}"
        )
    files = found[name]
    if "exports" in files:
        exports = read_exports(files["exports"])
        return _named(name, lambda: [prometheus_trace(name, exports)])
    if files["series"].suffix == ".parquet":
        tables = (
            _read_parquet(files["series"], [*SERIES_TYPES]),
            _read_parquet(files["placement"], [*PLACEMENT_TYPES, WORKLOAD]),
        )
        return _named(name, lambda: read_traces(name, *tables))
    rows = (
        read_csv(files["series"], LONG_SERIES_TYPES),
        read_csv(files["placement"], LONG_PLACEMENT_TYPES, optional=[WORKLOAD]),
    )
    return _named(name, lambda: read_traces(name, *list_tables(*rows)))


def _named(name: str, read: Callable[[], list[Trace]]) -> list[Trace]:
    try:
        return read()
    except InvalidRecordError as error:
        raise InvalidRecordError(f"{name}: {error.message}", hint=error.hint) from error


def _files(folder: Path) -> dict[str, dict[str, Path]]:
    """The file of each table, or the folder `exports`, by the name of the data set."""
    try:
        paths = sorted(folder.iterdir())
    except OSError as error:
        raise UsageError(
            f"cannot read {folder}: {error.strerror or error}", hint="give a folder with traces"
        ) from error
    found: dict[str, dict[str, Path]] = {}
    for path in paths:
        if match := _FILE.fullmatch(path.name):
            part = "exports" if match[2] == "prometheus" else match[3]
            files = found.setdefault(match[1], {})
            if twice := [files[e] for e in files if e == part or "exports" in (e, part)]:
                raise UsageError(
                    f"{folder} has {twice[0].name} and {path.name}",
                    hint="give each data set a name of its own",
                )
            files[part] = path
    for name, files in found.items():
        kind = next(iter(files.values())).name.removesuffix(".gz").rpartition(".")[2]
        for table in _TABLES:
            if "exports" in files:
                continue
            if table not in files or f".{table}.{kind}" not in files[table].name:
                raise UsageError(
                    f"{folder} has no {name}.{table}.{kind}",
                    hint="a data set has two files: docs/reference/backtest.md",
                )
    return found


def _read_parquet(path: Path, columns: list[str]) -> pa.Table:
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
    except InvalidRecordError:
        raise
    except (pa.ArrowException, ValueError) as error:
        raise InvalidRecordError(
            f"{path}: not a Parquet file: {error!s:.200}",
            hint="docs/reference/backtest.md describes traces",
        ) from error
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror or error}", hint="give a folder with traces"
        ) from error
