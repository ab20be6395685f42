"""Measure what detection of hot nodes adds to a live worker.

    python -m benchmarks.detection [--nodes 800] [--pods 100] [--minutes 10]

Three workers take the same samples at the same time, each from topics of its own on one broker. The
nodes of one have thresholds of all four rules, which none of them reaches; those of the others have
none. So the load of the machine weighs on all alike, and the difference of the two equal workers is
the error of the measurement. Windows of 30 s arrive evenly, as in `benchmarks.fleet`.

Compared is the processor time of each process per node state, minute by minute.
"""

import argparse
import asyncio
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
from aiokafka import TopicPartition

from benchmarks import inventory
from benchmarks.exporter import cost
from benchmarks.fleet import check_alive, feeder, node_name, pod_uids
from benchmarks.roles import springtide
from pipeline.kafka.client import client_options
from pipeline.kafka.partition_log import open_reader
from pipeline.kafka.topic_admin import apply_topics
from pipeline.local.local_kafka import local_kafka
from pipeline.settings import Settings, load_settings
from pipeline.topics.registry import NODE_STATE

WARM_UP_SECONDS: Final = 120.0
ROUND_SECONDS: Final = 60.0
POLICIES: Final = {"without": None, "with": inventory.HOT_NODES, "control": None}
"""Topic prefixes of the workers, and the policy of their nodes."""


async def states(settings: Settings) -> int:
    """The node states written so far."""
    topic = NODE_STATE.full_name(settings.kafka.topic_prefix)
    places = [TopicPartition(topic, p) for p in range(settings.kafka.partitions)]
    async with open_reader(client_options(settings.kafka), places) as reader:
        bounds = [await reader.bounds(*place) for place in places]
    return sum(end for _, end in bounds)


def moment(settings: Settings, pid: int) -> tuple[int, float]:
    """Node states and processor seconds of a worker so far."""
    now = cost(pid)
    return asyncio.run(states(settings)), now.user_seconds + now.system_seconds


def report(rounds: np.ndarray) -> None:
    """Print processor time per node state, and its ratio to that of the first worker. `rounds`
    (rounds, workers, 2) are node states and processor seconds."""
    microseconds = 1e6 * rounds[..., 1] / rounds[..., 0]
    ratios = microseconds / microseconds[:, :1]
    total = 1e6 * rounds[..., 1].sum(axis=0) / rounds[..., 0].sum(axis=0)
    print(f"{'detection':12}{'node states':>12}{'us each':>10}{'ratio':>8}{'median':>8}  by minute")
    for index, name in enumerate(POLICIES):
        low, middle, high = np.percentile(ratios[:, index], [0, 50, 100])
        print(
            f"{name:12}{int(rounds[:, index, 0].sum()):>12,}{total[index]:>10,.0f}"
            f"{total[index] / total[0]:>8.3f}{middle:>8.3f}  {low:.3f} to {high:.3f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=800)
    parser.add_argument("--pods", type=int, default=100)
    parser.add_argument("--minutes", type=int, default=10)
    given = parser.parse_args()
    feeding = argparse.Namespace(**vars(given), spread=30.0, churn=0.15, prefixes=[*POLICIES])
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        kafka = stack.enter_context(local_kafka())
        workers: list[tuple[Settings, int]] = []
        for prefix, policy in POLICIES.items():
            settings = load_settings(None, {}, {
                "kafka.bootstrap_servers": kafka.bootstrap_servers,
                "kafka.topic_prefix": prefix,
            })  # fmt: skip
            asyncio.run(apply_topics(settings.kafka))
            fleet = ((node_name(n), pod_uids(n, given.pods)) for n in range(given.nodes))
            asyncio.run(inventory.publish(settings, fleet, hot_nodes=policy))
            child = springtide(
                *("worker", "--no-supervise", "--metrics-port", "0"),
                *("--bootstrap-servers", kafka.bootstrap_servers, "--topic-prefix", prefix),
                *("--data-dir", str(folder / prefix)),
                log=folder / f"{prefix}.log",
            )
            workers.append((settings, stack.enter_context(child).pid))
        stack.enter_context(feeder(kafka.bootstrap_servers, feeding))
        print(f"warming up for {WARM_UP_SECONDS:.0f} s", file=sys.stderr, flush=True)
        time.sleep(WARM_UP_SECONDS)
        moments = [[moment(*each) for each in workers]]
        for _ in range(given.minutes):
            time.sleep(ROUND_SECONDS)
            moments.append([moment(*each) for each in workers])
            check_alive(
                {name: pid for name, (_, pid) in zip(POLICIES, workers, strict=True)}, folder
            )
        report(np.diff(np.array(moments), axis=0))


if __name__ == "__main__":
    main()
