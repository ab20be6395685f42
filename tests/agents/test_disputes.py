"""What a node state says about two sources depends on the log alone, not on batches."""

from typing import Any

import pytest

from pipeline.agents.model_agent import ModelCursor, apply_batches
from pipeline.agents.ownership import Ownership
from pipeline.processors.join.sample_join import NodeObjects, join
from pipeline.processors.model.bank import Bank
from pipeline.topics.codec import decode_json
from pipeline.topics.node_state import NodeStateRecord
from pipeline.topics.nodes import Strategy
from pipeline.topics.sample_rows import read_rows
from pipeline.topics.samples import SampleBatch, SampleHeader, encode_samples
from pipeline.topics.windows import encode_window
from tests.agents.fakes import APPENDED_MS, MemoryBroker
from tests.agents.logs import CONFIG
from tests.agents.owners import MODEL_RULES, content

NODE = "n1"


def window(step: int, source: str, cores: float) -> bytes:
    """The encoded window number `step` (6 s each) of an exporter, called "", or a provider."""
    end = APPENDED_MS - 3_600_000 + step * 6000
    header = SampleHeader(
        node=NODE, machine_id="" if source else "m", boot_id="", epoch=int(not source),
        sequence=step, window_start_ms=end - 6000, window_end_ms=end, source=source,
    )  # fmt: skip
    seconds = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    row = {
        "kind": "node", "id": "", "coverage": 1.0, "cpu_cores_avg": cores,
        "points_offset_seconds": seconds, "points_cpu_cores": [cores] * 6,
        "points_memory_bytes": [2.0**30] * 6, "memory_bytes_avg": 2.0**30,
    }  # fmt: skip
    sample = read_rows(encode_samples(SampleBatch(header, [row])))
    return encode_window(
        join(sample, NodeObjects(None, {}), Strategy(), sample_offset=step, appended_ms=end + 100)
    )


@pytest.mark.parametrize("sources", [("", "prometheus"), ("prometheus", "metrics-server")])
@pytest.mark.parametrize("windows", range(6, 18, 3))
@pytest.mark.parametrize("at_a_time", [1, 2, 5])
def test_a_dispute_does_not_depend_on_how_windows_are_batched(
    sources: tuple[str, str], windows: int, at_a_time: int
) -> None:
    broker = MemoryBroker()
    for number in range(windows):
        source = sources[number % 2]
        cores = 2.0 if source == sources[0] else 6.0
        broker.put("t.windows", 0, NODE.encode(), window(number // 2 + 1, source, cores))
    log = broker.logs["t.windows", 0]
    whole, pieces = (_cursor(), _cursor())
    apply_batches([(whole, log)])
    for start in range(0, len(log), at_a_time):
        apply_batches([(pieces, log[start : start + at_a_time])])
    assert content(whole) == content(pieces)
    report = whole.reports[NODE]
    assert report is not None
    state = decode_json(NodeStateRecord, report.node_state)
    # Three comparisons, each one window late; then the next window that counts.
    assert (state.dispute is not None) == (windows > (9 if sources[0] else 8))


def _cursor() -> ModelCursor:
    no_output: Any = None
    return ModelCursor(Ownership(0, epoch=0), 0, Bank(CONFIG), no_output, MODEL_RULES)
