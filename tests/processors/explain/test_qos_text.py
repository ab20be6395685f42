"""What the node actuator holds, in text."""

from typing import Any

from pipeline.processors.explain.qos_text import explain_qos, held_values
from pipeline.topics.actions import ActionRecord

QUOTA, SHARES = "kubepods/besteffort cpu.quota", "kubepods/besteffort/poda cpu.shares"


def action(minute: int, after: dict[str, str | None], **more: Any) -> ActionRecord:
    fields: dict[str, Any] = {
        "node": "a", "at": f"2026-01-01T00:{minute:02}:00Z", "actuator": "node-actuator",
        "action": "cpu_suppression", "outcome": "done", "why": "600m for best-effort work",
        "before": dict.fromkeys(after, "max"), "after": after,
    }  # fmt: skip
    return ActionRecord(**fields | more)


def test_the_newest_value_of_each_place_is_shown() -> None:
    old, new = action(1, {QUOTA: "60000", SHARES: "2"}), action(2, {QUOTA: "50000"})
    values = held_values([new, old])
    assert [(v.cgroup, v.limit, v.now) for v in values] == [
        ("kubepods/besteffort", "cpu.quota", "50000"),
        ("kubepods/besteffort/poda", "cpu.shares", "2"),
    ]
    head, quota, _ = explain_qos("a", [old, new])
    assert head.split()[:4] == ["CGROUP", "LIMIT", "BEFORE", "NOW"]
    assert quota.split()[:4] == ["kubepods/besteffort", "cpu.quota", "max", "50000"]
    assert quota.endswith("600m for best-effort work")


def test_what_was_restored_and_what_others_did_is_left_out() -> None:
    restored = action(2, {QUOTA: "max"}, action="restore")
    other = action(3, {SHARES: "2"}, actuator="evictor")
    assert held_values([action(1, {QUOTA: "60000"}), restored, other]) == []
    (line,) = explain_qos("a", [other])
    assert "holds nothing" in line


def test_a_failure_shows_its_reason() -> None:
    failed = action(1, {QUOTA: "60000"}, outcome="failed", error="Read-only file system")
    assert list(explain_qos("a", [failed]))[1].endswith("Read-only file system")
