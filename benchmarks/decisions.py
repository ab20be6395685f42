"""Measure the processor time of filter and prioritize alone, without HTTP, broker and feed.

    python -m benchmarks.decisions [--nodes 10000] [--pods 100] [--refused 0 10 50 100]
                                   [--plugins default all]

A pod is a filter of all nodes, asked by name and each time in another order, and then a prioritize
of the nodes that passed. Before each pod one node state arrives, every node has a pod in flight,
and four of five pods stay placed. Times are milliseconds of processor time per stage: the median,
and the tenth percentile, which other work on the machine changes less. If the user is root, the
process has a real-time priority meanwhile. The baseline is a plain Python loop over the records of
all nodes for one question.
"""

import argparse
import gc
import itertools
import json
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from benchmarks.asking import pods, shuffled
from benchmarks.extender import PLUGINS, Fleet, plain_loop, record, state
from pipeline.extender.decision_rules import rules_of
from pipeline.extender.decisions import Decisions
from pipeline.extender.scheduler_messages import (
    FilterReply,
    filter_reply,
    prioritize_reply,
    read_question,
)
from pipeline.settings import ExtenderSettings
from pipeline.table import Table
from pipeline.table.node_columns import TableNode
from pipeline.times import format_time
from pipeline.topics.codec import decode_json
from pipeline.topics.node_state import NodeStateRecord
from pipeline.topics.resource_amounts import Resources

_UNCOUNTED = 5
_ROOM = Resources(cpu_millicores=32_000, memory_bytes=128 << 30)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--pods", type=int, default=100)
    parser.add_argument("--refused", type=int, nargs="+", default=[0, 10, 50, 100])
    parser.add_argument("--plugins", nargs="+", choices=[*PLUGINS], default=[*PLUGINS])
    arguments = parser.parse_args()
    fleet = Fleet(arguments.nodes, 1)
    for plugins in arguments.plugins:
        with tempfile.TemporaryDirectory() as folder:
            config = Path(folder, "scheduler.yaml")
            config.write_text(json.dumps(PLUGINS[plugins](fleet)))
            file = None if plugins == "default" else str(config)
            rules = rules_of(ExtenderSettings(mode="act", scheduler_config_file=file))
        table = filled(Table(counting=rules.counting), fleet)
        for percent in arguments.refused:
            took = ask(Decisions(table, rules), table, fleet, percent, arguments.pods)
            print(f"{plugins} plugins, {percent}% refused: {_summary(took)}", flush=True)
    with _real_time():
        print(f"plain loop, one question: {plain_loop(fleet) * 1000:.1f} ms")


def filled(table: Table, fleet: Fleet) -> Table:
    long_ago = format_time(time.time() - 86_400)
    for at, name in enumerate(fleet.names):
        labels = {"zone": "a"}
        table.put_node(TableNode(node=name, allocatable=_ROOM, capacity=_ROOM, labels=labels))
        table.put_pod(record(f"running-{at}", name, long_ago, "Running"))
        table.put_pod(record(f"pending-{at}", name, long_ago, "Pending"))
    return table


def ask(
    decisions: Decisions, table: Table, fleet: Fleet, percent: int, count: int
) -> dict[str, list[float]]:
    """Processor seconds of each stage, by pod."""
    names, offset = fleet.names, int(time.time() * 1000)

    def report(at: int, offset: int) -> None:
        table.put_state(decode_json(NodeStateRecord, state(names[at], at, offset, percent)))

    for at in range(fleet.nodes):
        report(at, offset)
    orders, asked = itertools.cycle(shuffled(names)), pods()
    took: dict[str, list[float]] = defaultdict(list)
    replies: dict[bytes, FilterReply] = {}
    gc.collect()
    with _real_time():
        for number in range(count + _UNCOUNTED):
            report(number % fleet.nodes, offset + 1 + number)
            head = b'{"Pod":%s,"NodeNames":' % json.dumps(next(asked)).encode()
            body, now, laps = head + next(orders) + b"}", time.time(), [time.thread_time()]
            question = read_question(body, table)
            laps.append(time.thread_time())
            result = decisions.filter(question.record, question.names, now)
            laps.append(time.thread_time())
            reply = filter_reply(question, result.passed, result.refusals)
            laps.append(time.thread_time())
            _note(took, "filter", laps)
            if not result.passed:
                continue
            replies[question.pod_json], laps = reply, [time.thread_time()]
            question = read_question(head + reply.names + b"}", table, replies)
            del replies[question.pod_json]
            laps.append(time.thread_time())
            scores = decisions.prioritize(question.record, question.names, now)
            decisions.place(question.record, question.names[scores.best or 0], now)
            laps.append(time.thread_time())
            prioritize_reply(question.names, scores.steps)
            laps.append(time.thread_time())
            _note(took, "prioritize", laps)
            if number % 5 == 0:
                table.withdraw(question.record.uid)
    return took


def _note(took: dict[str, list[float]], verb: str, laps: list[float]) -> None:
    for stage, began, ended in zip(("read", "decide", "write"), laps, laps[1:], strict=False):
        took[f"{verb} {stage}"].append(ended - began)


def _summary(took: dict[str, list[float]]) -> str:
    stages = {
        name: np.percentile(times[_UNCOUNTED:], [50, 10]) * 1000 for name, times in took.items()
    }
    stages["all"] = np.sum([*stages.values()], axis=0)
    return ", ".join(f"{name} {p50:.2f} ({p10:.2f})" for name, (p50, p10) in stages.items()) + " ms"


@contextmanager
def _real_time() -> Iterator[None]:
    """Let this process run before all others, if the user may set that."""
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    yield
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


if __name__ == "__main__":
    main()
