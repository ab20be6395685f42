"""Laws of learning: merging, order of fractions, accuracy; and profiles by class."""

import dataclasses
import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.processors.kubernetes.pod_classes import CLASS_CODES
from pipeline.processors.model import histogram
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.entity_models import EntityModels
from pipeline.processors.model.histogram import CPU_LAYOUT, MEMORY_LAYOUT, VPA_CPU_LAYOUT
from pipeline.processors.model.model_config import ENTITIES, ModelConfig, Profile
from pipeline.processors.model.node_peaks import NodePeaks
from pipeline.processors.model.training_batch import NodeWindow
from pipeline.topics.nodes import Strategy
from tests.processors.reference import bucket_of
from tests.processors.windows import GIB, LENGTH_MS, Pod, streams, window

LAWS = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=40)

# -- one row

CORES = st.floats(min_value=0, max_value=2000)
SAMPLES = st.lists(st.tuples(CORES, st.integers(0, 20)), max_size=30)


def _row(samples: list[tuple[float, int]]) -> tuple[EntityModels, np.ndarray]:
    """A row among others that learned these values, each with 2**weight."""
    models = EntityModels([Profile()], {})
    at = models.allocate(np.zeros(3, np.int8))[1:2]
    for time, (value, exponent) in enumerate(samples):
        weight = 2.0**exponent
        models.train(
            at, np.array([[value, value * GIB]]), np.array([[weight] * 2]), np.array([time])
        )
    return models, at


@given(SAMPLES, SAMPLES)
@LAWS
def test_merging_is_adding_one_after_the_other(
    first: list[tuple[float, int]], second: list[tuple[float, int]]
) -> None:
    """The weights are such that no sum rounds, so the bits agree."""
    for r, layout in enumerate((CPU_LAYOUT, MEMORY_LAYOUT)):
        merged, other, both = (
            models.histograms[r].dense(at)
            for models, at in map(_row, (first, second, first + second))
        )
        merged += other
        assert merged.tobytes() == both.tobytes()
        fractions = (0.0, 0.5, 0.95, 1.0)
        result = histogram.quantiles(merged, layout, fractions)
        models, at = _row(first + second)
        asked = models.quantile(np.repeat(at, 4), np.repeat(fractions, 2).reshape(-1, 2))
        assert result[:, 0].tobytes() == asked[:, r].tobytes()


@given(SAMPLES.filter(bool), st.lists(st.floats(0, 1), min_size=2, max_size=20))
@LAWS
def test_percentiles_rise_with_their_fraction(
    samples: list[tuple[float, int]], fractions: list[float]
) -> None:
    """Lie between the lowest sample and the end of the highest one's bucket."""
    models, at = _row(samples)
    asked = np.repeat(sorted(fractions), 2).reshape(-1, 2)
    for r, layout in enumerate((CPU_LAYOUT, MEMORY_LAYOUT)):
        result = models.quantile(np.repeat(at, len(asked)), asked)[:, r]
        assert (np.diff(result) >= 0).all()
        values = [min(value * (GIB if r else 1.0), layout.starts[-1]) for value, _ in samples]
        assert min(values) <= result[0]
        assert result[-1] <= layout.ends[layout.digitize(max(values))]


STEPS = st.lists(
    st.tuples(st.integers(1, 400), st.floats(0, 64), st.integers(0, 64 << 30)),
    min_size=1,
    max_size=60,
)


@given(STEPS, st.tuples(st.floats(30_000, 200_000), st.floats(30_000, 200_000)))
@LAWS
def test_learned_values_agree_with_fifty_digits(
    steps: list[tuple[int, float, int]], half_lives: tuple[float, float]
) -> None:
    """Hand-computed weights. Half-lives are any, windows lie anywhere within a
    hundred of them (beyond, what is lighter than epsilon vanishes). Each share of the weight agrees
    to 1e-13, the mean to 1e-12 and the deviation to 1e-6 of the highest value, and a quantile is
    that of its fraction to 1e-12."""
    bank = Bank(
        ModelConfig(profile=Profile(half_life_seconds=half_lives), predictors=("percentile",))
    )
    end, fed = 0, []
    for step, *usage in steps:
        end += step
        cpu, memory = map(float, usage)
        bank.apply([window(end, [Pod("a", (cpu, memory))], usage=(cpu, memory))])
        fed.append((end, (cpu, memory)))
    (peaks,) = bank.peaks(["node-a"])
    models, node = bank.store.models, bank.node_models["node-a"]
    at = np.array([node.entity_rows[0], *node.pod_rows])
    for r, layout in enumerate((CPU_LAYOUT, MEMORY_LAYOUT)):
        half_life_ms = bank.config.profile.half_life_ms[r]
        with localcontext(prec=50):
            ages = [Decimal((end - when) * LENGTH_MS) / half_life_ms for when, _ in fed]
            weights = [Fraction(Decimal(2) ** -age) for age in ages]
        values = [usage[r] for _, usage in fed]
        total = sum(weights)
        exact = np.zeros(layout.num_buckets)
        for bucket in {bucket_of(layout.starts.tolist(), value) for value in values}:
            own = (w for w, v in zip(weights, values, strict=True)
                   if bucket_of(layout.starts.tolist(), v) == bucket)  # fmt: skip
            exact[bucket] = sum(own) / total
        mean = sum(w * Fraction(v) for w, v in zip(weights, values, strict=True)) / total
        variance = (
            sum(w * (Fraction(v) - mean) ** 2 for w, v in zip(weights, values, strict=True)) / total
        )
        for row in at:
            dense = models.histograms[r].dense(np.array([row]))[0, : layout.num_buckets]
            np.testing.assert_allclose(dense / math.fsum(dense), exact, rtol=1e-13, atol=1e-18)
            most = max(values)
            assert models.mean[row, r] == pytest.approx(float(mean), rel=1e-12, abs=1e-12 * most)
            stdev = math.sqrt(models.squares[row, r] / models.weight[row, r])
            assert stdev == pytest.approx(math.sqrt(variance), rel=1e-6, abs=1e-6 * most)
        running = np.cumsum(exact)
        reached = {
            int(np.argmax(running >= f)) for f in (FRACTIONS[r] - 1e-12, FRACTIONS[r] + 1e-12)
        }
        expected = {0.0} if not any(values) else {float(layout.ends[bucket]) for bucket in reached}
        result = peaks.predictors["percentile"]
        assert {result.raw[0, r], result.pod_raw[0, r]} <= expected


FRACTIONS = (0.95, 0.98)

# -- profiles

SHORT = Profile(half_life_seconds=(120.0, 240.0))
LONG = Profile(half_life_seconds=(960.0, 480.0), layouts=(VPA_CPU_LAYOUT, MEMORY_LAYOUT))
USUAL = ModelConfig(
    profile=SHORT,
    strategy=Strategy(cold_start_seconds=300.0, cold_start_samples=3),
    expiration_seconds=1200.0,
)
OWN = dataclasses.replace(USUAL, class_profiles={"prod": LONG, "batch": LONG})
LIKE_OWN = dataclasses.replace(USUAL, profile=LONG)


def _of_fixed_class(windows: list[NodeWindow]) -> list[NodeWindow]:
    """The same windows where a pod's class is that of its name."""
    codes = [CLASS_CODES[name] for name in ("prod", "batch", "mid", "none", "unknown", "free")]
    return [
        dataclasses.replace(
            w, pod_classes=np.array([codes[int(uid[-1])] for uid in w.pod_uids], np.int8)
        )
        for w in windows
    ]


def _rows_of(peaks: NodePeaks, name: str, classes: set[str]) -> list[bytes]:
    """The bits of a predictor's answer for these entities and for pods of these classes."""
    answer = peaks.predictors[name]
    codes = [CLASS_CODES[c] for c in classes if c in CLASS_CODES]
    pods = np.isin(peaks.pod_classes, codes)
    entities = [i for i, entity in enumerate(ENTITIES) if entity in classes]
    return [answer.raw[entities].tobytes(), answer.pod_raw[pods].tobytes()]


@given(streams().map(_of_fixed_class))
@LAWS
def test_a_class_of_its_own_profile_learns_as_a_bank_of_that_profile(
    windows: list[NodeWindow],
) -> None:
    banks = [Bank(config) for config in (OWN, USUAL, LIKE_OWN)]
    for bank in banks:
        bank.apply(windows)
    own, usual, like_own = (bank.peaks(bank.nodes) for bank in banks)
    special = {"prod", "batch"}
    for a, b, c in zip(own, usual, like_own, strict=True):
        for name in banks[0].predictors:
            assert _rows_of(a, name, special) == _rows_of(c, name, special)
            others = {*ENTITIES} - special
            assert _rows_of(a, name, others) == _rows_of(b, name, others)


@given(streams(), st.data())
@LAWS
def test_profiles_survive_a_checkpoint(windows: list[NodeWindow], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(windows)))
    first, second = Bank(OWN), Bank(OWN)
    first.apply(windows[:cut])
    for node in reversed(first.nodes):
        second.restore(node, first.encode_state(node))
    assert second.apply(windows[cut:]) == first.apply(windows[cut:])
    assert [second.encode_state(n) for n in second.nodes] == [
        first.encode_state(n) for n in first.nodes
    ]


@pytest.mark.parametrize(
    ("before", "between", "after", "anew"),
    [
        ("prod", "prod", "mid", True), ("mid", "mid", "prod", True),
        ("prod", "unknown", "mid", True), ("mid", "unknown", "prod", True),
        ("prod", "prod", "batch", False), ("mid", "mid", "free", False),
        ("prod", "unknown", "batch", False), ("mid", "mid", "unknown", False),
    ],
)  # fmt: skip
def test_pod_is_reset_when_its_class_changes_to_another_profile(
    before: str, between: str, after: str, anew: bool
) -> None:
    changed, fresh = Bank(OWN), Bank(OWN)
    classes = [*[before] * 4, between]
    changed.apply([window(i, [Pod("a", (4.0, GIB), name)]) for i, name in enumerate(classes, 1)])
    fresh.apply([window(i) for i in range(1, 6)])
    for bank in (changed, fresh):
        bank.apply([window(6, [Pod("a", (1.0, GIB), after)])])
    one, other = changed.peaks(["node-a"])[0], fresh.peaks(["node-a"])[0]
    assert one.pod_samples.tolist() == ([[1, 1]] if anew else [[6, 6]])
    for name in changed.predictors:
        mine, new = one.predictors[name].pod_raw, other.predictors[name].pod_raw
        assert (mine.tobytes() == new.tobytes()) == anew
