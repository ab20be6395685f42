"""A trace and policies that are replayed over it."""

from typing import Any

import msgspec
import numpy as np

from pipeline.cli.replayed_policies import NodeAmounts, read_policy, replayed_policy
from pipeline.processors.backtest.trace import Trace
from pipeline.processors.backtest.trace_tables import read_traces
from pipeline.processors.backtest.what_if import (
    PolicyOutcome,
    ReplayedPolicy,
    replay_outcome,
)
from pipeline.settings import Settings
from tests.processors.backtest.trace_files import (
    PLACEMENT,
    SERIES,
    series_row,
    stay_row,
    table_of,
)

STEPS, NODES = 160, 3
SPRINGTIDE_KEYS = ("safetyMarginPercent", "midFormula", "predictor", "promiseOnce")


def trace_of(allocatable_m: int) -> Trace:
    """Nodes that are busy at times, and a pod that comes and goes."""
    random = np.random.default_rng(6)
    metadata = {"step_s": "300", "t0_unix": "1700000100", "steps": str(STEPS)}
    series, stays = [], []
    for n in range(NODES):
        for p in range(2):
            busy = 400 * (np.arange(STEPS) // 20 % 3 == n)
            cpu = np.clip(200 + busy + random.normal(0, 60, STEPS), 0, 1000).round().astype(int)
            memory = np.clip(300 + 0.3 * busy + random.normal(0, 9, STEPS), 0, 1024)
            series.append(
                series_row(
                    f"s{n}{p}", cpu.tolist(), cpu_request_m=800, mem_request_mi=512,
                    mem_limit_mi=1024, mem_mi=memory.round().astype(int).tolist(),
                )
            )  # fmt: skip
            begin, end = (20, 130) if p else (0, STEPS)
            own = {"node": f"n{n}", "allocatable_m": allocatable_m}
            stays.append(stay_row(f"p{n}{p}", f"s{n}{p}", begin, end, **own))
    (made,) = read_traces(
        "made", table_of(series, SERIES, metadata), table_of(stays, PLACEMENT, metadata)
    )
    return made


def policy_text(high: int = 60, **changes: Any) -> bytes:
    colocation = {"enable": True, "nodePredictPolicy": {"coldStartPeriodSeconds": 3600}}
    springtide: dict[str, Any] = {"bufferPercent": 0}
    for key, value in changes.items():
        (springtide if key in SPRINGTIDE_KEYS else colocation)[key] = value
    objects = [
        {
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "slo-controller-config", "namespace": "koordinator-system"},
            "data": {
                "colocation-config": msgspec.json.encode(colocation).decode(),
                "springtide-config": msgspec.json.encode(springtide).decode(),
            },
        },
        {
            "apiVersion": "descheduler/v1alpha2", "kind": "DeschedulerConfiguration",
            "profiles": [
                {
                    "name": "balance",
                    "plugins": {"balance": {"enabled": [{"name": "LowNodeLoad"}]}},
                    "pluginConfig": [
                        {
                            "name": "LowNodeLoad",
                            "args": {
                                "highThresholds": {"cpu": high, "memory": 90},
                                "lowThresholds": {"cpu": 20, "memory": 60},
                            },
                        }
                    ],
                }
            ],
        },
    ]  # fmt: skip
    return b"\n---\n".join(msgspec.json.encode(each) for each in objects)


def policy_of(trace: Trace, text: bytes) -> ReplayedPolicy:
    file = read_policy(text, "policy", Settings())
    return replayed_policy(trace, file, NodeAmounts.of(trace, "limits"))


def outcome_of(trace: Trace, text: bytes) -> PolicyOutcome:
    return replay_outcome(trace, policy_of(trace, text), 24, 4)
