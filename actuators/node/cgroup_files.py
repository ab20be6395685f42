"""Read and write knobs of cgroups through one interface for v1, v2 and machines that have both.

All methods raise `CgroupGoneError` if the cgroup was removed, `KernelFileError` if a file cannot be
read or has another format, and `CgroupWriteError` if a value cannot be written. None stands for a
knob that this kernel does not have.
"""

import errno
import os
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from actuators.node.knob_files import KNOB_FILES, KnobFile
from node_exporter.kernel.cgroup import v1_mount
from node_exporter.kernel.kernel_file import KernelFile, read_table
from node_exporter.kernel.parse_files import cpu_list
from pipeline.errors import CgroupGoneError, CgroupWriteError, KernelFileError
from pipeline.processors.node_qos.cgroup_values import CpuSet, Knob, Place, Value

_NAMES_IN_V1: Final = {"cpu": "cpu", "cpuset": "cpuset", "memory": "memory", "io": "blkio"}
"""Controllers as v2 calls them, with the names that v1 has for them."""

_REASONS: Final = {
    errno.EROFS: "read_only",
    errno.EPERM: "forbidden",
    errno.ENOENT: "unsupported",
    errno.EOPNOTSUPP: "unsupported",
    errno.ENOSYS: "unsupported",
}
_HINTS: Final = {
    "read_only": "mount the cgroup file systems writable for the node actuator",
    "forbidden": "run the node actuator as root, with write access to the cgroup file systems",
}

_LINKS_WITHOUT_CHILDREN: Final = 2
"""Each directory below adds a link."""
_MISSING_CALLS: Final[dict[int | None, int]] = {1: 12, 2: 2}
"""A missing file is looked for again after so many calls of `close_unused`, by the version of its
hierarchy: systemd makes a cgroup of v2 before it enables the controllers in it, while one of v1 has
its files at once, unless a module of the kernel is loaded later."""


class Hierarchy(NamedTuple):
    """Where a controller's files are: the root directory of its hierarchy, and its version."""

    version: Literal[1, 2]
    root: str


class Reading(NamedTuple):
    """A value, and the kernel's own text for it, which restores it exactly."""

    value: Value
    text: str


def detect_hierarchies(cgroup_root: str) -> dict[str, Hierarchy]:
    """Detect the controllers cpu, cpuset, memory and io below `cgroup_root`, normally
    /sys/fs/cgroup.

    On a hybrid machine a controller is in a v1 hierarchy or in the v2 hierarchy at `unified`.
    Controllers that are in neither are absent. Raises KernelFileError if all are.
    """
    hierarchies: dict[str, Hierarchy] = {}
    for root in (cgroup_root, os.path.join(cgroup_root, "unified")):
        for name in _v2_controllers(root):
            hierarchies.setdefault(name, Hierarchy(2, root))
    if not os.path.exists(os.path.join(cgroup_root, "cgroup.controllers")):
        for name, name_in_v1 in _NAMES_IN_V1.items():
            if (mount := v1_mount(cgroup_root, name_in_v1)) is not None:
                hierarchies[name] = Hierarchy(1, mount)
    if not hierarchies:
        raise KernelFileError(
            "no cgroup controller cpu, cpuset, memory or io is here", path=cgroup_root,
            hint="mount the host's /sys/fs/cgroup here",
        )  # fmt: skip
    return hierarchies


def node_hierarchies(proc_root: str, sys_root: str) -> dict[str, Hierarchy]:
    """Where the knobs of the node itself are, beside those of `detect_hierarchies`."""
    return {"proc": Hierarchy(2, proc_root), "sys": Hierarchy(2, sys_root)}


def write_file(path: str, text: str) -> None:
    """Write a text and a newline to a file of the kernel, in one call."""
    opened = False
    try:
        # Truncation means nothing to the kernel, and makes a plain file hold nothing else.
        descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        opened = True
        try:
            os.write(descriptor, f"{text}\n".encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        if not os.path.isdir(os.path.dirname(path)):
            raise CgroupGoneError("the cgroup was removed", path=path) from error
        reason = _REASONS.get(error.errno or 0, "refused")
        if error.errno == errno.EACCES and not opened:
            reason = "forbidden"
        why = error.strerror or "it cannot be written"
        raise CgroupWriteError(
            f"{text!r} is not accepted: {why}", reason=reason, path=path, hint=_HINTS.get(reason)
        ) from error


class CgroupFiles:
    """The knobs below the roots of these hierarchies.

    Files that were read stay open until two calls of `close_unused` have no read between them.
    """

    def __init__(self, hierarchies: Mapping[str, Hierarchy]) -> None:
        self._hierarchies = dict(hierarchies)
        self._open: dict[Place, _OpenKnob] = {}
        self._calls = 0

    def read(self, place: Place) -> Value | None:
        """The value of a place."""
        reading = self.reading(place)
        return reading.value if reading else None

    def reading(self, place: Place) -> Reading | None:
        """The value of a place, with the kernel's text."""
        was_open = place in self._open
        knob = self._knob(place)
        try:
            return knob.read() if knob else None
        except CgroupGoneError:
            self._open.pop(place).close()
            if was_open:  # another one may have its path
                return self.reading(place)
            raise

    def write_text(self, place: Place, text: str) -> None:
        """Write the text of a former `Reading`, or one of `text_of`."""
        if (knob := self._knob(place)) is None:
            raise _unsupported(place)
        write_file(knob.path, knob.file.line(text, place.device))

    def held(self, place: Place, value: Value, now: Reading) -> Value:
        """What the kernel will show for `value`: it rounds weights and memory. Raises
        CgroupWriteError if the place cannot hold it."""
        if (knob := self._knob(place)) is None:
            raise _unsupported(place)
        # Most values are decided, and most knobs hold them, from one second to the next.
        if knob.last_held is None or knob.last_held[:2] != (value, now):
            knob.last_held = value, now, self.value_of(place, self.text_of(place, value, now))
        return knob.last_held[2]

    def text_of(self, place: Place, value: Value, now: Reading) -> str:
        """The text that stands for a value where the text is that of `now`."""
        if (knob := self._knob(place)) is None:
            raise _unsupported(place)
        try:
            return knob.file.text_of(value, now.text)
        except ValueError as error:
            raise CgroupWriteError(str(error), reason="refused", path=knob.path) from error

    def value_of(self, place: Place, text: str) -> Value:
        """The value that the text of a `Reading` stands for."""
        if (knob := self._knob(place)) is None:
            raise _unsupported(place)
        return knob.file.value(text)

    def version(self, knob: Knob) -> Literal[1, 2] | None:
        """The version of the hierarchy that a knob is in; None without its controller."""
        hierarchy = self._hierarchies.get(_controller(knob))
        return hierarchy.version if hierarchy else None

    def effective_cpus(self, path: str) -> CpuSet | None:
        """The CPUs that a v2 cgroup really has, also without a set of its own."""
        if (hierarchy := self._hierarchies.get("cpuset")) is None or hierarchy.version == 1:
            return None
        file = os.path.join(hierarchy.root, path, "cpuset.cpus.effective")
        content = read_table(file)
        return None if content is None else frozenset(cpu_list(content, file))

    def sees_tree_of(self, place: Place) -> bool:
        """Whether the tree is here that a place is or was in: its uppermost directory."""
        hierarchy = self._hierarchies.get(_controller(place.knob))
        top = place.path.partition("/")[0]
        return hierarchy is not None and os.path.isdir(os.path.join(hierarchy.root, top))

    def children(self, place: Place) -> list[Place]:
        """The same knob in the cgroups directly below."""
        directory = os.path.join(self._hierarchies[_controller(place.knob)].root, place.path)
        try:
            if os.stat(directory).st_nlink == _LINKS_WITHOUT_CHILDREN:
                return []
            with os.scandir(directory) as entries:
                names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except FileNotFoundError as error:
            raise CgroupGoneError("the cgroup was removed", path=directory) from error
        except OSError as error:
            raise KernelFileError(error.strerror or "cannot be listed", path=directory) from error
        prefix = f"{place.path}/" if place.path else ""
        return [place._replace(path=prefix + name) for name in sorted(names)]

    def close_unused(self) -> None:
        """Close the files of places that were not used since the last call."""
        self._calls += 1
        due = {version for version, calls in _MISSING_CALLS.items() if self._calls % calls == 0}
        unused = [
            place
            for place, knob in self._open.items()
            if not knob.is_used or (knob.is_missing and self.version(place.knob) in due)
        ]
        for place in unused:
            self._open.pop(place).close()
        for knob in self._open.values():
            knob.is_used = False

    def close(self) -> None:
        """Close all files."""
        for knob in self._open.values():
            knob.close()
        self._open.clear()

    def _knob(self, place: Place) -> "_OpenKnob | None":
        knob = self._open.get(place) or self._find(place)
        if knob is not None:
            self._open[place] = knob
            knob.is_used = True
        return knob

    def _find(self, place: Place) -> "_OpenKnob | None":
        if (hierarchy := self._hierarchies.get(_controller(place.knob))) is None:
            return None
        directory = os.path.join(hierarchy.root, place.path)
        *others, last = KNOB_FILES[hierarchy.version][place.knob]
        for file in others:
            if os.path.exists(os.path.join(directory, file.name)):
                return _OpenKnob(file, directory, place.device)
        # A kernel without a setting of the node may also lack its directory.
        if (folder := os.path.dirname(last.name)) and not os.path.isdir(f"{directory}/{folder}"):
            return None
        return _OpenKnob(last, directory, place.device)


class _OpenKnob:
    """The files of a place, kept open."""

    __slots__ = (
        "_data", "_device", "_reading", "_sources", "file", "is_missing", "is_used", "last_held",
        "path",
    )  # fmt: skip

    def __init__(self, file: KnobFile, directory: str, device: str) -> None:
        self.file = file
        self.path = os.path.join(directory, file.name)
        self.is_used = True
        self.is_missing = False
        self.last_held: tuple[Value, Reading, Value] | None = None
        self._device = device
        names = [file.name, file.period_file] if file.period_file else [file.name]
        self._sources = [KernelFile(os.path.join(directory, name)) for name in names]
        self._data: list[bytes] = []
        self._reading: Reading | None = None

    def read(self) -> Reading | None:
        data = []
        for source in self._sources:
            if (content := source.read()) is None:
                self.is_missing = True
                return None
            data.append(content)
        # Most knobs do not change from one second to the next.
        if data != self._data or self._reading is None:
            text = self.file.text(data, self._device)
            self._reading, self._data = Reading(self.file.value(text), text), data
        return self._reading

    def close(self) -> None:
        for source in self._sources:
            source.close()


def _controller(knob: Knob) -> str:
    return knob.value.partition(".")[0]


def _v2_controllers(root: str) -> list[str]:
    content = read_table(os.path.join(root, "cgroup.controllers")) or b""
    return [name for name in _NAMES_IN_V1 if name.encode() in content.split()]


def _unsupported(place: Place) -> CgroupWriteError:
    return CgroupWriteError("this kernel does not have it", reason="unsupported", path=str(place))
