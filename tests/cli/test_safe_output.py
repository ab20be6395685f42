"""Names of others are printed so that they can do nothing but be read."""

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cli import safe_output
from pipeline.cli.safe_output import printable, say


@given(st.text())
def test_nothing_is_left_that_is_not_seen(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert (shown == text) == text.isprintable()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("pod-1 ünder 箱", "pod-1 ünder 箱"),
        ("a\x1b[2Jb", "a\\x1b[2Jb"),
        ("a\nnode: 0 cores", "a\\nnode: 0 cores"),
        ("a\u202eb\ud800", "a\\u202eb\\ud800"),
    ],
)
def test_what_moves_the_cursor_or_turns_the_text_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_each_line_stays_one(capsys: pytest.CaptureFixture[str]) -> None:
    say(["one", "t\two", ""])
    assert capsys.readouterr().out == "one\nt\\two\n\n"


def test_examples() -> None:
    assert doctest.testmod(safe_output) == (0, 1)
