"""Put this process into the cgroup of a host application, which is made if it does not exist.

A process must start in its cgroup: memory that it touched before stays charged to the cgroup where
it was touched. On v1 a process has a cgroup in each hierarchy, and joins the path in all of them.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from pipeline.errors import KernelFileError

# A cpuset of v1 refuses processes until it has CPUs and memory nodes.
_INHERITED: Final = ("cpuset.cpus", "cpuset.mems")


def join_cgroup(cgroup_root: Path, relative: str) -> list[Path]:
    """Move this process into the cgroup `relative` of each hierarchy below `cgroup_root`; returns
    the directories.

    Raises `KernelFileError` if a hierarchy refuses it. The directories that were made stay, and the
    process stays in the cgroups of the hierarchies before that one: it should end.
    """
    directories = [root / relative for root in hierarchies(cgroup_root)]
    for directory in directories:
        _make(directory)
    for directory in directories:
        _write(directory / "cgroup.procs", str(os.getpid()))
    return directories


def hierarchies(cgroup_root: Path) -> list[Path]:
    """The roots of all hierarchies: one with v2, one for each mount with v1. Raises
    `KernelFileError` if there is none."""
    if (cgroup_root / "cgroup.procs").exists():
        return [cgroup_root]
    found: dict[tuple[int, int], Path] = {}
    with suppress(OSError):
        for directory in sorted(cgroup_root.iterdir()):
            # Names of co-mounted controllers are links to one directory.
            if (directory / "cgroup.procs").exists():
                status = directory.stat()
                found.setdefault((status.st_dev, status.st_ino), directory)
    if not found:
        raise KernelFileError(
            "no cgroup hierarchy is mounted here",
            path=str(cgroup_root),
            hint="point exporter.cgroup_root at the mount of the cgroup file systems",
        )
    return list(found.values())


def _make(directory: Path) -> None:
    for path in reversed([directory, *_new_parents(directory)]):
        try:
            path.mkdir(exist_ok=True)
        except OSError as error:
            raise _failed(path, error) from error
        for name in _INHERITED:
            file, above = path / name, path.parent / name
            # On v2 an empty set means that of the parent.
            is_v1 = not (path / "cgroup.controllers").exists()
            if is_v1 and file.exists() and not file.read_text().strip():
                _write(file, above.read_text().strip())


def _new_parents(directory: Path) -> Iterator[Path]:
    for parent in directory.parents:
        if parent.exists():
            return
        yield parent


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text)
    except OSError as error:
        raise _failed(file, error) from error


def _failed(path: Path, error: OSError) -> KernelFileError:
    return KernelFileError(
        error.strerror or str(error),
        path=str(path),
        hint="run as root, with the cgroup file systems mounted for writing",
    )
