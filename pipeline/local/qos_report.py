"""The results of `springtide qos-bench` as a table and as a picture (SVG)."""

from collections.abc import Sequence
from typing import Final
from xml.sax.saxutils import escape

from pipeline.local.qos_bench import PhaseResult

PERCENTILES: Final = (50, 75, 90, 99)
_HEAD: Final = (
    "phase", *(f"p{percent} ms" for percent in PERCENTILES), "p99 ratio", "online CPU",
    "offline CPU", "node CPU %", "offline work %",
)  # fmt: skip
_WIDTH: Final = 640
_BAR: Final = 18
_LEFT: Final = 120
_COLORS: Final = {"p99": "#b5482f", "work": "#2f6db5"}


def table(results: Sequence[PhaseResult], cpus: int) -> str:
    """The results as Markdown, with p99 relative to the first phase, and offline work relative to
    the phase that did most of it."""
    rows = [_row(result, results, cpus) for result in results]
    widths = [max(len(row[i]) for row in (_HEAD, *rows)) for i in range(len(_HEAD))]
    lines = [_HEAD, tuple("-" * width for width in widths), *rows]
    return "\n".join(
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in lines
    )


def _row(result: PhaseResult, results: Sequence[PhaseResult], cpus: int) -> tuple[str, ...]:
    used = result.online_cores + result.offline_cores
    return (
        result.phase.name,
        *(f"{result.percentile_ms(percent):.2f}" for percent in PERCENTILES),
        f"{_p99_ratio(result, results):.2f}",
        f"{result.online_cores:.2f}",
        f"{result.offline_cores:.2f}",
        f"{100 * used / cpus:.0f}",
        f"{100 * _work_share(result, results):.0f}",
    )


def _p99_ratio(result: PhaseResult, results: Sequence[PhaseResult]) -> float:
    return result.percentile_ms(99) / results[0].percentile_ms(99)


def _work_share(result: PhaseResult, results: Sequence[PhaseResult]) -> float:
    most = max(other.offline_rounds for other in results)
    return result.offline_rounds / most if most else 0.0


def picture(results: Sequence[PhaseResult]) -> str:
    """Bars of p99 and of offline work for each phase, as SVG."""
    slowest = max(result.percentile_ms(99) for result in results)
    parts, y = [], 30
    for result in results:
        p99, share = result.percentile_ms(99), _work_share(result, results)
        parts.append(_text(8, y + 24, result.phase.name))
        parts.append(_bar(y, p99 / slowest, "p99", f"p99 {p99:.1f} ms"))
        parts.append(_bar(y + _BAR + 2, share, "work", f"offline work {100 * share:.0f} %"))
        y += 2 * _BAR + 18
    title = _text(8, 18, "Latency of the service and work of the offline pod")
    bars = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{y}" '
        f'font-family="sans-serif" font-size="13">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{title}\n{bars}\n</svg>\n'
    )


def _bar(y: int, share: float, kind: str, label: str) -> str:
    width = max(1, round(share * (_WIDTH - _LEFT - 160)))
    bar = f'<rect x="{_LEFT}" y="{y}" width="{width}" height="{_BAR}" fill="{_COLORS[kind]}"/>'
    return bar + _text(_LEFT + width + 6, y + 14, label)


def _text(x: int, y: int, text: str) -> str:
    return f'<text x="{x}" y="{y}">{escape(text)}</text>'
