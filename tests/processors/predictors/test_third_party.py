"""A predictor that comes with another package is found, held to the laws, and may decide."""

import dataclasses
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.processors.model.bank import Bank
from pipeline.processors.model.model_config import ENTITIES, ModelConfig
from pipeline.processors.model.predictor import Peaks, View
from pipeline.processors.predictors.stateless import Stateless
from tests.processors.windows import GIB, Pod, window

# A process of its own sees the other package as if it had been installed beside ours.
CHECK = """
import numpy as np
from pipeline.processors.model.bank import Bank
from pipeline.processors.predictors.registry import available
from pipeline.processors.predictors.suite import check_predictor
from pipeline.processors.model.model_config import ModelConfig
from pipeline.topics.nodes import Strategy
from tests.processors.windows import GIB, Pod, window

point = available()["flat-tide"]
assert point.dist.name == "flat-tide"
check_predictor(point.load())

config = ModelConfig(
    predictors=("percentile", "flat-tide"), options={"flat-tide": {"factor": 2.0}}
)
bank = Bank(config)
pods = [Pod("a", (1.0, GIB), requests=(8000.0, 8 * GIB))]
for end in range(12):
    now = window(end, pods, usage=(3.0, 2 * GIB))
    if end == 11:
        (before,) = bank.peaks([now.node])
        now.strategy = Strategy(predictor="flat-tide", safety_margin_percent=0.0)
    bank.apply([now])
(after,) = bank.peaks([now.node])
assert (before.decides, after.decides) == ("percentile", "flat-tide")
assert after.decided.raw[0].tolist() == [6.0, 4 * GIB]
# Of 8 cores 2 * 1.0 are expected of the pod, and as much of the system.
assert after.reclaimable.amount[0] == 8000.0 - 2000.0 - 4000.0
assert before.reclaimable.amount[0] != after.reclaimable.amount[0]
print("decided")
"""


def test_a_predictor_of_another_package_decides_when_the_strategy_names_it(project: Path) -> None:
    """NP-29."""
    paths = (project, project / "node-exporter", project / "tests" / "data" / "third_party")
    ran = subprocess.run(
        [sys.executable, "-c", CHECK],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (0, "decided\n"), ran.stderr


def third_party(project: Path) -> Path:
    return project / "tests" / "data" / "third_party"


def test_what_it_is_packed_by_says_what_its_installation_says(project: Path) -> None:
    """Our tests find the entry point in metadata that pip would have written."""
    declared = tomllib.loads((third_party(project) / "pyproject.toml").read_text())["project"]
    found = ConfigParser()
    found.read(third_party(project) / "flat_tide-1.0.dist-info" / "entry_points.txt")
    assert declared["entry-points"] == {name: dict(found[name]) for name in found.sections()}
    metadata = (third_party(project) / "flat_tide-1.0.dist-info" / "METADATA").read_text()
    assert f"Name: {declared['name']}\nVersion: {declared['version']}\n" in metadata


def test_it_can_be_packed_and_is_found_when_installed(project: Path, tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=third_party(project), check=True, capture_output=True,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    paths = (project, project / "node-exporter", tmp_path / "site")
    ask = "from pipeline.processors.predictors.registry import available as a, package_of as p;"
    ran = subprocess.run(
        [sys.executable, "-c", f"{ask} f = a()['flat-tide']; f.load()(); print(p(f))"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (0, "flat-tide 1.0\n"), ran.stderr


class Onlooker(Stateless):
    """Keeps the view that it was shown."""

    name = "onlooker"
    prod = "pair"
    seen: View

    def peak(self, view: View) -> Peaks:
        self.seen = view
        return Peaks(*view.split(np.zeros((len(view.all_rows), 2))), bare=None)


def documented(project: Path, kind: str) -> dict[str, str]:
    """The shape of each field of a class, as docs/explanation/models.md has it."""
    text = (project / "docs" / "explanation" / "models.md").read_text()
    (table,) = re.findall(rf"^\| `{kind}`, .*\n\|---.*\n((?:\|.*\n)+)", text, re.MULTILINE)
    return dict(re.findall(r"^\| `(\w+)` \| ([^|]*?) ?\|", table, re.MULTILINE))


def test_the_documented_shapes_are_those_that_there_are(project: Path) -> None:
    onlooker = Onlooker()
    bank = Bank(ModelConfig(predictors=("onlooker",), predictor="onlooker"), {"onlooker": onlooker})
    for node, uids in (("node-a", "abc"), ("node-b", "de")):
        bank.apply([window(0, [Pod(uid, (1.0, GIB)) for uid in uids], node=node)])
    peaks = bank.peaks(["node-a", "node-b"])
    letters = {"k": 2, "E": len(ENTITIES), "n": 5, "2": 2}

    def shape(text: str) -> tuple[int, ...]:
        return tuple(letters[letter] for letter in re.findall(r"\w", text.partition(")")[0]))

    told = documented(project, "View")
    assert [*told] == [field.name for field in dataclasses.fields(View)]
    del told["rows"]
    for of_each in dataclasses.asdict(onlooker.seen.settings).values():
        assert of_each.shape == shape(told["settings"])
    del told["settings"]
    for name, text in told.items():
        assert getattr(onlooker.seen, name).shape == shape(text), name
    answered: Any = peaks.answers["onlooker"]
    told = documented(project, "Peaks")
    assert [*told] == [field.name for field in dataclasses.fields(Peaks)]
    assert shape(told["entities"]) == shape(told["terms"]) == shape(told["bare"])
    assert answered.raw.shape == shape(told["entities"])
    assert answered.pod_raw.shape == shape(told["pods"])
