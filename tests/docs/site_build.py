"""Build the documentation as a site, as `make site` does."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
_SECONDS: Final = 120.0


def build_site(folder: Path) -> Path:
    """Write the site to `folder`, and return it. Raises `AssertionError` with the warnings, such as
    links and anchors that lead nowhere.
    """
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    done = subprocess.run(
        [*command, "--site-dir", folder], cwd=ROOT, timeout=_SECONDS, text=True, check=False,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return folder
