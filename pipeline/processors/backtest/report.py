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
        "settings_hash": settings_hash(variant),
    }


def _summary(summary: Summary) -> dict[str, Any]:
    return {
        "variant": summary.variant.name,
        "settings_hash": settings_hash(summary.variant),
        "worst_suite": summary.worst_suite,
        "violation": _number(summary.violation),
        "mean_violation": _number(summary.mean_violation),
        "violation_p90": _number(summary.violation_p90),
        "severity": _number(summary.severity),
        "savings": _number(summary.savings),
    }


def _number(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 6)


def machine_table(judgements: Sequence[Judgement]) -> pa.Table:
    """A row per suite, variant and machine, with the fields of `MachineScores`; unknown is null."""
    columns: dict[str, list[Any]] = {
        name: [] for name in ("suite", "dataset", "scenario", "resource", "variant", "node")
    }
    scores: dict[str, list[float]] = {name: [] for name in _SCORES}
    for judgement in judgements:
        suite, count = judgement.suite, len(judgement.nodes)
        for name in ("dataset", "scenario", "resource"):
            columns[name] += [getattr(suite, name)] * count
        columns["suite"] += [suite.name] * count
        columns["variant"] += [judgement.variant.name] * count
        columns["node"] += judgement.nodes
        for name, values in scores.items():
            values += getattr(judgement.machines, name).tolist()
    arrays = {
        name: pa.array(values, pa.int64() if name == "points" else pa.float64(), from_pandas=True)
        for name, values in scores.items()
    }
    texts = {
        name: pa.array(values, pa.string()).dictionary_encode() for name, values in columns.items()
    }
    return pa.table(texts | arrays)


_TEXTS: Final = ("variant", "worst suite")
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
        head = ("variant", "worst", "mean", "p90 node", "severity", "savings", "worst suite")
        yield from _aligned(head, [_summary_row(summary) for summary in summaries(judgements)])


def _summary_row(summary: Summary) -> tuple[str, ...]:
    shares = (
        summary.violation, summary.mean_violation, summary.violation_p90, summary.severity,
        summary.savings,
    )  # fmt: skip
    return (summary.variant.name, *map(percent, shares), summary.worst_suite)


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
