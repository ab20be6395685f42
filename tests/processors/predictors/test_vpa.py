"""The predictor `vpa`."""

import numpy as np
from hypothesis import given

from pipeline.processors.model.histogram import VPA_CPU_LAYOUT, VPA_MEMORY_LAYOUT
from pipeline.processors.model.model_config import NODE, VPA
from pipeline.processors.model.training_batch import NodeWindow
from pipeline.topics.nodes import Strategy
from tests.processors.predictors.answers import LAWS, answer, learned
from tests.processors.windows import GIB, Pod, streams, window


@given(streams())
@LAWS
def test_the_peak_is_the_quantile_with_margin_and_floor(windows: list[NodeWindow]) -> None:
    options = {"percentile": {"cpu": 0.9, "memory": 0.9}}
    bank = learned(windows, "vpa", "percentile", options=options)
    for result in bank.peaks(bank.nodes):
        own, quantile = result.predictors["vpa"], result.predictors["percentile"]
        assert own.terms["quantile"].tobytes() == quantile.raw.tobytes()
        assert own.raw.tobytes() == (quantile.raw * 1.15).tobytes()
        assert (own.raw == own.terms["quantile"] * own.terms["margin"])[~np.isnan(own.raw)].all()
        floored = np.maximum(quantile.pod_raw * 1.15, [0.025, 250 * 2**20])
        assert own.pod_raw.tobytes() == floored.tobytes()


def test_the_preset_vpa_sets_its_buckets() -> None:
    windows = [window(i, usage=(2.0, 4 * GIB)) for i in range(5)]
    own = answer(windows, "vpa", profile=VPA).predictors["vpa"]
    ends = [
        layout.ends[layout.digitize(np.array([value]))[0]]
        for layout, value in ((VPA_CPU_LAYOUT, 2.0), (VPA_MEMORY_LAYOUT, 4 * GIB))
    ]
    assert own.raw[NODE].tolist() == [end * 1.15 for end in ends]


def test_its_own_margin_stays_without_a_margin_of_the_strategy() -> None:
    now = window(1, [Pod("a", (2.0, GIB))])
    now.strategy = Strategy(safety_margin_percent=0.0, predictor="vpa")
    own = answer([now], "vpa").predictors["vpa"]
    assert own.peaks.tobytes() == own.raw.tobytes()
    assert own.raw[NODE, 0] == own.terms["quantile"][NODE, 0] * 1.15
