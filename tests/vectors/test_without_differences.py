"""Without a deliberate difference, upstream answers the same, and the product agrees."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.vectors.cases import Case
from tests.vectors.runner import Group, load_groups, run_file
from tests.vectors.usage import class_of

DATA = Path(__file__).parent.parent / "data" / "vectors"
NAMES = ("pod_peak_predictor", "prod_reclaimable")
CASES = [
    (group["group"], case)
    for name in ("colocation", "prediction")
    for group in json.loads((DATA / f"{name}.json").read_text())["groups"]
    if group["group"] in NAMES
    for case in group["cases"]
    if not case["expected"].get("error")
]
RESOURCES = (("cpu_milli", "p95"), ("memory_bytes", "p98"))


def upstream(group: str, given: Case) -> Case:
    """Koordinator's predictors in plain arithmetic: the pod view, and what both views come to."""
    answer: Case = {"reclaimable": {}, "peak": {}}
    for key, quantile in RESOURCES:
        factor, models = (100 + given["safety_margin_percent"]) / 100, given["predictions"]
        room = given["node_allocatable"].get(key, 0)
        peaks = waiting = unused = requested = 0
        for pod in {pod["uid"]: pod for pod in reversed(given["pods"])}.values():
            request, model = (pod["requests"] or {}).get(key, 0), models.get(pod["uid"])
            if class_of(pod) not in ("prod", "none"):
                continue
            leaves = pod.get("deleting") or pod["phase"] in ("Succeeded", "Failed")
            if pod["age_seconds"] <= given["cold_start_seconds"]:
                waiting, requested = waiting + request, requested + (0 if leaves else request)
            elif not leaves and model is None:
                waiting += request
            elif not leaves:
                peak = int(factor * model[quantile][key])
                peaks, unused = peaks + peak, unused + max(request - peak, 0)
                requested += request
        amounts, tops = [min(max(room - peaks, 0), unused)], [peaks + waiting]
        if group == "prod_reclaimable":
            ids = ("__node-sys__", "__node-koord-prod__", "__node-__")
            tops.append(int(factor * sum(models[id][quantile][key] for id in ids)))
            amounts.append(max(min(room, requested) - tops[-1], 0))
        answer["reclaimable"][key], answer["peak"][key] = min(amounts), max(tops)
    return answer


@pytest.mark.parametrize(("name", "case"), CASES, ids=[case["name"] for _, case in CASES])
def test_upstream_answers_the_same_to_the_input_that_runs_instead(name: str, case: Case) -> None:
    group: Any = load_groups()[name]
    other = group.without(case["input"])
    for given in (case["input"], other or case["input"]):
        for kind, amounts in upstream(name, given).items():
            assert amounts == pytest.approx(case["expected"][kind], abs=1), kind


def test_upstreams_own_cases_of_prods_unused_requests_all_agree() -> None:
    results = {result.name: result for result in run_file(DATA / "colocation.json", load_groups())}
    for name in NAMES:
        result = results[name]
        assert isinstance(result.group, Group)
        assert result.passed + len(result.agreeing) == result.cases, name
