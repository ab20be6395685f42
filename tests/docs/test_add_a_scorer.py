"""The scorer of docs/how-to/add-a-scorer.md is found, obeys the laws and scores nodes."""

from pathlib import Path

from tests.docs.guides import blocks, install, run

GUIDE = "add-a-scorer.md"

CHECK = """
import sys, yaml
from pipeline.extender.decisions import Decisions, Rules
from pipeline.processors.placement.enabled_plugins import read_config
from pipeline.table import Table
from pipeline.table.node_columns import TableNode
from pipeline.topics.pods import PodRecord
from pipeline.topics.resource_amounts import Resources

def pod(uid, node=""):
    return PodRecord(
        node=node, uid=uid, cgroup_uid=uid, namespace="d", name=uid, phase="Running",
        scalars={"nvidia.com/gpu": 1},
    )

rules = Rules(read_config(yaml.safe_load(sys.stdin.read())), score_steps=100)
table = Table(counting=rules.counting)
room = Resources(cpu_millicores=4000, memory_bytes=1 << 34)
for name, gpus in (("empty", 4), ("full", 1), ("half", 4)):
    table.put_node(TableNode(node=name, allocatable=room, scalars={"nvidia.com/gpu": gpus}))
for name in ("full", "half"):
    table.put_pod(pod(f"on-{name}", name))
scored = Decisions(table, rules).prioritize(pod("new"), ["empty", "full", "half"], 1.7e9)
print(scored.plugins["PackGpus"].tolist())
"""


def test_the_guides_scorer_scores_nodes_in_the_extender(tmp_path: Path) -> None:
    module, check = blocks(GUIDE, "python")
    (toml,) = blocks(GUIDE, "toml")
    install(tmp_path, "gpu-tools", "pack_gpus", module, toml)
    run(check, tmp_path)
    (config,) = blocks(GUIDE, "yaml")
    assert run(CHECK, tmp_path, config) == "[25, 0, 50]\n"
