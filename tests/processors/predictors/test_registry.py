"""Predictors by name: which are installed, how they are made, and errors."""

import dataclasses
import math
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, Literal

import pytest
from click.testing import CliRunner

from pipeline.cli.main import cli
from pipeline.errors import PredictorError
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.model_config import ModelConfig
from pipeline.processors.predictors.nsigma_v1 import NSigmaV1
from pipeline.processors.predictors.registry import PREDICTORS, build
from pipeline.topics.nodes import Strategy
from tests.processors.predictors.answers import answer
from tests.processors.windows import GIB, Pod, window


def test_predictors_are_built_in_order_with_their_options() -> None:
    made = build(["vpa", "percentile"], {"percentile": {"cpu": 0.5}})
    assert [(key, predictor.name) for key, predictor in made.items()] == [
        ("vpa", "vpa"), ("percentile", "percentile"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("names", "options", "problem"),
    [
        (["percentile", "oracle"], {}, "there is no predictor 'oracle'"),
        (["percentile", "percentile"], {}, "predictors are named twice"),
        (["percentile"], {"vpa": {}}, "options for vpa, which does not run"),
    ],
)
def test_invalid_names_are_errors(
    names: list[str], options: dict[str, dict[str, float]], problem: str
) -> None:
    with pytest.raises(PredictorError, match=problem):
        build(names, options)


MEMBERS = "max: members is .* not a list of predictors"


@pytest.mark.parametrize(
    ("name", "options", "problem"),
    [
        ("percentile", {"cpu": 95}, "predictor percentile: cpu is 95"),
        ("percentile", {"cpu": 0}, "cpu is 0, not a number from above 0"),
        ("percentile", {"cpu": True}, "cpu is True, not a number from"),
        (
            "percentile",
            {"gpu": 0.5},
            "predictor percentile: there is no option 'gpu': its options are cpu, memory, classes",
        ),
        ("nsigma-v1", {"gpu": 1}, "there is no option 'gpu': it has none"),
        ("percentile", {"classes": {"prod": 0.9}}, "classes: 'prod' is 0.9, not values by name"),
        ("percentile", {"classes": ["prod"]}, r"classes is \['prod'\], not values by name"),
        ("autopilot", {"cpu": 0}, "cpu is 0, not a number from above 0"),
        ("max", {"options": ["a"]}, r"predictor max: options is \['a'\], not values"),
        ("max", {"options": {"vpa": 1}}, "predictor max: options: 'vpa' is 1, not values"),
        ("max", {"options": {"nsigma-v1": {}}}, "max: options: options for nsigma-v1"),
        ("max", {"members": 7}, MEMBERS),
        ("max", {"members": []}, MEMBERS),
        ("max", {"members": ()}, MEMBERS),
        ("max", {"members": "percentile"}, MEMBERS),
        ("max", {"members": ""}, MEMBERS),
        ("max", {"members": ["vpa", "max"]}, "predictor max: members has max, which cannot"),
        ("max", {"members": ["oracle"]}, "predictor max: members: there is no predictor"),
        ("max", {"members": ["percentile"] * 2}, "members: predictors are named twice"),
        ("max", {"members": ["vpa"], "options": {"vpa": {"cpu": 1.5}}}, "vpa: cpu is 1.5"),
    ],
)
def test_invalid_options_are_errors(name: str, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(PredictorError, match=problem):
        build([name], {name: options})


@pytest.mark.parametrize(
    ("name", "option", "values"),
    [
        ("autopilot", "cpu", [2, None]),
        ("autopilot", "memory_window_seconds", [0, 1e9]),
        ("borg-default", "a", [0, -1.1, math.nan, math.inf, True, "1.1", None]),
        ("hourly-nsigma", "days", [0, 400, "7"]),
        ("hourly-nsigma", "history_seconds", [-1, math.nan]),
        ("resource-central", "cpu", [1.01]),
        ("resource-central", "memory", [-0.1, math.nan]),
        ("resource-central", "history_seconds", [299, 86_401, "1d"]),
        ("vpa", "cpu", [1.1]),
        ("vpa", "memory", [-1]),
        ("vpa", "margin_percent", [-0.5, math.nan]),
        ("vpa", "floor_cpu_cores", [-0.025]),
        ("vpa", "floor_memory_bytes", [math.inf]),
    ],
)
def test_values_out_of_range_are_refused_by_option(
    name: str, option: str, values: list[object]
) -> None:
    for value in values:
        problem = rf"predictor {name}: {option} is .* not a number (from|above)"
        with pytest.raises(PredictorError, match=problem):
            build([name], {name: {option: value}})


def test_an_unknown_name_is_answered_with_the_available_names() -> None:
    with pytest.raises(PredictorError) as error:
        build(["oracle"], {})
    assert "nsigma-v1, nsigma-v2, percentile, pods-nsigma" in (error.value.hint or "")


def install(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    point = EntryPoint(name, value, PREDICTORS.group)
    monkeypatch.setattr(PREDICTORS, "points", {**PREDICTORS.points, name: [point]})


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("pipeline.processors.predictors.stateless:Stateless", "is not a class with a `decl"),
        ("pipeline.processors.nowhere:Percentile", "cannot be loaded: .*No module"),
        ("pipeline.processors.predictors.percentile:Nowhere", "cannot be loaded: .*Nowhere"),
        ("pipeline.processors.predictors.percentile:Percentile", "is named 'percentile'"),
    ],
)
def test_an_entry_point_that_leads_nowhere_is_an_error(
    value: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, "mine", value)
    with pytest.raises(PredictorError, match=problem):
        build(["mine"], {})


@pytest.fixture
def shadow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package whose predictor has the name of one of ours."""
    folder = tmp_path / "shadow-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: shadow\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(f"[{PREDICTORS.group}]\nvpa = shadow:Vpa\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(PREDICTORS, "points", dataclasses.replace(PREDICTORS).points)


@pytest.mark.usefixtures("shadow")
def test_a_name_of_two_packages_cannot_be_used() -> None:
    says = r"model.predictors: predictor vpa is in more than one package: shadow 1.0, springtide"
    with pytest.raises(PredictorError, match=says):
        build(["percentile", "vpa"], {})
    assert [*build(["percentile"], {})] == ["percentile"]
    lines = CliRunner().invoke(cli, ["model", "predictors"]).output.splitlines()
    (line,) = [line for line in lines if line.startswith("vpa ")]
    assert "shadow 1.0, springtide" in line
    assert "predictor vpa is in more than one package: shadow 1.0, springtide" in line


class WithoutSystemPeak(NSigmaV1):
    """One of somebody else's, without a peak of the system."""

    name = "deaf"
    prod: Literal["pair", "classes"] = "pair"
    no_peak_for = ("system",)


@pytest.mark.parametrize("name", ["deaf", "borg-default", "max"])
def test_a_predictor_without_peaks_of_the_system_cannot_decide(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, "deaf", f"{__name__}:WithoutSystemPeak")
    options = {"max": {"members": ["deaf", "borg-default"]}} if name == "max" else {}
    config = ModelConfig(
        predictors=("percentile", name), strategy=Strategy(predictor=name), options=options
    )
    with pytest.raises(PredictorError, match=f"model.predictor: '{name}' is not allowed"):
        Bank(config)
    bank = Bank(dataclasses.replace(config, strategy=Strategy()))
    now = window(1)
    now.strategy = Strategy(predictor=name)
    bank.apply([now])
    assert bank.peaks([now.node])[0].decides == "percentile"


def test_a_maximum_with_a_member_that_knows_the_system_may_decide(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch, "deaf", f"{__name__}:WithoutSystemPeak")
    options = {"max": {"members": ["deaf", "vpa"]}}
    Bank(ModelConfig(predictors=("max",), strategy=Strategy(predictor="max"), options=options))


def test_a_predictor_that_does_not_run_cannot_decide() -> None:
    with pytest.raises(PredictorError, match="'vpa' is to decide but does not run"):
        Bank(ModelConfig(predictors=("percentile",), strategy=Strategy(predictor="vpa")))


@pytest.mark.parametrize("name", PREDICTORS.points)
def test_every_default_is_an_allowed_value(name: str) -> None:
    declared = PREDICTORS.get(name).declaration
    defaults = declared.checked({})
    assert [*defaults] == [option.name for option in declared.options]
    with pytest.raises(ValueError, match="there is no option 'gpu'"):
        declared.checked({"gpu": 1})


@pytest.mark.parametrize("name", PREDICTORS.points)
def test_every_published_term_is_declared(name: str) -> None:
    result = answer([window(1, [Pod("a", (1.0, GIB))])], name).predictors[name]
    declared = PREDICTORS.get(name).declaration
    if not declared.combines:
        assert {*result.terms} == {term.name for term in declared.terms}
