"""Packages whose plugins cannot be used, in every registry: the error names the package."""

from pathlib import Path

import pytest

from pipeline import __version__
from pipeline.processors.predictors.declaration import Declaration
from tests.docs.guides import install, run

POINTS = """
[project.entry-points]
"springtide.predictors" = {exits = "acme:P", Text = "os:name", percentile = "os:name"}
"springtide.scorers" = {exits = "acme:S", Text = "os:name", Peaks = "os:name"}
"springtide.sample_sources" = {exits = "acme:S", Text = "os:name", prometheus = "os:name"}
"""
CODE = """
from pipeline.errors import SpringtideError
from pipeline.processors.predictors.registry import PREDICTORS
from pipeline.processors.scorers.registry import SCORERS
from pipeline.sources.provider.registry import SOURCES
for registry, taken, usable in (
    (PREDICTORS, "percentile", "vpa"), (SCORERS, "Peaks", "TargetLoadPacking"),
    (SOURCES, "prometheus", "metrics-server"),
):
    for name in ("exits", "Text", taken, "Unknown"):
        try:
            registry.get(name)
        except SpringtideError as error:
            print(error.message)
    registry.get(usable)
"""


def test_an_unusable_plugin_is_an_error_of_its_package_and_others_work(tmp_path: Path) -> None:
    install(tmp_path, "acme-tools", "acme", "import sys; sys.exit(3)", POINTS)
    lines = run(CODE, tmp_path).replace("springtide 0.1.0", "springtide").splitlines()
    kinds = (
        ("", "predictor", "percentile", "a class with a `declaration`"),
        ("", "plugin", "Peaks", "a Scorer"),
        ("provider.kind: ", "sample source", "prometheus", "a SampleSource"),
    )
    assert lines == [
        f"{setting}{problem}"
        for setting, kind, taken, required in kinds
        for problem in (
            f"{kind} exits of acme-tools 1.0 cannot be loaded: SystemExit(3)",
            f"{kind} Text of acme-tools 1.0 is not {required}",
            f"{kind} {taken} is in more than one package: acme-tools 1.0, springtide",
            f"there is no {kind} 'Unknown'",
        )
    ]


def test_a_module_that_fails_leaves_the_plugins_of_others(tmp_path: Path) -> None:
    package = tmp_path / "plugins_here"
    package.mkdir()
    for name, source in (
        ("__init__", ""), ("good", "PLUGIN = Plugin"), ("bad", "import nowhere"), ("helper", ""),
    ):  # fmt: skip
        good = "class Plugin:\n    name = 'works'\n"
        (package / f"{name}.py").write_text(good * (name == "good") + source)
    code = """
import plugins_here
from pipeline.errors import SpringtideError
from pipeline.plugin_registry import Registry

def error(problem, hint):
    return SpringtideError(problem, hint=hint)

registry = Registry("plugin", plugins_here, "PLUGIN", "none", "a plugin", bool, error)
print(registry.get("works").name, *registry.points)
try:
    registry.get("bad")
except SpringtideError as error:
    print(error.message)
"""
    which = f"plugin bad of springtide {__version__}"
    problem = ModuleNotFoundError("No module named 'nowhere'")
    assert run(code, tmp_path).splitlines() == [
        "works bad works", f"{which} cannot be loaded: {problem!r}",
    ]  # fmt: skip


@pytest.mark.parametrize("wrong", [{"summary": None}, {"options": ["a"]}, {"formulas": [1]}])
def test_a_declaration_with_wrong_parts_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(TypeError, match="is not of type"):
        Declaration(**({"summary": "x"} | wrong))  # type: ignore[arg-type]
