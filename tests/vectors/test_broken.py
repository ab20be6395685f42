"""Every group notices a mutation of the product, and every scorer of upstream has one."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pipeline.processors.scorers.registry import SCORERS
from tests.vectors.broken import BROKEN, broken
from tests.vectors.runner import Group, Result, load_groups, run_case

DATA = Path(__file__).parents[1] / "data" / "vectors"
UPSTREAM = {"KEP-217", "Koordinator", "Trimaran", "scheduler-plugins"}
MUTATIONS = [(group, target) for group, targets in BROKEN.items() for target in targets]


@cache
def cases() -> Mapping[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for path in DATA.glob("*.json"):
        for group in json.loads(path.read_text())["groups"]:
            found.setdefault(group["group"], []).extend(group["cases"])
    return found


@cache
def groups() -> Mapping[str, Group]:
    return {name: g for name, g in load_groups().items() if isinstance(g, Group)}


def test_every_group_has_a_mutation() -> None:
    assert BROKEN.keys() == groups().keys()


@pytest.mark.parametrize(("name", "target"), MUTATIONS, ids=[f"{n}-{t}" for n, t in MUTATIONS])
def test_a_mutation_of_the_product_turns_a_case_red(name: str, target: str) -> None:
    result = Result(name, groups()[name], len(cases()[name]))
    with broken(target):
        for case in cases()[name]:
            run_case(groups()[name], case, result)
            if result.mismatches:
                return
    pytest.fail(f"no case of {name} notices that {target} is broken")


def test_every_scorer_of_an_upstream_project_has_a_group() -> None:
    modules = {target.partition(":")[0] for _, target in MUTATIONS}
    scorers = map(SCORERS.get, SCORERS.points)
    missing = [
        scorer.name
        for scorer in scorers
        if scorer.source in UPSTREAM and scorer.score.__module__ not in modules
    ]
    assert not missing, "add a group with cases of upstream to tests/vectors/broken.py"
