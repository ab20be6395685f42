"""The report of a vector file as text."""

from collections.abc import Iterator, Sequence

from tests.vectors.runner import Result


def report(name: str, results: Sequence[Result]) -> str:
    """Groups of the product, then those of the tests' stand-in scheduler, then what is not run."""
    run = [result for result in results if result.group is not None]
    product = [result for result in run if result.group and not result.group.stand_in]
    stand_ins = [result for result in run if result.group and result.group.stand_in]
    lines = [name, *_section(product)]
    if stand_ins:
        lines.append("  the tests' stand-in for kube-scheduler:")
        lines += [f"  {line}" for line in _section(stand_ins)]
    for result in results:
        if result.group is None and result.not_built:
            (_, reason), *_ = result.not_built
            lines.append(f"  not built yet: {result.name} ({result.cases}): {reason}")
    unknown = [r for r in results if r.group is None and not r.not_built]
    if unknown:
        names = ", ".join(f"{result.name} ({result.cases})" for result in unknown)
        lines.append(f"  no adapter: {names}")
    return "\n".join(lines)


def _section(results: Sequence[Result]) -> Iterator[str]:
    for result in results:
        through = result.group.through if result.group else ""
        yield f"  {result.name}: {_counts([result])} (through {through})"
        for case, difference in result.differences:
            yield f"    differs: {case}: {difference.why}"
            yield f"      effect: {difference.effect}"
        yield from (f"    agrees without the difference: {case}" for case in result.agreeing)
        yield from (f"    not built yet: {case}: {reason}" for case, reason in result.not_built)
        for case, text in result.mismatches:
            yield f"    MISMATCH: {case}"
            yield from (f"      {line}" for line in text.splitlines())
    if results:
        yield f"  total: {_counts(results)}"


def _counts(results: Sequence[Result]) -> str:
    cases, passed = sum(r.cases for r in results), sum(r.passed for r in results)
    differences = sum(len(r.differences) for r in results)
    not_built = sum(len(r.not_built) for r in results)
    mismatches = sum(len(r.mismatches) for r in results)
    return (
        f"{cases} cases, {passed} passed, {differences} deliberate differences, "
        f"{not_built} not built yet, {mismatches} mismatches"
    )
