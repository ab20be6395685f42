"""Directories follow the XDG base directory specification."""

from pathlib import Path

import pytest

from pipeline.local.cache_folders import state_root


@pytest.mark.parametrize(
    ("variable", "expected"), [("/s", "/s/springtide"), ("s", "/h/.local/state/springtide")]
)
def test_state_root_follows_xdg(
    variable: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", variable)
    monkeypatch.setenv("HOME", "/h")
    assert state_root() == Path(expected)
