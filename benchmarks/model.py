"""Measure what the models of many pods cost: time to learn and to give peaks, memory, checkpoints.

    python -m benchmarks.model [--pods 10000 100000] [--windows 3]

Windows of 100 pods arrive 100 nodes at a time, as columns. Each batch is applied, and the default
predictors (`percentile`, `nsigma-v1`) give the peaks of its nodes. Two baselines run in the same
process: a plain C loop over dense arrays (`model.c`, at most 100,000 pods) and Python with one
object per histogram (1,000 pods). Both do the work per pod only: no admission, classes or views of
Prod. All three must give the same peaks, to the last bit.

Times are seconds of this process's CPU, the best of `--windows` rounds over all pods. Memory is the
growth of the process.
"""

from __future__ import annotations

import argparse
import bisect
import ctypes
import itertools
import math
import platform
import resource
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing import Process
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt

from pipeline.processors.arrays import FloatArray
from pipeline.processors.kubernetes.pod_classes import CLASS_CODES
from pipeline.processors.model import day_slots
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.histogram import (
    CPU_LAYOUT,
    MEMORY_LAYOUT,
    Layout,
    decay_factor,
    nearest_reference_ms,
)
from pipeline.processors.model.model_config import KOORDINATOR
from pipeline.processors.model.training_batch import NodeWindow, TrainingBatch, training_batch
from pipeline.topics.workloads import Workload

PODS_PER_NODE = 100
NODES_PER_BATCH = 100
WINDOW_MS = 30_000
START_MS = 1_800_000_000_000
MOST_IN_C = 100_000
MOST_IN_PYTHON = 1_000
# Decoded windows share these objects.
WORKLOADS = [
    Workload(f"namespace-{pod % 7}", "Deployment", f"workload-{pod:04d}")
    for pod in range(PODS_PER_NODE)
]
LAYOUTS = (CPU_LAYOUT, MEMORY_LAYOUT)
FRACTIONS = (0.95, 0.98)
SIGMAS = 3.0
KIB = 1024.0


class Usage:
    """Usage of seeded pods by window: cpu around 0.15 cores, memory around 300 MiB, mostly within a
    dozen buckets. Windows 0 and 1 are at the ends of each pod's range, so that histograms are as
    wide from the third window on as after days."""

    def __init__(self, pods: int, shown: int | None = None) -> None:
        random = np.random.default_rng(7)
        self._level = np.exp(random.normal([math.log(0.15), math.log(3e8)], 1.0, (pods, 2)))
        self._spread = np.array([0.4, 0.1])
        self.pods = pods if shown is None else shown

    def of_first(self, pods: int) -> Usage:
        """The usage of the first pods only."""
        return Usage(len(self._level), pods)

    def window(self, number: int) -> FloatArray:
        """(pods, 2), cores and bytes."""
        random = np.random.default_rng(100 + number)
        shape = self._level.shape
        steps = random.standard_normal(shape) if number > 1 else 6.0 * number - 3.0
        values: FloatArray = self._level * np.exp(self._spread * steps)
        return values[: self.pods]


@dataclass(frozen=True)
class Cost:
    """Seconds per pod and window, bytes per pod, and the quantiles of the first pods (.., 2)."""

    update: float
    peaks: float
    memory: float
    answers: FloatArray


@dataclass(frozen=True)
class Checkpoints:
    """Per pod, with full rings: bytes, seconds to write, seconds to restore."""

    size: float
    write: float
    restore: float


def batches(values: FloatArray, number: int) -> Iterator[TrainingBatch]:
    """One window of every node, some nodes at a time, with strings of its own as after decoding."""
    end = START_MS + number * WINDOW_MS
    classes = np.full(PODS_PER_NODE, CLASS_CODES["prod"], np.int8)
    classes[::5] = CLASS_CODES["batch"]
    nodes = len(values) // PODS_PER_NODE
    for first in range(0, nodes, NODES_PER_BATCH):
        made = []
        for node in range(first, min(first + NODES_PER_BATCH, nodes)):
            own = slice(node * PODS_PER_NODE, (node + 1) * PODS_PER_NODE)
            made.append(NodeWindow(
                node=f"node-{node:05d}", machine_id=f"machine-{node:05d}", epoch=1,
                start_ms=end - WINDOW_MS, end_ms=end, coverage=1.0,
                node_usage=values[own].sum(axis=0) * 1.1, allocatable=np.array([64e3, 2.0**38]),
                pod_uids=[f"{node:08d}-{pod:04d}-4000-8000-000000000000"
                          for pod in range(PODS_PER_NODE)],
                pod_classes=classes, pod_usage=values[own],
                requests=np.full((PODS_PER_NODE, 2), 1e3),
                pod_ages=np.full(PODS_PER_NODE, 1e6), pod_active=np.ones(PODS_PER_NODE, np.bool_),
                pod_workloads=WORKLOADS,
            ))  # fmt: skip
        yield training_batch(made)


def factors(number: int) -> list[float]:
    """The weight of a sample of this window, by resource, as the bank has it."""
    end_ms = START_MS + number * WINDOW_MS
    half_lives = KOORDINATOR.half_life_ms
    references = [nearest_reference_ms(START_MS, half_life) for half_life in half_lives]
    return [decay_factor(end_ms, *pair) for pair in zip(references, half_lives, strict=True)]


def bank_cost(bank: Bank, usage: Usage, windows: int) -> Cost:
    """The cost of the bank, which is filled on the way."""
    before = resident_bytes()
    update = peaks = math.inf
    for number in range(2 + windows):
        learning = answering = 0.0
        for batch in batches(usage.window(number), number):
            names = [head.node for head in batch.heads]
            learning += cpu_seconds(partial(bank.apply, batch))
            answering += cpu_seconds(partial(bank.peaks, names))
        if number >= 2:
            update, peaks = min(update, learning), min(peaks, answering)
    memory = resident_bytes() - before
    first = bank.peaks(bank.nodes[: MOST_IN_PYTHON // PODS_PER_NODE])
    answers = np.concatenate([node.predictors["percentile"].pod_raw for node in first])
    return Cost(update / usage.pods, peaks / usage.pods, memory / usage.pods, answers)


def checkpoint_cost(bank: Bank, usage: Usage) -> Checkpoints:
    """Of all nodes, with a day of values in every ring."""
    fill_rings(bank, usage)
    states: dict[str, bytes] = {}
    write = cpu_seconds(
        lambda: states.update((node, bank.encode_state(node)) for node in bank.nodes)
    )
    fresh = Bank()

    def restore() -> None:
        for node, state in states.items():
            fresh.restore(node, state)

    took = cpu_seconds(restore)
    size = sum(map(len, states.values()))
    return Checkpoints(size / usage.pods, write / usage.pods, took / usage.pods)


def fill_rings(bank: Bank, usage: Usage) -> None:
    """A day of five-minute slots for all rows at once: 288 windows of everything take longer."""
    store = bank.store.models.store
    newest = store["recent_slot"]
    rows = np.flatnonzero(newest >= 0)
    some = [np.resize(usage.window(2 + number), (len(rows), 2)) for number in range(8)]
    for times in np.random.default_rng(3).lognormal(0.0, 0.05, day_slots.SLOTS):
        values = some[round(times * 1e6) % len(some)] * times
        end_ms = (newest[rows] + 2) * day_slots.SLOT_MS
        day_slots.observe(store["recent"], newest, rows, values, end_ms)


# -- the same in C


class CLayout(ctypes.Structure):
    """`layout` of model.c."""

    _fields_ = (
        ("starts", ctypes.c_void_p),
        ("ends", ctypes.c_void_p),
        ("buckets", ctypes.c_int64),
        ("fraction", ctypes.c_double),
        ("lowest", ctypes.c_double),
        ("step", ctypes.c_double),
    )


def c_cost(usage: Usage, windows: int) -> Cost | None:
    """The cost of the plain C loop; None without a compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return None
    with TemporaryDirectory() as folder:
        library = Path(folder) / "model.so"
        source = Path(__file__).with_name("model.c")
        subprocess.run(
            [compiler, "-O2", "-shared", "-fPIC", "-o", library, source, "-lm"], check=True
        )
        return _c_cost(ctypes.CDLL(str(library)), usage, windows)


def _c_cost(library: ctypes.CDLL, usage: Usage, windows: int) -> Cost:
    pods = usage.pods
    layouts = (CLayout * 2)(*(
        CLayout(layout.starts.ctypes.data, layout.ends.ctypes.data, layout.num_buckets, fraction,
                lowest, step)
        for layout, fraction, lowest, step in zip(
            LAYOUTS, FRACTIONS, day_slots.LOWEST, day_slots.STEP, strict=True)
    ))  # fmt: skip
    before = resident_bytes()
    histograms = [np.zeros((pods, layout.num_buckets)) for layout in LAYOUTS]
    weight, mean, squares = (np.zeros((pods, 2)) for _ in range(3))
    samples, ring = np.zeros((pods, 2), np.int64), np.zeros((pods, 2, day_slots.SLOTS), np.uint16)
    quantiles, sigmas = np.empty((pods, 2)), np.empty((pods, 2))
    step = PODS_PER_NODE * NODES_PER_BATCH
    update = peaks = math.inf
    for number in range(2 + windows):
        values, by = usage.window(number), np.array(factors(number))
        slot = ctypes.c_int64(number % day_slots.SLOTS)
        learning = answering = 0.0
        for first in range(0, pods, step):
            own = slice(first, first + step)
            count = ctypes.c_int64(len(values[own]))
            kept = _pointers(*(array[own] for array in (*histograms, weight, mean, squares)))
            learn = partial(library.update, layouts, count, *_pointers(values[own], by), slot)
            learning += cpu_seconds(partial(learn, *kept, *_pointers(samples[own], ring[own])))
            answer = partial(library.peaks, layouts, count, ctypes.c_double(SIGMAS), *kept)
            answering += cpu_seconds(partial(answer, *_pointers(quantiles[own], sigmas[own])))
        if number >= 2:
            update, peaks = min(update, learning), min(peaks, answering)
    memory = (resident_bytes() - before) / pods
    return Cost(update / pods, peaks / pods, memory, quantiles[:MOST_IN_PYTHON])


def _pointers(*arrays: npt.NDArray[np.generic]) -> list[ctypes.c_void_p]:
    return [ctypes.c_void_p(array.ctypes.data) for array in arrays]


# -- the same in Python objects


class Model:
    """Histogram, moments and recent slots of one resource of one pod."""

    def __init__(self, layout: Layout, fraction: float) -> None:
        self.starts, self.ends = layout.starts.tolist(), layout.ends.tolist()
        self.fraction = fraction
        self.weights = [0.0] * layout.num_buckets
        self.weight = self.mean = self.squares = 0.0
        self.samples = 0
        self.recent: dict[int, float] = {}

    def add(self, value: float, by: float, slot: int) -> None:
        """One sample."""
        self.weights[max(bisect.bisect_right(self.starts, value) - 1, 0)] += by
        total, delta = self.weight + by, value - self.mean
        step = delta * (by / total)
        self.squares += self.weight * delta * step
        self.mean += step
        self.weight = total
        self.samples += 1
        self.recent[slot] = max(value, self.recent.get(slot, 0.0))

    def peaks(self) -> tuple[float, float]:
        """Quantile, and mean with deviations."""
        running = list(itertools.accumulate(self.weights))
        bucket = bisect.bisect_left(running, self.fraction * running[-1])
        return self.ends[bucket], self.mean + SIGMAS * math.sqrt(self.squares / self.weight)


def python_cost(usage: Usage, windows: int) -> Cost:
    """The cost of one object per histogram."""
    before = resident_bytes()
    models = [tuple(map(Model, LAYOUTS, FRACTIONS)) for _ in range(usage.pods)]

    def learn(values: list[list[float]], number: int) -> None:
        for pair, used in zip(models, values, strict=True):
            for model, value, by in zip(pair, used, factors(number), strict=True):
                model.add(value, by, number)

    def answer() -> None:
        for pair in models:
            for model in pair:
                model.peaks()

    update = peaks = math.inf
    for number in range(2 + windows):
        values = usage.window(number).tolist()
        update = min(update, cpu_seconds(partial(learn, values, number)))
        peaks = min(peaks, cpu_seconds(answer))
    memory = (resident_bytes() - before) / usage.pods
    answers = np.array([[model.peaks()[0] for model in pair] for pair in models])
    return Cost(update / usage.pods, peaks / usage.pods, memory, answers)


# -- measuring and printing


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU time of this process that `work` takes."""
    began = time.process_time()
    work()
    return time.process_time() - began


def resident_bytes() -> int:
    """The process's memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def report(pods: int, windows: int) -> None:
    """Measure with so many pods, and print."""
    few = (min(pods, MOST_IN_C), min(pods, MOST_IN_PYTHON))
    usage, bank = Usage(pods), Bank()
    in_python = python_cost(usage.of_first(few[1]), windows)
    in_c = c_cost(usage.of_first(few[0]), windows)
    ours = bank_cost(bank, usage, windows)
    columns = bank.store.nbytes / pods / KIB
    saved = checkpoint_cost(bank, usage)
    print(
        f"\n{f'{pods:,} pods':28}{'update':>10}{'peaks':>10}{'both':>10}{'ratio':>8}{'memory':>12}"
    )
    _print("bank", ours, ours)
    if in_c is None:
        print("  C: no compiler here")
    else:
        _print(f"C, {few[0]:,} pods", in_c, ours)
    _print(f"Python objects, {few[1]:,} pods", in_python, ours)
    print(
        f"  all pods in {(ours.update + ours.peaks) * pods:.2f} s; "
        f"columns {columns:.2f} KiB a pod, {columns / 2:.2f} a pod and resource\n"
        f"  checkpoints, a day in every ring: {saved.size / KIB:.2f} KiB a pod; all written in "
        f"{saved.write * pods:.1f} s, restored in {saved.restore * pods:.1f} s"
    )


def _print(name: str, cost: Cost, ours: Cost) -> None:
    if not np.array_equal(cost.answers, ours.answers[: len(cost.answers)]):
        raise SystemExit(f"{name}: the answers differ from the bank's")
    both = cost.update + cost.peaks
    print(
        f"  {name:26}{cost.update * 1e6:>7.2f} us{cost.peaks * 1e6:>7.2f} us{both * 1e6:>7.2f} us"
        f"{both / (ours.update + ours.peaks):>8.2f}{cost.memory / KIB:>8.2f} KiB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--pods", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--windows", type=int, default=3)
    given = parser.parse_args()
    machine = platform.processor() or platform.machine()
    print(f"{machine}, numpy {np.__version__}; per pod and window", flush=True)
    for pods in given.pods:
        # A new process has no freed memory of an earlier run.
        run = Process(target=report, args=(pods, given.windows))
        run.start()
        run.join()
        if run.exitcode:
            raise SystemExit(run.exitcode)


if __name__ == "__main__":
    main()
