"""The copied cases run through the product, and the runner notices what is wrong."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pipeline.processors.scorers import load_aware
from pipeline.times import parse_time
from tests.vectors.__main__ import COPIES, main
from tests.vectors.cases import Case, Recorded, plain, recorded, unread
from tests.vectors.runner import (
    Difference,
    Group,
    NotBuiltError,
    Result,
    compare,
    load_groups,
    run_case,
    run_file,
)

DATA = Path(__file__).parent.parent / "data" / "vectors"
FILES = sorted(DATA.glob("*.json"))


@cache
def results(path: Path) -> list[Result]:
    return run_file(path, load_groups())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_copied_case_passes_differs_or_is_not_built(path: Path) -> None:
    for result in results(path):
        assert result.mismatches == []
        counted = result.passed + len(result.differences) + len(result.not_built)
        assert counted == result.cases > 0


def test_every_deliberate_difference_is_listed_with_its_effect() -> None:
    """A case that begins to differ must be added to the list on purpose."""
    differing: dict[str, dict[str, str]] = {}
    for path in FILES:
        for result in results(path):
            for name, difference in result.differences:
                differing.setdefault(result.name, {})[name] = difference.effect
    assert differing == json.loads((Path(__file__).parent / "differences.json").read_text())


def _file(tmp_path: Path, group: str, given: Any, expected: Any) -> str:
    case = {"name": "a case", "input": given, "expected": expected}
    path = tmp_path / "vectors.json"
    path.write_text(json.dumps({"groups": [{"group": group, "cases": [case]}]}))
    return str(path)


def test_a_wrong_expectation_is_printed_in_full_and_ends_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"type": "p50", "samples": [1, 2, 3, 4]}
    assert main([_file(tmp_path, "metric_aggregate", given, {"value": 3})]) == 1
    out = capsys.readouterr().out
    parts = ("1 mismatches", "MISMATCH: a case", json.dumps(given), "wanted 3, got 2.0")
    assert [part for part in parts if part not in out] == []


@pytest.mark.parametrize(
    ("group", "text"),
    [
        ("of_another_part", "no adapter: of_another_part (1)"),
        ("pod_numa_split", "not built yet: pod_numa_split (1): no exporter measures NUMA nodes"),
        ("extender_interest", "the tests' stand-in for kube-scheduler:"),
    ],
)
def test_groups_are_reported_by_what_holds_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], group: str, text: str
) -> None:
    given: Case = {"managed_resources": [], "containers": []}
    assert main([_file(tmp_path, group, given, {"called": True})]) == 0
    assert text in capsys.readouterr().out


@pytest.mark.parametrize("text", ["", "[]", '{"groups": 3}'])
def test_a_file_of_another_form_ends_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    assert main([str(path)]) == 2
    assert str(path) in capsys.readouterr().err


def test_all_copied_files_run_by_default(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {*COPIES.glob("*.json")} == {*FILES}
    monkeypatch.setattr("tests.vectors.__main__.COPIES", tmp_path)
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text('{"groups": []}')
    assert main([]) == 0
    out = capsys.readouterr().out
    assert "a.json" in out
    assert "b.json" in out


def run(given: Any, expected: Any, adapter: Any, **more: Any) -> Result:
    group = Group(adapter, through="a test", **more)
    result = Result("g", group, 1)
    run_case(group, {"name": "a case", "input": given, "expected": expected}, result)
    return result


def test_a_case_with_a_key_that_the_adapter_does_not_read_fails() -> None:
    given = {"a": 1, "b": {"c": [{"d": 2}]}}
    for adapter, paths in (
        (lambda case: case["a"], "b"),
        (lambda case: [case["a"], case["b"]][0], "b.c"),
        (lambda case: [case["a"], case["b"]["c"]][0], "b.c[0].d"),
        (lambda case: [case["a"], plain(case["b"])][0], None),
    ):
        result = run(given, {"x": 1}, lambda case, adapter=adapter: {"x": adapter(case)})
        problem = f"keys that the adapter does not read: {paths}\n"
        assert result.passed == (paths is None)
        assert paths is None or problem in result.mismatches[0][1]


def test_recorded_objects_serve_as_plain_ones() -> None:
    case = recorded({"a": {"b": 1}, "c": None})
    assert isinstance(case, Recorded)
    assert json.loads(json.dumps(plain(case))) == {"a": {"b": 1}, "c": None}
    assert list(unread(case)) == []
    assert list(unread(recorded({"a": {"b": 1}}))) == ["a"]
    other = recorded({"a": 1, "c": 2})
    assert (other.get("a"), "c" in other, [*unread(other)]) == (1, True, [])


@pytest.mark.parametrize(
    ("adapter", "passes"),
    [
        (lambda case: load_aware.SCORER.read({"unknown": 1}), True),  # a SpringtideError
        (lambda case: parse_time("soon"), True),  # a ValueError in a file of the product
        (lambda case: int("not of the product"), False),
        (lambda case: dict[str, Any]()["missing"], False),
        (lambda case: {"error": True}, True),
    ],
)
def test_only_errors_of_the_product_are_expected_errors(adapter: Any, passes: bool) -> None:
    assert bool(run({}, {"error": True}, adapter).passed) == passes


def not_built(case: Any) -> Any:
    raise NotBuiltError("nobody does this")


def test_a_case_that_is_not_built_is_no_mismatch() -> None:
    assert run({}, {}, not_built).not_built == [("a case", "nobody does this")]


@pytest.mark.parametrize(("other", "agreeing"), [(1, 1), (2, 0), (None, 0)])
def test_a_case_that_differs_runs_again_without_the_difference(
    other: int | None, agreeing: int
) -> None:
    result = run(
        5, 1, lambda given: given,
        differs=lambda given, expected: Difference("why", "effect", 5),
        without=lambda given: other,
    )  # fmt: skip
    assert (len(result.differences), len(result.agreeing)) == (1, agreeing)
    assert len(result.mismatches) == (other == 2)


@pytest.mark.parametrize(
    ("wanted", "actual", "truncated", "same"),
    [
        (1.0, 1.0 + 1e-10, False, True), (1.0, 1.0 + 1e-8, False, False),
        (1000, 1001, False, False), (1000, 1001, True, True), (1000, 1002, True, False),
        (True, 1, False, False), (0, None, False, False), ("a", "b", False, False),
        ({"a": None}, {}, False, True), ({}, {"a": 1}, False, False), ([1], [1, 2], False, False),
        ({"error": True}, {"error": True, "raised": "ValueError: x"}, False, True),
        ({"value": 1}, {"error": True, "raised": "ValueError: x"}, False, False),
    ],
)  # fmt: skip
def test_tolerances(wanted: Any, actual: Any, truncated: bool, same: bool) -> None:
    assert (compare(wanted, actual, truncated=truncated) == []) is same
