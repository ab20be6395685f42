"""What axe-core finds on an opened page."""

from pathlib import Path

from tests.browser.chromium_page import Page


async def violations(page: Page, packages: Path) -> list[str]:
    """Violations of accessibility, by rule and element. `packages` has axe-core."""
    await page.evaluate((packages / "axe-core" / "axe.min.js").read_text() + ";0")
    await page.evaluate("axe.run().then(r => { window.found = r.violations }); 0")
    await page.becomes("!!window.found")
    return list(
        await page.evaluate(
            "window.found.flatMap(v => v.nodes.map(n => `${v.id}: ${n.html.slice(0, 200)}`))"
        )
    )
