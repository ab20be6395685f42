"""Run the examples of a how-to guide as if its package had been installed."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
GUIDES = ROOT / "docs" / "how-to"


def blocks(guide: str, language: str) -> list[str]:
    """The fenced blocks of one language in a guide."""
    text = (GUIDES / guide).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def run(code: str, package: Path, given: str = "") -> str:
    """Run `code` in its own process, because registries read installed packages once."""
    paths = (ROOT, ROOT / "node-exporter", package)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))},
        input=given, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def install(package: Path, name: str, module: str, source: str, toml: str) -> Path:
    """Write a module and the metadata that pip would write; returns the entry points' file."""
    (package / f"{module}.py").write_text(source)
    metadata = package / f"{name.replace('-', '_')}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    groups = tomllib.loads(toml)["project"]["entry-points"]
    lines = [
        line
        for group, points in groups.items()
        for line in (f"[{group}]", *(f"{name} = {target}" for name, target in points.items()))
    ]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return metadata / "entry_points.txt"
