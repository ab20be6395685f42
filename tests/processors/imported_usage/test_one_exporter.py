"""Samples without a machine count as one exporter, and a real exporter takes over its models."""

import numpy as np

from pipeline.processors.imported_usage.usage_samples import EPOCH, MACHINE_ID
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.model_config import ModelConfig
from pipeline.processors.model.training_batch import NodeWindow

START_MS = 1_700_000_040_000


def window(
    end_seconds: int, machine_id: str = MACHINE_ID, epoch: int = EPOCH, length: int = 60
) -> NodeWindow:
    end_ms = START_MS + end_seconds * 1000
    return NodeWindow(
        node="n1", machine_id=machine_id, epoch=epoch, start_ms=end_ms - length * 1000,
        end_ms=end_ms, coverage=1.0, node_usage=np.array([1.0, 2.0**30]),
    )  # fmt: skip


def statuses(*windows: NodeWindow) -> list[tuple[str, bool]]:
    bank = Bank(ModelConfig())
    return [(outcome.status, outcome.restarted) for of in windows for outcome in bank.apply([of])]


def test_samples_of_two_providers_count_once() -> None:
    assert statuses(window(60), window(60), window(120), window(60)) == [
        ("applied", False), ("duplicate", False), ("applied", False), ("late", False),
    ]  # fmt: skip


def test_an_exporter_takes_over_the_models_of_a_provider() -> None:
    exporter = window(90, "machine", 7, 30), window(120, "machine", 7, 30)
    result = statuses(window(60), *exporter, window(120), window(180))
    assert result[:3] == [("applied", False)] * 3
    # The provider finds out a little later.
    assert result[3:] == [("second_exporter", False)] * 2


def test_a_provider_that_gets_a_node_back_starts_new_models() -> None:
    result = statuses(window(30, "machine", 7, 30), window(240), window(300))
    assert result == [("applied", False), ("applied", True), ("applied", False)]
