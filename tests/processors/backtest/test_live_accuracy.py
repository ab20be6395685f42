"""What workers hold predicted peaks against is the oracle of the backtest, to the last digit that
sums in another order leave alone."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.processors.backtest.protocol import outcomes
from pipeline.processors.backtest.trace_tables import read_traces
from pipeline.processors.backtest.trace_windows import windows
from pipeline.processors.model import bank as banks
from pipeline.processors.model.bank import Bank
from tests.processors.backtest.trace_files import random_tables
from tests.processors.windows import config_with

STEP_SECONDS = 600
"""A pod that is absent for three steps is the same pod, after four it is another one."""


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32), steps=st.integers(8, 40), nodes=st.integers(1, 3),
    horizon=st.integers(1, 12), interval=st.integers(1, 4),
)  # fmt: skip
def test_highest_usage_is_the_oracle_of_the_backtest(
    seed: int, steps: int, nodes: int, horizon: int, interval: int
) -> None:
    """With pods that arrive, end, move, and are absent for a while."""
    tables = random_tables(np.random.default_rng(seed), steps, nodes, 6, STEP_SECONDS)
    (trace,) = read_traces("made", *tables)
    bank = Bank(
        config_with(
            predictors=("percentile",), expiration_seconds=1800.0,
            horizon_seconds=float(horizon * STEP_SECONDS),
            accuracy_interval_seconds=float(interval * STEP_SECONDS),
        )
    )  # fmt: skip
    ended = []
    for _, batch in windows(trace):
        bank.apply(batch)
        applied = [(bank, node) for node in trace.nodes]
        ended += banks.ended_peaks(applied, banks.peaks(applied))
    zero_ms = (trace.start_seconds + STEP_SECONDS) * 1000
    for node, peak in ended:
        at = (peak.made_ms - zero_ms) // (STEP_SECONDS * 1000)
        expected = outcomes(trace, np.array([at]), horizon)
        known = peak.known == 1.0
        highest = np.minimum(peak.highest, peak.requests)
        assert peak.requests.tolist() == expected.requests[node, 0].tolist()
        np.testing.assert_allclose(highest[known], expected.oracle[node, 0][known], rtol=1e-9)
        assert known.tolist() == [name in trace.resources for name in ("cpu", "memory")]
    assert len(ended) >= len(trace.nodes) * ((steps - 1 - horizon) // min(interval, horizon))
