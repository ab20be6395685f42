"""Compare ways to relieve hot nodes on recorded usage in a simulated cluster.

    python -m benchmarks.relief [--traces FILE.parquet] [--seeds 5] [--hours 4] [--nodes 8]
                                [--pods 64] [--load 0.5] [--arms NAME ...]

Pods replay series of the file, on nodes of one size whose mean usage is `--load`. All arms of a
seed have the same pods, nodes, lost windows (5%), unknown usage of pods (1%), and scheduler.
After a warm-up of three hours without evictions each window of 30 s counts. An evicted pod runs for
another window, and starts again a minute later where the scheduler puts it.

Columns are means over the seeds, and the range. `hot` are minutes of nodes above a threshold,
`evictions` those of pods, `again` those of pods that had been evicted before, `worst` the highest
usage of a node in percent (above 100: pods wanted more CPU than there was), `detection` the minutes
until a node that got hot was found, `down` the minutes that pods did not run.

`ours` is the product's planner with Koordinator's thresholds. `ours-quick` opens alerts after two
windows instead of five. `ours-peak` compares the predicted peak with the size of the node.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from benchmarks.relief_arms import Arm, LowNodeLoad, LowNodeUtilization, Nothing, Springtide
from benchmarks.simulated_cluster import HIGH, HOUR, LOW, Cluster, Scenario, hot_nodes, load_of
from benchmarks.usage_series import WINDOW_SECONDS, Recording, read_recording
from pipeline.processors.arrays import BoolArray
from pipeline.topics.hot_node_policy import HotNodePolicy

TRACES: Final = Path(__file__).parent.parent / "tests/data/usage/google_jobs.parquet"
ARMS: Final = (
    "nothing", "LowNodeLoad", "LowNodeUtilization", "ours", "ours-quick", "ours-peak",
)  # fmt: skip
_CALM_WINDOWS: Final = 20
"""A node gets hot if it was not hot for so long."""
_WINDOW_MINUTES: Final = WINDOW_SECONDS / 60


class Result(NamedTuple):
    """What an arm came to. `detection` is None if no node got hot or none was found."""

    hot: float
    evictions: int
    again: int
    worst: float
    detection: float | None
    down: float


AVERAGE: Final = HotNodePolicy(high_percent=HIGH, low_percent=LOW)
QUICK: Final = HotNodePolicy(high_percent=HIGH, low_percent=LOW, open_windows=2)
"""Two windows take a minute, as the six cycles after which Koordinator acts."""
PEAK: Final = HotNodePolicy(
    high_percent={"cpu": 100.0, "memory": 100.0}, low_percent=HIGH, usage="peak"
)
"""The peak of the next day is hot if it exceeds the node, and low if it is not hot as usage."""


def arm_of(name: str, seed: int) -> tuple[Arm, HotNodePolicy]:
    """An arm, and the thresholds in the records of the nodes."""
    policies = {"ours-quick": QUICK, "ours-peak": PEAK}
    arms: dict[str, Arm] = {
        "nothing": Nothing(), "LowNodeLoad": LowNodeLoad(seed),
        "LowNodeUtilization": LowNodeUtilization(seed),
    }  # fmt: skip
    return arms.get(name) or Springtide(), policies.get(name, AVERAGE)


def run(recording: Recording, scenario: Scenario, name: str, seed: int) -> Result:
    """Run one arm of a seed."""
    arm, thresholds = arm_of(name, seed)
    cluster = Cluster(scenario, load_of(recording, scenario, seed), thresholds, seed)
    cluster.warm_up()
    hot, found = [], []
    worst = 0.0
    for _ in range(HOUR * scenario.hours):
        measured = cluster.pass_window()
        hot.append(hot_nodes(measured.wanted))
        found.append(arm.act(cluster, measured))
        worst = max(worst, float(measured.wanted.max()))
    delays = [*detection_minutes(np.array(hot), np.array(found))]
    return Result(
        hot=float(np.sum(hot)) * _WINDOW_MINUTES,
        evictions=len(cluster.evictions),
        again=cluster.evicted_again,
        worst=100.0 * worst,
        detection=float(np.mean(delays)) if delays else None,
        down=cluster.down_windows * _WINDOW_MINUTES,
    )


def detection_minutes(hot: BoolArray, found: BoolArray) -> Iterator[float]:
    """Minutes from the begin of the first hot window of a node to the end of the window in which it
    was found, for each time that this happened before the node was cool again. (windows, nodes)
    each."""
    for of_node, found_of_node in zip(hot.T, found.T, strict=True):
        calm, began = _CALM_WINDOWS, None
        for window, (is_hot, is_found) in enumerate(zip(of_node, found_of_node, strict=True)):
            if is_hot and calm >= _CALM_WINDOWS:
                began = window
            calm = 0 if is_hot else calm + 1
            if calm >= _CALM_WINDOWS:
                began = None
            if began is not None and is_found:
                yield (window - began + 1) * _WINDOW_MINUTES
                began = None


def report(recording: Recording, scenario: Scenario, names: Sequence[str], seeds: int) -> None:
    """Print a row for each arm."""
    print(f"{'':20}" + "".join(f"{name:>22}" for name in Result._fields), flush=True)
    for name in names:
        results = [run(recording, scenario, name, seed) for seed in range(seeds)]
        cells = [
            _cell([value for value in column if value is not None])
            for column in zip(*results, strict=True)
        ]
        print(f"{name:20}" + "".join(f"{cell:>22}" for cell in cells), flush=True)


def _cell(values: Sequence[float]) -> str:
    if not values:
        return "-"
    return f"{np.mean(values):,.1f} ({min(values):,.1f}..{max(values):,.1f})"


def main() -> None:
    usual = Scenario()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--traces", type=Path, default=TRACES)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--hours", type=int, default=usual.hours)
    parser.add_argument("--warm-up-hours", type=int, default=usual.warm_up_hours)
    parser.add_argument("--nodes", type=int, default=usual.nodes)
    parser.add_argument("--pods", type=int, default=usual.pods)
    parser.add_argument("--load", type=float, default=usual.load)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=ARMS)
    given = parser.parse_args()
    scenario = Scenario(
        nodes=given.nodes, pods=given.pods, warm_up_hours=given.warm_up_hours, hours=given.hours,
        load=given.load,
    )  # fmt: skip
    report(read_recording(given.traces), scenario, given.arms, given.seeds)


if __name__ == "__main__":
    main()
