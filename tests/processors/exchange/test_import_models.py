"""Imports of Koordinator and VPA are exact in equal buckets, and never understate."""

import json
from typing import Any

import msgspec
import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import CheckpointError, CheckpointLayoutError
from pipeline.processors.exchange.import_models import (
    Histogram,
    ImportedModel,
    from_koordinator,
    from_vpa,
    merge_models,
    rebucket,
)
from pipeline.processors.model import state_codec
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.histogram import (
    CPU_LAYOUT,
    MEMORY_LAYOUT,
    VPA_CPU_LAYOUT,
    VPA_MEMORY_LAYOUT,
    Layout,
    quantiles,
    save_checkpoint,
)
from pipeline.processors.model.model_config import ENTITIES, KOORDINATOR, VPA, ModelConfig, Profile
from pipeline.times import format_time
from tests.processors.windows import GIB, LENGTH_MS, START_MS, Pod, peaks_of, window

HOUR_MS = 3_600_000
REFERENCE = format_time((START_MS - START_MS % (12 * HOUR_MS)) / 1000)
NOW = format_time((START_MS + LENGTH_MS) / 1000)


def stored(**buckets: int) -> dict[str, Any]:
    """A histogram in the rounded form, of these buckets (`b7=10000`), each sample of weight 1."""
    return {
        "referenceTimestamp": REFERENCE,
        "bucketWeights": {name.removeprefix("b"): weight for name, weight in buckets.items()},
        "totalWeight": float(sum(buckets.values()) / 1000),
    }


def koordinator(uid: str, cpu: Any = None, memory: Any = None, at: str = NOW) -> dict[str, Any]:
    return {"UID": uid, "CPU": cpu, "Memory": memory, "LastUpdated": at}


def vpa(cpu: Any, memory: Any, **status: Any) -> dict[str, Any]:
    return {
        "apiVersion": "autoscaling.k8s.io/v1",
        "kind": "VerticalPodAutoscalerCheckpoint",
        "metadata": {"name": "web-main"},
        "spec": {"vpaObjectName": "web", "containerName": "main"},
        "status": {
            "cpuHistogram": cpu, "memoryHistogram": memory, "version": "v3",
            "firstSampleStart": "2023-11-01T00:00:00Z", "lastSampleStart": NOW,
            "lastUpdateTime": NOW, "totalSamplesCount": 1234,
        } | status,
    }  # fmt: skip


def bank_of(config: ModelConfig, windows: int = 1) -> Bank:
    bank = Bank(config)
    bank.apply([window(end, [Pod("a", (1.0, GIB))]) for end in range(1, windows + 1)])
    return bank


def after(
    learned: dict[str, ImportedModel], config: ModelConfig | None = None, windows: int = 1
) -> tuple[Bank, state_codec.ModelState]:
    """A bank that has taken the import over, and its state."""
    config = config or ModelConfig()
    state = state_codec.decode(bank_of(config, windows).encode_state("node-a"))
    state, _ = merge_models(state, learned, config.profiles)
    bank = Bank(config)
    bank.restore("node-a", state_codec.encode(state))
    return bank, state


# -- Koordinator


def test_the_ids_of_koordinator_are_our_entities() -> None:
    ids = {
        "__node__": "node", "__node-sys__": "system", "__node-__": "none",
        "__node-koord-prod__": "prod", "__node-koord-mid__": "mid",
        "__node-koord-batch__": "batch", "__node-koord-free__": "free", "0b6f-42": "0b6f-42",
    }  # fmt: skip
    result = {uid: from_koordinator(koordinator(uid, stored(b3=10_000))).name for uid in ids}
    assert result == ids


def test_weights_come_back_as_they_were_stored() -> None:
    rng = np.random.default_rng(3)
    weights = np.where(rng.random(CPU_LAYOUT.num_buckets) < 0.2, rng.random(158) * 50, 0.0)
    text = json.dumps(
        koordinator("__node__", {"referenceTimestamp": REFERENCE, **save_checkpoint(weights)})
    )
    cpu, memory = from_koordinator(json.loads(text)).histograms
    assert memory is None
    assert cpu is not None
    assert cpu.weights == pytest.approx(weights, abs=weights.max() / 9_000)
    assert cpu.weights.sum() == pytest.approx(weights.sum())


def test_an_imported_class_predicts_its_imported_quantile() -> None:
    learned = from_koordinator(koordinator("__node-koord-prod__", stored(b60=10_000), None))
    bank, _ = after({"prod": learned})
    raw = peaks_of(bank).predictors["percentile"].raw[ENTITIES.index("prod")]
    assert raw[0] == CPU_LAYOUT.ends[60]
    assert raw[1] == pytest.approx(GIB, rel=0.06)  # as learned here


def test_an_import_is_added_to_learned_samples() -> None:
    """Nine samples of weight 1 in bucket 60, and one of our own."""
    bank, state = after({"node": from_koordinator(koordinator("__node__", stored(b60=9_000)))})
    before = state_codec.decode(bank_of(ModelConfig()).encode_state("node-a"))
    count = len(ENTITIES) + 1
    samples = state_codec.unpack(state.samples, "<i8", count, 2)
    now = 2.0 ** ((START_MS + LENGTH_MS - reference_ms()) / (12 * HOUR_MS))
    assert samples[0].tolist() == [1 + int(9.0 / now), 1]  # as many as are left of nine
    assert state.bucket_counts[1] == before.bucket_counts[1]
    changed = {
        field.name
        for field in msgspec.structs.fields(state)
        if getattr(state, field.name) != getattr(before, field.name)
    }
    assert changed == {
        "weight", "mean", "squares", "samples", "bucket_counts", "buckets", "bucket_weights"
    }  # fmt: skip
    peak = peaks_of(bank).predictors["nsigma-v1"].terms["mean"][0, 0]
    end = CPU_LAYOUT.ends[60]
    weights = np.array([9.0, now])
    assert peak == pytest.approx((weights * [end, 4.0]).sum() / weights.sum())


def reference_ms() -> int:
    return START_MS - START_MS % (12 * HOUR_MS)


def test_moments_are_those_of_the_weights() -> None:
    bank, _ = after({"mid": from_koordinator(koordinator("x", stored(b10=5_000, b40=5_000)))})
    terms = peaks_of(bank).predictors["nsigma-v1"].terms
    row = ENTITIES.index("mid")
    low, high = CPU_LAYOUT.ends[[10, 40]]
    # Of Mid there was one sample of 0 beside ten.
    own = 2.0 ** ((START_MS + LENGTH_MS - reference_ms()) / (12 * HOUR_MS))
    values, weights = np.array([low, high, 0.0]), np.array([5.0, 5.0, own])
    mean = (values * weights).sum() / weights.sum()
    stdev = np.sqrt(((values - mean) ** 2 * weights).sum() / weights.sum())
    assert terms["mean"][row, 0] == pytest.approx(mean)
    assert terms["stdev"][row, 0] == pytest.approx(stdev)


def test_an_old_import_weighs_little() -> None:
    """Koordinator's weights of ten half-lives ago are worth a thousandth of today's."""
    old = stored(b120=10_000) | {"referenceTimestamp": "2023-11-09T12:00:00Z"}
    learned = from_koordinator(koordinator("__node__", old))
    bank, state = after({"node": learned}, windows=3)
    raw = peaks_of(bank).predictors["percentile"].raw[0, 0]
    assert raw < CPU_LAYOUT.ends[120]
    assert state_codec.unpack(state.samples, "<i8", len(ENTITIES) + 1, 2)[0, 0] == 3 + 1


def test_an_import_decays_by_the_models_half_life_from_the_time_of_the_file() -> None:
    """What is left by VPA's day is what begins to decay by our half day."""
    weights = np.zeros(VPA_CPU_LAYOUT.num_buckets)
    weights[5] = 8.0
    histogram = Histogram(VPA_CPU_LAYOUT, weights, START_MS - 24 * HOUR_MS, 24 * HOUR_MS)
    _, state = after({"a": ImportedModel("a", (histogram, None), START_MS)})
    row = len(ENTITIES)
    weight = state_codec.unpack(state.weight, "<f8", row + 1, 2)[row, 0]
    (reference, _), *_ = state.reference_ms
    assert reference is not None
    at_file = 2.0 ** ((START_MS - reference) / (12 * HOUR_MS))
    own = 2.0 ** ((START_MS + LENGTH_MS - reference) / (12 * HOUR_MS))
    assert weight == pytest.approx(4.0 * at_file + own)


# -- VPA


def test_a_vpa_checkpoint_goes_to_the_named_pod() -> None:
    text = yaml.safe_dump(vpa(stored(b20=10_000), stored(b30=10_000)))
    learned = from_vpa(yaml.safe_load(text))
    assert (learned.name, learned.samples) == ("web-main", 1234)
    bank, state = after({"a": learned}, ModelConfig(profile=VPA))
    row = len(ENTITIES)
    count = row + 1
    assert state_codec.unpack(state.samples, "<i8", count, 2)[row].tolist() == [1235, 1235]
    assert state_codec.unpack(state.first_ms, "<i8", count)[row] == 1_698_796_800_000
    raw = peaks_of(bank).predictors["percentile"].pod_raw[0]
    assert raw.tolist() == [
        max(VPA_CPU_LAYOUT.ends[20], raw[0]), max(VPA_MEMORY_LAYOUT.ends[30], raw[1])
    ]  # fmt: skip


def test_times_without_quotes_are_read() -> None:
    document = vpa(stored(b20=1), None)
    text = yaml.safe_dump(document).replace("'", "")
    assert from_vpa(yaml.safe_load(text)) .last_ms == START_MS + LENGTH_MS  # fmt: skip


@given(
    st.lists(st.tuples(st.integers(0, 157), st.floats(0.01, 100)), min_size=1, max_size=8),
    st.floats(0, 1),
    st.sampled_from([(CPU_LAYOUT, VPA_CPU_LAYOUT), (VPA_CPU_LAYOUT, CPU_LAYOUT)]),
)
def test_converting_to_another_layout_never_understates_and_preserves_weight(
    filled: list[tuple[int, float]], fraction: float, layouts: tuple[Layout, Layout]
) -> None:
    source, target = layouts
    weights = np.zeros(source.num_buckets)
    for bucket, weight in filled:
        if source.ends[min(bucket, source.num_buckets - 1)] <= target.ends[-1]:
            weights[min(bucket, source.num_buckets - 1)] += weight
    if not weights.any():
        return
    result = rebucket(Histogram(source, weights, 0, 1), target)
    assert result.sum() == pytest.approx(weights.sum())
    there = quantiles(weights[None], source, [fraction])[0, 0]
    here = quantiles(result[None], target, [fraction])[0, 0]
    # The running sums may differ in their last bit, and a quantile then by a bucket.
    lower = quantiles(weights[None], source, [max(fraction - 1e-9, 0.0)])[0, 0]
    assert here >= min(there, lower)
    assert here <= max(there, lower) * 1.06 + 0.03


def test_converting_to_the_same_layout_returns_the_same_weights() -> None:
    weights = np.arange(float(MEMORY_LAYOUT.num_buckets))
    assert rebucket(Histogram(MEMORY_LAYOUT, weights, 0, 1), MEMORY_LAYOUT) is weights


def test_a_value_beyond_the_last_bucket_is_refused() -> None:
    weights = np.zeros(MEMORY_LAYOUT.num_buckets)
    weights[-1] = 1.0
    with pytest.raises(CheckpointError, match="end at"):
        rebucket(Histogram(MEMORY_LAYOUT, weights, 0, 1), VPA_MEMORY_LAYOUT)


def test_the_import_reports_buckets_and_layout_changes_by_model() -> None:
    """By its own buckets, and not where all has decayed to nothing."""
    batch = Profile(half_life_seconds=(600.0, 600.0), layouts=(VPA_CPU_LAYOUT, VPA_MEMORY_LAYOUT))
    config = ModelConfig(class_profiles={"batch": batch})
    state = state_codec.decode(bank_of(config).encode_state("node-a"))
    old = {"referenceTimestamp": "2023-11-01T00:00:00Z"}
    documents = {
        "prod": koordinator("p", stored(b60=1, b61=1)),
        "batch": koordinator("b", stored(b60=1, b61=1, b62=1), stored(b9=1)),
        "mid": koordinator("m", stored(b60=1) | old),
    }
    learned = {name: from_koordinator(document) for name, document in documents.items()}
    merged, taken = merge_models(state, learned, config.profiles)
    cpu, memory = taken["batch"]
    assert cpu is not None
    assert cpu.moved
    assert memory == (1, True)
    assert (taken["prod"], taken["mid"]) == (((2, False), None), ((0, False), None))
    only_mid, _ = merge_models(state, {"mid": learned["mid"]}, config.profiles)
    assert only_mid == state != merged


# -- unknown, and what is refused


@pytest.mark.parametrize(
    "empty",
    [
        None,
        {"totalWeight": 0.0, "bucketWeights": {}, "referenceTimestamp": REFERENCE},
        {"totalWeight": 0.0, "bucketWeights": None, "referenceTimestamp": None},
        {"totalWeight": 5.0, "bucketWeights": {}, "referenceTimestamp": REFERENCE},
    ],
)
def test_an_empty_histogram_is_unknown_and_changes_nothing(empty: Any) -> None:
    """A VPA that restarted has recommended 0 bytes from such a checkpoint; this does not."""
    learned = from_vpa(vpa(stored(b20=1), empty))
    assert learned.histograms[1] is None
    config = ModelConfig(profile=VPA)
    bank, state = after({"free": from_koordinator(koordinator("x", empty, empty))}, config)
    assert (
        state_codec.encode(state)
        == bank_of(config).encode_state("node-a")
        == bank.encode_state("node-a")
    )


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({}, "no UID"),
        ({"UID": "__node__", "LastUpdated": None}, "unknown"),
        (koordinator("a", {"totalWeight": -1, "bucketWeights": {}}), "CPU of a: .*-1"),
        (koordinator("a", {"bucketWeights": {}}), "CPU of a"),
        (koordinator("a", stored(b999=1)), "158 buckets"),
        (koordinator("a", stored(b1=1) | {"referenceTimestamp": None}), "no referenceTimestamp"),
        (koordinator("a", stored(b1=1) | {"referenceTimestamp": "soon"}), "soon"),
        (koordinator("a", stored(b1=1) | {"referenceTimestamp": 17}), "17, not a time"),
        (koordinator("a", [1]), "CPU of a"),
        (koordinator("a", stored(b1=1), at="2023-13-13"), "LastUpdated"),
        ({"kind": "Pod", "metadata": {"name": "p"}}, "VerticalPodAutoscalerCheckpoint"),
        ({"kind": "Pod", "metadata": [1]}, "VerticalPodAutoscalerCheckpoint"),
        (vpa(stored(b1=1), None, totalSamplesCount=2**70), "totalSamplesCount of web-main"),
        (vpa(stored(b1=1), None, totalSamplesCount=True), "is True, not 0 to"),
        (koordinator("a", stored(b1=1) | {"totalWeight": True}), "True is not a number"),
        (koordinator("a", stored(b1=1) | {"totalWeight": 10**400}), "CPU of a"),
        (koordinator("a", stored(b1=10**300) | {"totalWeight": 1e300}), "too large"),
    ],
)
def test_an_invalid_checkpoint_is_refused(document: dict[str, Any], says: str) -> None:
    with pytest.raises(CheckpointError, match=says):
        (from_vpa if "kind" in document else from_koordinator)(document)


@pytest.mark.parametrize(
    ("uid", "changes", "says"),
    [
        ("z", {}, "no model of z"),
        ("a", {"referenceTimestamp": "1971-01-01T00:00:00Z"}, "half-lives apart"),
        ("a", {"totalWeight": 1e300}, r"worth 5\.5.*e\+299 samples"),
    ],
)
def test_unknown_pods_times_far_apart_and_impossible_weights_are_refused(
    uid: str, changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(CheckpointError, match=says):
        after({uid: from_koordinator(koordinator(uid, stored(b1=1) | changes))})


def test_a_file_of_the_future_is_refused_and_clocks_may_differ() -> None:
    """A model that was fed next month would take no sample until then."""
    end_ms = START_MS + LENGTH_MS
    weights = np.zeros(CPU_LAYOUT.num_buckets)
    weights[5] = 8.0

    def of(
        ahead_ms: int, reference_ms: int, first_ms: int | None = None
    ) -> dict[str, ImportedModel]:
        result = Histogram(CPU_LAYOUT, weights, end_ms + reference_ms, 12 * HOUR_MS)
        return {"node": ImportedModel("node", (result, None), end_ms + ahead_ms, first_ms)}

    after(of(HOUR_MS, 13 * HOUR_MS))
    for learned in (of(HOUR_MS + 1, 0), of(0, 13 * HOUR_MS + 1), of(0, 0, end_ms + HOUR_MS + 1)):
        with pytest.raises(CheckpointError, match="after the node's last window"):
            after(learned)


def test_profiles_by_class_take_their_own_layout_and_half_life() -> None:
    batch = Profile(half_life_seconds=(600.0, 600.0), layouts=(VPA_CPU_LAYOUT, VPA_MEMORY_LAYOUT))
    config = ModelConfig(class_profiles={"batch": batch})
    bank, _ = after({"batch": from_koordinator(koordinator("b", stored(b60=10_000)))}, config)
    raw = peaks_of(bank).predictors["percentile"].raw[ENTITIES.index("batch"), 0]
    assert raw >= KOORDINATOR.layouts[0].ends[60]
    assert raw in VPA_CPU_LAYOUT.ends


def test_a_state_of_the_layout_before_is_for_a_rebuild() -> None:
    """CheckpointLayoutError, not damage: recovery then replays the log from its first record."""
    data = bank_of(ModelConfig()).encode_state("node-a")
    old = data[:6] + b"\x01\x00" + data[8:]
    with pytest.raises(CheckpointLayoutError, match="layout version 1"):
        Bank(ModelConfig()).restore("node-a", old)
