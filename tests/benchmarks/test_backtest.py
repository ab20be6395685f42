"""The benchmark of the backtest compares like with like."""

import pytest

from benchmarks import backtest


def test_both_programs_find_the_same_violations(capsys: pytest.CaptureFixture[str]) -> None:
    backtest.report(nodes=3, pods=2, days=3, plain_nodes=2, plain_days=3)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in lines[1:]] == ["backtest", "backtest", "plain Python"]
    assert all("node-hours/s" in line for line in lines[1:])
    trace = backtest.made_trace(nodes=2, pods=2, days=3)
    violations = backtest.plain_cost(trace).violations
    assert 0.0 < violations.max() <= 1.0


def test_times_of_different_results_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backtest, "FRACTIONS", (0.5, 0.5))
    with pytest.raises(SystemExit, match="finds other violations"):
        backtest.report(nodes=2, pods=2, days=3, plain_nodes=2, plain_days=3)
