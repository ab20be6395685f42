"""A directory that behaves as the kernel's resctrl, which this machine does not have."""

import errno
import os
import shutil
from pathlib import Path

from actuators.node.resctrl_files import ResctrlWrite
from pipeline.errors import CgroupWriteError
from pipeline.processors.node_qos.resctrl_schemata import Schemata, parse_schemata


class FakeResctrl:
    """12 ways at two caches with the ids 0 and 8, at least 2 ways a mask, 5 groups."""

    def __init__(self, root: Path, tasks: set[int]) -> None:
        self.root = root
        for name, value in {
            "L3/cbm_mask": "fff", "L3/min_cbm_bits": "2", "L3/num_closids": "5",
            "MB/num_closids": "8", "MB/bandwidth_gran": "10",
        }.items():  # fmt: skip
            (root / "info" / name).parent.mkdir(parents=True, exist_ok=True)
            (root / "info" / name).write_text(f"{value}\n")
        self._group(root, tasks)

    def carry_out(self, write: ResctrlWrite) -> None:
        """Do a write with the checks of the kernel. Raises CgroupWriteError."""
        match write.kind:
            case "make":
                if len(self.groups()) == 5:
                    raise _refused(errno.ENOSPC, write)
                write.path.mkdir()
                self._group(write.path, set())
            case "remove":
                self._set_tasks(self.root, self.tasks("") | self.tasks(write.path.name))
                shutil.rmtree(write.path)
            case "task":
                for name in self.groups():
                    self._set_tasks(self.root / name, self.tasks(name) - {int(write.text)})
                self._set_tasks(write.path.parent, self.tasks(write.path.parent.name, write.text))
            case "schemata":
                self._schemata(write)

    def groups(self) -> list[str]:
        names = (path.name for path in self.root.iterdir() if path.is_dir())
        return ["", *sorted(name for name in names if name != "info")]

    def tasks(self, name: str, *more: str) -> set[int]:
        path = self.root if name == self.root.name else self.root / name
        return {*map(int, (path / "tasks").read_text().split()), *map(int, more)}

    def lines(self, name: str) -> list[str]:
        return [line.strip() for line in (self.root / name / "schemata").read_text().splitlines()]

    def _schemata(self, write: ResctrlWrite) -> None:
        change, now = parse_schemata(write.text), parse_schemata(write.path.read_text())
        for id, mask in change.l3.items():
            run = mask >> ((mask & -mask).bit_length() - 1)
            if id not in now.l3 or run & (run + 1) or run.bit_length() < 2 or mask > 0xFFF:
                raise _refused(errno.EINVAL, write)
        if not all(
            id in now.mb and amount in range(10, 101, 10) for id, amount in change.mb.items()
        ):
            raise _refused(errno.EINVAL, write)
        merged = Schemata({**now.l3, **change.l3}, {**now.mb, **change.mb})
        write.path.write_text("".join(f"    {line}\n" for line in merged.lines()))

    def _group(self, path: Path, tasks: set[int]) -> None:
        (path / "schemata").write_text("    L3:0=fff;8=fff\n    MB:0=100;8=100\n")
        self._set_tasks(path, tasks)

    def _set_tasks(self, path: Path, tasks: set[int]) -> None:
        (path / "tasks").write_text("".join(f"{task}\n" for task in sorted(tasks)))


def _refused(number: int, write: ResctrlWrite) -> CgroupWriteError:
    return CgroupWriteError(os.strerror(number), reason="refused", path=str(write.path))
