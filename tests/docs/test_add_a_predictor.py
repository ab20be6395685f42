"""The predictor of docs/how-to/add-a-predictor.md keeps the laws, decides, and is explained."""

import dataclasses
import re
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml

from pipeline.processors.model.bank import Bank
from pipeline.processors.model.model_config import ENTITIES, ModelConfig
from pipeline.processors.model.predictor import Peaks, View
from pipeline.processors.predictors.stateless import Stateless
from pipeline.topics.nodes import Strategy
from tests.docs.guides import GUIDES, blocks, install, run
from tests.processors.windows import GIB, Pod, window

GUIDE = "add-a-predictor.md"

CHECK = """
from pipeline.processors.explain.prediction_text import explain
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.model_config import ModelConfig
from pipeline.processors.model.result_records import encode_prediction
from pipeline.processors.predictors.registry import PREDICTORS
from pipeline.topics.codec import decode_json
from pipeline.topics.nodes import Strategy
from pipeline.topics.predictions import PredictionRecord
from tests.processors.joined import joined, logged
from tests.processors.windows import GIB, Pod, window

print(*PREDICTORS.packages("flat-tide"))
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
print(before.decides, after.decides, after.decided.raw[0].tolist() == [6.0, 4 * GIB])
# Of 8 cores twice the pod's core are expected of the pod, twice the system's two of the system.
print(after.reclaimable.amount[0] == 8000.0 - 2000.0 - 4000.0 != before.reclaimable.amount[0])
node = joined({"kind": "node", "id": "", "coverage": 1.0})
place = {"generation": 1, "offset": 1, "epoch": 1}
record = decode_json(PredictionRecord, encode_prediction(logged(node), after, place))
print(*(line for line in explain(record, resources=["cpu"], entities=["node"]) if "raw" in line))
"""


def test_the_guides_predictor_decides_and_is_explained(tmp_path: Path) -> None:
    module, check = blocks(GUIDE, "python")
    (toml,) = blocks(GUIDE, "toml")
    install(tmp_path, "flat-tide", "flat_tide", module, toml)
    run(check, tmp_path)
    *answers, raw = run(CHECK, tmp_path).splitlines()
    assert answers == ["flat-tide 1.0", "percentile flat-tide True", "True"]
    assert "raw, highest * factor: 3.0 * 2.0 = 6.0 cores" in raw


def test_the_guides_settings_build_the_predictor(tmp_path: Path) -> None:
    module, _ = blocks(GUIDE, "python")
    (toml,) = blocks(GUIDE, "toml")
    install(tmp_path, "flat-tide", "flat_tide", module, toml)
    (text,) = blocks(GUIDE, "yaml")
    model = yaml.safe_load(text)["model"]
    code = f"""
from pipeline.processors.predictors.registry import build
print(*build({model["predictors"]!r}, {model["predictor_options"]!r}))
"""
    assert run(code, tmp_path) == "percentile flat-tide\n"


class ViewRecorder(Stateless):
    name = "view-recorder"
    prod: Literal["pair", "classes"] = "pair"
    seen: View

    def peak(self, view: View) -> Peaks:
        self.seen = view
        return Peaks(*view.split(np.zeros((len(view.all_rows), 2))), without_requests=None)


def documented_shapes(kind: str) -> dict[str, str]:
    """The shape of each field of a class, as the guide has it."""
    text = (GUIDES / GUIDE).read_text()
    (table,) = re.findall(rf"^\| `{kind}`, .*\n\|---.*\n((?:\|.*\n)+)", text, re.MULTILINE)
    return dict(re.findall(r"^\| `(\w+)` \| ([^|]*?) ?\|", table, re.MULTILINE))


def test_the_documented_shapes_are_those_of_the_code() -> None:
    recorder = ViewRecorder()
    name = ViewRecorder.name
    config = ModelConfig(predictors=(name,), strategy=Strategy(predictor=name))
    bank = Bank(config, {"view-recorder": recorder})
    for node, uids in (("node-a", "abc"), ("node-b", "de")):
        bank.apply([window(0, [Pod(uid, (1.0, GIB)) for uid in uids], node=node)])
    peaks = bank.peaks(["node-a", "node-b"])
    letters = {"k": 2, "E": len(ENTITIES), "n": 5, "2": 2}

    def shape(text: str) -> tuple[int, ...]:
        return tuple(letters[letter] for letter in re.findall(r"\w", text.partition(")")[0]))

    shapes = documented_shapes("View")
    assert [*shapes] == [field.name for field in dataclasses.fields(View)]
    del shapes["models"], shapes["node_store"]
    for values in (recorder.seen.margin, *recorder.seen.strategies.values()):
        assert values.shape == shape(shapes["strategies"])
    del shapes["strategies"]
    for name, text in shapes.items():
        assert getattr(recorder.seen, name).shape == shape(text), name
    answer: Any = peaks.by_predictor["view-recorder"]
    shapes = documented_shapes("Peaks")
    assert [*shapes] == [field.name for field in dataclasses.fields(Peaks)]
    assert shape(shapes["entities"]) == shape(shapes["terms"]) == shape(shapes["without_requests"])
    assert answer.raw.shape == shape(shapes["entities"])
    assert answer.pod_raw.shape == shape(shapes["pods"])
