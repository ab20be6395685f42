"""Write groups of resctrl, the kernel's interface to shares of cache and memory bandwidth.

The file system is at /sys/fs/resctrl if the CPU has the ability and somebody mounted it. Removing a
group gives its tasks back to the root, so nothing has to be remembered to undo what is done here.
"""

import errno
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal, NamedTuple

from actuators.node.cgroup_files import write_file
from node_exporter.kernel.kernel_file import read_table
from pipeline.errors import CgroupGoneError, CgroupWriteError, KernelFileError
from pipeline.processors.node_qos.resctrl_groups import POD_PREFIX, ResctrlGroup, ResctrlInfo
from pipeline.processors.node_qos.resctrl_schemata import (
    Schemata,
    Vendor,
    parse_mask,
    parse_schemata,
)

_OWN_NAMES: Final = ("LSR", "LS", "BE")
_VENDORS: Final[Mapping[str, Vendor]] = {
    "GenuineIntel": "intel", "AuthenticAMD": "amd", "HygonGenuine": "amd",
}  # fmt: skip
_REASONS: Final = {
    errno.ENOSPC: "no_group_left",
    errno.EROFS: "read_only",
    errno.EPERM: "forbidden",
}


class ResctrlWrite(NamedTuple):
    """A change that is due: a group made or removed, a line of its schemata, or a task moved into
    it. `before` is empty for a new group and for a task."""

    kind: Literal["make", "schemata", "task", "remove"]
    path: Path
    text: str = ""
    before: str = ""


def read_info(root: Path, proc_root: str) -> ResctrlInfo | None:
    """What this machine can share; None without resctrl. Raises KernelFileError for files of
    another format."""
    vendor = _VENDORS.get(_vendor(Path(proc_root, "cpuinfo")))
    text = _text(root / "schemata")
    if vendor is None or text is None:
        return None
    schemata = parse_schemata(text)
    cache = root / "info/L3"
    mask = _text(cache / "cbm_mask")
    numbers = [_number(root / "info" / name / "num_closids") for name in ("L3", "MB")]
    groups = [number for number in numbers if number is not None]
    return ResctrlInfo(
        vendor=vendor,
        full_mask=parse_mask(mask) if mask else 0,
        min_ways=_number(cache / "min_cbm_bits") or 1,
        l3_ids=frozenset(schemata.l3) if mask else frozenset(),
        mb_ids=frozenset(schemata.mb),
        max_groups=min(groups, default=1),
    )


def due_writes(
    root: Path,
    groups: Iterable[ResctrlGroup],
    kept: Mapping[str, str],
    tasks_of: Callable[[str], set[int]],
) -> Iterator[ResctrlWrite]:
    """The writes that lead to `groups`, groups that go first: the CPU has few.

    `kept` has the groups that stay as they are, and the cgroups whose tasks stay where they are.
    `tasks_of` has the tasks of a cgroup; other tasks of a group go back to the root. What the
    schemata of a group leaves out is as in the root. Groups that others made are left alone.
    """
    wanted = {group.name: group for group in groups}
    for directory in sorted(path for path in root.iterdir() if path.is_dir()):
        is_own = directory.name in _OWN_NAMES or directory.name.startswith(POD_PREFIX)
        if is_own and directory.name not in wanted.keys() | kept.keys():
            yield ResctrlWrite("remove", directory)
    whole = parse_schemata(_text(root / "schemata") or "")
    members = {
        group.name: set[int]().union(*map(tasks_of, group.cgroups)) for group in wanted.values()
    }
    staying = set[int]().union(*members.values(), *map(tasks_of, kept.values()))
    for group in wanted.values():
        directory = root / group.name
        if not directory.is_dir():
            yield ResctrlWrite("make", directory)
        now = parse_schemata(_text(directory / "schemata") or "")
        target = Schemata({**whole.l3, **group.schemata.l3}, {**whole.mb, **group.schemata.mb})
        before = {line[:2]: line for line in now.lines()}
        for line in target.lines():
            if line != before.get(line[:2]):
                path = directory / "schemata"
                yield ResctrlWrite("schemata", path, line, before.get(line[:2], ""))
        inside = {int(task) for task in (_text(directory / "tasks") or "").split()}
        for task in sorted(members[group.name] - inside):
            yield ResctrlWrite("task", directory / "tasks", str(task))
        for task in sorted(inside - staying):
            yield ResctrlWrite("task", root / "tasks", str(task))


def carry_out(write: ResctrlWrite) -> None:
    """Do one write. A task that ended is nothing special. Raises CgroupWriteError."""
    try:
        match write.kind:
            case "make":
                write.path.mkdir(exist_ok=True)
            case "remove":
                with suppress(FileNotFoundError):
                    write.path.rmdir()
            case "schemata":
                write_file(str(write.path), write.text)
            case "task":
                with suppress(ProcessLookupError):
                    _move_task(write)
    except OSError as error:
        reason = _REASONS.get(error.errno or 0, "refused")
        why = error.strerror or "cannot be changed"
        raise CgroupWriteError(why, reason=reason, path=str(write.path)) from error
    except CgroupGoneError as error:
        raise CgroupWriteError(error.message, reason="gone", path=str(write.path)) from error


def _move_task(write: ResctrlWrite) -> None:
    """The kernel takes one task a write, and answers ESRCH for one that ended."""
    with write.path.open("w") as file:
        file.write(write.text)


def cgroup_tasks(directory: Path) -> set[int]:
    """The tasks of a cgroup and of those below it: `cgroup.threads` of v2, else `tasks`.

    Tasks of another process namespace are left out. v2 lists them as 0, which to resctrl would be
    the process that writes it.
    """
    tasks = set[int]()
    for folder in (directory, *(path for path in directory.rglob("*") if path.is_dir())):
        with suppress(KernelFileError, CgroupGoneError):
            text = _text(folder / "cgroup.threads") or _text(folder / "tasks") or ""
            tasks |= {int(word) for word in text.split() if word.isdigit()}
    return tasks - {0}


def _vendor(cpuinfo: Path) -> str:
    for line in (_text(cpuinfo) or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "vendor_id":
            return value.strip()
    return ""


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text and text.strip().isdigit() else None


def _text(path: Path) -> str | None:
    content = read_table(str(path))
    return None if content is None else content.decode(errors="replace")
