"""Run the examples of a how-to guide as if its package had been installed."""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
GUIDES = ROOT / "docs" / "how-to"


def blocks(guide: str, language: str) -> list[str]:
    """The fenced blocks of one language in a guide."""
    text = (GUIDES / guide).read_text()
    fences = re.findall(rf"^( *)```{language}\n(.*?)^\1```", text, re.MULTILINE | re.DOTALL)
    return [re.sub(f"^{indent}", "", block, flags=re.MULTILINE) for indent, block in fences]


class Edit(NamedTuple):
    """A change of a module's source: `old`, which occurs once, becomes `new`."""

    module: str
    old: str
    new: str


def edits(guide: str) -> list[Edit]:
    """The changes that the `diff` blocks of a guide show; a block begins with the file's path."""
    changes = []
    for block in blocks(guide, "diff"):
        path, *lines = block.splitlines(keepends=True)
        module = path.removeprefix("--- ").strip().removesuffix(".py").replace("/", ".")
        old = "".join(line[1:] for line in lines if line[0] in " -")
        new = "".join(line[1:] for line in lines if line[0] in " +")
        changes.append(Edit(module, old, new))
    return changes


EDIT = """
import importlib.machinery, json, sys
edits = json.load(sys.stdin)
loader = importlib.machinery.SourceFileLoader
get_code = loader.get_code

def edited_code(self, name):
    own = [(old, new) for module, old, new in edits if module == name]
    if not own:
        return get_code(self, name)
    source = self.get_source(name)
    for old, new in own:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    return compile(source, self.path, "exec")

loader.get_code = edited_code
"""


def run_edited(changes: Sequence[Edit], code: str, package: Path) -> str:
    """Run `code` with these changes of the product."""
    return run(EDIT + code, package, json.dumps(changes))


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
