"""The hash of the configuration: of which constants, and equal in every process."""

import subprocess
import sys

import pytest

from pipeline.processors import calibrated
from pipeline.processors.calibrated import fleet_prior, risk_level
from pipeline.processors.calibrated.configuration import configuration_hash, constants

PROGRAM = (
    "from pipeline.processors.calibrated.configuration import configuration_hash as hash;"
    "print(hash())"
)


def test_each_module_with_constants_counts() -> None:
    text = "".join(constants())
    for module in ("futures", "horizon", "pooled_margins", "risk_budget", "risk_level", "shape"):
        assert f"{calibrated.__name__}.{module}." in text
    assert "risk_level.DEBT_HALF_LIFE_DAYS = 10.0\n" in text
    assert " object at 0x" not in text
    assert "..." not in text


def test_hash_is_equal_in_another_process() -> None:
    command = [sys.executable, "-c", PROGRAM]
    other = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert other.stdout.strip() == configuration_hash()


@pytest.mark.parametrize("change", ["constant", "prior"])
def test_a_change_changes_the_hash(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = configuration_hash()
    if change == "constant":
        monkeypatch.setattr(risk_level, "HIGHEST", 2.5)
    else:
        changed = fleet_prior.histogram() * 0.5
        monkeypatch.setattr(fleet_prior, "histogram", lambda: changed)
    assert configuration_hash.__wrapped__() != before
