"""The copied cases run through the product, and the runner itself can fail."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.vectors.__main__ import main
from tests.vectors.runner import compare, load_adapters, run_file

DATA = Path(__file__).parent.parent / "data" / "vectors"
FILES = sorted(DATA.glob("*.json"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_copied_case_passes_or_differs_for_a_stated_reason(path: Path) -> None:
    result = run_file(path, load_adapters())
    assert [group.mismatches for group in result.groups if group.mismatches] == []
    for group in result.groups:
        assert group.passed + len(group.differences) == group.cases > 0


def test_the_groups_of_part_one_are_there() -> None:
    groups = {group["group"] for path in FILES for group in json.loads(path.read_text())["groups"]}
    assert groups >= {
        "histogram_buckets",
        "histogram_percentile",
        "histogram_checkpoint",
        "decaying_histogram",
        "metric_aggregate",
        "system_usage",
        "collect_interval",
        "cgroup_file_parsing",
        "cgroup_paths",
    }


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
    assert "1 mismatches" in out
    assert "MISMATCH: a case" in out
    assert json.dumps(given) in out
    assert "wanted 3, got 2.0" in out


def test_a_right_file_ends_with_0_and_names_groups_without_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([_file(tmp_path, "of_another_part", {}, {})]) == 0
    assert "not covered: of_another_part (1)" in capsys.readouterr().out


def test_a_crash_of_ours_does_not_pass_for_an_expected_error(tmp_path: Path) -> None:
    assert main([_file(tmp_path, "metric_aggregate", {"samples": []}, {"error": True})]) == 1


@pytest.mark.parametrize("text", ["", "[]", '{"groups": 3}'])
def test_what_is_no_vector_file_ends_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    assert main([str(path)]) == 2
    assert str(path) in capsys.readouterr().err


def test_without_a_file_all_that_were_copied_are_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    said = capsys.readouterr().out
    assert all(path.name in said for path in FILES)


@pytest.mark.parametrize(
    ("wanted", "actual", "cut", "same"),
    [
        (1.0, 1.0 + 1e-10, False, True),
        (1.0, 1.0 + 1e-8, False, False),
        (1000, 1001, False, False),
        (1000, 1001, True, True),
        (1000, 1002, True, False),
        (True, 1, False, False),
        (0, None, False, False),
        ("a", "b", False, False),
        ({"a": None}, {}, False, True),
        ({}, {"a": 1}, False, False),
        ([1], [1, 2], False, False),
        ({"error": True}, {"error": True, "raised": "ValueError: x"}, False, True),
        ({"value": 1}, {"error": True, "raised": "ValueError: x"}, False, False),
    ],
)
def test_tolerances(wanted: Any, actual: Any, cut: bool, same: bool) -> None:
    assert (compare(wanted, actual, cut=cut) == []) is same
