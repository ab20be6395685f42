"""The predictor `borg-default`."""

import numpy as np
from hypothesis import given

from pipeline.processors.model.model_config import ENTITIES, SYSTEM
from pipeline.processors.model.training_batch import NodeWindow
from tests.processors.predictors.answers import LAWS, answer, learned, same
from tests.processors.windows import GIB, Pod, streams, window


@given(streams())
@LAWS
def test_the_peak_is_the_requests_of_active_pods_divided_by_a(windows: list[NodeWindow]) -> None:
    bank = learned(windows, "borg-default", options={"borg-default": {"a": 1.25}})
    for result in bank.peaks(bank.nodes):
        own = result.predictors["borg-default"]
        for entity, name in enumerate(ENTITIES):
            for r, unit in enumerate((1000.0, 1.0)):
                if name == "system":
                    assert np.isnan(own.raw[entity, r])
                    continue
                asked, unknown = [], 0
                for i, uid_class in enumerate(result.pod_classes):
                    if result.pod_active[i] and name in ("node", ENTITIES[2 + uid_class]):
                        request = result.pod_requests[i, r] / unit
                        unknown += bool(np.isnan(request))
                        asked += [] if np.isnan(request) else [request]
                total = 0.0
                for request in asked:
                    total += request
                expected = total / 1.25 if asked or not unknown else np.nan
                assert same(own.raw[entity, r], expected)
                names = ("requests", "counted", "left_out")
                terms = [own.terms[term][entity, r] for term in names]
                assert terms == [total, len(asked), unknown]


def test_the_peak_of_a_pod_is_its_request_divided_by_a() -> None:
    pods = [Pod("a", (9.0, GIB)), Pod("b", (1.0, GIB), requests=(np.nan, 1.0))]
    result = answer([window(1, pods)], "borg-default").predictors["borg-default"]
    assert same(result.pod_raw[0, 0], 1.0 / 1.1)
    assert np.isnan(result.pod_raw[1, 0])


def test_without_a_peak_of_the_system_what_prod_leaves_unused_is_unknown() -> None:
    result = answer([window(i, [Pod("a", (0.1, GIB))]) for i in range(20)], "borg-default")
    assert np.isnan(result.predictors["borg-default"].raw[SYSTEM]).all()
    assert np.isnan(result.reclaimable.amount).all()
