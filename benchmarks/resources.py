"""Measure what Mid and Batch of a large fleet cost, recomputed for every node.

    python -m benchmarks.resources [--nodes 10000] [--pods 100] [--at-once 10 100 1000]
                                   [--rounds 3]

Two thirds of the pods are Prod and Mid, a third is Batch; each of the three calculate policies has
a third of the nodes. For `--at-once` nodes a call it times the stages of a worker: windows to
columns, columns to amounts by one predictor, the same for two predictors and the deciding one
(`offers`), records, JSON. The baseline in the same run is a plain Python loop over the pods. Both
must give the same amounts, or the benchmark ends with an error.

Times are CPU seconds of this process, the best of `--rounds`. Average usage is computed before the
clock starts: node states need it anyway. Goal: all nodes within 1 s of one core.
"""

import argparse
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from benchmarks import ingest, inventory
from pipeline.processors.arrays import IntArray
from pipeline.processors.join.pod_facts import pod_row
from pipeline.processors.join.sample_join import NodeObjects, join, listing_facts
from pipeline.processors.kubernetes.pod_classes import CLASS_CODES
from pipeline.processors.model.window_batch import WindowBatch
from pipeline.processors.overcommit.batch import batch
from pipeline.processors.overcommit.mid import allocated, mid
from pipeline.processors.overcommit.node_offers import NodeOffers, offers, records
from pipeline.processors.overcommit.resource_columns import NodeAmounts, PodAmounts, PolicyColumns
from pipeline.processors.overcommit.window_columns import (
    Prod,
    has_valid_amounts,
    node_amounts,
    pod_amounts,
)
from pipeline.topics.codec import encode_json
from pipeline.topics.nodes import Strategy
from pipeline.topics.overcommit_policy import Overcommit
from pipeline.topics.sample_rows import read_rows
from pipeline.topics.windows import Window, as_decoded, encode_window

END_MS = 1_800_000_000_000
PREDICTORS = 2
POLICIES: Final = ("usage", "request", "maxUsageRequest")
AT: Final = {"generation": 1, "offset": 1, "epoch": 1}
LOOPED_NODES = 1_000
"""Nodes of which the loop works out amounts: it takes minutes for a million pods."""


class Part(NamedTuple):
    """Some nodes: what a worker has of them after a window, and the columns that it comes to."""

    batch: WindowBatch
    prods: list[Prod]

    def overcommit(self) -> list[Overcommit]:
        return [window.node.overcommit or Overcommit() for window in self.batch.windows]

    def columns(self) -> tuple[NodeAmounts, PodAmounts, PolicyColumns]:
        has_valid_amounts(self.batch)
        found = node_amounts(self.batch, self.prods[0])
        return found, pod_amounts(self.batch), PolicyColumns(self.overcommit())

    def offers(self) -> NodeOffers:
        return offers(self.batch, self.prods[0], self.prods[1:])

    def records(self, found: NodeOffers) -> list[Any]:
        count = len(self.batch)
        return records(self.batch, found, ["percentile"] * count, [AT] * count)


def windows(nodes: int, pods: int) -> Iterator[Window]:
    """One window of each node, as the worker has it from its log."""
    for number, (node, value) in enumerate(ingest.samples(nodes, pods, 1, END_MS)):
        sample = read_rows(value)
        policy = POLICIES[number % len(POLICIES)]
        overcommit = Overcommit(
            cpu_calculate_policy=policy, memory_calculate_policy=policy, mid_unallocated_percent=10
        )
        known = [inventory.pod_record(node, uid, at) for at, uid in enumerate(sample.listing.uids)]
        rows = {
            pod.uid: pod_row(
                msgspec.structs.replace(pod, pod_class="mid") if at % 6 == 1 else pod
            )
            for at, pod in enumerate(known)
        }  # fmt: skip
        view = NodeObjects(inventory.node_record(node, overcommit), rows)
        window = join(
            sample, view, Strategy(), sample_offset=0, appended_ms=END_MS,
            pod_facts=listing_facts(sample.listing, rows, None),
        )  # fmt: skip
        yield as_decoded(window, encode_window(window))


def parts(fleet: Sequence[Window], at_once: int) -> list[Part]:
    """The nodes, `at_once` per part, with the Prod peaks of seeded predictors."""
    random = np.random.default_rng(7)
    found = []
    for start in range(0, len(fleet), at_once):
        some = list(fleet[start : start + at_once])
        peaks = [
            np.trunc(random.uniform(0.2, 0.6, (len(some), 2)) * (62_000, 2**38))
            for _ in range(PREDICTORS)
        ]
        prods = [Prod(reclaimable=peak / 2, peak=peak) for peak in peaks]
        batch = WindowBatch(some)
        _ = batch.average
        found.append(Part(batch, prods))
    return found


def amounts(
    nodes: NodeAmounts, pods: PodAmounts, policies: PolicyColumns
) -> tuple[IntArray, IntArray]:
    """Mid and Batch, idle capacity promised once."""
    to_mid = mid(nodes, allocated(len(nodes.capacity), pods), policies).amount
    return to_mid, batch(nodes, pods, policies, to_mid).amount


class Loop:
    """The same by loops over nodes, pods and resources: what the arrays are held against."""

    def __init__(self, nodes: NodeAmounts, pods: PodAmounts, policies: list[Overcommit]) -> None:
        """Take everything out of the arrays."""
        names = list(CLASS_CODES)
        self._pods: list[list[tuple[Any, ...]]] = [[] for _ in range(len(nodes.capacity))]
        for node, code, *rest in zip(*(column.tolist() for column in pods), strict=True):
            self._pods[node].append((names[code], *rest))
        self._nodes = [
            NodeAmounts(*row) for row in zip(*(column.tolist() for column in nodes), strict=True)
        ]
        self._policies = policies

    def amounts(self) -> tuple[list[list[int]], list[list[int]]]:
        """Mid and Batch of each node."""
        both = [
            [self._of_node(*each, r) for r in range(2)]
            for each in zip(self._nodes, self._pods, self._policies, strict=True)
        ]
        return [[m for m, _ in node] for node in both], [[b for _, b in node] for node in both]

    @staticmethod
    def _of_node(
        node: Any, pods: list[tuple[Any, ...]], policies: Overcommit, r: int
    ) -> tuple[int, int]:
        allocated = counted = counted_of_mid = 0
        resource = ("cpu", "memory")[r]
        policy = getattr(policies, f"{resource}_calculate_policy")
        for name, is_lse, is_listed, has_usage, request, usage in pods:
            asked = request[r] if is_listed else 0
            if name in ("prod", "none", "unknown"):
                allocated += asked
            if name in ("batch", "free") or not (is_listed or has_usage):
                continue
            used = usage[r] if has_usage else request[r]
            if policy == "request" and r == 1:
                count = asked
            elif policy == "maxUsageRequest":
                count = max(used, asked)
            else:
                count = request[r] if is_lse and is_listed and r == 0 else used
            counted += count
            counted_of_mid += count if name == "mid" else 0
        kept = max(node.allocatable[r] - allocated, 0)
        unused = max(node.capacity[r] - node.usage[r], 0) if node.has_usage else 0
        spare = max(allocated - node.prod_peak[r], 0) if node.has_peak else 0
        limit = node.allocatable[r] * getattr(policies, f"mid_{resource}_threshold_percent") // 100
        to_mid = min(spare, unused, limit) + kept * policies.mid_unallocated_percent // 100
        reserved = max(node.kubelet_reserved[r], node.annotated_reserved[r])
        outside = max(node.system[r] + node.prod_apps[r] + node.mid_apps[r], reserved)
        margin = 100 - getattr(policies, f"{resource}_reclaim_threshold_percent")
        left = node.capacity[r] - node.capacity[r] * margin // 100
        left -= (reserved if policy == "request" and r == 1 else outside) + counted
        return to_mid, max(left - max(to_mid - counted_of_mid, 0), 0)


class Timed(NamedTuple):
    """CPU seconds of each stage for all nodes; `amounts` is a part of `offers`, as `columns` is."""

    columns: float
    amounts: float
    offers: float
    records: float
    encoded: float

    @property
    def whole(self) -> float:
        return self.offers + self.records + self.encoded


def timed(of: Sequence[Part]) -> Timed:
    """Once through all stages."""

    def each(do: Callable[[Any], Any], over: Sequence[Any]) -> tuple[float, list[Any]]:
        began = time.process_time()
        made = [do(one) for one in over]
        return time.process_time() - began, made

    columns, found = each(Part.columns, of)
    worked_out, _ = each(lambda one: amounts(*one), found)
    offered, made = each(Part.offers, of)
    written, documents = each(lambda one: one[0].records(one[1]), list(zip(of, made, strict=True)))
    encoded, _ = each(lambda some: [encode_json(one) for one in some], documents)
    return Timed(columns, worked_out, offered, written, encoded)


def report(nodes: int, pods: int, at_once: Sequence[int], rounds: int) -> None:
    """The table."""
    fleet = list(windows(nodes, pods))
    (part,) = parts(fleet[:LOOPED_NODES], LOOPED_NODES)
    few = part.columns()
    loop = Loop(few[0], few[1], part.overcommit())
    # Else the collector goes through all windows while the loop makes its numbers.
    gc.collect()
    gc.freeze()
    began = time.process_time()
    expected = loop.amounts()
    looped = (time.process_time() - began) / len(few[0].capacity)
    if [of.tolist() for of in amounts(*few)] != list(expected):
        raise SystemExit("the loop's amounts differ from those of the arrays")
    print(f"{nodes:,} nodes of {pods} pods, CPU us a node")
    names = ("columns", "amounts", "offers", "records", "JSON", "all", "of all nodes")
    print(f"{'nodes at once':>14}" + "".join(f"{name:>9}" for name in names[:-1]), names[-1])
    for count in at_once:
        some = parts(fleet, count)
        runs = [timed(some) for _ in range(rounds)]
        best = min(runs, key=lambda run: run.whole)
        each = [1e6 * seconds / nodes for seconds in (*best, best.whole)]
        spread = "..".join(f"{one:.2f}" for one in (best.whole, max(run.whole for run in runs)))
        print(f"{count:>14}" + "".join(f"{us:>9.1f}" for us in each), f"{spread} s")
        print(f"{'loop: amounts':>14}{'':>9}{1e6 * looped:>9.1f}", end="  ")
        print(f"{looped * nodes / best.amounts:.1f} times the arrays'")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--pods", type=int, default=100)
    parser.add_argument("--at-once", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    report(given.nodes, given.pods, given.at_once, given.rounds)


if __name__ == "__main__":
    main()
