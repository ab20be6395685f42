"""Run vector files through the groups that the modules of this package declare."""

import importlib
import json
import math
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pipeline.errors import SpringtideError
from tests.vectors.cases import recorded, unread

RELATIVE = 1e-9
ROOT = Path(__file__).parents[2]
PRODUCT = tuple(ROOT / name for name in ("pipeline", "node-exporter", "actuators"))
MODULES = (
    "descheduling", "evictions", "extender", "histograms", "hot_nodes", "kernel", "lifecycle",
    "load_watcher", "loadaware", "migration_jobs", "node_policy", "node_qos_burst",
    "node_qos_cgroups", "node_qos_cpu", "node_qos_devices", "node_qos_evictions", "node_qos_memory",
    "node_qos_tiers", "node_utilization", "offers", "policy", "prediction", "scorers", "strategies",
    "usage",
)  # fmt: skip
_NUMA = "no exporter measures NUMA nodes, so Batch is not split by zone"
_GPU = "devices are not read, so nodes offer no GPU resources"
NOT_BUILT = {
    "batch_resource_numa": _NUMA, "pod_numa_split": _NUMA, "gpu_node_resource": _GPU,
}  # fmt: skip
"""Groups for which the product does nothing yet, and what is missing."""

ERROR = {"error": True}
"""What an adapter answers where the product reports an unknown value and upstream an error."""


Adapter = TypeVar("Adapter", bound=Callable[[Any], object])


class NotBuiltError(Exception):
    """The product does nothing for a case yet."""


class Difference(NamedTuple):
    """A deliberate difference: why, what a user sees of it, and what the product answers."""

    why: str
    effect: str
    answer: Any


def _no_difference(given: Any, expected: Any) -> Difference | None:
    return None


def _no_other_input(given: Any) -> Any:
    return None


def _as_it_is(wanted: Any, answer: Any) -> Any:
    return answer


@dataclass(frozen=True)
class Group:
    """How the cases of a group run.

    `run` maps the input of a case to the product's answer, `through` names the entry point of the
    product. `resolve` maps (expected, answer) to the answer in the terms of the case, where several
    answers are right. `differs` maps (input, expected) to a deliberate difference. `without` maps
    the input of a case that differs to one to which upstream answers the same, and on which the
    product agrees with upstream; None if there is none. Whole numbers of a `truncated` group may
    differ by 1. A `stand_in` group exercises the tests' stand-in for kube-scheduler.
    """

    run: Callable[[Any], object]
    through: str
    differs: Callable[[Any, Any], Difference | None] = _no_difference
    without: Callable[[Any], Any] = _no_other_input
    resolve: Callable[[Any, Any], Any] = _as_it_is
    truncated: bool = False
    stand_in: bool = False


_GROUPS: dict[str, Group] = {}


def group(through: str, *, name: str = "", **options: Any) -> Callable[[Adapter], Adapter]:
    """Decorator: run the cases of a group, by default that of the function's name."""

    def declare(run: Adapter) -> Adapter:
        key = name or run.__name__
        if key in _GROUPS:
            raise ValueError(f"group {key!r} is declared twice")
        _GROUPS[key] = Group(run, through, **options)
        return run

    return declare


@dataclass
class Result:
    """Outcomes of one group: names of cases with what was found; `group` is None if no adapter
    runs it, and `not_built` then says why if that is known."""

    name: str
    group: Group | None
    cases: int
    passed: int = 0
    differences: list[tuple[str, Difference]] = field(default_factory=list)
    agreeing: list[str] = field(default_factory=list)
    not_built: list[tuple[str, str]] = field(default_factory=list)
    mismatches: list[tuple[str, str]] = field(default_factory=list)


def load_groups() -> dict[str, Group | str]:
    """The groups of all modules by name; for a group that is not built, the reason."""
    for name in MODULES:
        importlib.import_module(f"tests.vectors.{name}")
    return {**_GROUPS, **NOT_BUILT}


def run_file(path: Path, groups: Mapping[str, Group | str]) -> list[Result]:
    """Run all groups of a file. Raises ValueError if it is not a vector file."""
    document = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(document, dict) or not isinstance(document.get("groups"), list):
        raise ValueError("no list of groups")
    return [_run_group(group, groups) for group in document["groups"]]


def _run_group(tree: Mapping[str, Any], groups: Mapping[str, Group | str]) -> Result:
    name, cases = tree["group"], tree["cases"]
    group = groups.get(name)
    if not isinstance(group, Group):
        reasons = [] if group is None else [(case["name"], group) for case in cases]
        return Result(name, None, len(cases), not_built=reasons)
    result = Result(name, group, len(cases))
    for case in cases:
        run_case(group, case, result)
    return result


def run_case(group: Group, case: Mapping[str, Any], result: Result) -> None:
    """Run one case and add its outcome to `result`."""
    name, given, expected = case["name"], case["input"], case["expected"]
    difference = group.differs(given, expected)
    wanted = expected if difference is None else difference.answer
    try:
        problem = _mismatch(group, given, wanted)
    except NotBuiltError as reason:
        result.not_built.append((name, str(reason)))
        return
    if problem:
        result.mismatches.append((name, problem))
    elif difference is None:
        result.passed += 1
    else:
        result.differences.append((name, difference))
        other = group.without(given)
        if other is None:
            return
        if problem := _mismatch(group, other, expected):
            result.mismatches.append((f"{name}, without the difference", problem))
        else:
            result.agreeing.append(name)


def _mismatch(group: Group, given: Any, wanted: Any) -> str | None:
    """How the product's answer differs from `wanted`; None if it does not."""
    watched = recorded(given)
    actual = group.resolve(wanted, _answer(group, watched))
    problems = compare(wanted, actual, truncated=group.truncated)
    is_answer = isinstance(actual, Mapping) and not actual.keys() & {"raised", "crash"}
    if is_answer and (paths := [*unread(watched)]):
        problems.append(f"keys that the adapter does not read: {', '.join(paths)}")
    return _describe(given, wanted, actual, problems) if problems else None


def _answer(group: Group, given: Any) -> object:
    try:
        return group.run(given)
    except NotBuiltError:
        raise
    except Exception as error:
        kind = "raised" if is_of_product(error) else "crash"
        return {"error" if kind == "raised" else "crashed": True, kind: repr(error)}


def is_of_product(error: Exception) -> bool:
    """Whether the product raised an error: it is a SpringtideError, or was raised in its files."""
    if isinstance(error, SpringtideError):
        return True
    frames = traceback.extract_tb(error.__traceback__)
    file = Path(frames[-1].filename)
    return any(file.is_relative_to(folder) for folder in PRODUCT)


def compare(wanted: Any, actual: Any, *, truncated: bool = False, path: str = "") -> list[str]:
    """Where `actual` differs from `wanted`: floats by more than 1e-9 relative, whole numbers of a
    `truncated` group by more than 1. A missing key equals null; {"error": true} accepts any error.
    """
    if isinstance(wanted, Mapping):
        if not isinstance(actual, Mapping):
            return [f"{path or 'result'}: wanted an object, got {actual!r}"]
        if wanted.get("error") is True and actual.get("error") is True:
            actual = {key: value for key, value in actual.items() if key != "raised"}
        problems = []
        for key in sorted({*wanted, *actual}, key=str):
            problems += compare(
                wanted.get(key), actual.get(key), truncated=truncated, path=f"{path}.{key}"
            )
        return problems
    if isinstance(wanted, list):
        if not isinstance(actual, list | tuple) or len(wanted) != len(actual):
            return [f"{path}: wanted {wanted!r}, got {actual!r}"]
        problems = []
        for index, (expected, answer) in enumerate(zip(wanted, actual, strict=True)):
            problems += compare(expected, answer, truncated=truncated, path=f"{path}[{index}]")
        return problems
    is_same = _is_same(wanted, actual, truncated)
    return [] if is_same else [f"{path}: wanted {wanted!r}, got {actual!r}"]


def _is_same(wanted: Any, actual: Any, truncated: bool) -> bool:
    if not _is_number(wanted):
        return type(wanted) is type(actual) and bool(wanted == actual)
    if not _is_number(actual):
        return False
    if truncated and isinstance(wanted, int) and float(actual).is_integer():
        return bool(abs(wanted - actual) <= 1)
    return math.isclose(wanted, actual, rel_tol=RELATIVE, abs_tol=0.0)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _describe(given: Any, wanted: Any, actual: object, problems: list[str]) -> str:
    lines = [*problems, f"input:  {json.dumps(given)}", f"wanted: {json.dumps(wanted)}"]
    return "\n".join([*lines, f"got:    {json.dumps(actual, default=str)}"])
