"""Read gauges: numbers of the node that the kernel or other programs keep in files.

A file has one number, such as `/proc/sys/net/netfilter/nf_conntrack_count`. A reading that fails
leaves its gauge unknown.
"""

import math
import os
from collections.abc import Iterator, Mapping
from typing import Final

from pipeline.errors import KernelFileError, SettingsError
from pipeline.topics.resource_amounts import MAX_GAUGES, gauge_problems

_MOST_BYTES: Final = 64


def check_gauges(files: Mapping[str, str]) -> None:
    """Raise `SettingsError` for a name that a sample cannot have, and for too many."""
    for problem in gauge_problems(files):
        raise SettingsError(
            f"exporter.gauges: {problem}", key="exporter.gauges", hint=f"at most {MAX_GAUGES} files"
        )


def read_gauges(files: Mapping[str, str]) -> Iterator[tuple[str, float | KernelFileError]]:
    """Yield the number in the file of each gauge, or why it is unknown."""
    for name, path in files.items():
        try:
            yield name, _read_number(path)
        except KernelFileError as error:
            yield name, error


def _read_number(path: str) -> float:
    try:
        # A reader of a pipe that nobody writes to would wait for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            data = os.read(descriptor, _MOST_BYTES + 1)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise KernelFileError(
            error.strerror or "cannot be read",
            path=path,
            hint="check exporter.gauges, and whether the file is mounted into the container",
        ) from error
    try:
        value = float(data)
    except ValueError:
        value = math.nan
    if len(data) > _MOST_BYTES or not math.isfinite(value) or value < 0:
        raise KernelFileError(
            f"{data[:40]!r} is not a number from 0 on",
            path=path,
            hint="write one number, and replace the file by renaming",
        )
    return value
