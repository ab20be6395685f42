"""Run a command in a guest: a virtual machine with a Linux kernel and cgroup v2.

QEMU emulates two CPUs, because a machine with KVM is the exception in continuous integration. The
guest has no network. Its console and the lines that the command reports go to files, whose size is
bounded. QEMU dies with this process.
"""

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pipeline.local.process_guard import die_with_parent
from tests.guest.guest_files import GuestFiles
from tests.guest.initramfs import BOOTED, EXIT_PREFIX, SHARE_TAG, initramfs
from tests.processes import is_alive

CPUS: Final = 2
MEMORY_MIB: Final = 1024
DISK_MIB: Final = 64

# `cgroup_no_v1`: all controllers belong to v2. A panic ends QEMU, which does not reboot.
_KERNEL_COMMAND_LINE: Final = (
    "console=ttyS0 loglevel=6 panic=-1 psi=1 cgroup_no_v1=all no_timer_check"
)
_SCRATCH_PREFIX: Final = "springtide-guest-"
_POLL_SECONDS: Final = 0.1
_TAIL_LINES: Final = 25
_LINE_CHARACTERS: Final = 300


class GuestFailedError(Exception):
    """The guest did not boot or did not run its command to the end; ends with its console."""


@dataclass(frozen=True)
class Limits:
    """Bounds of one run of the guest."""

    silence_seconds: float = 600.0
    """Time without a line; booting takes 5 s of an idle machine, and minutes of a busy one."""
    total_seconds: float = 1800.0
    report_bytes: int = 16 << 20
    console_bytes: int = 1 << 20


DEFAULT_LIMITS: Final = Limits()


def run_in_guest(
    files: GuestFiles,
    command: Sequence[str],
    folder: Path,
    environ: Mapping[str, str],
    limits: Limits = DEFAULT_LIMITS,
) -> Generator[str, None, None]:
    """Run `command` in `folder` with this environment; yield each line that it reports. Closing the
    generator ends the guest.

    Raises `GuestFailedError` if the guest exceeds a limit or ends early, and if the exit code of
    the command is neither 0 nor 1 (pytest's exit code if tests failed).
    """
    _remove_leftovers()
    with tempfile.TemporaryDirectory(prefix=f"{_SCRATCH_PREFIX}{os.getpid()}-") as name:
        scratch = Path(name)
        (scratch / "initramfs").write_bytes(initramfs(files, command, folder, environ))
        with (scratch / "disk").open("wb") as disk:
            disk.truncate(DISK_MIB << 20)
        with (scratch / "qemu.log").open("wb") as log:
            qemu = subprocess.Popen(
                _qemu_command(files, scratch), env=_qemu_environment(files),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=die_with_parent,
            )  # fmt: skip
        try:
            yield from _report_lines(qemu, scratch, limits)
        finally:
            qemu.kill()
            qemu.wait()


def _remove_leftovers() -> None:
    """Remove the directories of processes that were killed."""
    for path in Path(tempfile.gettempdir()).glob(f"{_SCRATCH_PREFIX}*"):
        pid = path.name.removeprefix(_SCRATCH_PREFIX).partition("-")[0]
        if pid.isdigit() and not is_alive(int(pid)):
            shutil.rmtree(path, ignore_errors=True)


def _qemu_command(files: GuestFiles, scratch: Path) -> list[str]:
    firmware = [files.root / "usr/share" / name for name in ("qemu", "seabios")]
    return [
        str(files.qemu),
        *(word for path in firmware if path.is_dir() for word in ("-L", str(path))),
        *("-machine", "accel=tcg", "-cpu", "max", "-smp", str(CPUS), "-m", str(MEMORY_MIB)),
        *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
        *("-serial", f"file:{scratch / 'console'}", "-serial", f"file:{scratch / 'report'}"),
        *("-kernel", str(files.kernel), "-initrd", str(scratch / "initramfs")),
        *("-append", _KERNEL_COMMAND_LINE),
        "-virtfs",
        f"local,path=/,mount_tag={SHARE_TAG},security_model=none,readonly=on,multidevs=remap",
        "-drive",
        f"file={scratch / 'disk'},if=virtio,format=raw,cache=unsafe",
    ]


def _qemu_environment(files: GuestFiles) -> dict[str, str]:
    libraries = files.root / "usr/lib/x86_64-linux-gnu"
    folders = [libraries, files.root / "lib/x86_64-linux-gnu"]
    environ = {"PATH": os.defpath, "LC_ALL": "C"}
    environ["LD_LIBRARY_PATH"] = ":".join(str(path) for path in folders)
    if (libraries / "qemu").is_dir():
        environ["QEMU_MODULE_DIR"] = str(libraries / "qemu")
    return environ


def _report_lines(qemu: subprocess.Popen[bytes], scratch: Path, limits: Limits) -> Iterator[str]:
    start = heard_at = time.monotonic()
    report, console = scratch / "report", scratch / "console"
    position, partial, booted = 0, b"", False
    while True:
        ended = qemu.poll() is not None  # before reading: nothing is written after it
        data = _read_from(report, position)
        position += len(data)
        *lines, partial = (partial + data).split(b"\n")
        for line in lines:
            text = line.decode(errors="replace")
            if text.startswith(EXIT_PREFIX):
                if (code := text.removeprefix(EXIT_PREFIX).strip()) in ("0", "1"):
                    return
                raise _failure(f"the command in the guest ended with {code}", scratch)
            if text.strip() == BOOTED:
                booted = True
            else:
                yield text
        now = time.monotonic()
        if data:
            heard_at = now
        if ended:
            raise _failure(_why_ended(qemu.returncode, console), scratch)
        if why := _exceeded(limits, now - start, now - heard_at, position, _size(console)):
            when = "" if booted else " before it had booted"
            raise _failure(f"the guest {why}{when}, and was killed", scratch)
        if not data:
            time.sleep(_POLL_SECONDS)


def _exceeded(
    limits: Limits, total: float, silence: float, report: int, console: int
) -> str | None:
    if report > limits.report_bytes or console > limits.console_bytes:
        return f"printed {max(report, console)} bytes"
    if silence > limits.silence_seconds:
        return f"reported nothing for {silence:.0f} s"
    if total > limits.total_seconds:
        return f"did not end within {total:.0f} s"
    return None


def _why_ended(code: int, console: Path) -> str:
    text = _tail(console, 1 << 16)
    if panic := re.search(r"Kernel panic[^\r\n]*", text):
        return f"the guest's kernel panicked: {panic[0]}"
    if code < 0:
        return f"QEMU was killed by {signal.Signals(-code).name}"
    if code > 0:
        return f"QEMU ended with {code}"
    return "the guest powered off before its command had ended"


def _failure(why: str, scratch: Path) -> GuestFailedError:
    """The error with the last lines of QEMU and of the console."""
    text = _tail(scratch / "qemu.log") + _tail(scratch / "console")
    printable = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|[^\n -~]", "", text).splitlines()
    lines = [line[:_LINE_CHARACTERS] for line in printable if line.strip()]
    shown = "\n".join(f"  {line}" for line in lines[-_TAIL_LINES:])
    return GuestFailedError(f"{why}; its console:\n{shown or '  (empty)'}")


def _tail(path: Path, most_bytes: int = 1 << 14) -> str:
    return _read_from(path, max(0, _size(path) - most_bytes)).decode(errors="replace")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _read_from(path: Path, position: int, most_bytes: int = 1 << 20) -> bytes:
    """Content of a file that may not exist yet."""
    try:
        with path.open("rb") as file:
            file.seek(position)
            return file.read(most_bytes)
    except FileNotFoundError:
        return b""
