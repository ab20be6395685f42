"""Predictors by name: which there are, how they are made, and what is said when one is not."""

import inspect
import re
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from pipeline.errors import PredictorError
from pipeline.processors.bank import Bank
from pipeline.processors.predictors import registry
from pipeline.processors.predictors.registry import available, build
from pipeline.processors.window import ModelConfig
from tests.processors.predictors.answers import ALL


def test_ours_are_installed() -> None:
    assert {*ALL} <= {*available()}
    assert [*available()] == sorted(available())


def test_they_are_made_in_the_order_of_their_names_with_their_options() -> None:
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
        (["percentile"], {"percentile": {"cpu": 95}}, "predictor percentile: cpu of node is 95"),
        (["percentile"], {"percentile": {"gpu": 0.5}}, "predictor percentile: .*'gpu'"),
        (
            ["percentile"],
            {"percentile": {"classes": {"prod": 0.9}}},
            "predictor percentile: classes: 'prod' is 0.9, not values by name",
        ),
        (
            ["percentile"],
            {"percentile": {"classes": ["prod"]}},
            r"predictor percentile: classes is \['prod'\], not values by name",
        ),
        (["max"], {"max": {"options": ["a"]}}, r"predictor max: options is \['a'\], not values"),
        (
            ["max"],
            {"max": {"options": {"vpa": 1}}},
            "predictor max: options: 'vpa' is 1, not values",
        ),
        (["max"], {"max": {"members": 7}}, "predictor max: members is 7, not a list"),
    ],
)
def test_what_cannot_be_made_is_an_error(
    names: list[str], options: dict[str, dict[str, float]], problem: str
) -> None:
    with pytest.raises(PredictorError, match=problem):
        build(names, options)


def test_an_unknown_name_is_answered_with_those_that_there_are() -> None:
    with pytest.raises(PredictorError) as error:
        build(["oracle"], {})
    assert "nsigma-v1, nsigma-v2, percentile, pods-nsigma" in (error.value.hint or "")


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("pipeline.processors.nowhere:Percentile", "cannot be loaded: .*No module"),
        ("pipeline.processors.predictors.percentile:Nowhere", "cannot be loaded: .*Nowhere"),
        ("pipeline.processors.predictors.percentile:Percentile", "makes a predictor named 'perc"),
    ],
)
def test_an_entry_point_that_leads_nowhere_is_an_error(
    value: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = EntryPoint("mine", value, registry.GROUP)
    monkeypatch.setattr(registry, "available", lambda: {"mine": point})
    with pytest.raises(PredictorError, match=problem):
        build(["mine"], {})


@pytest.mark.parametrize("raised", ["RuntimeError('no licence')", "ValueError('no licence')"])
def test_a_module_that_raises_is_an_error_of_its_package(
    raised: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "springtide_test_odd.py").write_text(f"raise {raised}\n")
    monkeypatch.syspath_prepend(tmp_path)
    point = EntryPoint("mine", "springtide_test_odd:Mine", registry.GROUP)
    monkeypatch.setattr(registry, "available", lambda: {"mine": point})
    problem = f"mine of an unknown package cannot be loaded: {raised}"
    with pytest.raises(PredictorError, match=re.escape(problem)):
        build(["mine"], {})


def test_the_package_of_ours_is_springtide() -> None:
    assert registry.package_of(available()["vpa"]).startswith("springtide 0.")


def test_one_that_does_not_run_cannot_decide() -> None:
    with pytest.raises(PredictorError, match="'vpa' is to decide but does not run"):
        Bank(ModelConfig(predictors=("percentile",), predictor="vpa"))


@pytest.mark.parametrize("name", ALL)
def test_each_is_in_the_documents_with_its_options(name: str, project: Path) -> None:
    text = (project / "docs" / "models.md").read_text()
    (row,) = re.findall(rf"^\| `{name}` \| [^|]+ \| ([^|]*)\|$", text, re.MULTILINE)
    options = inspect.signature(available()[name].load()).parameters
    assert re.findall(r"`(\w+)`", row) == [*options]
    for option, parameter in options.items():
        default = re.search(rf"`{option}` ([0-9.]+)", row)
        if default:
            assert float(default[1]) == parameter.default
