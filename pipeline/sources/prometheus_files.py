"""Read the range exports in a folder: `EXPORT.json`, or parts of it as `EXPORT.PART.json`; each
may be compressed with gzip."""

import gzip
import re
import zlib
from pathlib import Path
from typing import BinaryIO, Final, cast

from pipeline.errors import InvalidRecordError, UsageError
from pipeline.input_files import LARGEST_LIST_BYTES, read_file
from pipeline.processors.backtest.prometheus_ranges import RangeSeries, read_range
from pipeline.processors.backtest.prometheus_traces import EXPORTS
from pipeline.processors.backtest.sample_grid import MOST_SAMPLES

_FILE: Final = re.compile(r"([^.]+)(\..+)?\.json(\.gz)?")
_HINT: Final = "docs/reference/backtest.md has the names of exports"


def read_exports(
    folder: Path, *, most_bytes: int = LARGEST_LIST_BYTES, most_samples: int = MOST_SAMPLES
) -> dict[str, list[RangeSeries]]:
    """The series of each export, by name. Other files are ignored, but not other JSON files: they
    may be exports with a misspelled name.

    Raises `UsageError` for an unreadable file or name, `InvalidRecordError`, which names the file,
    for one that holds something else, or for more samples than this in all files.
    """
    exports: dict[str, list[RangeSeries]] = {}
    samples = 0
    for path in _json_files(folder):
        name = path.name.partition(".")[0]
        if name not in EXPORTS:
            raise UsageError(f"{path} is no export: {', '.join(sorted(EXPORTS))}", hint=_HINT)
        try:
            series = read_range(_content(path, most_bytes))
        except InvalidRecordError as error:
            raise InvalidRecordError(f"{path}: {error.message}", hint=error.hint) from error
        samples += sum(len(each.values) for each in series)
        if samples > most_samples:
            raise InvalidRecordError(
                f"{path}: more than {most_samples:,} samples in {folder}",
                hint="split the data set into several of fewer nodes",
            )
        exports.setdefault(name, []).extend(series)
    return exports


def _json_files(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if _FILE.fullmatch(path.name))
    except OSError as error:
        raise UsageError(
            f"cannot read {folder}: {error.strerror or error}", hint="give a folder with exports"
        ) from error


def _content(path: Path, most_bytes: int) -> bytes:
    if path.suffix != ".gz":
        return read_file(path, most_bytes)
    try:
        with gzip.open(path) as stream:
            return read_file(path, most_bytes, stream=cast("BinaryIO", stream))
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"cannot read {path}: {error!s:.200}", hint="compress it again") from error
