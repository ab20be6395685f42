"""Past usage of an archive as Arrow tables."""

from collections.abc import Collection, Sequence
from datetime import date, datetime
from pathlib import Path

import pyarrow as pa

from pipeline.archive.archive_reader import read_table
from pipeline.errors import UsageError


def read_archive(
    directory: str | Path,
    *,
    since: date | None = None,
    until: date | None = None,
    nodes: Collection[str] | None = None,
    columns: Sequence[str] | None = None,
) -> pa.Table:
    """The rows of an archive of the days since <= day <= until (UTC) of these nodes (None: all) in
    these columns of `ARCHIVE_SCHEMA` (None: all). All rows must fit into memory.

    Raises `UsageError` if the directory is no archive or has no such column.
    """
    _check_nodes(nodes)
    for name, day in (("since", since), ("until", until)):
        if isinstance(day, datetime):
            raise UsageError(f"{name}, {day}, is no date", hint=f"give {name}.date()")
    return read_table(Path(directory), since=since, until=until, nodes=nodes, columns=columns)


def _check_nodes(nodes: Collection[str] | None) -> None:
    if isinstance(nodes, str):
        raise UsageError(f"nodes is the text {nodes!r:.100}", hint="give a list of names")
