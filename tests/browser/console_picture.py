"""Take the picture of the console that README.md shows: a simulated fleet in a real browser.

python -m tests.browser.console_picture docs/console.webp
"""

import asyncio
import base64
import sys
from pathlib import Path
from typing import Final

import numpy as np

from pipeline.table import Table
from pipeline.table.node_columns import OfferedResources, TableNode
from pipeline.times import format_time
from pipeline.topics.alerts import OpenAlert
from pipeline.topics.hot_node_policy import HotNodePolicy
from pipeline.topics.resource_amounts import Resources, Usage
from tests.browser.chromium_files import ensure_chromium
from tests.browser.test_console import Proxy, opened
from tests.extender.conftest import extender
from tests.table.records import GIB, NOW, node_state

NODES: Final = 320
_WIDTH, _HEIGHT = 1160, 590
_QUALITY: Final = 60
_HOT_CORES: Final = 3.4


def fleet() -> Table:
    """Nodes of two pools with usage by chance; some are hot, a few stale or unknown."""
    table, random = Table(), np.random.default_rng(7)
    for index, share in enumerate(random.beta(2.0, 3.2, NODES)):
        name, cpu = f"node-{index:03}", 4.0 * float(share)
        alert = OpenAlert(rule="node_cpu", severity="critical", since=format_time(NOW - 400.0))
        table.put_state(node_state(
            name, cpu=None if index % 97 == 11 else cpu, memory=(2 + 9 * float(share)) * GIB,
            age=900.0 if index % 80 == 33 else 10.0, predictor="calibrated",
            peaks={"calibrated": Usage(cpu_cores=min(4.0, 1.3 * cpu), memory_bytes=12.0 * GIB)},
            alerts=(alert,) if cpu > _HOT_CORES else (),
        ))  # fmt: skip
        batch = Resources(cpu_millicores=round(1000 * max(2.4 - cpu, 0.0)), memory_bytes=3 << 30)
        table.put_resources(OfferedResources(
            node=name, as_of=format_time(NOW - 10.0), epoch=1, generation=1, offset=0,
            mid=Resources(cpu_millicores=400, memory_bytes=1 << 30), batch=batch,
        ))  # fmt: skip
        pool = "general" if index % 3 else "batch"
        table.put_node(TableNode(node=name, hot_nodes=HotNodePolicy(pool=pool)))
    return table


async def picture() -> bytes:
    """The upper part of the first page as WebP."""
    of = extender(fleet())
    shown = opened(ensure_chromium(), of, "#sort=name", Proxy(), width=_WIDTH)
    async with shown as (page, _):
        clip = {"x": 0, "y": 0, "width": _WIDTH, "height": _HEIGHT, "scale": 1}
        shot = await page.call("Page.captureScreenshot", format="webp", quality=_QUALITY, clip=clip)
        return base64.b64decode(shot["data"])


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(asyncio.run(picture()))
