"""Nodes as a table for people: what `springtide top` and the demo show of the state table.

Owes the rest: `lines`, a line of text per node; `render`, these as a table that fits a terminal;
`plain`, the same for a pipe. What is known only partly is shown as `-`, never as 0.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from rich.table import Table as RichTable
from rich.text import Text

from pipeline.processors.loadaware.usage_thresholds import usage_percent
from pipeline.table import Table
from pipeline.table.node_anomalies import odd_by_row
from pipeline.table.node_documents import NOTHING_BESIDE, Beside, LimitsRatio

Sort = Literal["cpu", "memory", "peak", "name"]
Cell = tuple[str, str]  # text and style

STALE_AFTER_SECONDS: Final = 180.0


class _Column(NamedTuple):
    title: str
    rank: int  # the highest go first where the terminal is too narrow; 0 always stays
    left: bool = False


COLUMNS: Final = (
    _Column("NODE", 0, left=True),
    _Column("AGE", 0),
    _Column("CPU", 2),
    _Column("CPU%", 0),
    _Column("MEMORY", 2),
    _Column("MEM%", 0),
    _Column("PEAK CPU", 1),
    _Column("PEAK MEM", 1),
    _Column("PREDICTOR", 5, left=True),
    _Column("PODS", 3),
    _Column("FREE CPU", 4),
    _Column("FREE MEM", 4),
    _Column("LIM CPU%", 6),
    _Column("LIM MEM%", 6),
    _Column("FLAGS", 0, left=True),
)
_GAP: Final = 2
RESOURCES: Final = ("cpu_cores", "memory_bytes")


class Line(NamedTuple):
    """One node, ready to be shown: a cell per entry of `COLUMNS`, and what lines are sorted by."""

    name: str
    cells: tuple[Cell, ...]
    stale: bool
    cpu_percent: float
    memory_percent: float
    peak_percent: float


def lines(
    table: Table,
    now: float,
    *,
    sort: Sort = "cpu",
    stale_after_seconds: float = STALE_AFTER_SECONDS,
    beside: Beside = NOTHING_BESIDE,
) -> list[Line]:
    """A line per node of the table; the most used first, unknown last, or by name."""
    names = list(table)
    rows = table.lookup(names)
    ages = table.ages(rows, now)
    fresh = table.fresh(rows, now, stale_after_seconds)
    odd = odd_by_row(table, rows, now, stale_after_seconds)
    values = {column.name: table[column.name][rows] for column in table.columns}

    def share(kind: str, resource: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        return usage_percent(values[f"{kind}_{resource}"], values[f"allocatable_{resource}"])

    cpu, memory = share("usage", "cpu_cores"), share("usage", "memory_bytes")
    peaks = {f"peak_{resource}": share("peak", resource) for resource in RESOURCES}
    found = []
    for i, name in enumerate(names):
        row = {column: float(array[i]) for column, array in values.items()}
        state = table.snapshot(name).state
        peak_shares = [float(percent[i]) for percent in peaks.values()]
        promised = beside.limits.get(name, LimitsRatio())
        found.append(
            Line(
                name,
                (
                    (name, "bold"),
                    (_age(float(ages[i])), "" if fresh[i] else "yellow"),
                    (_cores(row["usage_cpu_cores"]), ""),
                    _percent(float(cpu[i])),
                    (_bytes(row["usage_memory_bytes"]), ""),
                    _percent(float(memory[i])),
                    *(
                        (_with_share(key, row[key], percent), "cyan")
                        for key, percent in zip(peaks, peak_shares, strict=True)
                    ),
                    (state.predictor if state else "", ""),
                    (_count(row["pods"]), ""),
                    (_cores(row["prod_reclaimable_cpu_cores"]), "green"),
                    (_bytes(row["prod_reclaimable_memory_bytes"]), "green"),
                    (_ratio(promised.cpu), ""),
                    (_ratio(promised.memory), ""),
                    (_flags(row, odd[i], name in beside.threshold_problems), "yellow"),
                ),
                stale=not fresh[i],
                cpu_percent=float(cpu[i]),
                memory_percent=float(memory[i]),
                peak_percent=max((p for p in peak_shares if p == p), default=np.nan),
            )
        )
    return sorted(found, key=_sort_key(sort))


def render(
    table: Table,
    now: float,
    *,
    sort: Sort = "cpu",
    stale_after_seconds: float = STALE_AFTER_SECONDS,
    width: int = 200,
    height: int | None = None,
    headers: bool = True,
    beside: Beside = NOTHING_BESIDE,
) -> RichTable:
    """The table for a terminal: columns that fit into `width`, nodes that fit into `height`."""
    all_lines = lines(table, now, sort=sort, stale_after_seconds=stale_after_seconds, beside=beside)
    shown = _fitting(all_lines, width)
    room = len(all_lines) if height is None else max(1, height - 3)
    rich = RichTable(
        box=None,
        pad_edge=False,
        show_header=headers,
        header_style="bold",
        caption_justify="left",
        caption_style="dim",
    )
    for i in shown:
        rich.add_column(
            COLUMNS[i].title,
            justify="left" if COLUMNS[i].left else "right",
            no_wrap=True,
            overflow="ellipsis",
        )
    for line in all_lines[:room]:
        cells = (line.cells[i] for i in shown)
        rich.add_row(*(Text(text, style) for text, style in cells), style="dim" * line.stale)
    if not all_lines:
        rich.caption = "no node has published a window yet"
    elif len(all_lines) > room:
        rich.caption = f"and {len(all_lines) - room} more"
    return rich


def plain(all_lines: Sequence[Line], *, headers: bool = True) -> str:
    """All columns, two spaces apart, nothing cut: for pipes. Spaces in titles become dashes."""
    grid = [[text or "-" for text, _ in line.cells] for line in all_lines]
    if headers:
        grid.insert(0, [column.title.replace(" ", "-") for column in COLUMNS])
    widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
    padded = (
        "  ".join(
            text.ljust(width) if column.left else text.rjust(width)
            for text, width, column in zip(row, widths, COLUMNS, strict=True)
        ).rstrip()
        for row in grid
    )
    return "".join(f"{row}\n" for row in padded)


def _fitting(all_lines: Sequence[Line], width: int) -> list[int]:
    """The columns that have room, ranks of lesser interest left out as a whole."""
    needs = [
        max(len(column.title), *(len(line.cells[i][0]) for line in all_lines), 0)
        for i, column in enumerate(COLUMNS)
    ]
    for most in range(max(column.rank for column in COLUMNS), -1, -1):
        shown = [i for i, column in enumerate(COLUMNS) if column.rank <= most]
        if sum(needs[i] + _GAP for i in shown) - _GAP <= width:
            break
    return shown


def _sort_key(sort: Sort) -> Callable[[Line], tuple[float, str]]:
    def key(line: Line) -> tuple[float, str]:
        if sort == "name":
            return 0.0, line.name
        percent: float = getattr(line, f"{sort}_percent")
        return (np.inf if np.isnan(percent) else -percent), line.name

    return key


def _age(seconds: float) -> str:
    if np.isnan(seconds):
        return "-"
    whole = max(0, round(seconds))
    if whole < 120:
        return f"{whole}s"
    if whole < 7200:
        return f"{whole // 60}m"
    return f"{whole // 3600}h" if whole < 172_800 else f"{whole // 86_400}d"


def _cores(cores: float) -> str:
    if np.isnan(cores):
        return "-"
    return f"{cores:.2f}" if cores < 1000 else f"{cores:.4g}"


def _bytes(amount: float) -> str:
    if np.isnan(amount):
        return "-"
    for unit in ("Mi", "Gi", "Ti", "Pi"):
        amount /= 1024 if unit != "Mi" else 1024**2
        if amount < 999.5 or unit == "Pi":
            break
    digits = 0 if unit == "Mi" or amount >= 99.95 else 1
    return f"{amount:.{digits}f}{unit}" if amount < 1e6 else f"{amount:.3g}{unit}"


def _share(percent: float) -> str:
    if np.isnan(percent):
        return "-"
    return f"{percent:.0f}%" if percent < 1e5 else f"{percent:.2g}%"


def _ratio(share: float | None) -> str:
    return _share(np.nan if share is None else share * 100)


def _percent(percent: float) -> Cell:
    return _share(percent), "red" if percent >= 90 else "yellow" if percent >= 65 else ""


def _with_share(key: str, amount: float, percent: float) -> str:
    if np.isnan(amount):
        return "-"
    text = _cores(amount) if key.endswith("cores") else _bytes(amount)
    return text if np.isnan(percent) else f"{text} {_share(percent)}"


def _count(number: float) -> str:
    return "-" if np.isnan(number) else f"{number:.0f}"


def _flags(row: dict[str, float], oddities: Sequence[str], bad_thresholds: bool) -> str:
    """In words, so that colour is never the only signal."""
    if np.isnan(row["as_of_seconds"]):
        return "no-data"
    flags = {
        "simulated": row["simulated"],
        "no-node": not row["node_known"],
        f"unknown-pods={row['unknown_pods']:.0f}": row["unknown_pods"] > 0,
        "thresholds": bad_thresholds,
    }
    amounts = {"gaps": f"gaps={row['gaps']:.0f}", "partial": f"partial={row['coverage']:.0%}"}
    odd = (amounts.get(name, name) for name in oddities)
    return ",".join((*odd, *(flag for flag, raised in flags.items() if raised)))
