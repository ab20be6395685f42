"""Names from records and files are printed without control characters."""

import doctest
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import printable_text
from pipeline.cli.safe_output import print_lines, print_progress, printable


@given(st.text())
def test_printable_leaves_only_visible_characters(text: str) -> None:
    escaped = printable(text)
    assert escaped.isprintable()
    assert (escaped == text) == text.isprintable()


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("pod-1 ünder 箱", "pod-1 ünder 箱"), ("a\x1b[2Jb", "a\\x1b[2Jb"),
        ("a\nnode: 0 cores", "a\\nnode: 0 cores"), ("a\u202eb\ud800", "a\\u202eb\\ud800"),
    ],
)  # fmt: skip
def test_printable_escapes_cursor_and_direction_controls(text: str, escaped: str) -> None:
    assert printable(text) == escaped


def test_print_lines_keeps_each_line_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_lines(["one", "t\two", ""])
    assert capsys.readouterr().out == "one\nt\\two\n\n"


def test_docstring_examples_hold() -> None:
    assert doctest.testmod(printable_text) == (0, 1)


@pytest.mark.parametrize(("is_terminal", "printed"), [(True, 3), (False, 1)])
def test_progress_is_repeated_only_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, is_terminal: bool,
    printed: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    for second in range(3):
        print_progress(f"reading\x1b ({second} s)", is_first=second == 0)
    lines = [f"reading\\x1b ({second} s)" for second in range(printed)]
    assert (output := capsys.readouterr()).out == ""
    assert output.err.splitlines() == lines


def test_no_lines_print_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    print_lines(())
    assert capsys.readouterr().out == ""
