"""Measure what the calibrated predictor costs a worker beside the usual ones:

    python -m benchmarks.calibrated [--nodes 20] [--pods 16 40] [--hours 8]

Two banks get the same windows of a minute, in turn: one has the default predictors, the other one
`calibrated` beside them. Times are this process's CPU per node and window, learning and peaks, over
the last hour. Memory is that of a node with these pods, state is its checkpoint.
"""

import argparse
import time
import tracemalloc
from collections.abc import Sequence

import numpy as np

from pipeline.processors.calibrated.node_pools import NodePools
from pipeline.processors.kubernetes.pod_classes import CLASS_CODES
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.model_config import ModelConfig
from pipeline.processors.model.training_batch import NodeWindow, TrainingBatch, training_batch

WINDOW_MS = 60_000
START_MS = 1_800_000_000_000
HORIZON_SECONDS = 86_400.0
USUAL = ModelConfig().predictors


def batch(nodes: int, pods: int, number: int) -> TrainingBatch:
    """A window of each node, log-normal usage of pods that request three times the median."""
    random, end_ms = np.random.default_rng(number), START_MS + number * WINDOW_MS
    windows = []
    for node in range(nodes):
        usage = np.exp(random.normal([-1.9, 19.5], 0.3, (pods, 2)))
        windows.append(NodeWindow(
            node=f"node-{node:04d}", machine_id=f"machine-{node:04d}", epoch=1,
            start_ms=end_ms - WINDOW_MS, end_ms=end_ms, coverage=1.0,
            node_usage=usage.sum(axis=0) * 1.1, allocatable=np.array([64e3, 2.0**38]),
            pod_uids=[f"{node:08d}-{pod:04d}" for pod in range(pods)],
            pod_classes=np.full(pods, CLASS_CODES["prod"], np.int8), pod_usage=usage,
            requests=np.full((pods, 2), [450.0, 9e8]), pod_ages=np.full(pods, 1e6),
            pod_active=np.ones(pods, np.bool_),
        ))  # fmt: skip
    return training_batch(windows)


def costs(nodes: int, pods: int, hours: int) -> list[float]:
    """Milliseconds per node and window of each bank, and KiB of the state of a node in each."""
    banks = [Bank(ModelConfig(predictors=USUAL + more)) for more in ((), ("calibrated",))]
    took = [0.0, 0.0]
    for number in range(1, 60 * hours + 1):
        windows = batch(nodes, pods, number)
        names = [head.node for head in windows.heads]
        for i, bank in enumerate(banks):
            begin = time.process_time()
            bank.apply(windows)
            bank.peaks(names)
            if number > 60 * (hours - 1):
                took[i] += time.process_time() - begin
    states = [len(bank.encode_state(names[0])) / 1024 for bank in banks]
    return [1e3 * seconds / (60 * nodes) for seconds in took] + states


def memory_kib(pods: int) -> float:
    """Of one node's pools after a step."""
    uids = tuple(map(str, range(pods)))
    usage, prod = np.ones((pods, 2)), np.ones(pods, np.bool_)
    NodePools(HORIZON_SECONDS, 0.02).close(uids, (), prod, ~prod, usage, usage)
    tracemalloc.start()
    pools = NodePools(HORIZON_SECONDS, 0.02)
    pools.open_step = START_MS // 300_000
    pools.close(uids, (), prod, ~prod, usage, usage)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return size / 1024


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--pods", type=int, nargs="+", default=[16, 40])
    parser.add_argument("--hours", type=int, default=8)
    given = parser.parse_args(arguments)
    for pods in given.pods:
        usual, more, small, large = costs(given.nodes, pods, given.hours)
        print(
            f"{pods} pods: {usual:.2f} ms a node and window, with calibrated {more:.2f} ms "
            f"(+{more - usual:.2f} ms, {more / usual:.1f} times); state {small:.0f} KiB, "
            f"with calibrated {large:.0f} KiB; memory of the pools {memory_kib(pods):.0f} KiB"
        )


if __name__ == "__main__":
    main()
