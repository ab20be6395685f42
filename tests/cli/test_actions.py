"""`springtide actions`: what actuators did, of all nodes or of one, past or as it happens."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pipeline.cli import actions
from pipeline.cli.main import cli
from pipeline.topics.actions import ActionRecord
from pipeline.topics.codec import encode_json
from tests.cli.fake_topic import fake_topic

NOW = 1_700_000_000.0


def action(node: str, at: str, outcome: Any, **fields: Any) -> ActionRecord:
    return ActionRecord(
        **{
            "node": node, "at": f"2023-11-14T22:{at}Z", "actuator": "evictor", "action": "evict",
            "outcome": outcome, "why": "plan 7: it is hot", "plan": "7",
            "before": {"default/web-0": "uid-0"}, "after": {"default/web-0": None},
        } | fields
    )  # fmt: skip


REFUSED = action("db", "13:00", "refused", error="evictions are stopped by /api/v1/x")
DONE = action("web", "12:00", "done")
MARK = action("", "12:30", "done", action="mark the log", before={}, after={}, plan="")
WRITTEN = action(
    "web", "14:00", "done", actuator="actuator", action="patch", why="Batch shrank", plan="",
    before={"batch-cpu": "4000", "mid-cpu": None, "mid-memory": "0"},
    after={"batch-cpu": "1000", "mid-cpu": "20", "mid-memory": "0"},
)  # fmt: skip
SAME = action(
    "web", "14:30", "done", actuator="actuator", action="patch", why="written over", plan="",
    before={"mid-memory": "0"}, after={"mid-memory": "0"},
)  # fmt: skip


def run(
    monkeypatch: pytest.MonkeyPatch, past: Sequence[ActionRecord], *arguments: str,
    since_seconds: float = 3600.0, later: Sequence[ActionRecord] = (), bad: bytes = b"",
) -> Result:  # fmt: skip
    """Run the command over records of the past, and later ones, after which Ctrl-C comes."""
    batches = [[*map(encode_json, past), *([bad] if bad else [])], [*map(encode_json, later)]]

    fake_topic(monkeypatch, actions, "springtide.actions", batches, since_seconds)
    return CliRunner().invoke(cli, ["actions", *arguments])


def test_actions_of_the_last_hour_are_listed_by_time_with_their_reasons(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = run(monkeypatch, [WRITTEN, REFUSED, MARK, DONE, SAME])
    assert result.exit_code == 0
    assert [" ".join(line.split()) for line in result.stdout.splitlines()] == [
        "TIME NODE ACTUATOR OUTCOME SUBJECT REASON",
        "2023-11-14T22:12:00Z web evictor done default/web-0 plan 7: it is hot",
        "2023-11-14T22:13:00Z db evictor refused default/web-0 evictions are stopped by /api/v1/x",
        "2023-11-14T22:14:00Z web actuator done batch-cpu 4000 -> 1000, mid-cpu - -> 20 "
        "Batch shrank",
        "2023-11-14T22:14:30Z web actuator done mid-memory 0 -> 0 written over",
    ]


def test_only_actions_of_the_given_node_and_time_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("db", "--since", "90s", "--no-headers")
    result = run(monkeypatch, [REFUSED, DONE], *arguments, since_seconds=90.0)
    assert [line.split()[1] for line in result.stdout.splitlines()] == ["db"]


@pytest.mark.parametrize("since", ["2023-11-14T21:43:20Z", "30m"])
def test_since_is_a_time_or_how_long_it_is_ago(monkeypatch: pytest.MonkeyPatch, since: str) -> None:
    result = run(monkeypatch, [DONE], "--since", since, since_seconds=1800.0)
    assert (result.exit_code, "web" in result.stdout) == (0, True)


def test_a_refusal_of_a_whole_plan_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    late = action("db", "13:00", "refused", before={}, after={}, error="Late: x")
    (line,) = run(monkeypatch, [late], "--no-headers").stdout.splitlines()
    assert line.endswith("refused  all pods of the plan  Late: x")


def test_watch_shows_new_actions_until_it_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, [DONE], "web", "--watch", later=[REFUSED, WRITTEN])
    assert result.exit_code == 0
    assert [line.split()[2] for line in result.stdout.splitlines()] == [
        "ACTUATOR", "evictor", "actuator",
    ]  # fmt: skip


def test_json_has_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    document = json.loads(run(monkeypatch, [REFUSED, MARK], "-o", "json").stdout)
    (item,) = document["items"]
    assert (item["node"], item["error"]) == ("db", "evictions are stopped by /api/v1/x")


def test_no_action_is_said_and_bad_records_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, [], bad=b"\xff{")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "warning: skipped a record of springtide.actions" in result.stderr
    assert result.stderr.endswith("no action since 2023-11-14T21:13:20Z\n")
    other = run(monkeypatch, [DONE], "db\x1b")
    assert other.stderr == "no action about node db\\x1b since 2023-11-14T21:13:20Z\n"


def test_many_bad_records_are_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    polls = [[encode_json(DONE), *[b"\xff{"] * 1500], [b"[]"]]
    fake_topic(monkeypatch, actions, "springtide.actions", polls, 3600.0)
    result = CliRunner().invoke(cli, ["actions", "--watch"])
    past, later = result.stderr.splitlines()
    assert past.startswith(
        "warning: skipped 1,500 records, the first of springtide.actions, partition 0, offset 1: "
    )
    assert later.startswith("warning: skipped a record of springtide.actions, partition 0, offset")


def test_reasons_in_records_cannot_fake_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    hostile = action("db", "13:00", "refused", error="a\x1b[2J\nb")
    (line,) = run(monkeypatch, [hostile], "--no-headers").stdout.splitlines()
    assert line.endswith("a\\x1b[2J\\nb")


PLAN = "hot-node/LowNodeLoad/2023-11-14T22:00:00Z/0.0"
WHY = (
    f"plan {PLAN}: pool gold: node usage of cpu is 75.00%, above 70.00%; node usage of memory is "
    "81.25%, above 80.00%; 2 pods leave, then cpu 62.5%, memory 70.9%, relieved"
)


def planned(pod: str, at: str, outcome: Any, **fields: Any) -> ActionRecord:
    names = {"before": {pod: "uid"}, "after": {pod: None}}
    return action("hot-node", at, outcome, **({"plan": PLAN, "why": WHY} | names | fields))


def test_lines_are_short_and_say_everything_once(monkeypatch: pytest.MonkeyPatch) -> None:
    error = "Forbidden: " + 9 * "the budget allows no disruption, "
    actions = [
        planned("shop/web-7f9c-1", "13:00", "intended"),
        planned("shop/web-7f9c-1", "13:01", "done"),
        planned("shop/web-7f9c-2", "13:02", "refused", error=error),
        planned("shop/web-7f9c-3", "13:03", "done", plan="other", why=WHY),
        planned(f"shop/{150 * 'x'}", "13:04", "done"),
        action(240 * "n", "13:05", "done"),
    ]
    lines = run(monkeypatch, actions, "--no-headers").stdout.splitlines()
    assert max(map(len, lines)) <= 120
    texts = " ".join(" ".join(line.split()) for line in lines)
    assert texts.count(WHY) == 2  # by plan
    assert f"done shop/web-7f9c-1 plan {PLAN} 2023" in texts
    assert " ".join(error.split()) in texts
    joined = "".join(line.strip() for line in lines)
    assert f"shop/{150 * 'x'}" in joined
    assert 240 * "n" in joined
    # Each action begins a line, and only those.
    assert [line[:20] for line in lines if not line.startswith(" ")] == [a.at for a in actions]


def test_a_plan_is_explained_once_while_actions_are_watched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = planned("shop/a", "13:00", "intended"), planned("shop/a", "13:01", "done")
    result = run(monkeypatch, [first], "--watch", later=[second])
    assert result.stdout.count("pool gold") == 1
    assert f"plan {PLAN}\n" in result.stdout


def test_outcomes_of_plans_with_one_text_are_all_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = [
        action("hot", "13:00", "done", actuator="planner", action="outcome", plan=plan,
               why="the node cooled", before={}, after={})
        for plan in ("a", "b")
    ]  # fmt: skip
    lines = run(monkeypatch, outcomes, "--no-headers").stdout.splitlines()
    assert [line.endswith("the node cooled") for line in lines] == [True, True]


def test_a_text_of_a_megabyte_is_shown_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    huge = action("db", "13:00", "refused", error=1_000_000 * "x")
    lines = run(monkeypatch, [huge], "--no-headers").stdout.splitlines()
    assert "".join(line.strip() for line in lines).endswith(1_000_000 * "x")
