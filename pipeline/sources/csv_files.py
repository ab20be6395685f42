"""Read CSV files, compressed with gzip if their names end in `.gz`."""

import csv
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.csv

from pipeline.errors import InvalidRecordError, UsageError

MOST_ROWS: Final = 200_000_000
_BLOCK_BYTES: Final = 2**22
_HEADER_BYTES: Final = 2**16


def read_csv(
    path: Path, types: Mapping[str, pa.DataType], *, optional: Collection[str] = ()
) -> pa.Table:
    """The columns of a CSV file that `types` name; an empty field is null. Other columns are
    ignored, and `optional` ones need not be there.

    Rows are read block by block and counted: a small compressed file may expand to more than the
    memory. Raises `UsageError` for an unreadable file, `InvalidRecordError`, which names row and
    column, for a missing column or another type.
    """
    compression = "gzip" if path.suffix == ".gz" else None
    try:
        with pa.input_stream(str(path), compression=compression) as stream:
            head = stream.read(_HEADER_BYTES).decode("utf-8-sig", errors="replace")
        names = next(csv.reader([head.partition("\n")[0]]), [])
        if twice := [name for name in types if names.count(name) > 1]:
            raise InvalidRecordError(
                f"{path}: two columns {twice[0]}", hint="docs/reference/backtest.md has the columns"
            )
        wanted = {name: types[name] for name in types if name in names or name not in optional}
        with pa.input_stream(str(path), compression=compression) as stream:
            reader = pyarrow.csv.open_csv(
                stream,
                # With threads, errors do not name the row.
                read_options=pyarrow.csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES),
                parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),  # of quoted names
                convert_options=pyarrow.csv.ConvertOptions(
                    column_types=wanted,
                    include_columns=[*wanted],
                    null_values=[""],
                    strings_can_be_null=True,
                ),
            )
            batches, rows = [], 0
            for batch in reader:
                batches.append(batch)
                rows += len(batch)
                if rows > MOST_ROWS:
                    raise InvalidRecordError(
                        f"{path}: more than {MOST_ROWS:,} rows",
                        hint="split the data set into several of fewer nodes",
                    )
            return pa.Table.from_batches(batches, reader.schema)
    except InvalidRecordError:
        raise
    except (pa.ArrowException, ValueError, csv.Error) as error:
        raise InvalidRecordError(
            f"{path}: {error!s:.200}", hint="docs/reference/backtest.md has the columns"
        ) from error
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror or error}", hint="give a readable CSV file"
        ) from error
