"""With what we mended out of play, upstream says the same as before, and we say it too."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.vectors.prediction import OUT_OF_PLAY
from tests.vectors.runner import Adapters, load_adapters, run_file
from tests.vectors.usage import class_of

Case = dict[str, Any]

DATA = Path(__file__).parent.parent / "data" / "vectors"
CASES = [
    (group["group"], case)
    for name in ("colocation", "prediction")
    for group in json.loads((DATA / f"{name}.json").read_text())["groups"]
    if group["group"] in OUT_OF_PLAY
    for case in group["cases"]
    if not case["expected"].get("error")
]
RESOURCES = (("cpu_milli", "p95"), ("memory_bytes", "p98"))


def upstream(group: str, given: Case) -> Case:
    """Koordinator's predictors in plain arithmetic: that of pods, and what both come to."""
    said: Case = {"reclaimable": {}, "peak": {}}
    for key, quantile in RESOURCES:
        factor, models = (100 + given["safety_margin_percent"]) / 100, given["predictions"]
        room = given["node_allocatable"].get(key, 0)
        peaks = waiting = unused = asked = 0
        for pod in {pod["uid"]: pod for pod in reversed(given["pods"])}.values():
            request, model = (pod["requests"] or {}).get(key, 0), models.get(pod["uid"])
            if class_of(pod) not in ("prod", "none"):
                continue
            goes = pod.get("deleting") or pod["phase"] in ("Succeeded", "Failed")
            if pod["age_seconds"] <= given["cold_start_seconds"]:
                waiting, asked = waiting + request, asked + (0 if goes else request)
            elif not goes and model is None:
                waiting += request
            elif not goes:
                peak = int(factor * model[quantile][key])
                peaks, unused = peaks + peak, unused + max(request - peak, 0)
                asked += request
        amounts, tops = [min(max(room - peaks, 0), unused)], [peaks + waiting]
        if group == "prod_reclaimable":
            ids = ("__node-sys__", "__node-koord-prod__", "__node-__")
            tops.append(int(factor * sum(models[id][quantile][key] for id in ids)))
            amounts.append(max(min(room, asked) - tops[-1], 0))
        said["reclaimable"][key], said["peak"][key] = min(amounts), max(tops)
    return said


@pytest.mark.parametrize(("group", "case"), CASES, ids=[case["name"] for _, case in CASES])
def test_upstream_says_the_same_of_what_we_run_instead(group: str, case: Case) -> None:
    plain = OUT_OF_PLAY[group](case["input"])
    for given in (case["input"], plain or case["input"]):
        for name, amounts in upstream(group, given).items():
            assert amounts == pytest.approx(case["expected"][name], abs=1), name


def test_of_what_prod_leaves_unused_upstreams_own_cases_are_all_met() -> None:
    found = {
        group.group: group for group in run_file(DATA / "colocation.json", load_adapters()).groups
    }
    for name in OUT_OF_PLAY:
        group = found[name]
        assert group.passed + len(group.alike) == group.cases, name


@pytest.mark.parametrize(("plain", "alike"), [(1, 1), (2, 0), (None, 0)])
def test_a_case_that_differs_is_run_again_and_can_fail(
    tmp_path: Path, plain: int | None, alike: int
) -> None:
    case = {"name": "a case", "input": 5, "expected": 1}
    path = tmp_path / "vectors.json"
    path.write_text(json.dumps({"groups": [{"group": "g", "cases": [case]}]}))
    adapters = Adapters(
        run={"g": lambda given: given},
        differences={"g": lambda _given, _expected: ("for a reason", 5)},
        out_of_play={"g": lambda _given: plain},
        truncated=frozenset(),
    )
    (group,) = run_file(path, adapters).groups
    assert len(group.differences) == 1
    assert len(group.alike) == alike
    assert len(group.mismatches) == (plain == 2)
