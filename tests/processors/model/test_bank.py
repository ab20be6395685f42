"""What a bank does with windows, one behaviour at a time."""

import dataclasses
from unittest.mock import Mock

import numpy as np
import pytest

from pipeline.processors.model import bank as module
from pipeline.processors.model import learner, saved_models, state_codec
from pipeline.processors.model.bank import Bank, Outcome
from pipeline.processors.model.histogram import (
    CPU_LAYOUT,
    MEMORY_LAYOUT,
    Layout,
    exponential_layout,
)
from pipeline.processors.model.model_config import ENTITIES, ModelConfig, Profile
from pipeline.processors.model.training_batch import NodeWindow, training_batch
from pipeline.topics.nodes import Strategy
from tests.processors.windows import (
    GIB,
    LENGTH_MS,
    START_MS,
    Pod,
    peaks_of,
    warm_bank,
    window,
    with_margin,
)

NAN = np.nan


def _samples(bank: Bank) -> dict[str, list[float | None]]:
    """The last single sample of each entity, from the mean (the bank got one window)."""
    peaks, margin = peaks_of(bank), 1.0 + bank.config.strategy.safety_margin_percent / 100.0
    found = {}
    for i, entity in enumerate(ENTITIES):
        values = peaks.predictors["nsigma-v1"].peaks[i] / margin
        found[entity] = [None if np.isnan(v) else round(float(v), 6) for v in values]
    return found


# -- what is learned


def test_node_system_and_classes_get_their_samples() -> None:
    bank = warm_bank()
    bank.apply(
        [
            window(
                1,
                [
                    Pod("b", (1.0, GIB), "batch"),
                    Pod("a", (2.0, GIB), "prod"),
                    Pod("c", (0.5, GIB), "prod"),
                ],
                usage=(8.0, 10 * GIB),
                host_apps=(0.25, GIB),
            )
        ]
    )
    assert _samples(bank) == {name: [0.0, 0.0] for name in ENTITIES} | {
        "node": [8.0, 10 * GIB],
        "system": [4.25, 6 * GIB],
        "prod": [2.5, 2 * GIB],
        "batch": [1.0, GIB],
        "unknown": [None, None],
    }


def test_unknown_host_applications_leave_the_system_unknown() -> None:
    bank = warm_bank()
    bank.apply([window(1, host_apps=(NAN, 0.0))])
    assert _samples(bank)["system"] == [None, 8 * GIB]


def test_a_pod_without_usage_leaves_its_class_unknown_and_no_other_pod() -> None:
    bank = warm_bank()
    pods = [Pod("a", (NAN, GIB)), Pod("b", (1.0, GIB)), Pod("c", (1.0, GIB), "mid")]
    bank.apply([window(1, pods)])
    samples, peaks = _samples(bank), peaks_of(bank)
    assert (samples["prod"], samples["mid"]) == ([None, 2 * GIB], [1.0, GIB])
    assert peaks.pod_samples.tolist() == [[0, 1], [1, 1], [1, 1]]
    assert np.isnan(peaks.predictors["percentile"].pod_raw[0]).tolist() == [True, False]


def test_a_pod_that_has_ended_or_was_there_for_a_moment_leaves_its_class_known() -> None:
    bank = warm_bank()
    pods = [Pod("a", (NAN, NAN), ended=True), Pod("b", (NAN, NAN)), Pod("c", (1.0, GIB))]
    seen = np.array([1.0, 0.05, 1.0])
    bank.apply([dataclasses.replace(window(1, pods), pod_coverages=seen)])
    assert _samples(bank)["prod"] == [1.0, GIB]


@pytest.mark.parametrize("bad", [NAN, -1.0, np.inf, -np.inf, 1e300])
def test_a_bad_value_is_no_sample(bad: float) -> None:
    bank = warm_bank()
    bank.apply([window(1, [Pod("a", (bad, bad))], usage=(bad, bad))])
    peaks = peaks_of(bank)
    assert peaks.pod_samples.tolist() == [[0, 0]]
    assert peaks.samples[ENTITIES.index("node")].tolist() == [0, 0]
    assert _samples(bank)["prod"] == [None, None]


def test_largest_plausible_usage_is_accepted() -> None:
    bank = warm_bank()
    beyond = (np.nextafter(1e6, 2e6), np.nextafter(2.0**60, 2.0**61))
    bank.apply([window(1, [Pod("a", (1e6, 2.0**60)), Pod("b", beyond)])])
    assert peaks_of(bank).pod_samples.tolist() == [[1, 1], [0, 0]]


def test_implausible_sum_is_no_sample_of_its_class() -> None:
    bank = warm_bank()
    bank.apply([window(1, [Pod("a", (1.0, 2.0**60)), Pod("b", (1.0, 2.0**60))])])
    assert _samples(bank)["prod"] == [2.0, None]
    assert peaks_of(bank).pod_samples.tolist() == [[1, 1], [1, 1]]


def test_pods_above_the_node_leave_an_idle_system() -> None:
    bank = warm_bank()
    bank.apply([window(1, [Pod("a", (9.0, 9 * GIB))], usage=(8.0, 8 * GIB))])
    assert _samples(bank)["system"] == [0.0, 0.0]


def test_the_unknown_class_has_no_model_before_its_first_pod() -> None:
    bank = warm_bank()
    unknown = ENTITIES.index("unknown")
    bank.apply([window(1)])
    assert peaks_of(bank).samples[unknown].tolist() == [0, 0]
    bank.apply([window(2, [Pod("a", (1.0, GIB), "unknown")])])
    bank.apply([window(3)])
    assert peaks_of(bank).samples[unknown].tolist() == [2, 2]


def test_invalid_class_code_counts_as_unknown() -> None:
    odd = window(1, [Pod("a", (1.0, GIB))])
    odd.pod_classes[0] = 77
    bank = warm_bank()
    bank.apply([odd])
    assert _samples(bank)["unknown"] == [1.0, GIB]
    assert peaks_of(bank).pod_classes.tolist() == [5]


def test_first_of_two_pods_with_one_uid_counts() -> None:
    bank = warm_bank()
    bank.apply([window(1, [Pod("a", (1.0, GIB)), Pod("a", (2.0, GIB))])])
    assert _samples(bank)["prod"] == [1.0, GIB]
    assert peaks_of(bank).pod_uids == ("a",)


def test_low_coverage_trains_nothing_and_moves_the_end() -> None:
    bank = warm_bank()
    first, low = bank.apply([window(1), window(2, [Pod("a", (1.0, GIB))], coverage=0.49)])
    assert (first.trained, low.status, low.trained) == (True, "applied", False)
    assert bank.end_ms("node-a") == START_MS + 2 * LENGTH_MS
    assert peaks_of(bank).samples[0].tolist() == [1, 1]
    assert peaks_of(bank).pod_samples.tolist() == [[0, 0]]
    assert bank.apply([window(2)])[0].status == "duplicate"


def test_times_of_the_first_and_last_sample() -> None:
    bank = warm_bank()
    bank.apply([window(i, [Pod("a", (1.0, GIB))]) for i in (1, 2, 5)])
    peaks = peaks_of(bank)
    first, last = START_MS + LENGTH_MS, START_MS + 5 * LENGTH_MS
    assert (peaks.first_ms[0], peaks.last_ms[0], peaks.end_ms) == (first, last, last)
    assert peaks.pod_samples.tolist() == [[3, 3]]


# -- order, duplicates, gaps


@pytest.mark.parametrize(
    ("end", "epoch", "machine", "status"),
    [
        (5, 1, "machine-1", "duplicate"),
        (5, 2, "machine-1", "second_exporter"),
        (5, 1, "machine-2", "second_exporter"),
        (4, 1, "machine-1", "late"),
        (4, 2, "machine-2", "late"),
        (6, 2, "machine-1", "applied"),
        (6, 2, "machine-2", "second_exporter"),
        (7, 2, "machine-2", "applied"),
    ],
)
def test_a_window_counts_only_if_it_ends_later(
    end: int, epoch: int, machine: str, status: str
) -> None:
    bank = warm_bank()
    bank.apply([window(5)])
    before = bank.encode_state("node-a")
    (outcome,) = bank.apply([window(end, usage=(9.0, GIB), epoch=epoch, machine=machine)])
    assert outcome.status == status
    assert (bank.encode_state("node-a") == before) == (status != "applied")


def test_missing_windows_are_counted() -> None:
    bank = warm_bank()
    outcomes = bank.apply([window(1), window(2), window(5), window(6)])
    assert [outcome.gap for outcome in outcomes] == [0, 0, 2, 0]
    assert state_codec.decode(bank.encode_state("node-a")).gaps == 2


def test_outcomes_come_in_the_order_of_the_windows() -> None:
    bank = warm_bank()
    outcomes = bank.apply(
        [window(1), window(1, node="node-b"), window(1), window(2), window(1, node="node-c")]
    )
    assert [(o.node[-1], o.status) for o in outcomes] == [
        ("a", "applied"), ("b", "applied"), ("a", "duplicate"), ("a", "applied"), ("c", "applied"),
    ]  # fmt: skip
    assert bank.nodes == ("node-a", "node-b", "node-c")


def test_applying_no_window_gives_no_outcome() -> None:
    assert Bank().apply([]) == []
    with pytest.raises(ValueError, match="at least one"):
        Bank().peaks([])


def test_banks_without_shared_columns_are_refused() -> None:
    """Rows of one would be trained in the columns of the other."""
    one, other = Bank(), Bank()
    windows = [window(1), window(1, node="node-b")]
    with pytest.raises(ValueError, match="2 banks of 2 learners"):
        module.apply([one, other], training_batch(windows))
    for bank, mine in zip((one, other), windows, strict=True):
        bank.apply([mine])
    places = [(one, "node-a"), (other, "node-b")]
    with pytest.raises(ValueError, match="not of one"):
        module.peaks(places)
    with pytest.raises(ValueError, match="not of one"):
        module.recent_usage(places)


# -- life and death


def test_first_window_has_no_restart_and_no_gap() -> None:
    (outcome,) = warm_bank().apply([window(5, [Pod("a", (1.0, GIB))])])
    assert outcome == Outcome(
        "node-a", START_MS + 5 * LENGTH_MS, "applied", trained=True, gap=0, restarted=False
    )


def test_another_machine_resets_node_system_and_classes_but_not_pods() -> None:
    bank = warm_bank()
    bank.apply([window(1, [Pod("a", (1.0, GIB))]), window(2, [Pod("a", (1.0, GIB))])])
    (outcome,) = bank.apply([window(4, [Pod("a", (1.0, GIB))], machine="machine-2")])
    assert outcome.restarted
    peaks = peaks_of(bank)
    assert peaks.samples[0].tolist() == [1, 1]
    assert peaks.samples[ENTITIES.index("prod")].tolist() == [1, 1]
    assert peaks.pod_samples.tolist() == [[3, 3]]


def appended(window: NodeWindow, end: float) -> NodeWindow:
    """The window as if the broker appended it at the end of the `end`-th window."""
    return dataclasses.replace(window, appended_ms=START_MS + round(end * LENGTH_MS))


@pytest.mark.parametrize(
    ("end", "append_end", "status"),
    [
        (9, 2.9, "second_exporter"),  # a fast clock
        (9, 4.0, "applied"),
        (3, 4.0, "applied"),  # a slow clock
        (3, 3.9, "second_exporter"),
    ],
)
def test_another_machine_takes_a_name_after_a_missed_window_by_append_time(
    end: int, append_end: float, status: str
) -> None:
    bank = warm_bank()
    bank.apply([appended(window(2), 2.0)])
    (outcome,) = bank.apply([appended(window(end, machine="machine-2"), append_end)])
    assert (outcome.status, outcome.restarted) == (status, status == "applied")


def test_interleaved_windows_of_two_machines_reset_no_models() -> None:
    bank = warm_bank()
    machines = ("machine-1", "machine-2")
    outcomes = bank.apply(
        [window(end, machine=machines[(end + turn) % 2]) for end in range(20) for turn in (0, 1)]
    )
    applied = [outcome for outcome in outcomes if outcome.status == "applied"]
    assert [outcome.restarted for outcome in applied] == [False] * 20
    assert {outcome.status for outcome in outcomes} == {"applied", "second_exporter"}


def test_a_pod_is_dropped_30_minutes_after_it_was_last_seen() -> None:
    bank, limit = warm_bank(), 1_800_000 // LENGTH_MS
    outcomes = bank.apply(
        [window(0, [Pod("a", (1.0, GIB)), Pod("b", (1.0, GIB))])]
        + [window(i, [Pod("b", (1.0, GIB))]) for i in range(1, limit + 2)]
    )
    # Exactly the limit is kept, beyond it is dropped.
    assert [outcome.expired for outcome in outcomes] == [*[()] * (limit + 1), ("a",)]
    assert state_codec.decode(bank.encode_state("node-a")).uids == ("b",)
    assert len(bank.store.models) == len(ENTITIES) + 1
    bank.apply([window(limit + 2, [Pod("a", (1.0, GIB)), Pod("b", (1.0, GIB))])])
    assert peaks_of(bank).pod_samples.tolist() == [[1, 1], [limit + 3] * 2]


def test_absent_pods_make_room_for_listed_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner, "MAX_PODS", 3)
    listings = ["ab", "c", "cd", "defg", "a"]
    outcomes = warm_bank().apply(
        [window(i, [Pod(uid, (1.0, GIB)) for uid in pods]) for i, pods in enumerate(listings, 1)]
    )
    # What is listed is kept, more than three of them too; of what is absent the last seen.
    assert [outcome.expired for outcome in outcomes] == [(), (), ("a",), ("b", "c"), ("d", "e")]


def test_a_pod_that_comes_back_in_time_keeps_its_model() -> None:
    bank = warm_bank()
    bank.apply([window(1, [Pod("a", (1.0, GIB))]), window(2), window(3, [Pod("a", (1.0, GIB))])])
    assert peaks_of(bank).pod_samples.tolist() == [[2, 2]]


def test_after_an_outage_of_hours_pods_that_are_still_there_keep_their_models() -> None:
    bank = warm_bank()
    (_, outcome) = bank.apply(
        [window(1, [Pod("a", (1.0, GIB))]), window(99, [Pod("a", (1.0, GIB))])]
    )
    assert outcome.expired == ()
    assert peaks_of(bank).pod_samples.tolist() == [[2, 2]]


@pytest.mark.parametrize("own", ["prod", "unknown"])
def test_window_without_pod_facts_keeps_the_models_of_its_pods(own: str) -> None:
    other = Profile(half_life_seconds=(3600.0, 3600.0))
    bank, steady = (Bank(ModelConfig(class_profiles={own: other})) for _ in range(2))
    bank.apply([window(i, [Pod("a", (1.0, GIB))]) for i in range(1, 10)])
    bank.apply([window(10, [Pod("a", (1.0, GIB), "unknown")])])
    assert peaks_of(bank).pod_samples.tolist() == [[10, 10]]
    bank.apply([window(11, [Pod("a", (1.0, GIB))])])
    steady.apply([window(i, [Pod("a", (1.0, GIB))]) for i in range(1, 12)])
    found, same = (peaks_of(b).predictors["nsigma-v1"].pod_raw for b in (bank, steady))
    assert peaks_of(bank).pod_samples.tolist() == [[11, 11]]
    assert found.tobytes() == same.tobytes()


def test_departed_node_is_dropped_and_starts_again() -> None:
    bank = warm_bank()
    bank.apply([window(1, [Pod("a", (1.0, GIB))]), window(1, node="node-b")])
    assert [bank.forget("node-a") for _ in range(2)] == [True, False]
    assert (bank.nodes, bank.end_ms("node-a")) == (("node-b",), None)
    assert len(bank.store.models) == len(ENTITIES)
    with pytest.raises(KeyError):
        bank.peaks(["node-a"])
    bank.apply([window(1)])
    fresh = warm_bank()
    fresh.apply([window(1)])
    assert bank.encode_state("node-a") == fresh.encode_state("node-a")


def test_rows_are_used_again() -> None:
    bank = warm_bank()
    bank.apply([window(1, [Pod(f"p{i}", (1.0, GIB)) for i in range(3000)])])
    bytes_before = bank.store.nbytes
    for i in range(2, 12):
        bank.forget("node-a")
        bank.apply([window(i, [Pod(f"q{i}-{j}", (1.0, GIB)) for j in range(3000)])])
    assert bank.store.nbytes == bytes_before
    assert len(bank.store.models) == 3000 + len(ENTITIES)


def test_a_restore_that_runs_out_of_memory_gives_no_slot_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, bank, alone = warm_bank(), warm_bank(), warm_bank()
    one.apply([window(1)])
    with monkeypatch.context() as patched:
        patched.setattr(saved_models, "install", Mock(side_effect=MemoryError))
        for _ in range(3):
            with pytest.raises(MemoryError):
                bank.restore("node-a", one.encode_state("node-a"))
    names = [f"node-{i:02}" for i in range(40)]
    usages = [(1.0 + i, GIB) for i in range(40)]
    for end in (1, 2):
        bank.apply([window(end, node=n, usage=u) for n, u in zip(names, usages, strict=True)])
    for name, usage in zip(names, usages, strict=True):
        alone.apply([window(end, node=name, usage=usage) for end in (1, 2)])
        assert bank.encode_state(name) == alone.encode_state(name)
        alone.forget(name)


# -- peaks


def test_pod_of_unknown_class_counts_in_the_peak_and_frees_nothing() -> None:
    bank = warm_bank()
    bank.apply([window(1, [Pod("a", (0.5, GIB), "unknown", requests=(4000.0, 8 * GIB))])])
    result = peaks_of(bank).reclaimable
    assert result.pods_peak[0] == with_margin(0.5)
    amounts = (result.amount, result.pods_amount, result.requests)
    assert [values.tolist() for values in amounts] == [[0.0, 0.0]] * 3
    assert result.classes_peak[0] > result.pods_peak[0]


def test_unknown_peak_of_class_unknown_leaves_the_peak_of_prod_unknown() -> None:
    """A pod without metadata came an hour ago: by the hour of the day its class is unknown, and it
    uses what would be handed out."""
    hour = 3_600_000 // LENGTH_MS
    bank = warm_bank(predictors=("hourly-nsigma",), predictor="hourly-nsigma", horizon_seconds=60.0,
                 options={"hourly-nsigma": {"history_seconds": 3600}})  # fmt: skip
    prod = Pod("a", (2.0, GIB), requests=(20_000.0, 20 * GIB))
    bank.apply([window(i, [prod], usage=(3.0, 2 * GIB)) for i in range(2 * hour)])
    assert (peaks_of(bank).reclaimable.amount > 0.0).all()
    other = Pod("b", (10.0, GIB), "unknown")
    bank.apply([window(2 * hour, [prod, other], usage=(13.0, 3 * GIB))])
    assert np.isnan(peaks_of(bank).reclaimable.amount).all()


def test_pod_above_its_request_does_not_reduce_what_others_free() -> None:
    bank = warm_bank()
    above = Pod("a", (2.0, GIB), requests=(1000.0, GIB))
    bank.apply([window(1, [above, Pod("b", (0.5, GIB), requests=(3000.0, GIB))])])
    assert peaks_of(bank).reclaimable.pods_amount[0] == 3000.0 - with_margin(0.5)


def test_unknown_allocatable_or_system_leaves_reclaimable_unknown() -> None:
    bank = warm_bank()
    bank.apply([window(1, [Pod("a", (0.5, GIB))], allocatable=(NAN, 64 * GIB))])
    assert np.isnan(peaks_of(bank).reclaimable.amount).tolist() == [True, False]
    bank.apply([window(1, [Pod("a", (0.5, GIB))], node="node-b", usage=(NAN, 8 * GIB))])
    result = peaks_of(bank, "node-b").reclaimable
    assert np.isnan(result.peak).tolist() == [True, False]


def test_a_node_without_any_sample_has_no_time_of_the_first() -> None:
    bank = warm_bank()
    bank.apply([window(1, [Pod("a", (1.0, GIB))], coverage=0.0)])
    assert peaks_of(bank).first_ms.tolist() == [-1] * len(ENTITIES)


def test_a_strategy_takes_effect_with_the_window_that_carries_it() -> None:
    bank = warm_bank()
    strict = Strategy(safety_margin_percent=50.0, cold_start_seconds=1e6, nsigma_multiplier=9.0)
    for i, strategy in enumerate((None, strict, None), 1):
        at = window(i, [Pod("a", (2.0, GIB), age=1e5)], usage=(float(i), GIB))
        at.strategy = strategy
        bank.apply([at, window(i, [Pod("a", (2.0, GIB), age=1e5)], node="node-b")])
        own, other = bank.peaks(["node-a", "node-b"])
        margin = 1.5 if strategy else 1.1
        for found, factor in ((own, margin), (other, 1.1)):
            percentile = found.predictors["percentile"]
            np.testing.assert_array_equal(percentile.peaks, percentile.raw * factor)
        assert own.pod_cold.tolist() == [strategy is not None]
        assert other.pod_cold.tolist() == [False]
        if strategy:
            cpu = own.predictors["nsigma-v1"].peaks[0, 0]
            assert cpu == pytest.approx((1.5 + 9.0 * 0.5) * 1.5, rel=1e-2)
            assert own.reclaimable.unpredicted[0] == 1000.0
            restored = Bank()
            restored.restore("node-a", bank.encode_state("node-a"))
            again = restored.peaks(["node-a"])[0]
            for name in bank.predictors:
                np.testing.assert_array_equal(
                    again.predictors[name].peaks, own.predictors[name].peaks
                )


# -- settings


def test_fingerprint_depends_on_all_that_shapes_the_state() -> None:
    base = ModelConfig()
    usual = Bank(base).fingerprint
    for same in (
        base,
        dataclasses.replace(base, strategy=Strategy(cold_start_seconds=1.0, nsigma_multiplier=5.0)),
        dataclasses.replace(base, predictors=("percentile",)),
    ):
        assert Bank(same).fingerprint == usual
    short = Profile(half_life_seconds=(43_200.0, 43_200.0))
    for other in (
        dataclasses.replace(base, profile=short),
        dataclasses.replace(base, profile=Profile(layouts=(CPU_LAYOUT, CPU_LAYOUT))),
        dataclasses.replace(base, class_profiles={"batch": short}),
        dataclasses.replace(base, training_statistic="avg"),
        dataclasses.replace(base, minimum_coverage=0.25),
        dataclasses.replace(base, expiration_seconds=60.0),
        dataclasses.replace(base, drift="off"),
        dataclasses.replace(base, predictors=("percentile", "hourly-nsigma")),
    ):
        assert Bank(other).fingerprint != usual


def test_order_of_class_profiles_does_not_matter() -> None:
    own = {name: Profile(half_life_seconds=(at, at)) for name, at in [("mid", 6e3), ("batch", 6e2)]}
    base = ModelConfig(class_profiles=own)
    turned = dataclasses.replace(base, class_profiles=dict(reversed(own.items())))
    assert turned.profiles == base.profiles
    first, second = Bank(base), Bank(turned)
    assert first.fingerprint == second.fingerprint
    windows = [window(i, pods=(Pod("a", (1.0, GIB), "mid"),)) for i in range(20)]
    first.apply(windows[:19])
    second.restore("node-a", first.encode_state("node-a"))
    for bank in (first, second):
        bank.apply(windows[19:])
    assert second.encode_state("node-a") == first.encode_state("node-a")


def test_histogram_holds_a_part_of_every_sample() -> None:
    def layout(epsilon: float) -> Layout:
        return exponential_layout(
            max_value=64.0, first_bucket_size=0.025, ratio=1.05, epsilon=epsilon
        )

    with pytest.raises(ValueError, match=r"epsilon is 0\.70"):
        Profile(layouts=(CPU_LAYOUT, layout(0.7072)))
    half_life_ms = 3_600_000
    heavy = Profile(layouts=(layout(0.7), MEMORY_LAYOUT), half_life_seconds=(3600.0, 3600.0))
    for minute in range(0, 60, 2):  # wherever the reference lies from it
        bank = Bank(ModelConfig(profile=heavy))
        bank.apply([window(half_life_ms * 7 // LENGTH_MS + minute // 2)])
        peaks = bank.peaks(["node-a"])[0]
        assert peaks.samples[0, 0] == 1
        assert peaks.predictors["percentile"].raw[0, 0] >= 4.0


def test_banks_with_shared_columns_learn_as_each_alone() -> None:
    one, others = Bank(), [Bank(), Bank()]
    side_by_side = [one.sibling(), one.sibling()]
    for step in range(1, 5):
        windows = [
            window(step, [Pod("a", (step, GIB), "prod")], node=n) for n in ("node-a", "node-b")
        ]
        outcomes = module.apply(side_by_side, training_batch(windows))
        assert outcomes == [
            other.apply([own])[0] for other, own in zip(others, windows, strict=True)
        ]
    places = [(side_by_side[0], "node-a"), (side_by_side[1], "node-b")]
    for (mine, node), other in zip(places, others, strict=True):
        assert mine.nodes == other.nodes == (node,)
        assert mine.encode_state(node) == other.encode_state(node)
    due = module.due(places, module.peaks(places))
    assert due.tolist() == [bool(o.due(o.peaks(o.nodes))[0]) for o in others]
    side_by_side[0].clear()
    assert len(one.store.models) == len(others[1].store.models)
    assert side_by_side[1].encode_state("node-b") == others[1].encode_state("node-b")
