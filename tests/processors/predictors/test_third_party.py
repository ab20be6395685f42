"""A predictor that comes with another package is found, held to the laws, and may decide."""

import os
import subprocess
import sys
from pathlib import Path

# A process of its own sees the other package as if it had been installed beside ours.
CHECK = """
import numpy as np
from pipeline.processors.bank import Bank
from pipeline.processors.predictors.registry import available
from pipeline.processors.predictors.suite import check_predictor
from pipeline.processors.window import ModelConfig
from pipeline.topics.nodes import Strategy
from tests.processors.windows import GIB, Pod, window

point = available()["flat-tide"]
assert point.dist.name == "flat-tide"
check_predictor(point.load())

config = ModelConfig(
    predictors=("percentile", "flat-tide"), options={"flat-tide": {"factor": 2.0}}
)
bank = Bank(config)
pods = [Pod("a", (1.0, GIB), requests=(8000.0, 8 * GIB))]
for end in range(12):
    now = window(end, pods, usage=(3.0, 2 * GIB))
    if end == 11:
        (before,) = bank.peaks([now.node])
        now.strategy = Strategy(predictor="flat-tide", safety_margin_percent=0.0)
    bank.apply([now])
(after,) = bank.peaks([now.node])
assert (before.decides, after.decides) == ("percentile", "flat-tide")
assert after.decided.raw[0].tolist() == [6.0, 4 * GIB]
# Of 8 cores 2 * 1.0 are expected of the pod, and as much of the system.
assert after.reclaimable.amount[0] == 8000.0 - 2000.0 - 4000.0
assert before.reclaimable.amount[0] != after.reclaimable.amount[0]
print("decided")
"""


def test_a_predictor_of_another_package_decides_when_the_strategy_names_it(project: Path) -> None:
    """NP-29."""
    paths = (project, project / "node-exporter", project / "tests" / "data" / "third_party")
    ran = subprocess.run(
        [sys.executable, "-c", CHECK],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (0, "decided\n"), ran.stderr
