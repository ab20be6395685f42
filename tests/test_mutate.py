"""Mutants change one line each, and only code that runs."""

from pathlib import Path

from tests.mutate import ROOT, mutants_of, runs_for

SOURCE = '''"""1 + 1."""
from dataclasses import dataclass

@dataclass(frozen=True)
class A:
    x: int | None = 7

def f(a: int | None, b: bool = True) -> int | None:
    if not a:
        return None
    print(f"ü {a + 1}"); a += min(a, 2)
    return a if 0 <= a or b else -a
'''


def test_mutants_change_one_line_of_running_code(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(SOURCE)
    mutants = mutants_of(path)
    assert [(mutant.line, mutant.change) for mutant in mutants] == [
        (6, "7  ->  8"), (6, "7  ->  6"), (8, "True  ->  False"), (9, "not a  ->  a"),
        (11, "a += min(a, 2)  ->  a -= min(a, 2)"), (11, "min(a, 2)  ->  max(a, 2)"),
        (11, "2  ->  3"), (11, "2  ->  1"),
        (12, "return a if 0 <= a or b else -a  ->  return None"),
        (12, "0 <= a or b  ->  0 <= a and b"), (12, "0 <= a  ->  0 < a"), (12, "0 <= a  ->  0 > a"),
        (12, "0  ->  1"), (12, "0  ->  -1"), (12, "-a  ->  a"),
    ]  # fmt: skip
    assert len({mutant.source for mutant in mutants}) == len(mutants)
    for mutant in mutants:
        before, after = SOURCE.splitlines(), mutant.source.splitlines()
        lines = range(1, len(before) + 1)
        changed = [line for line, b, a in zip(lines, before, after, strict=True) if a != b]
        assert changed == [mutant.line]
    assert path.read_text() == SOURCE


def test_tests_of_the_module_run_before_those_of_its_package() -> None:
    package = ["tests/processors/join", "tests/vectors"]
    mirror = ["tests/processors/join/test_sample_join.py"]
    assert runs_for(ROOT / "pipeline/processors/join/sample_join.py") == [mirror, package]
    package = ["tests/processors/model", "tests/vectors"]
    assert runs_for(ROOT / "pipeline/processors/model/entity_columns.py") == [package]
