"""`springtide score` and `springtide why-not` over a table that is filled by hand."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from pipeline.cli import score, why_not
from pipeline.cli.extender_client import ExtenderClient
from pipeline.cli.main import cli
from pipeline.extender.decision_rules import rules_of
from pipeline.extender.decisions import Decisions
from pipeline.extender.explain_documents import Explanation
from pipeline.extender.query_api import explain, read_subject
from pipeline.settings import ExtenderSettings, Settings
from pipeline.table import Table
from pipeline.table.node_columns import TableNode
from pipeline.topics.node_state import Dispute
from pipeline.topics.resource_amounts import Resources, Usage
from tests.extender.conftest import cluster
from tests.table.records import GIB, NOW, node_state

POD = """
apiVersion: v1
kind: Pod
metadata: {name: web-0, namespace: shop}
spec:
  containers:
  - name: web
    resources: {requests: {cpu: 500m, memory: 1Gi}}
"""


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Answer from `table` in `mode`, and record the `extender` and the `question`."""
    fake: dict[str, Any] = {"table": cluster(), "mode": "act"}

    async def explanation(
        settings: Settings, extender: ExtenderClient | None, question: bytes
    ) -> Explanation:
        fake.update(extender=extender, question=question)
        decisions = Decisions(fake["table"], rules_of(ExtenderSettings()))
        return explain(decisions, fake["table"], read_subject(question), NOW, fake["mode"])()

    for module in (score, why_not):
        monkeypatch.setattr(module, "request_explanation", explanation)
    return fake


@pytest.fixture
def pod(tmp_path: Path) -> str:
    file = tmp_path / "pod.yaml"
    file.write_text(POD)
    return str(file)


def run(*arguments: str, **more: Any) -> Result:
    return CliRunner().invoke(cli, list(arguments), **more)


def test_score_lists_nodes_best_first(answers: dict[str, Any], pod: str) -> None:
    result = run("score", "-f", pod, "--extender", "http://e:1")
    assert (result.exit_code, answers["extender"].url) == (0, "http://e:1")
    headers, *rows = (re.split(" {2,}", line) for line in result.stdout.splitlines())
    nodes = {row[0]: dict(zip(headers, row, strict=True)) for row in rows}
    assert [*nodes] == ["idle", "busy", "blind", "old", "full", "hot"]
    assert nodes["idle"] == {
        "NODE": "idle", "SCORE": "82", "LoadAwareScheduling": "82", "WINDOW": "10 s ago",
        "VERDICT": "passed", "REASON": "-",
    }  # fmt: skip
    assert (nodes["hot"]["SCORE"], nodes["hot"]["LoadAwareScheduling"]) == ("-", "-")
    assert "cpu usage would be" in nodes["hot"]["REASON"]
    assert "NODE" not in run("score", "-f", pod, "--no-headers").stdout


def test_score_json_is_the_extenders_document_best_first(answers: dict[str, Any], pod: str) -> None:
    document = json.loads(run("score", "-f", pod, "-o", "json").stdout)
    assert document["kind"] == "PlacementExplanation"
    assert document["pod"]["requests"] == {"cpu_millicores": 500, "memory_bytes": 2**30}
    assert [item["node"] for item in document["items"]][:2] == ["idle", "busy"]


def test_score_exits_with_4_if_no_node_passes(answers: dict[str, Any], pod: str) -> None:
    for name in ("idle", "busy", "blind", "old"):
        answers["table"].drop_state(name)
    result = run("score", "-f", pod)
    assert (result.exit_code, "none of 2 nodes would take the pod" in result.stderr) == (4, True)
    answers["table"] = Table()
    result = run("score", "-f", pod)
    assert (result.exit_code, result.stdout, "no node is known" in result.stderr) == (4, "", True)


def test_score_reads_a_manifest_from_standard_input(answers: dict[str, Any]) -> None:
    assert run("score", "-f", "-", input=POD).exit_code == 0
    assert json.loads(answers["question"])["pod"]["metadata"]["name"] == "web-0"


def test_score_exits_with_2_for_an_invalid_file(answers: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("kind: Pod\nspec: {containers: [{}]}")
    for name, text in (
        ("none.yaml", "none.yaml: No such file or directory\n"),
        ("bad.yaml", "pod: "),
    ):
        result = run("score", "-f", str(tmp_path / name))
        assert (result.exit_code, text in result.stderr) == (2, True), result.stderr
    assert run("score").exit_code == 2


def test_why_not_shows_score_and_rank_of_a_passing_node(answers: dict[str, Any], pod: str) -> None:
    result = run("why-not", "-f", pod, "busy")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "busy would take shop/web-0",
        "  score 42 of 100 (LoadAwareScheduling 42), rank 2 of the 4 nodes that would take it",
        "  its last window ended 10 s ago",
    ]
    assert "not judged" in run("why-not", "-f", pod, "old").stdout
    assert run("why-not", "-f", pod, "blind").stdout.splitlines()[::2] == [
        "blind would take shop/web-0, judged by estimates",
        "  usage of cpu and memory is unknown: estimates of the pods on the node count",
    ]


def test_why_not_shows_the_rule_that_refuses_a_node(answers: dict[str, Any], pod: str) -> None:
    answers["mode"] = "observe"
    result = run("why-not", "-f", pod, "hot")
    assert result.exit_code == 4
    assert result.stdout.splitlines() == [
        "hot would not take shop/web-0: node(s) cpu usage exceed threshold",
        "  cpu usage would be 100.6% of 4000m, over the threshold of 65%: 3600m used "
        "12 s ago + 425m for this pod",
        "  kube-scheduler's preemption would not help",
        "  its last window ended 12 s ago",
        "  the extender is in mode observe: it lets every node pass",
    ]
    output = run("why-not", "-f", pod, "hot", "-o", "json")
    nodes = [item["node"] for item in json.loads(output.stdout)["items"]]
    assert (output.exit_code, nodes) == (4, ["hot"])


def test_why_not_names_a_dispute_and_the_usage_that_counts(
    answers: dict[str, Any], pod: str
) -> None:
    ours, other = Usage(cpu_cores=2.0, memory_bytes=8 * GIB), Usage(cpu_cores=0.5)
    since = "2023-11-14T22:10:00Z"
    dispute = Dispute(source="prometheus", usage=other, believed=ours, since=since)
    state = node_state("busy", cpu=2.0, memory=8 * GIB, offset=1, dispute=dispute)
    answers["table"].put_state(state)
    text = f"  two sources differ since {since}: 2000m and 8.0Gi counts, prometheus reports 500m"
    result = run("why-not", "-f", pod, "busy")
    assert (result.exit_code, text in result.stdout.splitlines()) == (0, True), result.stdout
    (item,) = json.loads(run("why-not", "-f", pod, "busy", "-o", "json").stdout)["items"]
    assert (item["verdict"], item["dispute"]["source"]) == ("passed", "prometheus")
    # What is believed may be too low: estimates of the pods count where they are more.
    doubted = msgspec.structs.replace(dispute, is_more=True)
    answers["table"].put_state(msgspec.structs.replace(state, offset=2, dispute=doubted))
    (item,) = json.loads(run("why-not", "-f", pod, "busy", "-o", "json").stdout)["items"]
    assert (item["verdict"], item["estimated"]) == ("estimated", ["cpu", "memory"])
    (item,) = json.loads(run("why-not", "-f", pod, "idle", "-o", "json").stdout)["items"]
    assert item["dispute"] is None


def test_why_not_says_that_the_pod_is_already_there(
    answers: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "placed.yaml"
    file.write_text(POD.replace("spec:", "spec:\n  nodeName: busy"))
    there, verdict, *_ = run("why-not", "-f", str(file), "busy").stdout.splitlines()
    assert there == "shop/web-0 is already there: it runs on busy. Another pod like it:"
    assert verdict == "busy would take shop/web-0"
    assert "already there" not in run("why-not", "-f", str(file), "idle").stdout


def test_why_not_says_that_a_node_is_new(answers: dict[str, Any], pod: str) -> None:
    room = Resources(cpu_millicores=4000, memory_bytes=16 << 30)
    answers["table"].put_node(TableNode(node="fresh", allocatable=room))
    lines = run("why-not", "-f", pod, "fresh").stdout.splitlines()
    assert "  new node: counted as empty until it reports" in lines, lines
    assert "new node" not in run("why-not", "-f", pod, "busy").stdout


def test_why_not_passes_daemon_sets_on_every_node(answers: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "ds.yaml"
    file.write_text("kind: DaemonSet\nmetadata: {name: log}\nspec: {template: {spec: {}}}")
    result = run("why-not", "-f", str(file), "hot")
    assert result.exit_code == 0
    assert "hot would take -/log: pods of a DaemonSet pass everywhere" in result.stdout


def test_why_not_exits_with_2_for_unknown_names(answers: dict[str, Any], pod: str) -> None:
    result = run("why-not", "-f", pod, "idel")
    assert (result.exit_code, "node 'idel' is not known" in result.stderr) == (2, True)
    assert "did you mean idle?" in result.stderr
    for names in (["idle"], ["-f", pod, "a", "b"], ["a", "b", "c"]):
        result = run("why-not", *names)
        assert (result.exit_code, "give POD NODE" in result.stderr) == (2, True)


def test_unavailable_broker_or_extender_is_named(pod: str) -> None:
    broker = ("--bootstrap-servers", "127.0.0.1:1")
    for arguments in (["score", "-f", pod], ["why-not", "-f", pod, "a"], ["why-not", "p", "a"]):
        result = run(*arguments, *broker)
        assert (result.exit_code, "127.0.0.1:1" in result.stderr) == (1, True), result.output
    result = run("score", "-f", pod, "--extender", "http://127.0.0.1:1")
    assert result.exit_code == 1
    assert "no extender answers at http://127.0.0.1:1/v1/explain" in result.stderr


@pytest.mark.parametrize(
    ("url", "warns"),
    [
        ("http://extender.example:8888", True),
        ("https://extender.example:8888", False),
        ("http://127.0.0.1:8888", False),
        ("http://[::1]:8888", False),
    ],
)
def test_a_token_without_tls_is_a_warning_except_on_this_machine(
    answers: dict[str, Any], pod: str, tmp_path: Path, url: str, warns: bool
) -> None:
    token = tmp_path / "token"
    token.write_text("\n secret \nsecond\n")
    arguments = ["--extender", url, "--extender-token-file", str(token)]
    result = run("score", "-f", pod, *arguments)
    assert ("without encryption" in result.stderr) == warns
    assert "secret" not in result.output
    assert answers["extender"].token == "secret"


def test_a_token_file_with_a_comment_is_invalid(pod: str, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("# token of prometheus\nsecret\n")
    arguments = ["--extender", "https://host:8888", "--extender-token-file", str(token)]
    result = run("score", "-f", pod, *arguments)
    assert result.exit_code == 2
    assert "line 1 is no token" in result.stderr
