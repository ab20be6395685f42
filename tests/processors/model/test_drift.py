"""Changes of level: each decision is that of river's ADWIN; and what the bank makes of them."""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from river.drift import ADWIN

from pipeline.errors import CheckpointLayoutError
from pipeline.processors.arrays import FloatArray
from pipeline.processors.model import drift
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.column_store import Columns
from pipeline.processors.model.model_config import ENTITIES, NODE, SYSTEM, ModelConfig
from pipeline.processors.model.result_records import encode_prediction
from pipeline.processors.model.training_batch import NodeWindow
from pipeline.times import format_time
from pipeline.topics.codec import decode_json
from pipeline.topics.predictions import Counts, DriftTimes, PredictionRecord
from tests.processors.joined import NODE_ROW, joined
from tests.processors.windows import GIB, LENGTH_MS, Pod, window

Mode = Literal["off", "flag", "shorten"]

PER_NODE = len(ENTITIES) * 2
PROD = ENTITIES.index("prod")


def _columns(nodes: int = 1) -> Columns:
    columns = Columns(drift.COLUMNS)
    columns.grow(nodes)
    return columns


def _changes(values: FloatArray, columns: Columns | None = None) -> npt.NDArray[np.bool_]:
    """Where each series (steps, series) changed; NaN is no value."""
    columns = columns or _columns(-(-values.shape[1] // PER_NODE))
    found = np.zeros(values.shape, np.bool_)
    for step, row in enumerate(values):
        known = np.flatnonzero(~np.isnan(row))
        found[step, known] = drift.update(columns, known, row[known])
    return found


def _changes_by_river(values: FloatArray) -> npt.NDArray[np.bool_]:
    """The same by the reference, one series after the other."""
    found = np.zeros(values.shape, np.bool_)
    for series in range(values.shape[1]):
        adwin = ADWIN()
        for step in np.flatnonzero(~np.isnan(values[:, series])):
            adwin.update(float(values[step, series]))
            found[step, series] = adwin.drift_detected
    return found


SHAPES: dict[str, Callable[[np.random.Generator, int], FloatArray]] = {
    "constant": lambda rng, n: np.full(n, rng.random()),
    "zero": lambda rng, n: np.zeros(n),
    "noise": lambda rng, n: rng.normal(rng.random(), 0.2, n),
    "steps": lambda rng, n: rng.random(n // 150 + 1).repeat(150)[:n] + rng.normal(0, 0.05, n),
    "bare steps": lambda rng, n: rng.random(n // 150 + 1).repeat(150)[:n],
    "small steps": lambda rng, n: 0.5 + 0.1 * (np.arange(n) // 400 % 2) + rng.normal(0, 0.02, n),
    "ramp": lambda rng, n: np.linspace(0.1, 0.9, n) + rng.normal(0, 0.03, n),
    "day": lambda rng, n: 0.5 + 0.4 * np.sin(np.arange(n) / 150) + rng.normal(0, 0.05, n),
    "switch": lambda rng, n: (rng.random(n) < 0.5).astype(np.float64),
    "spikes": lambda rng, n: np.where(rng.random(n) < 0.01, 1.0, 0.1),
    "tiny": lambda rng, n: 1e-12 * rng.random(n),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("missing", [0.0, 0.1])
def test_every_decision_is_that_of_river(shape: str, missing: float) -> None:
    rng = np.random.default_rng(list(shape.encode()))
    values = np.stack([SHAPES[shape](rng, 1600) for _ in range(4)], axis=1).clip(0.0, 1.0)
    values[rng.random(values.shape) < missing] = np.nan
    expected = _changes_by_river(values)
    np.testing.assert_array_equal(_changes(values), expected)
    if shape in ("steps", "bare steps", "small steps", "ramp", "day"):
        assert expected.any(axis=0).all()


def test_sums_are_those_of_river_to_the_last_bit() -> None:
    rng = np.random.default_rng(7)
    values, columns, adwin = rng.random(3000), _columns(), ADWIN()
    for value in values:
        assert not drift.update(columns, np.array([5]), np.array([value]))[0]
        adwin.update(value)
        sums = [columns[f"drift_{name}"].flat[5] for name in ("total", "squares", "values")]
        assert sums == [adwin.total, adwin.variance, adwin.width]


@given(
    st.lists(
        st.tuples(
            st.floats(0, 1, width=16) | st.just(np.nan),
            st.sampled_from([0.0, 1 / 16, 1 / 4]),
            st.integers(1, 120),
        ),
        min_size=1,
        max_size=8,
    ),
    st.integers(0, 2**32),
)
@settings(deadline=None, max_examples=60)
def test_changes_equal_those_of_river(pieces: list[tuple[float, float, int]], seed: int) -> None:
    rng = np.random.default_rng(seed)
    series = [level + noise * rng.random(n) for level, noise, n in pieces]
    values = np.concatenate(series).clip(0.0, 1.0)[:, None]
    np.testing.assert_array_equal(_changes(values), _changes_by_river(values))


def test_beyond_its_size_the_window_forgets_its_oldest_values() -> None:
    """river's has no end; ours keeps 8,188 values or more, and estimates their variance."""
    rng = np.random.default_rng(11)
    values = rng.normal(0.5, 0.1, 13_000).clip(0.0, 1.0)
    columns = _columns()
    for step, value in enumerate(values):
        assert not drift.update(columns, np.array([0]), np.array([value]))[0]
        if step % 1000 == 999 or 10_234 <= step <= 10_236:
            width = int(drift.window_width(columns["drift_values"].ravel()[:1].astype(np.int64))[0])
            assert width == step + 1 if step < 10_235 else 8188 <= width <= 10_235
            window = values[step + 1 - width : step + 1]
            total = columns["drift_total"].flat[0]
            assert total == pytest.approx(window.sum(), rel=1e-12)
            assert columns["drift_buckets"].sum() == pytest.approx(total, rel=1e-12)
            assert columns["drift_squares"].flat[0] == pytest.approx(window.var() * width, rel=0.02)
    rise = _changes(np.full((64, 1), 0.8), columns)[:, 0]
    assert rise.sum() == 1


def _observe(columns: Columns, usage: float, allocatable: float, end: int) -> bool:
    values = np.full((1, len(ENTITIES), 2), np.nan)
    values[0, NODE, 0] = usage
    changed = drift.observe(
        columns, np.array([0]), values, np.array([[allocatable, np.nan]]), np.array([end])
    )
    return bool(changed[0, NODE, 0])


@pytest.mark.parametrize("allocatable", [16.0, 11.5, np.nan])
def test_usage_is_a_share_of_a_power_of_two(allocatable: float) -> None:
    """So the answer is that of river for usage / 16, whatever came first; nothing is rounded."""
    rng = np.random.default_rng(3)
    usage = np.concatenate([rng.uniform(0.0, 1.0, 100), rng.uniform(8.5, 16.0, 400)])
    columns = _columns()
    found = [_observe(columns, value, allocatable, end) for end, value in enumerate(usage)]
    assert columns["drift_scale"][0].tolist() == [16.0, 1.0]
    assert found == _changes_by_river(usage[:, None] / 16.0)[:, 0].tolist()
    assert sum(found) == 1


@pytest.mark.parametrize(("before", "after"), [(8.0, 64.0), (64.0, 8.0)])
def test_growing_or_shrinking_node_keeps_its_series(before: float, after: float) -> None:
    columns, other = _columns(), _columns()
    for end, value in enumerate(np.random.default_rng(4).uniform(1.0, 7.0, 600)):
        assert not _observe(columns, value, before if end < 300 else after, end)
        _observe(other, value, after, end)
    for name in drift.COLUMNS:
        np.testing.assert_array_equal(columns[name], other[name])


@pytest.mark.parametrize("odd", [1e6, 2.0**20, 1e300, np.inf, 64.0, 0.001])
def test_one_wrong_allocatable_does_not_blind_a_series(odd: float) -> None:
    rng = np.random.default_rng(5)
    usage = np.concatenate([rng.uniform(1.0, 2.0, 300), rng.uniform(9.0, 10.0, 300)])
    columns, usual = _columns(), _columns()
    found = [_observe(columns, u, odd if i == 10 else 16.0, i) for i, u in enumerate(usage)]
    assert found == [_observe(usual, u, 16.0, i) for i, u in enumerate(usage)]
    assert sum(found) == 1
    assert columns["drift_scale"][0].tolist() == [16.0, 1.0]


@pytest.mark.parametrize("allocatable", [0.0, np.nan, 4.0])
def test_no_usage_is_out_of_bounds(allocatable: float) -> None:
    columns = _columns()
    for end, usage in enumerate([0.0, 1e6, 0.0, np.nan, 5e-324]):
        _observe(columns, usage, allocatable, end)
    assert 0.0 <= columns["drift_total"].min() <= columns["drift_total"].max() <= 1.0
    assert columns["drift_values"].sum() == 4


def test_a_node_takes_less_than_eight_kibibytes() -> None:
    assert _columns().nbytes < 8 * 1024


def test_no_row_is_no_work() -> None:
    none = np.zeros(0, np.int64)
    shape = (0, len(ENTITIES), 2)
    found = drift.observe(_columns(), none, np.zeros(shape), np.zeros((0, 2)), none)
    assert found.shape == shape


# -- in the bank


def _windows(levels: Sequence[float], node: str = "node-a", seed: int = 0) -> list[NodeWindow]:
    """One window per level, in cores, of a node with one Prod pod; memory stays as it is."""
    rng = np.random.default_rng(seed)
    used = np.array(levels) * rng.uniform(0.9, 1.1, len(levels))
    return [
        window(end + 1, [Pod("p", (cpu, 4 * GIB))], node=node, usage=(cpu + 0.5, 8 * GIB))
        for end, cpu in enumerate(used)
    ]


def _bank(mode: Mode, windows: Sequence[NodeWindow]) -> Bank:
    bank = Bank(ModelConfig(drift=mode))
    bank.apply(windows)
    return bank


def _peak(bank: Bank, entity: int = NODE) -> float:
    return float(bank.peaks(["node-a"])[0].predictors["percentile"].raw[entity, 0])


def _weights(bank: Bank) -> FloatArray:
    """Of the entities of the node, (entities, 2)."""
    return bank.store.models.weight[bank.node_models["node-a"].entity_rows]


RISE, FALL = [2.0] * 160 + [9.0] * 40, [9.0] * 160 + [2.0] * 240


@pytest.mark.parametrize("levels", [RISE, FALL])
def test_only_the_changed_series_reports_a_change(levels: list[float]) -> None:
    found = _bank("flag", _windows(levels)).peaks(["node-a"])[0]
    # The first 160 windows are five rounds of the clock; one more shows what came after.
    assert found.drift_ms[[NODE, PROD], 0].tolist() == [window(192).end_ms] * 2
    assert found.drifts[[NODE, PROD], 0].tolist() == [1, 1]
    assert (found.drift_ms[:, 1] == -1).all()
    assert (found.drift_ms[[SYSTEM, ENTITIES.index("mid")]] == -1).all()


def test_off_reports_no_change_and_flag_changes_no_peak() -> None:
    windows = _windows(RISE)
    off, flag = _bank("off", windows).peaks(["node-a"])[0], _bank("flag", windows)
    assert (off.drift_ms == -1).all()
    assert not off.drifts.any()
    same = flag.peaks(["node-a"])[0].predictors["percentile"]
    np.testing.assert_array_equal(off.predictors["percentile"].raw, same.raw)


@pytest.mark.parametrize("entity", [NODE, PROD])
def test_shorten_brings_the_peak_down_sooner(entity: int) -> None:
    """After 240 windows the 160 before still weigh far more than one in twenty, and a sixteenth of
    that is less."""
    windows = _windows(FALL)
    assert _peak(_bank("flag", windows), entity) > 9.0
    assert _peak(_bank("shorten", windows), entity) < 3.0


def test_shorten_brings_the_peak_up_sooner() -> None:
    """What is rarer than one in twenty is no p95, until what was before weighs less."""
    windows = _windows([1.0] * 1008 + [14.0] * 18)
    assert _peak(_bank("flag", windows)) < 2.0
    assert _peak(_bank("shorten", windows)) > 14.0


def test_shorten_scales_the_past_and_not_the_new_sample() -> None:
    windows = _windows(RISE)
    flag, shorten = Bank(ModelConfig(drift="flag")), Bank(ModelConfig(drift="shorten"))
    for one in windows:
        before = _weights(shorten) if shorten.nodes else None
        flag.apply([one])
        shorten.apply([one])
        found = flag.peaks(["node-a"])[0]
        if found.drift_ms[NODE, 0] == one.end_ms:
            break
    else:
        pytest.fail("no change")
    assert before is not None
    weight, flagged = _weights(shorten), _weights(flag)
    (factor,) = {float(f) for f in (weight - before)[SYSTEM, :1]}
    assert weight[NODE, 0] == pytest.approx(before[NODE, 0] / 16.0 + factor, rel=1e-12)
    assert (weight[NODE, 1], weight[SYSTEM, 0]) == (flagged[NODE, 1], flagged[SYSTEM, 0])


def test_a_window_of_too_little_coverage_is_not_judged() -> None:
    windows = _windows(RISE)
    for one in windows[160:]:
        one.coverage = 0.3
    assert not _bank("flag", windows).peaks(["node-a"])[0].drifts.any()


def test_another_machine_starts_new_series() -> None:
    bank = _bank("flag", _windows(RISE))
    bank.apply([window(len(RISE) + 2, machine="machine-2")])
    found = bank.peaks(["node-a"])[0]
    assert (found.drift_ms == -1).all()
    assert not found.drifts.any()


def test_old_change_is_counted_and_has_no_time() -> None:
    bank = _bank("flag", _windows(RISE))
    at = bank.peaks(["node-a"])[0].drift_ms[NODE, 0]
    last = (int(at) + 4 * 43_200_000 - window(0).end_ms) // LENGTH_MS
    for end, published in ((last, at), (last + 1, -1)):
        bank.apply([window(end)])
        found = bank.peaks(["node-a"])[0]
        assert (found.drift_ms[NODE, 0], found.drifts[NODE, 0]) == (published, 1)


@pytest.mark.parametrize("mode", ["flag", "shorten"])
def test_batches_other_nodes_and_restarts_change_no_bit(mode: Mode) -> None:
    alone, other = _windows(RISE), _windows(FALL, node="node-b", seed=1)
    mixed = [w for pair in zip(alone, other, strict=False) for w in pair] + other[len(alone) :]
    expected = _bank(mode, alone).encode_state("node-a")
    together = Bank(ModelConfig(drift=mode))
    for start in range(0, len(mixed), 33):
        together.apply(mixed[start : start + 70])
    assert together.encode_state("node-a") == expected
    assert together.encode_state("node-b") == _bank(mode, other).encode_state("node-b")
    for cut in (5, 191, 192):
        resumed = Bank(ModelConfig(drift=mode))
        resumed.restore("node-a", _bank(mode, alone[:cut]).encode_state("node-a"))
        resumed.apply(alone[cut:])
        assert resumed.encode_state("node-a") == expected


def test_another_setting_is_another_model() -> None:
    state = _bank("flag", _windows([2.0])).encode_state("node-a")
    for mode in ("off", "shorten"):
        with pytest.raises(CheckpointLayoutError):
            _bank(mode, []).restore("node-a", state)


def test_prediction_has_time_and_number_of_changes() -> None:
    (peaks,) = _bank("flag", _windows(RISE)).peaks(["node-a"])
    position = {"generation": 1, "offset": 2, "epoch": 3}
    record = decode_json(PredictionRecord, encode_prediction(joined(NODE_ROW), peaks, position))
    at = format_time(window(192).end_ms / 1000)
    for entity in (record.node_peaks, record.classes["prod"]):
        assert (entity.model.drift_at, entity.model.drifts) == (DriftTimes(cpu=at), Counts(cpu=1))
    assert (record.system.model.drift_at, record.system.model.drifts) == (DriftTimes(), Counts())
