"""Measure how long the console needs for its first view, and its main thread for an update.

    python -m benchmarks.console [--nodes 10000] [--runs 5]

A real extender serves the console to headless Chromium, a new one for each run. Reported are the
time from the request of the page to the frame after its table is there, and the longest task of the
main thread after usage of all nodes has changed. Both include what else the machine does; the
browser draws without a graphics processor.
"""

import argparse
import asyncio
import statistics
import sys
from typing import Final

from aiohttp.test_utils import TestServer

from tests.browser.chromium_files import ChromiumFiles, ensure_chromium
from tests.browser.chromium_page import chromium_page
from tests.browser.test_console import simulated
from tests.table.records import GIB, node_state

_WATCH: Final = """
new MutationObserver((_, observer) => {
  if (!document.querySelector("tbody td")) return;
  observer.disconnect();
  requestAnimationFrame(() => setTimeout(() => { window.firstView = performance.now() }));
}).observe(document, { childList: true, subtree: true });
window.longest = 0;
new PerformanceObserver((list) => {
  for (const task of list.getEntries()) window.longest = Math.max(window.longest, task.duration);
}).observe({ entryTypes: ["longtask"] });
"""
"""Tasks below 50 ms are not reported by a browser, and count as 0."""


async def measure(files: ChromiumFiles, nodes: int) -> tuple[float, float]:
    """Milliseconds to the first view, and of the longest task of an update."""
    of, table, clock = simulated(nodes)
    async with TestServer(of.app()) as server, chromium_page(files) as page:
        await page.call("Page.enable")
        await page.call("Page.addScriptToEvaluateOnNewDocument", source=_WATCH)
        await page.open(str(server.make_url("/console")), online=True)
        first = float(await page.becomes("window.firstView"))
        await page.evaluate("window.longest = 0")
        for name in [*table]:
            table.put_state(node_state(name, cpu=2.0, memory=5 * GIB, age=0.0, offset=1))
        clock.jump(5.0)
        await page.becomes("document.querySelector('tbody td:nth-child(3)').textContent === '2.00'")
        await asyncio.sleep(0.2)  # The browser reports a task after its end.
        return first, float(await page.evaluate("window.longest"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    files = ensure_chromium()
    runs = [asyncio.run(measure(files, arguments.nodes)) for _ in range(arguments.runs)]
    first_views, updates = zip(*runs, strict=True)
    for name, values in (("first view", first_views), ("longest task of an update", updates)):
        sys.stdout.write(
            f"{name}: median {statistics.median(values):.0f} ms, "
            f"{min(values):.0f} to {max(values):.0f} ms in {len(values)} runs\n"
        )


if __name__ == "__main__":
    main()
