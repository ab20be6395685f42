"""Hot nodes from end to end, as `springtide demo --hot-node` shows them: recorded usage opens
alerts, a planner plans, an evictor evicts, the real scheduler binds the replacement by our
extender, the alert closes, and the plan has helped. Nothing leaves the node with a budget of none.

The demo starts its own broker and control plane, and every role with the permissions of
deploy/chart/rbac.
"""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.local.hot_node_scenario import PROTECTED, RELIEVED, SPARE_NODES
from tests.demo.demo_runs import Run, assert_nothing_left, demo_directory

pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(1800)]

STARTED = r"started watcher, worker, extender, planner, evictor"


@pytest.fixture
def directory() -> Iterator[Path]:
    with demo_directory() as path:
        yield path


def told(text: str, node: str) -> list[str]:
    """What the demo told about a node, without the times."""
    text = re.sub(r"\n {27}", " ", text)  # lines that were broken
    return re.findall(rf"^\d\d:\d\d:\d\d  {node} +(\S.*)$", text, re.M)


def test_a_hot_node_is_relieved_once_and_one_with_a_budget_of_none_is_not(directory: Path) -> None:
    kept = directory / "output-kept"
    run = Run(directory, "--hot-node", "--keep", str(kept))
    assert run.process.wait(1500) == 0, run.text
    moved = told(run.text, RELIEVED.name)
    pod = r"default/web-\w+-\w+"
    story = [
        r"uses \d+% of its CPU; it is hot when the average of 60 s is above 65%",
        r"alert node_cpu opened \(warning\): \d\d\.\d%, average of 60 s; the threshold is 65%",
        r"plan of LowNodeLoad, valid for 60 s: .* 1 pod leaves, then cpu .* relieved",
        rf"{pod} \(prod, \d+m?\) to spare-[12], which then uses \d\d% of its CPU",
        r"not to gpu-1: the pod does not tolerate the taint nvidia.com/gpu:NoSchedule",
        rf"evictor asks the API server to evict {pod}",
        rf"evicted {pod}",
        r"alert node_cpu closed \(cooled\) after \d+ s: .*",
        r"outcome: the plan helped: the node cooled, and no target got hot .*",
    ]
    for line in story:
        assert len([each for each in moved if re.fullmatch(line, each)]) == 1, (line, run.text)
    order = [next(i for i, each in enumerate(moved) if re.fullmatch(s, each)) for s in story]
    assert order == sorted(order), run.text
    bound = [line for node in SPARE_NODES for line in told(run.text, node)]
    assert len(bound) == 1, run.text
    assert bound[0].startswith("kube-scheduler bound a new pod of web here")

    stayed = told(run.text, PROTECTED.name)
    assert [line for line in stayed if line.startswith("alert node_cpu opened")], run.text
    assert not [line for line in stayed if "closed" in line or line.startswith("evicted")]
    refusal = r"not evicted: default/db-\S+: .* disruption budget default/db allows 0 evictions.*"
    assert [line for line in stayed if re.fullmatch(refusal, line)], run.text

    assert len(re.findall(r"^(?:\w+ )+ +(?:web|db)-node +\d+ s$", run.text, re.M)) == 11, run.text
    assert "everything was seen: web-node was relieved, and nothing was evicted from db-node" in (
        run.text
    )
    files = {path.name for path in kept.iterdir()}
    assert {"planner.log", "evictor.log", "kube-scheduler.log", "settings.yaml"} <= files
    assert_nothing_left(run)


def test_ctrl_c_ends_the_demo_and_all_its_processes(directory: Path) -> None:
    run = Run(directory, "--hot-node")
    run.wait_for(STARTED)
    os.killpg(run.process.pid, signal.SIGINT)  # the terminal sends it to the whole group
    assert run.process.wait(180) == 130, run.text
    assert "error" not in run.text
    assert_nothing_left(run)


def test_a_role_that_ends_is_named_with_the_place_of_the_logs(directory: Path) -> None:
    run = Run(directory, "--hot-node")
    run.wait_for(STARTED)
    (pid,) = [pid for pid, command in run.processes().items() if " planner --kube" in command]
    os.kill(pid, signal.SIGKILL)
    assert run.process.wait(180) == 1, run.text
    assert "the demo's planner ended by signal 9; its log ends:" in run.text
    (logs,) = re.findall(r"the logs of all parts are in (\S+)$", run.text, re.M)
    assert {"planner.log", "kube-apiserver.log"} <= {path.name for path in Path(logs).iterdir()}
    assert run.folders() == [Path(logs)]
