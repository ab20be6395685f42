"""A self-contained HTML page: text, tables and figures, without scripts or anything to load.

It follows the light or dark setting of the screen, and prints. The page itself forbids its browser
to run or load anything (Content-Security-Policy).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from pipeline.processors.figures.svg import PALETTE, escaped

_STYLE: Final = PALETTE + (
    ":root{color-scheme:light dark}"
    "body{margin:0 auto;padding:1.5rem;max-width:74rem;background:var(--back);color:var(--ink);"
    "font:15px/1.5 sans-serif;overflow-wrap:anywhere}"
    "h1{font-size:1.5rem;margin:.2rem 0 1rem}"
    "h2{font-size:1.2rem;margin:2.2rem 0 .5rem;padding-top:.6rem;border-top:1px solid var(--grid)}"
    "h3{font-size:1rem;margin:1.4rem 0 .3rem}"
    ".lead{font-size:1.1rem;max-width:56rem}"
    ".note{color:var(--faint);max-width:56rem}"
    "table{border-collapse:collapse;font-size:.87rem;font-variant-numeric:tabular-nums;"
    "margin:.6rem 0;overflow-wrap:break-word}"
    "th,td{padding:.22rem .6rem;text-align:left;vertical-align:top;"
    "border-bottom:1px solid var(--grid)}"
    "th{color:var(--faint);font-weight:600}"
    "td.amount,th.amount{text-align:right;white-space:nowrap}"
    "tr.own td:nth-child(-n+2){color:var(--own);font-weight:600}"
    "td ul{margin:0;padding-left:1.1rem}"
    ".scroll{overflow-x:auto}"
    "figure{margin:.6rem 0;break-inside:avoid;overflow-x:auto}"
    "figure svg{display:block}"
    ".multiples{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(360px,100%),1fr));"
    "gap:.4rem 1rem}"
    ".multiples figure{margin:0}"
    ".key{list-style:none;padding:0;margin:.4rem 0;font-size:.87rem;display:flex;flex-wrap:wrap;"
    "gap:.2rem 1.2rem}"
    ".key li::before{content:'';display:inline-block;width:1.6em;height:.75em;margin-right:.45em;"
    "vertical-align:-.05em;box-sizing:border-box}"
    ".key .usage::before{background:var(--usage)}"
    ".key .own::before{height:0;border-top:2.5px solid var(--own);vertical-align:.25em}"
    ".key .peak::before{height:0;border-top:2px solid var(--peak);vertical-align:.25em}"
    ".key .requests::before{height:0;border-top:2px dashed var(--faint);vertical-align:.25em}"
    ".key .missed::before{background:var(--bad);opacity:.45}"
    "@media print{body{max-width:none;padding:0;font-size:11px}"
    "figure svg{max-width:100%;height:auto}"
    "figure,tr{break-inside:avoid}h2,h3{break-after:avoid}}"
)
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"


def page(title: str, parts: Iterable[str]) -> str:
    """A page with this title and these parts, which are HTML."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escaped(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{escaped(title)}</h1>\n" + "\n".join(parts) + "\n</main>\n</body>\n</html>\n"
    )


def heading(content: str, level: int = 2) -> str:
    """A heading."""
    return f"<h{level}>{escaped(content)}</h{level}>"


def paragraph(content: str, kind: str = "") -> str:
    """A paragraph: `lead` for the summary, `note` for what explains."""
    return f'<p class="{kind}">{escaped(content)}</p>' if kind else f"<p>{escaped(content)}</p>"


def figures(drawn: Sequence[str]) -> str:
    """One figure, or several beside each other."""
    each = "\n".join(f"<figure>{svg}</figure>" for svg in drawn)
    return each if len(drawn) == 1 else f'<div class="multiples">\n{each}\n</div>'


def key(entries: Sequence[tuple[str, str]]) -> str:
    """What the colours of figures mean: pairs of a kind and a text. A kind is `usage`, `own`,
    `peak`, `requests` or `missed`."""
    items = "".join(f'<li class="{kind}">{escaped(content)}</li>' for kind, content in entries)
    return f'<ul class="key">{items}</ul>'


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[str | Sequence[str]]],
    *,
    texts: int,
    marked: Sequence[bool] = (),
) -> str:
    """A table. The first `texts` columns are text, the others amounts, except for a cell with
    several texts, which is a list. Rows that are `marked` stand out."""
    kinds = ["" if number < texts else ' class="amount"' for number in range(len(head))]
    lines = [
        "<tr>"
        + "".join(
            f'<th scope="col"{kind}>{escaped(cell)}</th>'
            for kind, cell in zip(kinds, head, strict=True)
        )
        + "</tr>"
    ]
    for number, row in enumerate(rows):
        cells = (
            f"<td{kind}>{escaped(cell)}</td>"
            if isinstance(cell, str)
            else f"<td>{_list(cell)}</td>"
            for kind, cell in zip(kinds, row, strict=True)
        )
        kind = ' class="own"' if marked and marked[number] else ""
        lines.append(f"<tr{kind}>{''.join(cells)}</tr>")
    return '<div class="scroll"><table>\n' + "\n".join(lines) + "\n</table></div>"


def _list(items: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escaped(item)}</li>' for item in items)}</ul>"
