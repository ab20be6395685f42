"""The lists of components (SBOM) that `make dist` writes: what the locks pin, and nothing else."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.packages.npm_components import component, main
from tests.processes import ROOT

_SECONDS = 120.0


def command_of_make() -> list[str]:
    """The command of `make dist`, with the shell's variable for the image."""
    text = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    line = re.search(r"\$\(BIN\)/(cyclonedx-py [^;]+);", text)
    assert line is not None
    return line[1].replace("$$image", "{image}").split()


def components(image: str, folder: Path) -> tuple[bytes, Any]:
    """The list of an image, as bytes and as JSON. The tool checks it against the schema."""
    program, *words = [word.format(image=image) for word in command_of_make()]
    file = folder / "list.json"
    words[words.index("--output-file") + 1] = str(file)
    subprocess.run(
        [Path(sys.executable).with_name(program), *words], cwd=ROOT, check=True,
        capture_output=True, timeout=_SECONDS,
    )  # fmt: skip
    main([str(file)])
    return file.read_bytes(), json.loads(file.read_bytes())


@pytest.mark.slow
@pytest.mark.parametrize("image", ["exporter", "pipeline"])
def test_a_list_has_every_pinned_package_with_its_hashes(image: str, tmp_path: Path) -> None:
    text, document = components(image, tmp_path)
    lock = (ROOT / f"requirements-{image}.lock").read_text()
    pinned = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", lock, re.MULTILINE))
    listed = document["components"]
    assert listed.pop() == component()
    assert {each["name"]: each["version"] for each in listed} == pinned
    hashes = set(re.findall(r"sha256:([0-9a-f]{64})", lock))
    found = set(re.findall(r"\b[0-9a-f]{64}\b", text.decode()))
    assert found == hashes
    assert document["metadata"]["component"]["name"] == "springtide"
    assert components(image, tmp_path)[0] == text


def test_the_part_of_the_console_has_the_version_of_its_lock_and_what_it_says_itself() -> None:
    own = component()
    assert "npm_components" in (ROOT / "Makefile").read_text()
    assert own["purl"] == f"pkg:npm/uplot@{own['version']}"
    assert f"(v{own['version']})" in (ROOT / "pipeline/extender/console/uplot.js").read_text()
    assert own["licenses"][0]["license"]["id"] == "MIT"
    assert re.fullmatch("[0-9a-f]{128}", own["hashes"][0]["content"])
