"""The results of `springtide qos-bench` as a table and as a picture (SVG)."""

from collections.abc import Sequence
from typing import Final

from pipeline.local.qos_bench import PhaseResult
from pipeline.processors.figures import svg

PERCENTILES: Final = (50, 75, 90, 99)
_HEAD: Final = (
    "phase", *(f"p{percent} ms" for percent in PERCENTILES), "p99 ratio", "online CPU",
    "offline CPU", "node CPU %", "offline work %",
)  # fmt: skip
_WIDTH: Final = 640
_BAR: Final = 18
_LEFT: Final = 120
_TITLE: Final = "Latency of the service and work of the offline pod"


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
    parts, y = [svg.text(8, 18, _TITLE, "strong")], 30
    for result in results:
        p99, share = result.percentile_ms(99), _work_share(result, results)
        name = svg.fitted(result.phase.name, _LEFT - 16)
        parts.append(svg.text(8, y + 24, name))
        parts += _bar(y, p99 / slowest, "bad", f"p99 {p99:.1f} ms")
        parts += _bar(y + _BAR + 2, share, "own", f"offline work {100 * share:.0f}%")
        y += 2 * _BAR + 18
    description = f"p99 latency and offline work in {len(results)} phases"
    return svg.figure(_WIDTH, y, _TITLE, description, parts)


def _bar(y: int, share: float, kind: str, label: str) -> tuple[str, str]:
    width = max(1, round(share * (_WIDTH - _LEFT - 160)))
    return (
        svg.rectangle(_LEFT, y, width, _BAR, kind),
        svg.text(_LEFT + width + 6, y + 14, label),
    )
