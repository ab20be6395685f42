"""Fetch Chromium from Debian packages, with the libraries and a font that it needs.

They are cached, not installed (`tests.debian_packages`).

`python -m tests.browser.chromium_files` fetches everything and prints where it is.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pipeline.local.cache_folders import Report, print_to_stderr
from tests.debian_packages import Apt, UnavailableError, ensure_fetched

PACKAGE: Final = "chromium"
FONT: Final = "fonts-dejavu-core"
_PROGRAM: Final = "usr/lib/chromium/chromium"
_WHAT: Final = "Chromium for tests of reports; takes a minute, 130 MB"
_FONTS: Final = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "urn:fontconfig:fonts.dtd">
<fontconfig><dir>{fonts}</dir><cachedir prefix="xdg">fontconfig</cachedir></fontconfig>
"""


@dataclass(frozen=True)
class ChromiumFiles:
    """The program, and the environment in which it finds its libraries and its only font."""

    program: Path
    environment: Mapping[str, str]


def ensure_chromium(*, report: Report = print_to_stderr) -> ChromiumFiles:
    """Return Chromium, and fetch it first if it is missing.

    `report` receives lines of progress. Raises `UnavailableError` if it cannot be had here.
    """
    folder = ensure_fetched("chromium", __file__, _WHAT, _fetch, report)
    root = folder / "root"
    # apt downloads nothing if the system has it.
    program = next((path for path in (root / _PROGRAM, Path("/", _PROGRAM)) if path.exists()), None)
    if program is None:
        raise UnavailableError(f"no Chromium in {root} or /{_PROGRAM}")
    # Next to the program are those that it finds itself.
    libraries = {path.parent for path in root.rglob("*.so*")} - {program.parent}
    environment = os.environ | {
        "LD_LIBRARY_PATH": ":".join(map(str, sorted(libraries))),
        "FONTCONFIG_FILE": str(folder / "fonts.conf"),
    }
    return ChromiumFiles(program, environment)


def _fetch(scratch: Path, folder: Path) -> str:
    apt = Apt(scratch)
    apt.unpack(PACKAGE, with_dependencies=True).rename(folder / "root")
    # The same letters, and so the same widths of text, on every machine.
    apt.unpack(FONT).rename(folder / "fonts")
    (folder / "fonts.conf").write_text(_FONTS.format(fonts=folder / "fonts"))
    return PACKAGE


def main() -> None:
    try:
        files = ensure_chromium()
    except UnavailableError as error:
        sys.exit(str(error))
    sys.stdout.write(f"{files.program}\n")


if __name__ == "__main__":
    main()
