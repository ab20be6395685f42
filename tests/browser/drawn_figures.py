"""What is wrong with the figures of an opened page, as a reader would see it."""

from typing import Any

from tests.browser.chromium_page import Page

_PROBLEMS = """
[...document.querySelectorAll("svg")].flatMap((svg, number) => {
  const name = `${number}: ${svg.querySelector("title")?.textContent}`;
  const problems = [];
  const outer = svg.getBoundingClientRect();
  if (outer.width < 100 || outer.height < 100) problems.push(`${name}: not visible`);
  const marks = [...svg.querySelectorAll("path:not(.grid), circle, rect")];
  const sizes = marks.map(mark => mark.getBoundingClientRect()).filter(r => r.width + r.height > 1);
  if (!sizes.length) problems.push(`${name}: nothing is drawn`);
  for (const element of [...marks, ...svg.querySelectorAll("text")]) {
    const box = element.getBoundingClientRect();
    const what = element.textContent || element.getAttribute("class");
    if (box.left < outer.left - 1 || box.right > outer.right + 1 || box.top < outer.top - 1
        || box.bottom > outer.bottom + 1) problems.push(`${name}: ${what} leaves the figure`);
  }
  for (const text of svg.querySelectorAll("text"))
    if (!text.getBoundingClientRect().width) problems.push(`${name}: an empty text`);
  if (!svg.querySelector("desc")?.textContent) problems.push(`${name}: no description`);
  return problems;
})
"""
_CONTRASTS = """
(() => {
  const light = colour => colour.match(/[\\d.]+/g).slice(0, 3).map(c => c / 255)
    .map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const back = light(getComputedStyle(document.body).backgroundColor);
  const shown = [...document.querySelectorAll("p, th, td, li, h1, h2, h3, svg text")];
  return shown.map(element => {
    const style = getComputedStyle(element);
    const own = light(element.closest("svg") ? style.fill : style.color);
    return (Math.max(own, back) + 0.05) / (Math.min(own, back) + 0.05);
  });
})()
"""


async def figure_problems(page: Page) -> list[str]:
    """Figures that are not visible or empty, and parts of figures outside them."""
    problems: list[str] = await page.evaluate(_PROBLEMS)
    return problems


async def drawn(page: Page, selector: str) -> int:
    """How many elements of figures match, and have a size on the screen."""
    count: int = await page.evaluate(
        f"[...document.querySelectorAll({selector!r})].filter(e => {{"
        "const box = e.getBoundingClientRect(); return box.width + box.height > 1 }).length"
    )
    return count


async def lowest_contrast(page: Page) -> float:
    """The lowest contrast between a text and the page (WCAG 2: 4.5 is readable)."""
    contrasts: list[Any] = await page.evaluate(_CONTRASTS)
    return float(min(contrasts))
