"""Results of a backtest as a document, as a table with a row per machine, and as text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from typing import Any, Final

import pyarrow as pa

from pipeline.processors.backtest.judge import (
    HINDSIGHT_VIOLATIONS,
    Judgement,
    Summary,
    settings_hash,
    summaries,
)
from pipeline.processors.backtest.protocol import MachineScores

VERSION: Final = 1
_SCORES: Final = tuple(field.name for field in fields(MachineScores))


def document(judgements: Sequence[Judgement]) -> dict[str, Any]:
    """The results as JSON values: suites with a row per variant, and a summary of each variant.

    Shares are 0 to 1; null is unknown, as the severity without a violation.
    """
    suites: dict[str, dict[str, Any]] = {}
    for judgement in judgements:
        suite, fleet = judgement.suite, judgement.fleet
        entry = suites.setdefault(
            suite.name,
            {
                "suite": suite.name,
                "dataset": suite.dataset,
                "origin": suite.source,
                "scenario": suite.scenario,
                "resource": suite.resource,
                "horizon_hours": suite.horizon_hours,
                "burn_in_hours": suite.burn_in_hours,
                "stride_steps": suite.stride_steps,
                "trace_hours": round(judgement.trace_hours, 6),
                "machines": fleet.machines,
                "points": fleet.points,
                "oracle_savings": _number(fleet.oracle_savings),
                "rows": [],
            },
        )
        shared = {"machines", "points", "oracle_savings"}
        scores = {
            name: _number(value) for name, value in asdict(fleet).items() if name not in shared
        }
        hindsight = {
            f"savings_at_{rate:g}": _number(value)
            for rate, value in zip(HINDSIGHT_VIOLATIONS, judgement.hindsight, strict=True)
        }
        entry["rows"].append(_names(judgement) | scores | {"hindsight": hindsight})
    return {
        "version": VERSION,
        "suites": [*suites.values()],
        "summary": [_summary(summary) for summary in summaries(judgements)],
    }


def _names(judgement: Judgement) -> dict[str, Any]:
    variant = judgement.variant
    return {
        "variant": variant.name,
        "predictor": variant.config.strategy.predictor,
        "counts": variant.counts,
        "declared_risk": variant.declared_risk,
        "settings_hash": settings_hash(variant),
    }


def _summary(summary: Summary) -> dict[str, Any]:
    by_declared = summary.by_declared
    return {
        "variant": summary.variant.name,
        "declared_risk": summary.variant.declared_risk,
        "settings_hash": settings_hash(summary.variant),
        "worst_suite": summary.worst_suite,
        "violation": _number(summary.violation),
        "mean_violation": _number(summary.mean_violation),
        "violation_p90": _number(summary.violation_p90),
        "severity": _number(summary.severity),
        "savings": _number(summary.savings),
        "measured_by_declared": by_declared and [_number(share) for share in by_declared],
    }


def _number(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 6)


def machine_table(judgements: Sequence[Judgement]) -> pa.Table:
    """A row per suite, variant and machine, with the fields of `MachineScores`; unknown is null."""
    columns: dict[str, list[str]] = {}
    scores: dict[str, list[float | None]] = {name: [] for name in ("declared_risk", *_SCORES)}
    for judgement in judgements:
        suite, count = judgement.suite, len(judgement.nodes)
        texts = {
            "suite": suite.name,
            "dataset": suite.dataset,
            "origin": suite.source,
            "scenario": suite.scenario,
            "resource": suite.resource,
            "variant": judgement.variant.name,
            "settings_hash": settings_hash(judgement.variant),
        }
        for name, text in texts.items():
            columns.setdefault(name, []).extend([text] * count)
        columns.setdefault("node", []).extend(judgement.nodes)
        scores["declared_risk"] += [judgement.variant.declared_risk] * count
        for name in _SCORES:
            scores[name] += getattr(judgement.machines, name).tolist()
    arrays = {
        name: pa.array(values, pa.int64() if name == "points" else pa.float64(), from_pandas=True)
        for name, values in scores.items()
    }
    names = {
        name: pa.array(values, pa.string()).dictionary_encode() for name, values in columns.items()
    }
    return pa.table(names | arrays)


_TEXTS: Final = ("variant", "settings", "worst suite")
_HEAD: Final = ("violation", "p90 node", "severity", "savings", "of oracle", "unknown")


def text(judgements: Sequence[Judgement]) -> Iterator[str]:
    """The results as lines: a table per suite, and a summary of each variant over all suites."""
    suites: dict[str, list[Judgement]] = {}
    for judgement in judgements:
        suites.setdefault(judgement.suite.name, []).append(judgement)
    for name, own in suites.items():
        fleet = own[0].fleet
        yield (
            f"{name}: {fleet.machines} nodes, {fleet.points} predictions, "
            f"oracle saves {percent(fleet.oracle_savings)}"
        )
        rows = [
            (
                judgement.variant.name,
                *(
                    percent(value)
                    for value in (
                        judgement.fleet.violation, judgement.fleet.violation_p90,
                        judgement.fleet.severity, judgement.fleet.savings,
                        judgement.fleet.of_oracle, judgement.fleet.unknown,
                    )
                ),
            )
            for judgement in own
        ]  # fmt: skip
        yield from _aligned(("variant", *_HEAD), rows)
        yield ""
    if len(suites) > 1:
        yield "all suites"
        yield from _all_suites(summaries(judgements))


def _all_suites(overall: Sequence[Summary]) -> Iterator[str]:
    """A row per variant; measured by declared risks only if any is declared."""
    declares = any(summary.variant.declared_risk is not None for summary in overall)
    head = [
        "variant", "worst", "mean", "p90 node", "severity", "savings",
        *(["measured/declared"] if declares else []), "settings", "worst suite",
    ]  # fmt: skip
    rows = [
        [
            summary.variant.name, percent(summary.violation), percent(summary.mean_violation),
            percent(summary.violation_p90), percent(summary.severity), percent(summary.savings),
            *([by_declared_text(summary)] if declares else []), settings_hash(summary.variant),
            summary.worst_suite,
        ]
        for summary in overall
    ]  # fmt: skip
    yield from _aligned(head, rows)


def by_declared_text(summary: Summary) -> str:
    """The lowest and the highest measured rate by the declared risk; `-` is unknown."""
    if summary.by_declared is None:
        return "-"
    lowest, highest = summary.by_declared
    return f"{lowest:.2f} to {highest:.2f}"


def percent(share: float) -> str:
    """A share of 0 to 1 or more, in percent; `-` is unknown."""
    return "-" if math.isnan(share) else f"{100 * share:.1f}%"


def _aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns below each other: texts to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        cells = [
            cell.ljust(width) if head[position] in _TEXTS
            else cell.rjust(width)
            for position, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]  # fmt: skip
        yield "  " + "  ".join(cells).rstrip()
