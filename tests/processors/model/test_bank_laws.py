"""Laws of the bank over random streams of windows, bit by bit."""

import dataclasses
from fractions import Fraction
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.kafka.partition import partition_of
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.histogram import CPU_LAYOUT, MEMORY_LAYOUT, YEAR_ONE_MS
from pipeline.processors.model.model_config import ENTITIES, ModelConfig, Profile
from pipeline.processors.model.node_peaks import NodePeaks
from pipeline.processors.model.training_batch import NodeWindow
from pipeline.topics.nodes import Strategy
from tests.processors.reference import SlowHistogram, mean_and_variance
from tests.processors.windows import GIB, Pod, streams, window

# Half-lives of one and two windows: all weights are powers of two, and shifts come soon.
CONFIG = ModelConfig(
    profile=Profile(half_life_seconds=(120.0, 240.0)),
    strategy=Strategy(cold_start_seconds=300.0, cold_start_samples=3),
    expiration_seconds=1200.0,
)
LAWS = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=25)


def _run(windows: list[NodeWindow]) -> Bank:
    bank = Bank(CONFIG)
    bank.apply(windows)
    return bank


def _states(bank: Bank) -> dict[str, bytes]:
    return {node: bank.encode_state(node) for node in bank.nodes}


def _bits(peaks: NodePeaks) -> bytes:
    arrays = [
        *(a for answer in peaks.predictors.values() for a in (answer.peaks, answer.pod_raw)),
        peaks.samples,
        peaks.pod_samples,
        peaks.first_ms,
        peaks.last_ms,
        peaks.pod_cold,
        *(
            getattr(answer.reclaimable, name)
            for answer in peaks.predictors.values()
            for name in answer.reclaimable.__slots__[1:]
        ),
    ]
    return b"|".join([repr(peaks.pod_uids).encode(), *(a.tobytes() for a in arrays)])


@given(streams(), st.data())
@LAWS
def test_batch_boundaries_change_no_bit(windows: list[NodeWindow], data: st.DataObject) -> None:
    whole = _run(windows)
    pieces = Bank(CONFIG)
    outcomes = []
    rest = windows
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        outcomes += pieces.apply(rest[:size])
        rest = rest[size:]
    assert _states(pieces) == _states(whole)
    assert outcomes == Bank(CONFIG).apply(windows)


@given(streams(), st.randoms(use_true_random=False))
@LAWS
def test_the_order_across_nodes_changes_no_bit(windows: list[NodeWindow], random: Random) -> None:
    expected = _states(_run(windows))
    turns = [w.node for w in windows]
    random.shuffle(turns)
    queues = {node: [w for w in windows if w.node == node] for node in turns}
    shuffled = [queues[node].pop(0) for node in turns]
    assert _states(_run(shuffled)) == expected


@given(st.lists(streams(), min_size=2, max_size=3), st.data())
@settings(LAWS, max_examples=15)
def test_any_number_of_partitions_gives_the_same_bits(
    pools: list[list[NodeWindow]], data: st.DataObject
) -> None:
    """One bank, a bank for each of three partitions, for each of six, in batches of any size."""
    windows = [
        dataclasses.replace(w, node=f"{w.node}-{pool}")
        for pool, own in enumerate(pools)
        for w in own
    ]
    expected = _run(windows)
    for partitions in (3, 6):
        banks = [Bank(CONFIG) for _ in range(partitions)]
        for number, bank in enumerate(banks):
            own = [w for w in windows if partition_of(w.node, partitions) == number]
            while own:
                size = data.draw(st.integers(1, len(own)))
                bank.apply(own[:size])
                own = own[size:]
        assert {k: v for bank in banks for k, v in _states(bank).items()} == _states(expected)
        for bank in (bank for bank in banks if len(bank.node_models)):
            for found, same in zip(bank.peaks(bank.nodes), expected.peaks(bank.nodes), strict=True):
                assert _bits(found) == _bits(same)


@given(streams())
@LAWS
def test_a_node_has_the_same_bits_alone(windows: list[NodeWindow]) -> None:
    together = _run(windows)
    peaks = {p.node: p for p in together.peaks(together.nodes)}
    for node in together.nodes:
        alone = _run([w for w in windows if w.node == node])
        assert alone.encode_state(node) == together.encode_state(node)
        assert _bits(alone.peaks([node])[0]) == _bits(peaks[node])
        assert _bits(together.peaks([node])[0]) == _bits(peaks[node])


@given(streams(), st.data())
@LAWS
def test_restored_bank_continues_bit_by_bit(windows: list[NodeWindow], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(windows)))
    first = _run(windows[:cut])
    second = Bank(CONFIG)
    # Other rows are taken, and freed, before and between.
    second.apply([window(1, [Pod(f"x{i}", (1.0, GIB)) for i in range(5)], node="other")])
    for node in reversed(first.nodes):
        second.restore(node, first.encode_state(node))
        assert second.encode_state(node) == first.encode_state(node)
        assert _bits(second.peaks([node])[0]) == _bits(first.peaks([node])[0])
    second.forget("other")
    assert second.apply(windows[cut:]) == first.apply(windows[cut:])
    assert _states(second) == _states(first)
    for node in first.nodes:
        assert _bits(second.peaks([node])[0]) == _bits(first.peaks([node])[0])


@given(streams(), st.randoms(use_true_random=False))
@LAWS
def test_the_order_of_pods_in_a_window_changes_no_bit(
    windows: list[NodeWindow], random: Random
) -> None:
    shuffled = []
    for w in windows:
        if len(set(w.pod_uids)) < len(w.pod_uids):
            shuffled.append(w)  # of a doubled UID the first counts, so its order matters
            continue
        order = list(range(len(w.pod_uids)))
        random.shuffle(order)
        columns = ("pod_classes", "pod_usage", "requests", "pod_ages", "pod_active", "pod_ended")
        moved = {name: getattr(w, name)[order] for name in columns}
        uids = [w.pod_uids[i] for i in order]
        shuffled.append(dataclasses.replace(w, pod_uids=uids, **moved))
    assert _states(_run(shuffled)) == _states(_run(windows))


@given(streams())
@LAWS
def test_arrays_that_windows_share_change_no_bit(windows: list[NodeWindow]) -> None:
    """What comes as the very arrays of the window before is not described again, unless the pods
    are others."""
    names = ("pod_classes", "requests", "pod_active", "pod_ended")
    shared: dict[tuple[str, bytes], np.ndarray] = {}
    sharing = [
        dataclasses.replace(
            w,
            **{  # type: ignore[arg-type]
                name: shared.setdefault((name, getattr(w, name).tobytes()), getattr(w, name))
                for name in names
            },
        )
        for w in windows
    ]
    one_by_one = Bank(CONFIG)
    for w in sharing:
        one_by_one.apply([w])
    assert _states(one_by_one) == _states(_run(sharing)) == _states(_run(windows))


def test_same_arrays_with_other_uids_are_read_again() -> None:
    pods = [Pod("a", (1.0, GIB)), Pod("b", (2.0, GIB), "batch", (500.0, GIB), active=False)]
    first = window(1, pods)
    second = dataclasses.replace(first, end_ms=first.end_ms + 30_000, pod_uids=["b", "a"])
    copied = dataclasses.replace(second, requests=second.requests.copy())
    assert _states(_run([first, second])) == _states(_run([first, copied]))
    assert _states(_run([first, second])) != _states(_run([first, first]))


@given(streams())
@LAWS
def test_duplicates_and_late_windows_change_no_bit(windows: list[NodeWindow]) -> None:
    bank = _run(windows)
    before = _states(bank)
    assert all(outcome.status != "applied" for outcome in bank.apply(windows))
    assert _states(bank) == before


@given(streams())
@LAWS
def test_peaks_are_known_exactly_where_there_are_samples(windows: list[NodeWindow]) -> None:
    bank = _run(windows)
    for peaks in bank.peaks(bank.nodes):
        for name in bank.predictors:
            answer = peaks.predictors[name]
            assert (np.isnan(answer.peaks) == (peaks.samples == 0)).all()
            assert (np.isnan(answer.pod_raw) == (peaks.pod_samples == 0)).all()
            prod = answer.reclaimable
            for values in (answer.peaks, answer.pod_raw, prod.amount, prod.peak,
                           prod.unpredicted, prod.surplus, prod.requests):  # fmt: skip
                known = values[~np.isnan(values)]
                assert ((known >= 0) & np.isfinite(known)).all()
            # Both views need the system, two classes, and `unknown` once it has a model.
            needed = peaks.samples[[ENTITIES.index(e) for e in ("system", "prod", "none")]]
            unknown = peaks.samples[ENTITIES.index("unknown")]
            missing = (needed == 0).any(axis=0) | (unknown.any() & (unknown == 0))
            assert (np.isnan(prod.peak) == missing).all()


@given(streams(), st.integers(2, 7))
@LAWS
def test_times_and_half_lives_by_one_factor_change_no_bit(
    windows: list[NodeWindow], factor: int
) -> None:
    """Only the ratio of times matters. All times are counted from the year one, as the
    decay's references are."""
    stretched = [
        dataclasses.replace(
            w,
            start_ms=(w.start_ms + YEAR_ONE_MS) * factor - YEAR_ONE_MS,
            end_ms=(w.end_ms + YEAR_ONE_MS) * factor - YEAR_ONE_MS,
            pod_ages=w.pod_ages * factor,
        )
        for w in windows
    ]
    slow = dataclasses.replace(
        CONFIG,
        profile=Profile(half_life_seconds=(120.0 * factor, 240.0 * factor)),
        strategy=Strategy(cold_start_seconds=300.0 * factor, cold_start_samples=3),
        expiration_seconds=CONFIG.expiration_seconds * factor,
    )
    one, two = Bank(CONFIG), Bank(slow)
    outcomes = [(o.status, o.gap, o.expired) for o in one.apply(windows)]
    assert [(o.status, o.gap, o.expired) for o in two.apply(stretched)] == outcomes
    for a, b in zip(one.peaks(one.nodes), two.peaks(two.nodes), strict=True):
        assert (a.pod_uids, a.pod_cold.tolist()) == (b.pod_uids, b.pod_cold.tolist())
        for name in one.predictors:
            assert a.predictors[name].raw.tobytes() == b.predictors[name].raw.tobytes()
            assert a.predictors[name].pod_raw.tobytes() == b.predictors[name].pod_raw.tobytes()
            amounts = (found.predictors[name].reclaimable.amount.tobytes() for found in (a, b))
            assert len({*amounts}) == 1


@given(streams())
@LAWS
def test_a_shift_of_the_whole_stream_by_half_lives_changes_no_peak(
    windows: list[NodeWindow],
) -> None:
    """24,000 s is a whole number of both half-lives, so every weight keeps its power of two."""
    later = [
        dataclasses.replace(w, start_ms=w.start_ms + 24_000_000, end_ms=w.end_ms + 24_000_000)
        for w in windows
    ]
    one, two = _run(windows), _run(later)
    for a, b in zip(one.peaks(one.nodes), two.peaks(two.nodes), strict=True):
        for name in one.predictors:
            own, other = a.predictors[name], b.predictors[name]
            assert own.raw.tobytes() == other.raw.tobytes()
            assert own.pod_raw.tobytes() == other.pod_raw.tobytes()


USAGE = st.tuples(
    st.integers(0, 64 * 8).map(lambda n: n / 8), st.integers(0, 256).map(lambda n: n * GIB / 4)
)


@given(st.lists(st.tuples(st.integers(1, 4), USAGE, USAGE), min_size=1, max_size=70))
@settings(deadline=None, max_examples=40)
def test_the_bank_agrees_with_exact_fractions(
    steps: list[tuple[int, tuple[float, float], tuple[float, float]]],
) -> None:
    """One node and one pod, each against its own slow histogram and exact moments."""
    bank = Bank(CONFIG)
    end = 0
    fed: list[tuple[int, tuple[float, float], tuple[float, float]]] = []
    for step, node, pod in steps:
        end += step
        bank.apply([window(end, [Pod("a", pod)], usage=node)])
        fed.append((end, node, pod))
    (peaks,) = bank.peaks(["node-a"])
    for r, (layout, windows_per_half_life, fraction) in enumerate(
        [(CPU_LAYOUT, 1, Fraction(95, 100)), (MEMORY_LAYOUT, 2, Fraction(98, 100))]
    ):
        by_quantile, by_sigma = peaks.predictors["percentile"], peaks.predictors["nsigma-v1"]
        for which, quantile, nsigma in (
            (1, by_quantile.raw[0, r], by_sigma.raw[0, r]),
            (2, by_quantile.pod_raw[0, r], by_sigma.pod_raw[0, r]),
        ):
            slow = SlowHistogram(layout.starts.tolist())
            samples = []
            for at, *values in fed:
                age = Fraction(end - at, windows_per_half_life)
                weight = Fraction(2.0 ** -float(age))
                if float(age) > 100:
                    continue
                value = values[which - 1][r]
                slow.add(value, weight)
                samples.append((value, weight))
            mean, variance = mean_and_variance(samples)
            expected = float(mean) + 3 * float(variance) ** 0.5
            assert nsigma == pytest.approx(expected, rel=1e-6, abs=1e-3 if r else 1e-9)
            near = {
                slow.quantile(fraction + e) for e in (0, Fraction(1, 10**12), -Fraction(1, 10**12))
            }
            # What never used any needs none; of what did so long ago, little enough is left.
            if not any(value for value, _ in samples):
                near = (
                    {0.0} if not any(values[which - 1][r] for _, *values in fed) else near | {0.0}
                )
            assert quantile in near


def test_a_shift_in_mid_stream_keeps_old_and_new_samples_in_proportion() -> None:
    """After 60 half-lives what came before weighs 2^-60: a bank that never saw it must agree,
    although its reference is another and only the first had to move it (after 100)."""

    def usage(i: int) -> tuple[float, float]:
        return 1.0 + i % 7, (1 + i % 5) * GIB

    stream = [window(i, [Pod("a", usage(i))], usage=usage(i + 1)) for i in range(1, 240)]
    for end in (99, 100, 101, 102, 103, 110, 160, 201, 202, 239):
        long, short = _run(stream[:end]), _run(stream[max(end - 150, 0) : end])
        (one,), (two,) = long.peaks(["node-a"]), short.peaks(["node-a"])
        for name in long.predictors:
            own, other = one.predictors[name], two.predictors[name]
            exact = 0.0 if name == "percentile" else 1e-9
            np.testing.assert_allclose(own.raw, other.raw, rtol=exact)
            np.testing.assert_allclose(own.pod_raw, other.pod_raw, rtol=exact)
