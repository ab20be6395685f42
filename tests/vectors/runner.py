"""Runs vector files: finds the adapters, compares results, renders the report."""

import importlib
import json
import math
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from pipeline.errors import SpringtideError

RELATIVE = 1e-9

Adapter = Callable[[Any], object]
Difference = Callable[[Any, Any], tuple[str, Any] | None]
OutOfPlay = Callable[[Any], Any]


@dataclass(frozen=True)
class Adapters:
    """The product's side of the groups, collected from the modules of this package."""

    run: Mapping[str, Adapter]
    differences: Mapping[str, Difference]
    out_of_play: Mapping[str, OutOfPlay]
    truncated: frozenset[str]


@dataclass
class GroupResult:
    """Outcomes of one group; `differences` are (case, reason), `mismatches` (case, text). `alike`
    are those that differ, and give what is expected with what we mended out of play."""

    group: str
    covered: bool
    cases: int
    passed: int = 0
    differences: list[tuple[str, str]] = field(default_factory=list)
    alike: list[str] = field(default_factory=list)
    mismatches: list[tuple[str, str]] = field(default_factory=list)


@dataclass
class FileResult:
    groups: list[GroupResult] = field(default_factory=list)

    @property
    def mismatches(self) -> int:
        return sum(len(group.mismatches) for group in self.groups)


def load_adapters() -> Adapters:
    """ADAPTERS, DIFFERENCES, OUT_OF_PLAY and TRUNCATED of every module beside this one."""
    run: dict[str, Adapter] = {}
    differences: dict[str, Difference] = {}
    out_of_play: dict[str, OutOfPlay] = {}
    truncated: set[str] = set()
    package = importlib.import_module("tests.vectors")
    for found in sorted(pkgutil.iter_modules(package.__path__), key=lambda module: module.name):
        if found.name in ("__main__", "runner") or found.name.startswith("test_"):
            continue
        module: ModuleType = importlib.import_module(f"tests.vectors.{found.name}")
        for group, adapter in getattr(module, "ADAPTERS", {}).items():
            if group in run:
                raise ValueError(f"group {group!r} has two adapters, one in {found.name}")
            run[group] = adapter
        differences |= getattr(module, "DIFFERENCES", {})
        out_of_play |= getattr(module, "OUT_OF_PLAY", {})
        truncated |= getattr(module, "TRUNCATED", frozenset())
    return Adapters(run, differences, out_of_play, frozenset(truncated))


def run_file(path: Path, adapters: Adapters) -> FileResult:
    """Run all groups of a file. Raises ValueError if it is not of the form."""
    document = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(document, dict) or not isinstance(document.get("groups"), list):
        raise ValueError("no list of groups")
    return FileResult([_run_group(group, adapters) for group in document["groups"]])


def _run_group(group: Mapping[str, Any], adapters: Adapters) -> GroupResult:
    name, cases = group["group"], group["cases"]
    adapter = adapters.run.get(name)
    result = GroupResult(name, covered=adapter is not None, cases=len(cases))
    if adapter is None:
        return result
    for case in cases:
        given, expected = case["input"], case["expected"]
        difference = adapters.differences.get(name, lambda _input, _expected: None)(given, expected)
        reason, wanted = difference or (None, expected)
        cut = name in adapters.truncated
        if found := _mismatch(adapter, given, wanted, cut):
            result.mismatches.append((case["name"], found))
        elif reason is None:
            result.passed += 1
        else:
            result.differences.append((case["name"], reason))
            plain = adapters.out_of_play.get(name, lambda _input: None)(given)
            if plain is None:
                continue
            if found := _mismatch(adapter, plain, expected, cut):
                result.mismatches.append((f"{case['name']}, what we mended out of play", found))
            else:
                result.alike.append(case["name"])
    return result


def _mismatch(adapter: Adapter, given: Any, wanted: Any, cut: bool) -> str | None:
    """In full how the adapter's answer is not what is wanted; None if it is."""
    actual = _run(adapter, given)
    problems = compare(wanted, actual, cut=cut)
    return _describe(given, wanted, actual, problems) if problems else None


def _run(adapter: Adapter, given: Any) -> object:
    try:
        return adapter(given)
    except (SpringtideError, ValueError) as error:
        return {"error": True, "raised": f"{type(error).__name__}: {error}"}
    except Exception as error:  # a crash is never what a case expects
        return {"crash": f"{type(error).__name__}: {error}"}


def compare(wanted: Any, actual: Any, *, cut: bool = False, at: str = "") -> list[str]:
    """Where `actual` is not `wanted`: floats to 1e-9 relative, with `cut` whole numbers to 1.

    A key that is missing is the same as null; {"error": true} wants a failure, whatever it says.
    """
    if isinstance(wanted, Mapping):
        if not isinstance(actual, Mapping):
            return [f"{at or 'result'}: wanted an object, got {actual!r}"]
        if wanted.get("error") is True and actual.get("error") is True:
            actual = {key: value for key, value in actual.items() if key != "raised"}
        keys = sorted({*wanted, *actual}, key=str)
        problems = []
        for key in keys:
            problems += compare(wanted.get(key), actual.get(key), cut=cut, at=f"{at}.{key}")
        return problems
    if isinstance(wanted, list):
        if not isinstance(actual, list | tuple) or len(wanted) != len(actual):
            return [f"{at}: wanted {wanted!r}, got {actual!r}"]
        problems = []
        for i, (one, other) in enumerate(zip(wanted, actual, strict=True)):
            problems += compare(one, other, cut=cut, at=f"{at}[{i}]")
        return problems
    return [] if _same(wanted, actual, cut) else [f"{at}: wanted {wanted!r}, got {actual!r}"]


def _same(wanted: Any, actual: Any, cut: bool) -> bool:
    if isinstance(wanted, bool) or isinstance(actual, bool) or not _number(wanted):
        return type(wanted) is type(actual) and bool(wanted == actual)
    if not _number(actual):
        return False
    if cut and isinstance(wanted, int) and float(actual).is_integer():
        return bool(abs(wanted - actual) <= 1)
    return math.isclose(wanted, actual, rel_tol=RELATIVE, abs_tol=0.0)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _describe(given: Any, wanted: Any, actual: object, problems: list[str]) -> str:
    lines = [*problems, f"input:  {json.dumps(given)}", f"wanted: {json.dumps(wanted)}"]
    return "\n".join([*lines, f"got:    {json.dumps(actual, default=str)}"])


def report(name: str, result: FileResult) -> str:
    """The report of one file as text."""
    lines = [name]
    for group in (group for group in result.groups if group.covered):
        lines.append(
            f"  {group.group}: {group.cases} run, {group.passed} passed, "
            f"{len(group.differences)} deliberate differences, {len(group.mismatches)} mismatches"
        )
        lines += [f"    differs: {case}: {reason}" for case, reason in group.differences]
        lines += [f"    as upstream, what we mended out of play: {case}" for case in group.alike]
        for case, text in group.mismatches:
            lines.append(f"    MISMATCH: {case}")
            lines += [f"      {line}" for line in text.splitlines()]
    missing = [f"{group.group} ({group.cases})" for group in result.groups if not group.covered]
    if missing:
        lines.append(f"  not covered: {', '.join(missing)}")
    covered = [group for group in result.groups if group.covered]
    lines.append(
        f"  total: {sum(group.cases for group in covered)} run, "
        f"{sum(group.passed for group in covered)} passed, "
        f"{sum(len(group.differences) for group in covered)} deliberate differences, "
        f"{result.mismatches} mismatches; {len(missing)} groups not covered"
    )
    return "\n".join(lines)
