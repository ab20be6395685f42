"""The benchmark of the models compares like with like."""

import shutil

import pytest

from benchmarks import model


def test_bank_c_and_python_objects_are_compared_in_one_table(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model.report(200, 1)
    table = capsys.readouterr().out
    assert "200 pods" in table
    assert "bank " in table
    assert "Python objects, 200 pods" in table
    assert ("C, 200 pods" in table) == bool(shutil.which("gcc") or shutil.which("cc"))
    assert "restored in" in table


def test_times_of_different_answers_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "FRACTIONS", (0.5, 0.5))
    with pytest.raises(SystemExit, match="the answers differ from the bank's"):
        model.report(200, 1)


def test_without_a_compiler_it_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    model.report(100, 1)
    assert "C: no compiler here" in capsys.readouterr().out
