"""What is printed of a prediction can be computed again to its last digit, and unknown is said."""

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.processors.explain.derivation import RESOURCES
from pipeline.processors.explain.prediction_text import entity_of, explain, predictors_of
from pipeline.processors.join.sample_join import NodeObjects
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.histogram import CPU_LAYOUT, MEMORY_LAYOUT
from pipeline.processors.model.model_config import ENTITIES, ModelConfig
from pipeline.processors.model.result_records import encode_prediction
from pipeline.processors.predictors import registry
from pipeline.topics.codec import Record, decode_json, encode_json
from pipeline.topics.node_state import Counters, NodeStateRecord
from pipeline.topics.nodes import NodeRecord, NodeStrategy
from pipeline.topics.predictions import DriftTimes, PredictionRecord, UsageColumns
from pipeline.topics.resource_amounts import Resources, Usage
from pipeline.topics.windows import Window
from tests.processors.derivations import Checked, check, numbers
from tests.processors.joined import (
    GIB,
    VIEWS,
    Row,
    header,
    joined,
    known_pod,
    logged,
    rows,
    training,
    view_of,
)

PREDICTORS = tuple(registry.PREDICTORS.points)
OPTIONS: dict[str, dict[str, Any]] = {
    "max": {
        "members": [
            "nsigma-v2", "borg-default", "vpa", "hourly-nsigma", "pods-nsigma", "percentile",
        ]
    },
    "river": {"outcomes": 1},
}  # fmt: skip
HORIZON_SECONDS = 21_600.0
"""River learns its first outcome after it."""
PLACE: dict[str, Any] = {"generation": 3, "offset": 77, "epoch": 9}


def records(windows: list[Window]) -> tuple[PredictionRecord, NodeStateRecord]:
    """Both records after these windows, with every predictor that is installed, as read."""
    config = ModelConfig(predictors=PREDICTORS, options=OPTIONS, horizon_seconds=HORIZON_SECONDS)
    bank = Bank(config)
    windows = [logged(window) for window in windows]
    for window in windows:
        bank.apply(training(window))
    (peaks,) = bank.peaks([windows[-1].header.node])
    prediction = decode_json(PredictionRecord, encode_prediction(windows[-1], peaks, PLACE))
    state = NodeStateRecord(
        node=prediction.node, as_of=prediction.as_of, window_seconds=30.0, coverage=0.75,
        usage=Usage(cpu_cores=1.1, memory_bytes=3e9), counters=Counters(applied=3), **PLACE,
    )  # fmt: skip
    return prediction, state


def used(kind: str, uid: str, cpu: float | None, memory: float | None) -> Row:
    return {
        "kind": kind, "id": uid, "coverage": 1.0, "cpu_cores_avg": cpu, "cpu_cores_p90": cpu,
        "memory_bytes_avg": memory, "memory_bytes_p90": memory,
    }  # fmt: skip


@cache
def random_records(seed: int) -> tuple[PredictionRecord, NodeStateRecord]:
    """Thirty hours of a node, a window an hour, with every kind of pod that there is."""
    chance = np.random.default_rng(seed)
    classes = ("prod", "prod", "prod", "none", "batch", "mid", "unknown")
    pods = [
        known_pod(
            f"pod-{i:02}",
            pod_class=str(chance.choice(classes)),
            requests=Resources(
                cpu_millicores=None if chance.random() < 0.1 else int(chance.integers(0, 4000)),
                memory_bytes=None if chance.random() < 0.1 else int(chance.integers(0, 1 << 33)),
            ),
            created_at=str(chance.choice(["2023-11-01T00:00:00Z", "2023-11-15T20:00:00Z"])),
            phase=str(chance.choice(["Running", "Running", "Running", "Succeeded"])),
            deleted_at="2023-11-15T00:00:00Z" if chance.integers(4) == 3 else None,
        )
        for i in range(12)
    ]
    record = NodeRecord(
        node="node-1",
        allocatable=Resources(cpu_millicores=15_001, memory_bytes=30 << 30),
        strategy=NodeStrategy(
            safety_margin_percent=float(chance.choice([0.0, 7.3, 25.0])),
            nsigma_multiplier=float(chance.choice([1.7, 3.0])),
            cold_start_samples=int(chance.integers(0, 28)),
        ),
    )
    known = [pod for pod in pods if chance.random() < 0.9]
    silent = {pod.uid for pod in pods if chance.random() < 0.1}
    windows = []
    for hour in range(30):
        seen = [
            used(
                "pod", pod.uid,
                None if pod.uid in silent else float(chance.exponential(0.4)),
                float(chance.exponential(GIB)),
            )
            for pod in pods if hour > 27 or chance.random() < 0.95
        ]  # fmt: skip
        node = used("node", "", 3.0 + float(chance.exponential()), 9 * GIB * float(chance.random()))
        of = header(end=hour * 120)
        of = header(end=hour * 120, window_start_ms=of.window_end_ms - 3_600_000)
        windows.append(joined(node, *seen, view=view_of(*known, record=record), of=of))
    return records(windows)


def recomputed(lines: list[str], *sources: Record) -> Checked:
    """The lines, computed again from numbers of these records."""
    documents = [json.loads(encode_json(source)) for source in sources]
    return check(lines, numbers(documents))


SEEDS = range(6)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_printed_result_follows_from_what_was_printed(seed: int) -> None:
    record, state = random_records(seed)
    found = recomputed(explain(record, state, now=1_700_200_000.0), record, state)
    assert len(found.steps) > 300
    assert len(found.sums) > 100


@pytest.mark.parametrize("predictor", PREDICTORS)
@pytest.mark.parametrize("resource", RESOURCES)
@pytest.mark.parametrize("entity", ENTITIES)
def test_every_published_peak_is_derived(predictor: str, resource: str, entity: str) -> None:
    derived = 0
    for seed in SEEDS:
        record, _ = random_records(seed)
        lines = explain(record, resources=[resource], entities=[entity], predictors=[predictor])
        steps = recomputed(lines, record).steps
        peak = RESOURCES[resource].value(entity_of(record, entity).peaks.get(predictor))
        if peak is None:
            assert any(line.strip().startswith("raw: unknown: ") for line in lines), lines
        else:
            assert ("peak, margin * raw", peak) in steps
            derived += 1
    # The system asks for nothing, and what is not installed by us knows what it likes.
    assert derived or (predictor, entity) == ("borg-default", "system")


@pytest.mark.parametrize("predictor", PREDICTORS)
@pytest.mark.parametrize("resource", RESOURCES)
def test_unused_prod_is_derived(predictor: str, resource: str) -> None:
    for seed in SEEDS:
        record, _ = random_records(seed)
        lines = explain(record, resources=[resource], entities=["prod"], predictors=[predictor])
        steps = recomputed(lines, record).steps
        kind, answer = RESOURCES[resource], record.reclaimable[predictor]
        for label, usage in (("reclaimable", answer.amount), ("peak", answer.peak)):
            amount = kind.whole(kind.value(usage))
            said = [value for name, value in steps if name.startswith(f"{label} of Prod")]
            assert said == ([] if amount is None else [amount])


def test_the_peaks_of_formulas_are_not_merely_stated() -> None:
    """Each predictor with a formula shows it, with its numbers, in some entity."""
    record, _ = random_records(0)
    shown = {
        predictor
        for predictor in PREDICTORS
        for label, _ in recomputed(explain(record, predictors=[predictor]), record).steps
        if label.startswith("raw, ")
    }
    declared = {name: registry.PREDICTORS.get(name).declaration for name in PREDICTORS}
    assert shown >= {name for name in PREDICTORS if declared[name].formulas}


def test_a_quantile_shows_its_bucket_and_its_edges() -> None:
    record, _ = random_records(0)
    lines = explain(record, resources=["memory"], entities=["node"], predictors=["percentile"])
    steps = dict(recomputed(lines, record).steps)
    (raw,) = (label for label in steps if label.startswith("raw, "))
    bucket = MEMORY_LAYOUT.digitize([steps["peak, margin * raw"]])[0] - 1
    assert raw == f"raw, p98 of the histogram: end of bucket {bucket}"
    assert steps[raw] == MEMORY_LAYOUT.ends[bucket]
    edges = [value for label, value in steps.items() if label.startswith(("start, ", "end, "))]
    assert edges == [MEMORY_LAYOUT.starts[bucket], MEMORY_LAYOUT.ends[bucket]]


def test_the_last_bucket_shows_its_start_and_zeros_are_stated() -> None:
    node = {"kind": "node", "id": "", "coverage": 1.0, "cpu_cores_p90": 5000.0,
            "memory_bytes_p90": 0.0}  # fmt: skip
    record, _ = records([joined(node)])
    lines = explain(record, entities=["node"], predictors=["percentile"])
    steps = dict(recomputed(lines, record).steps)
    last = CPU_LAYOUT.num_buckets - 1
    assert steps[f"raw, p95 of the histogram: start of bucket {last}"] == CPU_LAYOUT.starts[last]
    assert "    raw, all samples were 0: 0.0 bytes" in lines


def test_classes_without_usage_are_named_and_not_derived() -> None:
    node = {
        "kind": "node",
        "id": "",
        "coverage": 1.0,
        "cpu_cores_p90": 1.0,
        "memory_bytes_p90": GIB,
    }
    record, _ = records([joined(node)])
    *lines, last = explain(record, predictors=["percentile"])
    assert last == "no usage, so that each peak is 0 (see --class): batch, free, mid, none"
    assert ("cpu of prod" in lines, "cpu of batch" in lines) == (True, False)
    assert "cpu of batch" in explain(record, entities=["batch"])


def test_cold_pods_are_listed_with_their_requests() -> None:
    for seed in SEEDS:
        record, _ = random_records(seed)
        text = "\n".join(explain(record, resources=["cpu"], entities=["prod"]))
        for uid in record.cold_pods:
            at = record.pods.uid.index(uid)
            request = (record.pods.request.cpu_cores or [])[at]
            counted = record.pods.pod_class[at] in ("prod", "none", "unknown")
            if request is not None and counted and not record.pods.ended[at]:
                assert f"request of {uid}, cold, " in text
                assert re.search(rf"request of {uid}, cold, .*: {round(request * 1000)} m\n", text)


# -- the reader itself notices


def broken(lines: list[str]) -> Iterator[list[str]]:
    """The lines with the last digit of one of them changed, in turn."""
    for at, line in enumerate(lines):
        match = re.search(r"([-.\d]*)(\d)( \S+)?$", line)
        if (" = " in line or ", sum of " in line) and match:
            changed = str((int(match[2]) + 1) % 10)
            text = line[: match.start(2)] + changed + line[match.end(2) :]
            # Of 17 digits the last may make no difference.
            if float(match[1] + changed) != float(match[1] + match[2]):
                yield [*lines[:at], text, *lines[at + 1 :]]


def test_a_wrong_last_digit_is_noticed() -> None:
    record, _ = random_records(1)
    lines = explain(record, resources=["cpu"], entities=["prod"], predictors=["percentile"])
    tried = list(broken(lines))
    assert len(tried) > 10
    for text in tried:
        with pytest.raises(AssertionError):
            recomputed(text, record)


def test_a_number_from_nowhere_and_a_sum_without_lines_are_noticed() -> None:
    given = {2.0, 3.0}
    check(["a: 2 m", "b: 3 m", "c, sum of 2: 5 m", "d, product: 2 * 5 = 10 m"], given)
    for lines in (
        ["d: 2 + 4 = 6 m"], ["a: 2 m", "c, sum of 2: 2 m"], ["c, sum of 0: 1 m"], ["a: 4 m"],
    ):  # fmt: skip
        with pytest.raises(AssertionError):
            check(lines, given)


# -- what is unknown, and hostile records


def test_unknown_values_have_a_reason() -> None:
    record, _ = records([joined({"kind": "node", "id": "", "coverage": 0.2})])
    lines = explain(record)
    assert any("raw: unknown: no samples" in line for line in lines)
    assert any("model: no samples" in line for line in lines)
    lines = explain(record, entities=["prod"])
    assert any("allocatable: unknown: " in line for line in lines)
    assert not re.search(r"\bnan\b|\bNone\b|\binf\b", "\n".join(lines))


def raw_of(lines: list[str]) -> str:
    """What the only line of a peak before the margin says."""
    (line,) = (line.strip() for line in lines if line.strip().startswith("raw"))
    return line


def test_samples_and_cold_start_are_those_of_the_resource() -> None:
    """Of one resource there is a reading more than of the other."""
    pod = known_pod("a", requests=Resources(cpu_millicores=500, memory_bytes=1 << 30),
                    pod_class="prod", created_at="2023-11-14T22:00:00Z")  # fmt: skip
    windows = [
        joined(
            used("node", "", 2.0, None if end else GIB),
            used("pod", "a", 1.0, None if end else GIB),
            view=view_of(pod), of=header(end=end),
        )
        for end in range(3)
    ]  # fmt: skip
    record, _ = records(windows)
    for resource, model, counts in (
        ("cpu", "3 samples, with 1 of memory", "3 samples (1 of mem"),
        ("memory", "1 samples, with 3 of cpu", "1 samples (3 of cpu)"),
    ):
        text = "\n".join(explain(record, entities=["node"], resources=[resource]))
        assert f"  model: {model} the first at" in text
        lines = explain(record, entities=["prod"], resources=[resource])
        assert any(f"request of a, cold, 900.0 s old, {counts}" in line for line in lines)


def test_a_missing_peak_has_its_true_reason() -> None:
    """Each time the true reason, as far as the record has it."""
    pods = [known_pod(uid, pod_class="prod", created_at="2023-11-01T00:00:00Z") for uid in "ab"]
    seen = joined(used("node", "", 2.0, GIB), used("pod", "a", 1.0, GIB),
                  used("pod", "b", None, GIB), view=view_of(*pods))  # fmt: skip
    record, state = records([seen])

    def why(entity: str, predictor: str, resource: str = "cpu") -> str:
        lines = explain(record, state, resources=[resource], entities=[entity],
                        predictors=[predictor])  # fmt: skip
        return raw_of(lines)

    for entity, predictor, reason in (
        ("prod", "percentile", "no samples: cpu of b was never measured"),
        ("system", "borg-default", "it asks for nothing"),
        ("unknown", "vpa", "the record has no model of it: no samples"),
        ("node", "oracle", "this predictor did not run"),
    ):
        assert why(entity, predictor) == f"raw: unknown: {reason}"
    assert why("prod", "hourly-nsigma", "memory").startswith("raw: unknown: too short a history")
    assert why("node", "resource-central").startswith("raw: unknown: no peak of the system")
    record, state = records([joined(used("node", "", 2.0, GIB), used("pod", "c", 1.0, GIB))])
    assert why("unknown", "borg-default") == "raw: unknown: no request of its 1 pods is known"


def test_too_little_coverage_is_a_reason() -> None:
    record, state = records([joined({"kind": "node", "id": "", "coverage": 0.2})])
    state = msgspec.structs.replace(state, counters=Counters(applied=1, untrained=1))
    lines = explain(record, state, resources=["cpu"], entities=["node"], predictors=["percentile"])
    assert raw_of(lines) == "raw: unknown: no samples: no window covered enough of its time"


def test_a_predictor_without_an_answer_is_distinguished_from_no_samples() -> None:
    record, _ = random_records(0)
    text = encode_json(record).replace(b'"nsigma-v1"', b'"theirs"')
    record = decode_json(PredictionRecord, text)
    node = msgspec.structs.replace(record.node_peaks, raw={"theirs": Usage()})
    record = msgspec.structs.replace(record, node_peaks=node)
    lines = explain(record, resources=["cpu"], entities=["node"], predictors=["theirs"])
    assert raw_of(lines).endswith("its predictor gave no number, though there are 30 samples")
    # So it is with pods, which count their requests.
    raw = {name: UsageColumns() for name in record.pods.raw}
    pods = msgspec.structs.replace(record.pods, raw=raw, cold=[False] * len(record.pods.uid))
    record = msgspec.structs.replace(record, pods=pods)
    lines = explain(record, resources=["cpu"], entities=["prod"], predictors=["vpa"])
    assert any(", of which there is no peak by this predictor: " in line for line in lines)


def test_terms_of_a_predictor_that_is_not_installed_are_listed() -> None:
    record, _ = random_records(2)
    text = encode_json(record).replace(b'"nsigma-v1"', b'"theirs"')
    lines = explain(decode_json(PredictionRecord, text), predictors=["theirs"], entities=["node"])
    recomputed(lines, record)
    assert any(line.strip().startswith("mean: ") for line in lines)
    assert any(line.strip().startswith("raw, as its predictor says: ") for line in lines)


def test_a_member_of_a_maximum_may_have_dots_in_its_name() -> None:
    """As `package.predictor`; what is not known of it is said of it, too."""
    record, _ = random_records(2)
    text = encode_json(record).replace(b'"vpa', b'"acme.vpa').replace(b'"borg-', b'"acme.borg-')
    record = decode_json(PredictionRecord, text)
    for entity in ("node", "system", "batch", "unknown", "free"):
        lines = explain(record, predictors=["max"], entities=[entity], resources=["cpu"])
        recomputed(lines, record)
        heads = sorted(line.strip() for line in lines if line.endswith(":"))
        assert heads == [
            "acme.borg-default:", "acme.vpa:", "hourly-nsigma:", "nsigma-v2:", "percentile:",
            "pods-nsigma:",
        ]  # fmt: skip


def test_a_change_of_level_is_shown_for_its_resource() -> None:
    record, _ = random_records(0)
    model = msgspec.structs.replace(
        record.node_peaks.model, drift_at=DriftTimes(cpu="2023-11-15T00:00:00Z")
    )
    node = msgspec.structs.replace(record.node_peaks, model=model)
    record = msgspec.structs.replace(record, node_peaks=node)
    for resource in RESOURCES:
        text = "\n".join(explain(record, resources=[resource], entities=["node"]))
        told = "level changed at 2023-11-15T00:00:00Z" in text
        assert told == (resource == "cpu")


def test_the_deciding_predictor_comes_first() -> None:
    record, _ = random_records(0)
    other = msgspec.structs.replace(record, predictor="nsigma-v1")
    assert predictors_of(other)[0] == "nsigma-v1"
    assert sorted(predictors_of(other)) == sorted(PREDICTORS)


@given(rows(), VIEWS)
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=20)
def test_any_published_record_can_be_shown(sample: list[Row], view: NodeObjects) -> None:
    record, state = records([joined(*sample, view=view)])
    lines = explain(record, state, now=0.0)
    assert not re.search(r"\bnan\b|\bNone\b|\binf\b", "\n".join(lines))


@given(st.integers(0, 10_000))
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=5)
def test_any_node_can_be_computed_again(seed: int) -> None:
    record, state = random_records.__wrapped__(seed)
    recomputed(explain(record, state), record, state)
