"""Run the demo's simulated fleet as a process.

Usage: `python -m pipeline.local.simulated_fleet_process SETTINGS NODES`.

It ends by a signal. Its records are removed with the demo's broker.
"""

import asyncio
import sys
from pathlib import Path
from typing import Final

from pipeline.clock import SystemClock
from pipeline.logs import configure_logging
from pipeline.settings import load_settings
from pipeline.sources.simulated_fleet import run_fleet

# Two cores process two hours of coarse windows within a minute. Afterwards 200 nodes in real time
# leave most of the CPU to the other processes.
HOURS_BACK: Final = 2.0
HISTORY_WINDOW_SECONDS: Final = 600
WINDOW_SECONDS: Final = 30
PODS_PER_NODE: Final = 15


def main(settings_file: str, nodes: str) -> None:
    settings = load_settings(Path(settings_file), {}, {})
    configure_logging(settings.log.level, settings.log.format)
    asyncio.run(
        run_fleet(
            settings,
            nodes=int(nodes),
            clock=SystemClock(),
            hours_back=HOURS_BACK,
            window_seconds=WINDOW_SECONDS,
            history_window_seconds=HISTORY_WINDOW_SECONDS,
            pods_per_node=PODS_PER_NODE,
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
