"""What the cgroups of a node had before the node actuator wrote to them, in a file.

The file exists while something has to be restored, or was lost. It is replaced before the first
write to a place, so that a process that is killed at any moment leaves nothing that its successor
cannot restore. It belongs to one boot: cgroups do not outlive the kernel.
"""

import fcntl
import os
import re
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final, NamedTuple
from urllib.parse import quote, unquote_to_bytes

import msgspec
from msgspec import Meta

from node_exporter.kernel.parse_files import cpu_list
from pipeline.errors import CgroupWriteError, StateError
from pipeline.logs import get_logger
from pipeline.processors.node_qos.cgroup_values import UNLIMITED, Knob, Place, Value, cpu_list_text

log = get_logger(__name__)

MOST_PLACES: Final = 50_000
MOST_BYTES: Final = 32 << 20
_DEVICE: Final = re.compile(r"(\d{1,10}:\d{1,10})?")
_SCHED_FEATURE: Final = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
_FORMAT: Final = 1
_UNKNOWN: Final = ("Invalid enum value", "Object contains unknown field")
"""How msgspec begins its errors for a knob and for a field that a newer release may have added."""


class SavedValue(NamedTuple):
    """What is known of a place that was written.

    `text` is the kernel's text from before the first write. `features` claim the place, with the
    value `claimed`; there are none if it only makes room for others, or waits to be restored.
    `written` are the texts that the place may have by our last writes; without any it is not known.
    """

    text: str
    features: tuple[str, ...] = ()
    claimed: Value | None = None
    written: tuple[str, ...] = ()


# The list of every second of 8,192 CPUs has 20,000 letters.
_Text = Annotated[str, Meta(max_length=65_536, pattern=r"^[ -~]*$")]
_Number = Annotated[int, Meta(ge=-UNLIMITED, le=UNLIMITED)]


class _SavedPlace(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`path` is percent-encoded: the name of a cgroup may have any bytes."""

    path: _Text
    knob: Knob
    original: _Text
    device: _Text = ""
    features: Annotated[tuple[_Text, ...], Meta(max_length=100)] = ()
    claimed: _Number | _Text | None = None
    written: Annotated[tuple[_Text, ...], Meta(max_length=100)] = ()


class _Head(msgspec.Struct, frozen=True):
    format: int
    boot_id: str


class _File(_Head, frozen=True, forbid_unknown_fields=True):
    places: Annotated[list[_SavedPlace], Meta(max_length=MOST_PLACES)]
    lost: Annotated[str, Meta(max_length=4096)] = ""


class OriginalValues:
    """The saved values of this boot. One process at a time has them.

    Raises StateError if another process has them, if their directory cannot be used, or if a newer
    release saved them, which can still restore them. A file that cannot be read is set aside, as
    `PATH.unreadable`: `lost_because` then has the reason until the next boot, and what it held
    cannot be restored any more.

    `parse` raises ValueError for a text that the kernel does not have at a place.
    """

    def __init__(self, path: Path, boot_id: str, parse: Callable[[Place, str], object]) -> None:
        self._path, self._boot_id, self._parse = path, boot_id, parse
        self._lock = _locked(path.with_name(f"{path.name}.lock"))
        self.values: Mapping[Place, SavedValue] = {}
        self.lost_because: str | None = None
        try:
            self.values = self._read()
        except StateError:
            self.close()
            raise
        except (OSError, ValueError, msgspec.MsgspecError, RecursionError) as error:
            self.lost_because = f"{error!s:.1000}"
            aside = path.with_name(f"{path.name}.unreadable")
            log.error(
                "original values cannot be read: what was written before cannot be restored",
                why=error, path=path, kept_as=aside,
            )  # fmt: skip
            with suppress(OSError):
                path.replace(aside)
                self._write({})

    def replace(self, values: Mapping[Place, SavedValue]) -> None:
        """Save these values instead of the former ones, which stay if that fails.

        Raises OSError, and StateError for more than `MOST_PLACES`.
        """
        if values == self.values:
            return
        if len(values) > MOST_PLACES:
            raise StateError(f"{len(values)} original values are more than {MOST_PLACES}")
        if values or self.lost_because:
            self._write(values)
        else:
            self._path.unlink(missing_ok=True)
        self.values = dict(values)

    def close(self) -> None:
        """Let another process have the values."""
        os.close(self._lock)

    def _read(self) -> dict[Place, SavedValue]:
        try:
            content = _content(self._path)
        except FileNotFoundError:
            return {}
        head = msgspec.json.decode(content, type=_Head)
        if head.boot_id != self._boot_id:
            log.info("original values are from before the last boot", path=self._path)
            self._path.unlink()
            return {}
        if head.format > _FORMAT:
            raise self._newer_release(f"it has format {head.format}, this build reads {_FORMAT}")
        try:
            file = msgspec.json.decode(content, type=_File)
        except msgspec.ValidationError as error:
            if str(error).startswith(_UNKNOWN):
                raise self._newer_release(str(error)) from error
            raise
        if file.format != _FORMAT:
            raise ValueError(f"format {file.format} is not {_FORMAT}")
        self.lost_because = file.lost or None
        values = dict(map(_saved_value, file.places))
        for place, saved in values.items():
            with suppress(CgroupWriteError):  # the kernel has no such place any more
                for text in (saved.text, *saved.written):
                    self._parse(place, text)
        return values

    def _newer_release(self, why: str) -> StateError:
        return StateError(
            f"node_actuator.state_file: a newer release saved the values in {self._path}: {why}",
            hint="run the newer release again, or its `springtide node-actuator --undo` before "
            "this one",
        )

    def _write(self, values: Mapping[Place, SavedValue]) -> None:
        places = [_saved_place(place, saved) for place, saved in values.items()]
        content = msgspec.json.encode(
            _File(_FORMAT, self._boot_id, places, self.lost_because or "")
        )
        temporary = self._path.with_name(f"{self._path.name}.tmp")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(temporary, flags, 0o600), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self._path)
        except OSError:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        directory = os.open(self._path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _locked(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StateError(
            f"node_actuator.state_file: cannot write in {path.parent}: {error.strerror}",
            hint="run the node actuator as root, or give a file in a directory that it may write",
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise StateError(
            "another node actuator runs on this node", hint=f"stop the process that holds {path}"
        ) from error
    return descriptor


def _content(path: Path) -> bytes:
    """The content of a file that nobody else may write. Raises ValueError for other files."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("not a regular file")
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise ValueError("others may write it")
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"larger than {MOST_BYTES} bytes")
    return content


def _saved_value(saved: _SavedPlace) -> tuple[Place, SavedValue]:
    path = os.fsdecode(unquote_to_bytes(saved.path))
    parts = path.split("/") if path else []
    device = _SCHED_FEATURE if saved.knob is Knob.NODE_SCHED_FEATURE else _DEVICE
    is_path = "\0" not in path and not any(part in ("", ".", "..") for part in parts)
    if not is_path or not device.fullmatch(saved.device):
        raise ValueError(f"no place of a cgroup: {saved.path!r} {saved.device!r}")
    claimed: Value | None
    if isinstance(saved.claimed, str):
        claimed = frozenset(cpu_list(saved.claimed.encode()))
    else:
        claimed = saved.claimed
    if claimed is not None and isinstance(claimed, frozenset) != (saved.knob is Knob.CPUSET):
        raise ValueError(f"no value of {saved.knob}: {saved.claimed!r}")
    place = Place(path, saved.knob, saved.device)
    return place, SavedValue(saved.original, saved.features, claimed, saved.written)


def _saved_place(place: Place, saved: SavedValue) -> _SavedPlace:
    value = saved.claimed
    claimed = cpu_list_text(value) if isinstance(value, frozenset) else value
    path = quote(os.fsencode(place.path), safe="/:@")
    return _SavedPlace(
        path, place.knob, saved.text, place.device, saved.features, claimed, saved.written
    )
