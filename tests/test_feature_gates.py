"""Feature gates in settings, variables and flags."""

import pytest

from pipeline.errors import SettingsError
from pipeline.settings import load_settings
from pipeline.settings.feature_gates import Gate, gates_in_force

DEFAULTS = {"A": True, "B": False, "C": False}
KNOWN = {name: Gate(value, "") for name, value in DEFAULTS.items()}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", DEFAULTS),
        ("A=false", {"A": False, "B": False, "C": False}),
        ("A=false,B=true", {"A": False, "B": True, "C": False}),
        ("B=true,B=false", DEFAULTS),
    ],
)
def test_gates_that_are_not_named_keep_their_value(given: str, expected: dict[str, bool]) -> None:
    assert gates_in_force(given, KNOWN, "x.feature_gates") == expected


def test_unknown_gate_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(SettingsError, match=r"x\.feature_gates: there is no gate 'D'") as raised:
        gates_in_force("A=true,D=true", KNOWN, "x.feature_gates")
    assert raised.value.hint == "gates are A, B, C"


@pytest.mark.parametrize("given", ["A", "A=", "A=yes", "A=True", ",", "A=true,", "A = true"])
def test_invalid_text_is_an_error_with_what_is_allowed(given: str) -> None:
    with pytest.raises(SettingsError, match="Name=true or Name=false"):
        load_settings(None, {"SPRINGTIDE_WEBHOOK_FEATURE_GATES": given}, {})
